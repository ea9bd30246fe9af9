"""One model on a bare matrix: column scaling, training with early stopping, and predictions on new rows.

Training is a stack of one (`batched`), so a single model is the model a fold of a comparison would be. What is kept
of it is what new rows need, on the CPU and in double precision: predictions then do not depend on how
rows are batched, and a saved model opens on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..io.errors import InputError
from ..losses.base import Loss
from ..losses.class_counts import with_class_counts
from ..losses.grammar import Sum
from .batched import StackedNetwork, StackedTable, StackedTrainer
from .batched_objective import StackedCriterion, StackedHead
from .config import MLPConfig
from .early_stopping import EarlyStopping, train_with_validation


class ColumnScaler(NamedTuple):
    """Middle and size [F] of the columns, so that digits are kept whatever the unit and the origin of a number."""

    center: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def fit(cls, x: NDArray[np.float64]) -> ColumnScaler:
        """Median, and largest distance from it; 0 and 1 where a column has none."""
        known = ~np.isnan(x).all(axis=0)
        center, scale = np.zeros(x.shape[1]), np.ones(x.shape[1])
        center[known] = np.nanmedian(x[:, known], axis=0)
        scale[known] = np.nanmax(np.abs(x[:, known] - center[known]), axis=0)
        return cls(center, np.where(scale > 0, scale, 1.0))

    def __call__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return (np.asarray(x, np.float64) - self.center) / self.scale


def check_magnitude(x: NDArray[np.float64], max_abs: float = 1e100, first_row: int = 0) -> NDArray[np.float64]:
    """The matrix, once its numbers are seen to be small enough for squares and sums of them."""
    wrong = (np.abs(x) > max_abs).any(axis=1)
    if wrong.any():
        row = first_row + int(wrong.argmax())
        raise InputError(f"row {row} of X holds a number too large to learn from; scale or clip X first")
    return x


def preprocess_rows(table: StackedTable, x: NDArray[np.float64], first_row: int = 0) -> Tensor:
    """Rows [n, F] as the model sees them, in double precision; `first_row` is the number of the first one."""
    rows = torch.arange(len(x)).unsqueeze(0)
    found = replace(table, x=torch.from_numpy(x)).preprocess(rows)[0]
    return torch.from_numpy(check_magnitude(found.numpy(), 1e15, first_row))  # training is in single precision


_EMBED_CHUNK_VALUES = 1 << 22


@dataclass(frozen=True)
class TrainingHistory:
    """How a training went."""

    losses: list[float]
    """Mean training loss of every pass over the rows."""
    steps: int
    validation_scores: list[float] | None
    """Accuracy on the validation rows at every look; None where there are none."""


@dataclass(frozen=True)
class TrainedMLP:
    """A trained model: how it sees rows, its network and its class weights."""

    scaler: ColumnScaler
    preprocessing: StackedTable
    network: StackedNetwork
    head: StackedHead | StackedCriterion

    @torch.no_grad()
    def embed(self, x: NDArray[np.float64]) -> Tensor:
        """Embeddings [n, D] of a matrix [n, F]."""
        widths = (x.shape[1], *(weight.shape[2] for weight in self.network.weights))
        step = max(1, _EMBED_CHUNK_VALUES // max(widths))
        found = [self._embed_chunk(x[start : start + step], start) for start in range(0, len(x), step)]
        return torch.cat(found)

    def _embed_chunk(self, x: NDArray[np.float64], first_row: int) -> Tensor:
        embedded: Tensor = self.network(preprocess_rows(self.preprocessing, self.scaler(x), first_row).unsqueeze(0))[0]
        return embedded

    @torch.no_grad()
    def logits(self, x: NDArray[np.float64]) -> Tensor:
        """Logits [n, C] of a matrix [n, F]."""
        return self.head.logits(self.embed(x).unsqueeze(0))[0]


def train_single(
    spec: Sum | Loss,
    scaler: ColumnScaler,
    table: StackedTable,
    parts: tuple[NDArray[np.int64], NDArray[np.int64] | None],
    config: MLPConfig,
    *,
    seed: int,
    patience: int,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: Callable[[str], None] | None = None,
) -> tuple[TrainedMLP, TrainingHistory]:
    """Train one model on the training part of a table's rows.

    With a validation part training stops early, see `early_stopping`.
    """
    training, validation = parts
    flat = preprocess_rows(table, table.x.numpy()).to(device, dtype)
    zeros, ones = flat.new_zeros(1, 1, flat.shape[1]), flat.new_ones(1, 1, flat.shape[1])
    device_table = StackedTable(flat, table.y.to(device), table.num_classes, zeros, ones)
    with torch.enable_grad():
        if table.y.ndim == 1:
            counts = torch.bincount(table.y[torch.from_numpy(training)], minlength=table.num_classes).tolist()
            spec = with_class_counts(spec, counts)
        trainer = StackedTrainer(spec, device_table, [training], [(seed, 0)], config)
        losses: list[Tensor] = []
        hook = trainer.objective.register_forward_hook(lambda *call: losses.append(call[2].detach().mean()))

        def report(stopping: EarlyStopping | None) -> None:
            score = f", validation accuracy {stopping.accuracies[-1][0]:.4f}" if stopping is not None else ""
            assert on_progress is not None
            on_progress(f"step {trainer.step} of {trainer.steps}, loss {float(losses[-1]):.4f}{score}")

        stopping = train_with_validation(
            trainer,
            None if validation is None else [validation],
            patience,
            on_check=None if on_progress is None else report,
        )
        hook.remove()
    network, head = trainer.network, trainer.objective.head
    for module in (network, head):
        module.to("cpu", torch.float64).requires_grad_(False).eval()
        if not all(torch.isfinite(parameter).all() for parameter in module.parameters()):
            raise InputError(f"training diverged: its weights are not finite; take a smaller lr than {config.lr:g}")
    scores = None if stopping is None else [float(accuracy[0]) for accuracy in stopping.accuracies]
    per_step = torch.stack(losses).to("cpu", torch.float64).numpy()
    passes = np.arange(len(per_step)) * trainer.batch // len(training)
    means = np.bincount(passes, per_step) / np.bincount(passes)
    bare = replace(table, x=torch.empty(0, flat.shape[1]), y=torch.empty(0))  # a model carries no rows along
    return TrainedMLP(scaler, bare, network, head), TrainingHistory(means.tolist(), trainer.step, scores)
