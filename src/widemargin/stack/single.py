"""One model of the stack's engine from a bare matrix: trained, stopped early if wanted, and kept for new rows.

Training is a stack of one, so a single model is the model a fold of a comparison would be. What is kept
of it is what new rows need, on the CPU and in double precision: predictions then do not depend on how
rows are batched, and a saved model opens on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ..catalogue import Sum
from ..errors import InputError
from ..option import Loss
from ..term import Term
from .network import StackedNetwork
from .objective import StackedCriterion, StackedHead
from .protocol import Protocol
from .train import Rows, Stack
from .view import Unit, seen

CHECKS = 50  # looks at the validation rows, or lines of a talkative run, in a full training
_EMBEDDED = 1 << 22


@dataclass(frozen=True)
class Course:
    """How a training went."""

    losses: list[float]
    """Mean training loss of every pass over the rows."""
    steps: int
    validation_scores: list[float] | None
    """Accuracy on the validation rows at every look; None where there are none."""


@dataclass(frozen=True)
class Model:
    """A trained model: how it sees rows, its network and its class weights."""

    unit: Unit
    view: Rows
    network: StackedNetwork
    head: StackedHead | StackedCriterion

    @torch.no_grad()
    def embed(self, x: NDArray[np.float64]) -> Tensor:
        """Embeddings [n, D] of a matrix [n, F]."""
        widths = (x.shape[1], *(weight.shape[2] for weight in self.network.weights))
        step = max(1, _EMBEDDED // max(widths))
        found = [self._embedded(x[start : start + step], start) for start in range(0, len(x), step)]
        return torch.cat(found)

    def _embedded(self, x: NDArray[np.float64], first: int) -> Tensor:
        embedded: Tensor = self.network(seen(self.view, self.unit(x), first).unsqueeze(0))[0]
        return embedded

    @torch.no_grad()
    def logits(self, x: NDArray[np.float64]) -> Tensor:
        """Logits [n, C] of a matrix [n, F]."""
        return self.head.logits(self.embed(x).unsqueeze(0))[0]


def hold_out(y: NDArray[np.int64], fraction: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training and validation rows: about `fraction` of each class is held out, but never the whole class.

    >>> training, validation = hold_out(np.array([0] * 6 + [1] * 3 + [2]), 0.3, seed=0)
    >>> np.array([0] * 6 + [1] * 3 + [2])[validation].tolist()
    [0, 0, 1]
    """
    order = np.random.default_rng([seed, 3]).permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    first = np.unique(y[order], return_index=True)[1]
    spare = np.delete(order, first)
    count = min(len(spare), max(1, round(fraction * len(y))))
    if not count:
        raise InputError(
            "early stopping needs a class with at least two rows to hold one out; set early_stopping=False"
        )
    chosen = spare[((np.arange(count) + 0.5) * len(spare) / count).astype(np.int64)]  # at equal distances: stratified
    return np.setdiff1d(order, chosen), np.sort(chosen)


def train_single(
    spec: Sum | Loss,
    unit: Unit,
    view: Rows,
    parts: tuple[NDArray[np.int64], NDArray[np.int64] | None],
    protocol: Protocol,
    *,
    seed: int,
    patience: int,
    dtype: torch.dtype,
    device: torch.device,
    told: Callable[[str], None] | None = None,
) -> tuple[Model, Course]:
    """A model of the training part of a view's rows.

    With a validation part it is the best that was met in the looks at it, of which at most `patience` were in vain.
    Better is a higher accuracy, or the same with a lower log loss.
    """
    training, validation = parts
    flat = seen(view, view.x.numpy()).to(device, dtype)
    zeros, ones = flat.new_zeros(1, 1, flat.shape[1]), flat.new_ones(1, 1, flat.shape[1])
    rows = Rows(flat, view.y.to(device), view.classes, zeros, ones)
    with torch.enable_grad(), _draws(spec, seed):
        stack = Stack(spec, rows, [training], [(seed, 0)], protocol)
        losses: list[Tensor] = []
        listening = stack.objective.register_forward_hook(lambda *call: losses.append(call[2].detach().mean()))
        best = _Best(stack, validation, patience)
        while stack.step < stack.steps and not best.stale:
            stack.run(max(1, stack.steps // CHECKS) if validation is not None or told is not None else None)
            best.look()
            if told is not None:
                told(f"step {stack.step} of {stack.steps}, loss {float(losses[-1]):.4f}{best}")
        listening.remove()
        best.restore()
    network, head = stack.network, stack.objective.head
    for module in (network, head):
        module.to("cpu", torch.float64).requires_grad_(False).eval()
        if not all(torch.isfinite(parameter).all() for parameter in module.parameters()):
            raise InputError(f"training diverged: its weights are not finite; take a smaller lr than {protocol.lr:g}")
    per_step = torch.stack(losses).to("cpu", torch.float64).numpy()
    passes = np.arange(len(per_step)) * stack.batch // len(training)
    means = np.bincount(passes, per_step) / np.bincount(passes)
    bare = replace(view, x=torch.empty(0, flat.shape[1]), y=torch.empty(0))  # a model carries no rows along
    return Model(unit, bare, network, head), Course(means.tolist(), stack.step, best.scores)


class _Best:
    """The best weights so far by the validation rows: accuracy, and among equals the smaller log loss."""

    def __init__(self, stack: Stack, validation: NDArray[np.int64] | None, patience: int) -> None:
        self.stack, self.patience = stack, patience
        self.rows = None if validation is None else torch.from_numpy(validation).to(stack.rows.x.device)
        self.scores: list[float] | None = None if validation is None else []
        self._highest, self._since = (-1.0, 0.0), 0
        self._kept: list[dict[str, Tensor]] = []

    @property
    def stale(self) -> bool:
        return self.rows is not None and self._since >= self.patience

    def look(self) -> None:
        if self.rows is None or self.scores is None:
            return
        truth, logits = self.stack.rows.y[self.rows], self.stack.logits(self.rows.unsqueeze(0))[0].double()
        accuracy = float((logits.argmax(1) == truth).double().mean())
        score = (accuracy, -float(F.cross_entropy(logits, truth)))
        self.scores.append(accuracy)
        self._since += 1
        if score > self._highest:
            self._highest, self._since = score, 0
            self._kept = [{name: value.clone() for name, value in m.state_dict().items()} for m in self._modules()]

    def restore(self) -> None:
        for module, state in zip(self._modules(), self._kept, strict=False):  # nothing kept: the last weights stay
            module.load_state_dict(state)

    def _modules(self) -> tuple[nn.Module, nn.Module]:
        return self.stack.network, self.stack.objective

    def __str__(self) -> str:
        return f", validation accuracy {self.scores[-1]:.4f}" if self.scores else ""


@contextmanager
def _draws(spec: Sum | Loss, seed: int) -> Iterator[None]:
    """Terms that draw (`mining=distance`) do so from torch's generator: seeded meanwhile, as it was afterwards."""
    if not any(isinstance(loss, Term) for _, loss in (spec.parts if isinstance(spec, Sum) else [(1.0, spec)])):
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
