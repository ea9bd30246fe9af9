"""The centre of the package: a margin is a frozen value, and every margin loss is one split softmax.

Design. Every loss of this family is cross-entropy in which only the *target's* logit differs, so
the softmax is split there:

    L    = log Σ_{j≠y} exp( s · r_j · φ(cos θ_j) + b_j )     all the N×C work, knows no margin
    p    = s · r_y · ψ(θ_y) + b_y − a                         the margin: one curve on N numbers
    loss = log(1 + exp(L − p))                                per sample, [N]

a) ψ takes the angle and not the cosine, because the road to the target computes that angle from
   the chord, exactly, where a cosine has lost it.
b) The target is left out of the sum, so tiny losses and their gradients keep their digits, and a
   streamed or sharded road only has to reduce `L`.
c) A margin holds numbers and curves and nothing else. Numbers that move (schedules, adaptive
   scales, learnable scales) are put in their place by the head, once per step, as tensors; the
   curves never know. What an adaptive margin remembers are its own fields named in `adaptive`.
d) The gradient of everything is autograd's on these definitions: there is no second formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from . import angle
from .errors import InputError, shown
from .labels import check_labels, check_smoothing, exceeds, is_plain_float, kind_of
from .option import Loss, Number, PerClass
from .precision import at_least_fp32, island, widest
from .schedule import Schedule


@dataclass(frozen=True)
class Batch:
    """What an adaptive margin may see of a training batch: the samples of all ranks, no gradient.

    Rows are those that count, of all ranks. `here_…` are the rows of this process alone, every one
    of them, for margins that give each sample its own number. Where K models train as one stack, rows
    are [K, N] and every model is its own batch: reduce with `median` and `log_mean_exp`, which know.
    """

    theta: Tensor
    """Target angles [M]."""
    step: Tensor
    """Training calls before this one."""
    log_others: Callable[[Margin], Tensor]
    """`L` [M] of a margin on this batch."""
    nearest: Callable[[], Tensor]
    """Angle [M] to the nearest class that is not the target's."""
    lengths: Callable[[], Tensor]
    """Lengths ‖x‖ [M]."""
    here_theta: Tensor
    """Target angles [N] of this process."""
    here_lengths: Tensor
    """Lengths ‖x‖ [N] of this process."""

    @classmethod
    def of(
        cls,
        theta: Tensor,
        lengths: Tensor,
        step: Tensor,
        log_others: Callable[[Margin], Tensor],
        largest_cosine: Callable[[], Tensor],
        keep: Tensor | None = None,
        gather: Callable[[Tensor], Tensor] | None = None,
    ) -> Batch:
        """A batch whose rows are those of all ranks; `keep` marks the samples that count, `gather` asks the ranks."""

        def everywhere(rows: Tensor) -> Tensor:
            if rows.ndim == 2:  # a stack of models lives in one process
                return rows
            rows = (rows if keep is None else rows[keep]).detach()
            return rows if gather is None else gather(rows)

        return cls(
            theta=everywhere(theta.detach()),
            step=step,
            log_others=lambda margin: everywhere(log_others(margin)),
            nearest=lambda: everywhere(angle.from_cosine(largest_cosine())),
            lengths=lambda: everywhere(lengths),
            here_theta=theta.detach(),
            here_lengths=lengths.detach(),
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
    keeps_x: ClassVar[bool] = False
    """Whether the logits keep the length of the embedding."""
    keeps_w: ClassVar[bool] = False
    """Whether the logits keep the lengths of the class weights."""
    adaptive: ClassVar[tuple[str, ...]] = ()
    """Fields that `adapted` moves; the head keeps them in buffers."""
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
    def keeps_any(self) -> bool:
        """Whether the logits keep a length at all."""
        return self.keeps_x or self.keeps_w

    @property
    def linear(self) -> bool:
        """Whether φ is the cosine itself, so that lengths fold into the matrix product."""
        return type(self).phi is Margin.phi

    @property
    def plain_target(self) -> bool:
        """Whether the target's curve is the others', so that its logit is an ordinary one, less the offset."""
        return self.linear and type(self).psi is Margin.psi

    def sized(self, classes: int) -> Self:
        """The same margin with the defaults that depend on the number of classes filled in."""
        for name, value in self.values():
            if isinstance(value, PerClass) and len(value) != classes:
                raise InputError(f"{self.name}: {name} has {len(value)} numbers for {classes} classes")
        return self

    def adapted(self, batch: Batch) -> Self:
        """The margin for this training batch; fields named in `adaptive` may change."""
        return self

    def at(self, step: Tensor, y: Tensor | None, dtype: torch.dtype, held: Mapping[str, Tensor] | None = None) -> Self:
        """The margin with every moving number put in its place as a tensor.

        `held` are the tensors a head keeps for fields (adaptive state, learnable and per-class
        numbers); a per-class number is looked up at `y`, and left alone without labels.
        """
        held = held or {}
        now: dict[str, Any] = {}
        for name, value in self.values():
            if isinstance(value, PerClass):
                if y is not None:
                    table = held.get(name)
                    if table is None:
                        table = torch.tensor(value.values, dtype=widest(y.device), device=y.device)
                    now[name] = table[y].to(dtype)
            elif name in held:
                now[name] = held[name]
            elif isinstance(value, Schedule):
                now[name] = value.at(step)
        return self.with_values(**now) if now else self


def target_logit(margin: Margin, theta: Tensor, radius: Tensor | None, bias: Tensor | None) -> Tensor:
    """`p = s · r_y · ψ(θ_y) + b_y − a` [N]."""
    p: Tensor = margin.s * margin.psi(theta)
    if radius is not None:
        p = p * radius
    if bias is not None:
        p = p + bias
    return less_offset(margin, p)


def less_offset(margin: Margin, p: Tensor) -> Tensor:
    """The target's logit [N] less what the margin takes off it as it stands."""
    offset = margin.offset()
    return p - offset if isinstance(offset, Tensor) or offset != 0.0 else p


def split_softmax(p: Tensor, log_others: Tensor) -> Tensor:
    """`log(1 + exp(L − p))` [N], exact from 1e-300 to 1e300; its slope is exact too.

    >>> split_softmax(torch.tensor(30.0), torch.tensor(4.5)).item() > 0  # fp32 cross-entropy says 0
    True
    """
    return -F.logsigmoid(p - log_others)


def smoothed(loss: Tensor, p: Tensor, total_others: Tensor, classes: int, smoothing: float) -> Tensor:
    """Label smoothing ε of a split softmax: `loss + ε [p − (Σ_{j≠y} z_j + p)/C]`."""
    return loss + smoothing * (p - (total_others + p) / classes)


def margin_softmax(
    cos: Tensor,
    y: Tensor,
    margin: Margin | str,
    *,
    radius: Tensor | None = None,
    step: int = 0,
    smoothing: float = 0.0,
) -> Tensor:
    """Per-sample loss [N] of a margin on your own cosines `cos` [N, C] and labels `y` [N].

    What a fresh head's first training call gives on these cosines. Losses that keep lengths
    (softmax, A-Softmax, …) need `radius`: ‖x‖ as [N], or ‖x‖‖w_j‖ as [N, C]. Angles come from the
    given cosines, so in fp32 they are no better than those: `Head` computes them from the vectors.

    >>> cos = torch.tensor([[0.8, 0.1, -0.3]])
    >>> [round(v, 4) for v in margin_softmax(cos, torch.tensor([0]), "cosface(s=8, m=0.2)").tolist()]
    [0.0189]
    """
    from .catalogue import parse_margin  # here, because these import the margins
    from .others.dense import Given
    from .others.road import loss_on

    margin = parse_margin(margin) if isinstance(margin, str) else margin
    if not isinstance(margin, Margin):
        raise InputError(f"margin must be a parse string or a Margin such as ArcFace(), got {shown(margin)}")
    check_cosines(cos, y)
    if margin.bias:
        raise InputError(f"{margin.name} with a bias has parameters: use Head")
    with island(cos):
        cos = at_least_fp32(cos)
        road = Given(cos, _checked_radius(margin, radius, cos))
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**63:
            raise InputError(f"step={shown(step)} must be a whole number of at least 0")
        when = torch.tensor(step, device=cos.device)
        now = margin.sized(cos.shape[1]).at(when, y.long(), cos.dtype)
        return loss_on(road, now, y.long(), step=when, adapt=True, smoothing=check_smoothing(smoothing))[0]


def _checked_radius(margin: Margin, radius: Tensor | None, cos: Tensor) -> Tensor | None:
    """‖x‖ or ‖x‖‖w_j‖ as [N, C] for the losses that keep lengths, None for the others."""
    keeps_lengths = margin.keeps_x or margin.keeps_w
    if radius is None:
        if keeps_lengths:
            raise InputError(f"{margin.name} keeps lengths: pass radius=‖x‖ [N] or ‖x‖‖w‖ [N, C]")
        return None
    if not keeps_lengths:
        raise InputError(f"{margin.name} lives on the unit sphere: it takes no radius")
    if not isinstance(radius, Tensor) or radius.is_complex() or radius.device != cos.device:
        raise InputError(f"radius must be a tensor of lengths on {cos.device}, got {kind_of(radius)}")
    if radius.shape not in (cos.shape[:1], cos.shape):
        raise InputError(f"radius must have shape [{cos.shape[0]}] or {list(cos.shape)}, got {list(radius.shape)}")
    return radius.to(cos.dtype).reshape(len(cos), -1).expand_as(cos)


def check_cosines(cos: Tensor, y: Tensor) -> None:
    """Shapes and label range of `margin_softmax`; says what was given and what is allowed."""
    if not is_plain_float(cos) or cos.ndim != 2:
        given = f"{tuple(cos.shape)} {kind_of(cos)}" if isinstance(cos, Tensor) else kind_of(cos)
        raise InputError(f"cosines must be a float tensor [N, C], got {given}")
    if cos.shape[1] < 2:
        raise InputError(f"a softmax needs at least 2 classes, the cosines have {cos.shape[1]} column(s)")
    check_labels(y, cos.shape[0], cos.shape[1], device=cos.device)
    if exceeds(cos, 1.01):  # the usual mistake
        raise InputError("cosines lie between -1 and 1; these do not: pass cosines, not logits or products")
