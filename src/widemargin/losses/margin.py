"""The centre of the package: a margin is a frozen value, and every margin loss is one split softmax.

Design. Every loss of this family is cross-entropy in which only the *target's* logit differs, so
the softmax is split there:

    L    = log Σ_{j≠y} exp( s · r_j · φ(cos θ_j) + b_j )     all the N×C work, knows no margin
    p    = s · r_y · ψ(θ_y) + b_y − a                         the margin: one curve on N numbers
    loss = log(1 + exp(L − p))                                per sample, [N]

a) ψ takes the angle and not the cosine, because a backend computes the target's angle from the
   chord, exactly, where a cosine has lost it.
b) The target is left out of the sum, so tiny losses and their gradients keep their digits, and a
   streaming or sharded backend only has to reduce `L`.
c) A margin holds numbers and curves and nothing else. Numbers that change while training (schedules,
   adaptive scales, learnable scales) are filled in by the head, once per step, as tensors; the
   curves never know. What an adaptive margin remembers are its own fields named in `adaptive_fields`.
d) A logit is defined once, and the slopes of ψ and φ are autograd's. Below them a few functions have
   a backward pass written by hand, for speed, for memory, or because it goes over other processes:
   `numerics/custom_autograd.py` lists them, and each is tested against autograd of its definition.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ..io.errors import InputError
from ..numerics import angles
from ..numerics.precision import widest_float_dtype
from .base import Loss, Number, PerClass
from .schedule import Schedule


@dataclass(frozen=True)
class BatchStatistics:
    """What an adaptive margin may see of a training batch: the samples of all ranks, no gradient.

    Rows are those that count, of all ranks. `local_…` are the rows of this process alone, every one
    of them, for margins that give each sample its own number. Where K models train as one stack, rows
    are [K, N] and every model is its own batch: reduce with `median` and `log_mean_exp`, which handle both shapes.
    """

    theta: Tensor
    """Target angles [M]."""
    step: Tensor
    """Training calls before this one."""
    logsumexp_others: Callable[[Margin], Tensor]
    """`L` [M] of a margin on this batch."""
    nearest_other_theta: Callable[[], Tensor]
    """Angle [M] to the nearest class that is not the target's."""
    x_norm: Callable[[], Tensor]
    """Lengths ‖x‖ [M]."""
    local_theta: Tensor
    """Target angles [N] of this process."""
    local_x_norm: Tensor
    """Lengths ‖x‖ [N] of this process."""

    @classmethod
    def from_batch(
        cls,
        theta: Tensor,
        x_norm: Tensor,
        step: Tensor,
        logsumexp_others: Callable[[Margin], Tensor],
        largest_cosine: Callable[[], Tensor],
        sample_mask: Tensor | None = None,
        gather: Callable[[Tensor], Tensor] | None = None,
    ) -> BatchStatistics:
        """Statistics over the rows of all ranks; `sample_mask` marks those that count, `gather` collects them."""

        def gather_rows(rows: Tensor) -> Tensor:
            if rows.ndim == 2:  # a stack of models lives in one process
                return rows
            rows = (rows if sample_mask is None else rows[sample_mask]).detach()
            return rows if gather is None else gather(rows)

        return cls(
            theta=gather_rows(theta.detach()),
            step=step,
            logsumexp_others=lambda margin: gather_rows(logsumexp_others(margin)),
            nearest_other_theta=lambda: gather_rows(angles.safe_arccos(largest_cosine())),
            x_norm=lambda: gather_rows(x_norm),
            local_theta=theta.detach(),
            local_x_norm=x_norm.detach(),
        )

    def median(self, rows: Tensor) -> Tensor:
        """The median of a batch's rows: one number, or [K, 1] for a stack of K models."""
        return rows.median() if rows.ndim == 1 else rows.median(-1, keepdim=True).values

    def log_mean_exp(self, rows: Tensor) -> Tensor:
        """`log mean_i exp(rows_i)`: one number, or [K, 1] for a stack of K models."""
        if rows.ndim == 2:
            return torch.logsumexp(rows, -1, keepdim=True) - math.log(rows.shape[-1])
        if torch.compiler.is_compiling():  # a Python number would be compiled anew for every batch size
            return torch.logsumexp(rows, 0) - torch.ones_like(rows).sum().log()
        return torch.logsumexp(rows, 0) - math.log(len(rows))


