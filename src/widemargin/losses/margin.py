"""Margin, the base of all margin losses: a frozen value, and one split softmax for the whole family.

Design. Every loss of this family is a cross-entropy in which only the *target's* logit differs, so the softmax is
split there:

    L    = log Σ_{j≠y} exp( s · r_j · φ(cos θ_j) + b_j )     all the N×C work, independent of the margin
    p    = s · r_y · ψ(θ_y) + b_y − a                         the margin: one curve on N numbers
    loss = log(1 + exp(L − p))                                per sample, [N]

a) ψ takes the angle, not the cosine, because a backend computes the target's angle exactly from the chord, where the
   cosine has lost its digits.
b) The target is not part of the sum, so tiny losses and their gradients keep their digits, and a streaming or sharded
   backend only has to reduce `L`.
c) A margin holds only numbers and curves. Numbers that change during training (schedules, adaptive and learnable
   scales) are filled in by the head, once per step, as tensors; the curves do not depend on how they change. The state
   of an adaptive margin is the fields named in `adaptive_fields`.
d) A logit is defined once, and the derivatives of ψ and φ are autograd's. Below them a few functions have a
   hand-written backward pass, for speed, for memory, or because it communicates with other processes:
   `numerics/custom_autograd.py` lists them, and each is tested against autograd of its definition.

Losses that depart from this base case declare it with these hooks, which every backend supports:

    numbers per sample      `sample_fields` and `for_samples`: ψ, and φ for those in `phi_sample_fields`
    sub-centres             `subcenters`: K weights per class, reduced to one cosine before φ
    numbers per class       `class_offsets`: added to every logit in the loss, not in inference
    one-vs-all sums         `one_vs_all` and `other_loss`: Σ h(z_j) instead of `L`
    other terms             `combine`, `loss_weight`, `sample_penalty`, `weight_penalty`
    learnt numbers          `learnt_fields`: the head holds them as parameters
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
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
    """Training batch as an adaptive margin receives it: the samples of all ranks, without gradient.

    Rows are the samples that count, of all ranks. `local_…` are all rows of this process, for margins with a number per
    sample. If K models train as one stack, rows are [K, N] and every model is its own batch: reduce with `median` and
    `log_mean_exp`, which handle both shapes.
    """

    theta: Tensor
    """Target angles [M]."""
    step: Tensor
    """Training calls before this one."""
    logsumexp_others: Callable[[Margin], Tensor]
    """`L` [M] of a margin on this batch."""
    nearest_other_theta: Callable[[], Tensor]
    """Angle [M] to the nearest class other than the target."""
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
        """Compute the statistics over all ranks; `sample_mask` marks the rows that count, `gather` collects them."""

        # Found once: where samples are ignored, the device is waited for here.
        counted = None if sample_mask is None else sample_mask.nonzero().squeeze(1)

        def gather_rows(rows: Tensor) -> Tensor:
            if rows.ndim == 2:  # a stack of models lives in one process
                return rows
            rows = (rows if counted is None else rows.index_select(0, counted)).detach()
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

    def mean(self, rows: Tensor) -> Tensor:
        """Mean of the rows of a batch: one number, or [K, 1] for a stack of K models."""
        return rows.mean() if rows.ndim == 1 else rows.mean(-1, keepdim=True)

    def std(self, rows: Tensor) -> Tensor:
        """Unbiased standard deviation of the rows of a batch, at least two."""
        return rows.std() if rows.ndim == 1 else rows.std(-1, keepdim=True)

    def median(self, rows: Tensor) -> Tensor:
        """Median of the rows of a batch: one number, or [K, 1] for a stack of K models."""
        return rows.median() if rows.ndim == 1 else rows.median(-1, keepdim=True).values

    def log_mean_exp(self, rows: Tensor) -> Tensor:
        """`log mean_i exp(rows_i)`: one number, or [K, 1] for a stack of K models."""
        if rows.ndim == 2:
            return torch.logsumexp(rows, -1, keepdim=True) - math.log(rows.shape[-1])
        if torch.compiler.is_compiling():  # a Python number would be recompiled for every batch size
            return torch.logsumexp(rows, 0) - torch.ones_like(rows).sum().log()
        return torch.logsumexp(rows, 0) - math.log(len(rows))


@dataclass(frozen=True)
class SampleStatistics:
    """Samples of a call as a margin receives them, in training, in evaluation and for both labels of a mixup.

    Rows are those of this process, [N], or [K, N] for a stack of K models.
    """

    theta: Callable[[], Tensor]
    """Target angles [N], without a gradient."""
    x_norm: Callable[[], Tensor]
    """Lengths ‖x‖ [N], with their gradient."""
    largest_cosines: Callable[[int], Tensor]
    """The k largest cosines [N, k] to classes other than the target, in descending order, without a gradient."""
    training: bool
    """True if this is a training call: random draws happen only in training."""


_MAX_SAFE_EXPONENT = 40.0
"""Exponents in the mean over sub-centres: the square of their sum, which the gradient may need, is finite in fp32."""


@dataclass(frozen=True)
class Subcenters:
    """K weights per class, reduced to one cosine: the largest, or a mean weighted by a softmax."""

    count: int
    temperature: float | None = None
    """Temperature of the softmax that weights the cosines; None takes the largest cosine."""

    def fold(self, cosines: Sequence[Tensor]) -> Tensor:
        """Return one cosine from those of the K sub-centres of a class, given as K tensors of one shape.

        >>> three = torch.tensor([0.1, 0.7, 0.4]).unbind()
        >>> round(Subcenters(3).fold(three).item(), 4), round(Subcenters(3, 0.1).fold(three).item(), 4)
        (0.7, 0.6844)
        """
        if self.temperature is None:
            nearest = cosines[0]
            for cos in cosines[1:]:  # not `amax`, which would share the gradient of a tie
                nearest = torch.where(cos > nearest, cos, nearest)
            return nearest
        # Relative to one cosine the weights need one exponential less and no maximum; cosines differ by at most 2, so
        # that only a very small temperature overflows.
        is_safe = 2.0 / self.temperature <= _MAX_SAFE_EXPONENT
        anchor = cosines[0] if is_safe else functools.reduce(torch.maximum, (cos.detach() for cos in cosines))
        gaps = [cos - anchor for cos in (cosines[1:] if is_safe else cosines)]
        shares = [torch.exp(gap / self.temperature) for gap in gaps]
        total = functools.reduce(torch.add, shares) + (1.0 if is_safe else 0.0)
        return anchor + functools.reduce(torch.add, map(torch.mul, shares, gaps)) / total


class Margin(Loss):
    """A margin loss as a value: two curves, a scale, and the norms that it keeps.

    A new loss overrides `psi` and whatever else differs from the cosine softmax.
    """

    kind: ClassVar[str] = "margin"
    uses_x_norm: ClassVar[bool] = False
    """True if the logits keep the norm of the embedding."""
    uses_w_norm: ClassVar[bool] = False
    """True if the logits keep the norms of the class weights."""
    adaptive_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that `adapt_to_batch` changes; the head stores them in buffers."""
    learnt_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that the optimizer learns directly; `for_num_classes` sets their initial value."""
    sample_fields: ClassVar[tuple[str, ...]] = ()
    """Attributes with one number per sample, set by `for_samples`. The class attribute is used for curves."""
    phi_sample_fields: ClassVar[tuple[str, ...]] = ()
    """Sample fields that φ reads: numbers without a gradient."""
    table_fields: ClassVar[tuple[str, ...]] = ()
    """Options with a number per class that `class_offsets` reads as a whole instead of at the labels."""
    one_vs_all: ClassVar[bool] = False
    """True if the other classes enter as `Σ other_loss(z_j)` instead of their logsumexp."""
    allows_label_smoothing: ClassVar[bool] = True
    """True if the loss is a cross-entropy, which label smoothing needs."""
    is_bounded: ClassVar[bool] = True
    """True if the loss is at least 0."""
    detached: ClassVar[bool] = False
    """True if some gradients intentionally differ from those of the loss's value."""
    non_monotone: ClassVar[bool] = False
    """True if ψ or φ does not decrease everywhere with the angle, or the target may be easier than the others."""
    neutral: ClassVar[tuple[Mapping[str, Any], str] | None] = None
    """Options at which the margin vanishes, and the plain loss that it then equals."""

    s: Number = 1.0
    bias: bool = False

    def psi(self, theta: Tensor) -> Tensor:
        """Target curve ψ(θ) on [0, π]."""
        return torch.cos(theta)

    def phi(self, cos: Tensor) -> Tensor:
        """Curve of the other classes, a function of the cosine."""
        return cos

    def offset(self) -> Number:
        """`a`: a number subtracted from the target's logit."""
        return 0.0

    def common_bias(self) -> Number:
        """A number added to every logit; it matters only in one-vs-all losses."""
        return 0.0

    def class_offsets(self) -> tuple[float, ...] | None:
        """One number per class that is added to its logit in the loss but not in inference."""
        return None

    def for_inference(self) -> Margin:
        """Return the margin whose φ gives the logits of inference: this one, or a plain one if φ has a margin."""
        return self

    def other_loss(self, z: Tensor) -> Tensor:
        """`h(z)`: the loss of a non-target class from its logit, if `one_vs_all`."""
        raise TypeError(f"{self.name} is not a one-vs-all loss")

    def combine(self, p: Tensor, others: Tensor) -> Tensor:
        """Loss [N] from the target's logit with the margin and `L`, or (one-vs-all) the sum over the others."""
        return split_softmax(p, others)

    def loss_weight(self) -> Number:
        """Factor of the whole loss."""
        return 1.0

    def sample_penalty(self) -> Tensor | None:
        """A term [N] added to the loss of each sample, from its own numbers."""
        return None

    def weight_penalty(self, cos: Tensor) -> Tensor:
        """A term per class [C] from the cosines between its K weights [C, K, K]; their mean is added to the loss."""
        raise TypeError(f"{self.name} has no penalty on the class weights")

    @property
    def subcenters(self) -> Subcenters | None:
        """Number of weights per class and their reduction; None for one weight per class."""
        return None

    @property
    def has_weight_penalty(self) -> bool:
        """True if `weight_penalty` applies."""
        return type(self).weight_penalty is not Margin.weight_penalty

    @property
    def uses_any_norm(self) -> bool:
        """True if the logits keep a norm."""
        return self.uses_x_norm or self.uses_w_norm

    @property
    def is_linear(self) -> bool:
        """True if φ is the cosine itself, so that norms can be part of the matrix product."""
        return type(self).phi is Margin.phi

    @property
    def has_plain_target(self) -> bool:
        """True if the target has the same curve as the other classes, apart from the offset."""
        return self.is_linear and type(self).psi is Margin.psi

    @property
    def takes_target_logit(self) -> bool:
        """True if the target's logit is taken from the matrix product, because an angle would not be more accurate.

        That is the case if a plain target keeps norms, or if a mean of sub-centres has no single angle.
        """
        folded = self.subcenters is not None and self.subcenters.temperature is not None
        return self.has_plain_target and (self.uses_any_norm or folded)

    def for_num_classes(self, num_classes: int) -> Self:
        """Return the margin with the defaults that depend on the number of classes filled in.

        Emits the warnings of `class_count_warnings`.
        """
        self.check_num_classes(num_classes)
        for message in self.class_count_warnings(num_classes):
            warnings.warn(message, stacklevel=4)  # points to where the head is built
        return self

    def check_num_classes(self, num_classes: int) -> None:
        """Raise an InputError for per-class numbers that do not match the number of classes."""
        for name, value in self.named_values():
            if isinstance(value, PerClass) and len(value) != num_classes:
                raise InputError(f"{self.name}: {name} has {len(value)} numbers for {num_classes} classes")

    def check_label_smoothing(self, label_smoothing: float) -> None:
        """Raise an InputError for label smoothing if the loss is not a cross-entropy."""
        if label_smoothing and not self.allows_label_smoothing:
            raise InputError(f"{self.name} is not a cross-entropy over the classes; set label_smoothing=0")

    def with_class_counts(self, counts: Sequence[int]) -> Self:
        """Return the margin with the number of training samples of every class, if it needs them and has none."""
        return self

    def class_count_warnings(self, num_classes: int) -> list[str]:
        """Return warnings for this number of classes, such as a scale of 0 that cannot learn."""
        return []

    def adapt_to_batch(self, batch: BatchStatistics) -> Self:
        """Return the margin for this training batch; fields named in `adaptive_fields` may change."""
        return self

    def for_samples(self, samples: SampleStatistics) -> Self:
        """Return the margin with the numbers of each sample, `sample_fields`; called wherever a loss is computed."""
        return self

    def with_values(self, **values: Any) -> Self:
        new = super().with_values(**values)
        for name in self.sample_fields:
            if name in values or name in self.__dict__:
                object.__setattr__(new, name, values.get(name, getattr(self, name)))
        return new

    def without_sample_values(self) -> Self:
        """Return the margin without the numbers of a call's samples."""
        new = super().with_values()
        return new if any(name in self.__dict__ for name in self.sample_fields) else self

    def at_step(
        self, step: Tensor, y: Tensor | None, dtype: torch.dtype, state: Mapping[str, Tensor] | None = None
    ) -> Self:
        """Return the margin of this step: every number that changes during training replaced by its tensor.

        `state` holds the tensors of a head (adaptive state, learnable and per-class numbers); a per-class number is
        indexed by `y`, and kept unchanged without labels.
        """
        state = state or {}
        replacements: dict[str, Any] = {}
        for name, value in self.named_values():
            if isinstance(value, PerClass):
                if y is not None and name not in self.table_fields:
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
    return subtract_offset(margin, add_common_bias(margin, p))


