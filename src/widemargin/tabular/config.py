"""`MLPConfig`: how every small network on a table is built and trained; the defaults are the same for all tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral, Real

from ..io.errors import InputError

_MAX_SETTING = 1e300


@dataclass(frozen=True)
class MLPConfig:
    """A ReLU network under a loss, trained with AdamW, a short warm-up and a cosine to zero.

    hidden: widths of the layers before the class weights; the last is the embedding, which has no ReLU, so that
        angles use the whole sphere. `(64, 24)` and the class weights are the paper's three layers.
    epochs, min_steps: passes over the training part, but never fewer optimizer steps than `min_steps`:
        a table of a hundred rows needs as many steps as one of a thousand.
    batch: rows per step (all of them where there are fewer).
    lr, warmup: peak learning rate, and the share of the steps that lead up to it.
    weight_decay: decoupled (AdamW), on matrices whose length matters.
    dropout: share of hidden units left out in each training step.
    label_smoothing: probability mass spread over the other classes.
    """

    hidden: tuple[int, ...] = (64, 24)
    epochs: float = 8.0
    min_steps: int = 300
    batch: int = 16
    lr: float = 0.03
    warmup: float = 0.1
    weight_decay: float = 0.3
    dropout: float = 0.2
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not self.hidden or not all(_is_instance_not_bool(Integral, width) and width >= 1 for width in self.hidden):
            raise InputError(f"hidden must be whole numbers of at least 1, got {self.hidden}")
        for name, low in {"min_steps": 1, "batch": 1}.items():
            if not _is_instance_not_bool(Integral, getattr(self, name)) or getattr(self, name) < low:
                raise InputError(f"{name} must be a whole number of at least {low}, got {getattr(self, name)!r}")
        for name in ("epochs", "warmup", "weight_decay", "dropout", "label_smoothing"):
            if not _is_instance_not_bool(Real, getattr(self, name)) or not 0 <= getattr(self, name) < _MAX_SETTING:
                raise InputError(f"{name} must be a number from 0 to {_MAX_SETTING:g}, got {getattr(self, name)!r}")
        if not _is_instance_not_bool(Real, self.lr) or not 0 < self.lr < _MAX_SETTING:
            raise InputError(f"lr must be a number above 0, got {self.lr!r}")
        for name in ("warmup", "dropout", "label_smoothing"):
            if getattr(self, name) >= 1:
                raise InputError(f"{name} must be below 1, got {getattr(self, name)}")

    def with_layers(self, num_layers: int) -> MLPConfig:
        """The same with another depth: `num_layers` matrices, the class weights included."""
        if num_layers < 2:
            raise InputError(f"layers counts the class weights too and must be at least 2, got {num_layers}")
        first, last = self.hidden[0], self.hidden[-1]
        return replace(self, hidden=(first,) * (num_layers - 2) + (last,))

    def steps_and_batch(self, num_rows: int) -> tuple[int, int]:
        """Optimizer steps, and rows in each, for a training part of so many rows."""
        batch = min(self.batch, num_rows)
        return max(self.min_steps, round(self.epochs * num_rows / batch)), batch


def _is_instance_not_bool(kind: type, value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