class Margin(Loss):
    """A margin loss as a value: two curves, a scale, and which lengths it keeps.

    A new loss overrides `psi` and whatever else differs from the cosine softmax.
    """

    kind: ClassVar[str] = "margin"
    uses_x_norm: ClassVar[bool] = False
    """Whether the logits keep the length of the embedding."""
    uses_w_norm: ClassVar[bool] = False
    """Whether the logits keep the lengths of the class weights."""
    adaptive_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that `adapt_to_batch` changes; the head keeps them in buffers."""
    neutral: ClassVar[tuple[Mapping[str, Any], str] | None] = None
    """Options under which the margin vanishes, and the plain loss it then is."""

    s: Number = 1.0
    bias: bool = False

    def psi(self, theta: Tensor) -> Tensor:
        """Target curve ψ(θ) on [0, π]."""
        return torch.cos(theta)

    def phi(self, cos: Tensor) -> Tensor:
        """Curve of the other classes, over the cosine."""
        return cos

    def offset(self) -> Number:
        """`a`: what is taken off the target's logit as it stands."""
        return 0.0

    @property
    def uses_any_norm(self) -> bool:
        """Whether the logits keep a length at all."""
        return self.uses_x_norm or self.uses_w_norm

    @property
    def is_linear(self) -> bool:
        """Whether φ is the cosine itself, so that lengths fold into the matrix product."""
        return type(self).phi is Margin.phi

    @property
    def has_plain_target(self) -> bool:
        """Whether the target's curve is the others', so that its logit is an ordinary one, less the offset."""
        return self.is_linear and type(self).psi is Margin.psi

    def for_num_classes(self, num_classes: int) -> Self:
        """The same margin with the defaults that depend on the number of classes filled in.

        Warns of everything in `class_count_warnings`.
        """
        self.check_num_classes(num_classes)
        for message in self.class_count_warnings(num_classes):
            warnings.warn(message, stacklevel=4)  # where the head is built
        return self

    def check_num_classes(self, num_classes: int) -> None:
        """Refuse per-class numbers that are not as many as the classes."""
        for name, value in self.named_values():
            if isinstance(value, PerClass) and len(value) != num_classes:
                raise InputError(f"{self.name}: {name} has {len(value)} numbers for {num_classes} classes")

    def class_count_warnings(self, num_classes: int) -> list[str]:
        """What is worth a warning with so many classes, such as a scale of 0 that cannot learn."""
        return []

    def adapt_to_batch(self, batch: BatchStatistics) -> Self:
        """The margin for this training batch; fields named in `adaptive_fields` may change."""
        return self

    def at_step(
        self, step: Tensor, y: Tensor | None, dtype: torch.dtype, state: Mapping[str, Tensor] | None = None
    ) -> Self:
        """The margin of this step: every number that changes while training replaced by its tensor.

        `state` are the tensors a head keeps for fields (adaptive state, learnable and per-class
        numbers); a per-class number is looked up at `y`, and left alone without labels.
        """
        state = state or {}
        replacements: dict[str, Any] = {}
        for name, value in self.named_values():
            if isinstance(value, PerClass):
                if y is not None:
                    table = state.get(name)
                    if table is None:
                        table = torch.tensor(value.values, dtype=widest_float_dtype(y.device), device=y.device)
                    replacements[name] = table[y].to(dtype)
            elif name in state:
                replacements[name] = state[name]
            elif isinstance(value, Schedule):
                replacements[name] = value.value_at(step)
        return self.with_values(**replacements) if replacements else self


def target_logit(margin: Margin, theta: Tensor, radius: Tensor | None, bias: Tensor | None) -> Tensor:
    """`p = s · r_y · ψ(θ_y) + b_y − a` [N]."""
    p: Tensor = margin.s * margin.psi(theta)
    if radius is not None:
        p = p * radius
    if bias is not None:
        p = p + bias
    return subtract_offset(margin, p)


def subtract_offset(margin: Margin, p: Tensor) -> Tensor:
    """The target's logit [N] less what the margin takes off it as it stands."""
    offset = margin.offset()
    return p - offset if isinstance(offset, Tensor) or offset != 0.0 else p


def split_softmax(p: Tensor, logsumexp_others: Tensor) -> Tensor:
    """`log(1 + exp(L − p))` [N], exact from 1e-300 to 1e300; its slope is exact too.

    >>> split_softmax(torch.tensor(30.0), torch.tensor(4.5)).item() > 0  # fp32 cross-entropy says 0
    True
    """
    return -F.logsigmoid(p - logsumexp_others)


def apply_label_smoothing(
    loss: Tensor, p: Tensor, other_logits_sum: Tensor, num_classes: int, label_smoothing: float
) -> Tensor:
    """Label smoothing ε of a split softmax: `loss + ε [p − (Σ_{j≠y} z_j + p)/C]`."""
    return loss + label_smoothing * (p - (other_logits_sum + p) / num_classes)
