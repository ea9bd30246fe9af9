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

Losses that depart from this base case say where, and every backend serves them:

    numbers of a sample     `sample_fields` and `for_samples`: ψ, and φ for those in `phi_sample_fields`
    sub-centres             `subcenters`: K weights per class, folded into one cosine before φ
    numbers per class       `class_offsets`: added to every logit in the loss, absent in inference
    one-vs-all sums         `one_vs_all` and `other_loss`: Σ h(z_j) takes the place of `L`
    other ends              `combine`, `loss_weight`, `sample_penalty`, `weight_penalty`
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

    def mean(self, rows: Tensor) -> Tensor:
        """The mean of a batch's rows: one number, or [K, 1] for a stack of K models."""
        return rows.mean() if rows.ndim == 1 else rows.mean(-1, keepdim=True)

    def std(self, rows: Tensor) -> Tensor:
        """The unbiased standard deviation of a batch's rows, of which there are two at least."""
        return rows.std() if rows.ndim == 1 else rows.std(-1, keepdim=True)

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


@dataclass(frozen=True)
class SampleStatistics:
    """What a margin may see of the samples of a call, in training, in evaluation and for both labels of a mixup.

    Rows are those of this process, [N], or [K, N] for a stack of K models.
    """

    theta: Callable[[], Tensor]
    """Target angles [N], without a gradient."""
    x_norm: Callable[[], Tensor]
    """Lengths ‖x‖ [N], with their gradient."""
    largest_cosines: Callable[[int], Tensor]
    """The k largest cosines [N, k] to classes that are not the target's, in falling order, without a gradient."""
    training: bool
    """Whether this is a training call: draws happen in training alone."""