def subtract_offset(margin: Margin, p: Tensor) -> Tensor:
    """The target's logit [N] minus the margin's `offset`."""
    offset = margin.offset()
    return p - offset if isinstance(offset, Tensor) or offset != 0.0 else p


def add_common_bias(margin: Margin, z: Tensor) -> Tensor:
    """Logits plus the margin's `common_bias`."""
    bias = margin.common_bias()
    return z + bias if isinstance(bias, Tensor) or bias != 0.0 else z


def softplus(z: Tensor) -> Tensor:
    """`log(1 + exp(z))`, exact where torch's softplus drops the smaller term (above z = 20)."""
    return -F.logsigmoid(-z)


def split_softmax(p: Tensor, logsumexp_others: Tensor) -> Tensor:
    """`log(1 + exp(L − p))` [N], exact from 1e-300 to 1e300, and so is its gradient.

    >>> split_softmax(torch.tensor(30.0), torch.tensor(4.5)).item() > 0  # fp32 cross-entropy says 0
    True
    """
    return -F.logsigmoid(p - logsumexp_others)


def apply_label_smoothing(
    loss: Tensor, p: Tensor, other_logits_sum: Tensor, num_classes: int, label_smoothing: float
) -> Tensor:
    """Label smoothing ε of a split softmax: `loss + ε [p − (Σ_{j≠y} z_j + p)/C]`."""
    return loss + label_smoothing * (p - (other_logits_sum + p) / num_classes)
