"""A look at a trained run: embeddings of some of its test images, its most confident mistakes, its pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..angle import unit_and_norm
from ..errors import InputError
from ..metrics.verification import VerificationMetrics, verification_metrics_of_embeddings
from .finished import Run
from .unseen import embed

MAX_REPORT_IMAGES = 1000  # images: enough to see, few enough to wait for
_NUM_MISTAKES = 12


@dataclass(frozen=True)
class Mistake:
    """An image that was named wrongly, and how sure the run was."""

    pixels: NDArray[np.uint8]
    true_class: str
    predicted_class: str
    probability: float


@dataclass(frozen=True, eq=False)
class RunInspection:
    """What there is to see."""

    num_images: int
    unit_embeddings: NDArray[np.float64]
    """Unit embeddings [N, D]."""
    y: NDArray[np.int64]
    class_names: tuple[str, ...]
    mistakes: list[Mistake]
    weights: NDArray[np.float64] | None
    """Unit class weights [C, D], where they are those of the images' classes."""
    verification: VerificationMetrics | None = None
    """What all pairs of the images say, where the run is judged by pairs."""
    note: str = ""
    """Which images of a folder these are, and what became of the others."""


@torch.no_grad()
def inspect_run(run: Run, data_dir: str | None = None, max_images: int = MAX_REPORT_IMAGES) -> RunInspection:
    """Look at some test images, drawn with the run's seed."""
    inputs = run.load_inputs(data_dir)
    if list(inputs.class_names) != run.input_spec["classes"]:
        raise InputError(f"{run.config.data_name} has other classes now than the run was trained on")
    test: Any = inputs.test
    rows = (
        torch.randperm(len(test), generator=torch.Generator().manual_seed(run.config.seed))[:max_images].sort().values
    )
    some = test.take(rows)
    x, y = embed(run.model, inputs.eval_batches(some))
    objective = run.model.objective
    answers = objective.has_logits and not run.config.unseen_classes
    mistakes: list[Mistake] = []
    if answers and getattr(some, "x", None) is not None:
        probabilities, predicted = objective.logits(x.to(next(run.model.parameters()))).float().softmax(1).max(1)
        wrong = (predicted != y).nonzero().squeeze(1)
        for row in wrong[probabilities[wrong].argsort(descending=True)][:_NUM_MISTAKES].tolist():
            names = some.class_names
            mistakes.append(
                Mistake(some.x[row].numpy(), names[y[row]], names[predicted[row]], float(probabilities[row]))
            )
    head = objective.head
    weights = (
        None if head is None or run.config.unseen_classes else unit_and_norm(head.weight.detach().double())[0].numpy()
    )
    unit = unit_and_norm(x.double())[0]
    pairs = None if answers else _verify_all_pairs(x, y)
    note = " ".join(inputs.notes) if inputs.changes is None else inputs.changes.summary()
    return RunInspection(len(y), unit.numpy(), y.numpy(), tuple(some.class_names), mistakes, weights, pairs, note)


def _verify_all_pairs(x: Tensor, y: Tensor) -> VerificationMetrics | None:
    """All pairs of the images; none where no class has two of them."""
    try:
        return verification_metrics_of_embeddings(x, y)
    except InputError:
        return None