@dataclass(frozen=True)
class Subcenters:
    """K weights per class, folded into one cosine: the nearest one's, or a mean weighted by a softmax."""

    count: int
    temperature: float | None = None
    """Of the softmax that weighs the cosines; None takes the largest cosine."""

    def fold(self, cosines: Sequence[Tensor]) -> Tensor:
        """One cosine from those of the K sub-centres of a class, given as K tensors of one shape.

        >>> three = torch.tensor([0.1, 0.7, 0.4]).unbind()
        >>> round(Subcenters(3).fold(three).item(), 4), round(Subcenters(3, 0.1).fold(three).item(), 4)
        (0.7, 0.6844)
        """
        if self.temperature is None:
            nearest = cosines[0]
            for cos in cosines[1:]:  # and not `amax`, which would share the gradient of a tie
                nearest = torch.where(cos > nearest, cos, nearest)
            return nearest
        top = functools.reduce(torch.maximum, (cos.detach() for cos in cosines))
        shares = [torch.exp((cos - top) / self.temperature) for cos in cosines]
        weighted = functools.reduce(torch.add, (share * cos for share, cos in zip(shares, cosines, strict=True)))
        return weighted / functools.reduce(torch.add, shares)


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
    learnt_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that the optimizer learns, as they are; `for_num_classes` gives them their first value."""
    sample_fields: ClassVar[tuple[str, ...]] = ()
    """Attributes with one number per sample, set by `for_samples`. Their values at the class serve curves."""
    phi_sample_fields: ClassVar[tuple[str, ...]] = ()
    """Those of them that φ reads: numbers without a gradient."""
    table_fields: ClassVar[tuple[str, ...]] = ()
    """Options with a number per class that are read as a whole, by `class_offsets`, and not at the labels."""
    one_vs_all: ClassVar[bool] = False
    """Whether the other classes count by `Σ other_loss(z_j)` and not by their logsumexp."""
    allows_label_smoothing: ClassVar[bool] = True
    """Whether the loss is a cross-entropy, which label smoothing needs."""
    is_bounded: ClassVar[bool] = True
    """Whether the loss is at least 0."""
    detached: ClassVar[bool] = False
    """Whether some slopes are by design not those of the loss's value."""
    non_monotone: ClassVar[bool] = False
    """Whether ψ or φ does not fall with the angle everywhere, or the target may be easier than the others."""
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

    def common_bias(self) -> Number:
        """A number that is added to every logit; it matters in one-vs-all losses alone."""
        return 0.0

    def class_offsets(self) -> tuple[float, ...] | None:
        """One number per class that is added to its logit in the loss, and not in inference."""
        return None

    def for_inference(self) -> Margin:
        """The margin whose φ makes the logits of inference: this one, or a plain one where φ itself has a margin."""
        return self

    def other_loss(self, z: Tensor) -> Tensor:
        """`h(z)`: the loss of a class that is not the target's from its logit, where `one_vs_all`."""
        raise TypeError(f"{self.name} is no one-vs-all loss")

    def combine(self, p: Tensor, others: Tensor) -> Tensor:
        """Loss [N] of the target's logit with the margin, and of `L` or (one-vs-all) the sum over the others."""
        return split_softmax(p, others)

    def loss_weight(self) -> Number:
        """Factor of the whole loss."""
        return 1.0

    def sample_penalty(self) -> Tensor | None:
        """A term [N] that is added to the loss of each sample, from its own numbers."""
        return None

    def weight_penalty(self, cos: Tensor) -> Tensor:
        """A term of each class [C] from the cosines between its K weights [C, K, K]; the loss gets their mean."""
        raise TypeError(f"{self.name} has no penalty on the class weights")

    @property
    def subcenters(self) -> Subcenters | None:
        """The weights per class and how they are folded; None where a class has one weight."""
        return None

    @property
    def has_weight_penalty(self) -> bool:
        """Whether `weight_penalty` gives anything."""
        return type(self).weight_penalty is not Margin.weight_penalty

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

    @property
    def takes_target_logit(self) -> bool:
        """Whether the target's logit is read off the product: where nothing can be gained from an angle.

        That is where a plain target keeps lengths, or where a mean of sub-centres has no one angle.
        """
        folded = self.subcenters is not None and self.subcenters.temperature is not None
        return self.has_plain_target and (self.uses_any_norm or folded)

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

    def check_label_smoothing(self, label_smoothing: float) -> None:
        """Refuse label smoothing where the loss is no cross-entropy."""
        if label_smoothing and not self.allows_label_smoothing:
            raise InputError(f"{self.name} is no cross-entropy over the classes: it takes no label_smoothing")

    def with_class_counts(self, counts: Sequence[int]) -> Self:
        """The margin with the number of training samples of every class, where it wants them and has none."""
        return self

    def class_count_warnings(self, num_classes: int) -> list[str]:
        """What is worth a warning with so many classes, such as a scale of 0 that cannot learn."""
        return []

    def adapt_to_batch(self, batch: BatchStatistics) -> Self:
        """The margin for this training batch; fields named in `adaptive_fields` may change."""
        return self

    def for_samples(self, samples: SampleStatistics) -> Self:
        """The margin with the numbers of each sample, those of `sample_fields`; called wherever a loss is computed."""
        return self

    def with_values(self, **values: Any) -> Self:
        new = super().with_values(**values)
        for name in self.sample_fields:
            if name in values or name in self.__dict__:
                object.__setattr__(new, name, values.get(name, getattr(self, name)))
        return new

    def without_sample_values(self) -> Self:
        """The margin without the numbers of a call's samples."""
        new = super().with_values()
        return new if any(name in self.__dict__ for name in self.sample_fields) else self

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
    """The target's logit [N] less what the margin takes off it as it stands."""
    offset = margin.offset()
    return p - offset if isinstance(offset, Tensor) or offset != 0.0 else p


def add_common_bias(margin: Margin, z: Tensor) -> Tensor:
    """Logits with the number that the margin adds to every one."""
    bias = margin.common_bias()
    return z + bias if isinstance(bias, Tensor) or bias != 0.0 else z


def softplus(z: Tensor) -> Tensor:
    """`log(1 + exp(z))`, exact where torch's own drops the smaller term (past z = 20)."""
    return -F.logsigmoid(-z)


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
