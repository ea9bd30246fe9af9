"""Term: a loss on embeddings and labels alone, (x [N, D], y [N]) → [N].

Like a margin, a term is a frozen value; `build` makes the module that an `Objective` holds, because
some terms remember something (the centres of `center`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .errors import InputError
from .labels import check_labels, check_mix, check_share, counted, is_plain_float, kind_of, of_counted
from .option import Loss
from .precision import at_least_fp32, island
from .ranks import Shared, check_group, several


class Term(Loss):
    """A loss on embeddings; subclasses write `evaluate`."""

    kind: ClassVar[str] = "term"
    classes_apart: ClassVar[bool] = False
    """Whether samples of different classes never meet, so that many models can share one part."""

    def evaluate(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss [N] and what is worth logging (counts as tensors, so that nothing waits for them)."""
        raise NotImplementedError

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss [N], one per embedding."""
        x, y = prepared(x, y)
        with island(x):
            return self.evaluate(x, y)[0]

    def build(self, dim: int, classes: int) -> TermPart:
        """The module that an `Objective` holds."""
        return TermPart(self)


def prepared(x: Tensor, y: Tensor, dim: int | None = None, classes: int | None = None) -> tuple[Tensor, Tensor]:
    """Checked embeddings in at least fp32 and labels in int64."""
    if not is_plain_float(x) or x.ndim != 2:
        given = f"{list(x.shape)} {kind_of(x)}" if isinstance(x, Tensor) else kind_of(x)
        raise InputError(f"embeddings must be a float tensor [N, D], got {given}")
    if dim is not None and x.shape[1] != dim:
        raise InputError(f"embeddings must have shape [N, {dim}], got {list(x.shape)}")
    x = at_least_fp32(x).contiguous()  # the same bits however the numbers lie in memory
    check_labels(y, len(x), classes, x.detach().abs().amax(1) if x.shape[1] else None, x.device)
    return x, y.long()


class TermPart(nn.Module):
    """A term inside an objective; `stats` holds what the last call had to report."""

    def __init__(self, term: Term) -> None:
        super().__init__()
        self.term = term
        self.stats: dict[str, Tensor] = {}
        self.shared = Shared(None, term.name)

    def forward(
        self, x: Tensor, y: Tensor, mix: tuple[Tensor, Any] | None = None, ignore_index: int | None = None
    ) -> Tensor:
        """Loss [N]; `mix=(y_b, lam)` and `ignore_index` as in `Head`. What is remembered, y makes."""
        with island(x):
            loss = of_counted(self._evaluate, x, y, ignore_index)
            if mix is not None:
                stats = self.stats
                y_b, lam = check_mix(mix)
                share = check_share(lam, loss)
                loss = share * loss + (1.0 - share) * of_counted(self._evaluate, x, y_b, ignore_index)
                self.stats = stats
            if self.training:
                keep = slice(None) if ignore_index is None else counted(y, ignore_index)
                self.remember(x[keep].detach(), y[keep])
            return loss

    def _evaluate(self, x: Tensor, y: Tensor) -> Tensor:
        loss, self.stats = self.evaluate(x, y)
        return loss

    def evaluate(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss [N] and report."""
        return self.term.evaluate(*prepared(x, y))

    def extend(self, n: int) -> None:
        """Make room for `n` more classes, where a term keeps something per class."""

    def share(self, group: Any, road: str | None) -> None:
        """Remember the batches of all ranks of `group`; by default of all ranks beside a sharded head, else of this."""
        check_group(group)
        if group is None and road == "sharded" and several():
            group = torch.distributed.group.WORLD
        self.shared = Shared(group, self.term.name)

    def remember(self, x: Tensor, y: Tensor) -> None:
        """After the loss of a training batch: what a term with a memory keeps of it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.term!r})"
