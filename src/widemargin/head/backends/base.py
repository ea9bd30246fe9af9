"""Shared parts of all backends: normalised embeddings, the definition of a logit, the interface, and the loss on it.

A backend is created for one call with the embeddings, class weights and bias of that call. The margin is an argument
of each method, since an adaptive one changes within the call: `split(margin, y)` returns the target of each sample and
the sums over the other classes, which is all that a loss needs. Matrix products depend on a margin only through the
norms it keeps (`Geometry`); they are computed on first use and shared by the adaptive numbers, the loss, and both
labels of a mixup. `compute_margin_loss` is the only place where the loss is computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...io.errors import InputError
from ...losses.margin import (
    BatchStatistics,
    Margin,
    SampleStatistics,
    Subcenters,
    add_common_bias,
    apply_label_smoothing,
    subtract_offset,
    target_logit,
)
from ...numerics import angles


class NormalizedEmbeddings:
    """Embeddings [N, D] in the head's working dtype; their directions and norms are computed on first use.

    `raw` are the embeddings as passed in; before, they had `given_dtype`, if known. `safe_norm` are their norms,
    without a gradient, if they were computed and are far from 0 and from overflow; otherwise None.
    """

    def __init__(self, raw: Tensor, given_dtype: torch.dtype | None = None) -> None:
        self.given_dtype = given_dtype
        self.raw, self.safe_norm, self._grad_enabled = raw, None, torch.is_grad_enabled()
        if angles.is_eager_cpu(raw, "norms"):
            rough = torch.linalg.vector_norm(raw.detach(), dim=-1)
            self.safe_norm = rough if angles.are_norms_safe(rough) else None
        self._parts_cache: tuple[Tensor, Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def x(self) -> Tensor:
        """The embeddings [N, D]; a zero embedding gets no gradient."""
        return self._compute_parts()[0]

    @property
    def unit(self) -> Tensor:
        """Their directions [N, D]."""
        return self._compute_parts()[1]

    @property
    def norm(self) -> Tensor:
        """Their norms [N]."""
        return self._compute_parts()[2]

    @property
    def dtype(self) -> torch.dtype:
        """The working dtype."""
        return self.raw.dtype

    def _compute_parts(self) -> tuple[Tensor, Tensor, Tensor]:
        if self._parts_cache is None:
            # Adaptive margins come first and need no gradient; the loss needs one.
            with torch.set_grad_enabled(self._grad_enabled):
                x = self.raw
                unit, length = angles.unit_and_norm(x)
                if self.safe_norm is None:
                    # A zero embedding has no angle: its cosines are 0 and it gets no gradient, for any geometry.
                    x = torch.where((length == 0).unsqueeze(1), torch.zeros_like(x), x)
                self._parts_cache = x, unit, length
        return self._parts_cache


def compute_radius(margin: Margin, x_norm: Tensor, w_norm: Tensor) -> Tensor | None:
    """`r = ‖x‖‖w‖` with only the factors that the margin keeps; None if it is 1."""
    if margin.uses_x_norm and margin.uses_w_norm:
        return x_norm * w_norm
    if margin.uses_x_norm:
        return x_norm
    return w_norm if margin.uses_w_norm else None


class Geometry(NamedTuple):
    """Norms that are part of the matrix product; margins with the same geometry share their products.

    If φ is the cosine itself, the norms that a margin keeps are part of the product, so that nothing is divided out and
    multiplied in again. Otherwise the product is the cosine, and norms are multiplied in after φ.
    """

    folds_x_norm: bool
    folds_w_norm: bool

    @classmethod
    def of(cls, margin: Margin) -> Geometry:
        """Return the geometry of a margin's products."""
        return cls(margin.is_linear and margin.uses_x_norm, margin.is_linear and margin.uses_w_norm)

    @property
    def is_cosine(self) -> bool:
        """True if the products are cosines."""
        return not (self.folds_x_norm or self.folds_w_norm)


COSINE = Geometry(False, False)


class DotProducts(NamedTuple):
    """Dot products with some classes, and the norms that are still to be multiplied in."""

    value: Tensor
    """[N, C'], the cosine, or, if φ is the cosine itself, the cosine times the norms kept."""
    radius: Tensor | None
    """`r_j`, if φ must come first."""


def compute_logits(margin: Margin, product: DotProducts, bias: Tensor | None) -> Tensor:
    """`s · r_j · φ(cos θ_j) + b_j` [N, C']: the one definition."""
    z: Tensor = margin.s * margin.phi(product.value)
    if product.radius is not None:
        z = z * product.radius
    return add_common_bias(margin, z if bias is None else z + bias.to(z.dtype))


def broadcast_over_classes(margin: Margin) -> Margin:
    """Return the margin with the per-sample numbers that φ reads as columns [N, 1], to match logits [N, C']."""
    if not margin.phi_sample_fields:
        return margin
    numbers = {name: getattr(margin, name) for name in margin.phi_sample_fields}
    return margin.with_values(**{n: v.unsqueeze(1) if isinstance(v, Tensor) else v for n, v in numbers.items()})


def fold_subcenters(subcenters: Subcenters | None, cos: Tensor, dim: int) -> Tensor:
    """Reduce the cosines of all sub-centres, adjacent along `dim`, to one cosine per class."""
    if subcenters is None:
        return cos
    return subcenters.fold(split_subcenters(subcenters, cos, dim).unbind(dim + 1))


def split_subcenters(subcenters: Subcenters, values: Tensor, dim: int) -> Tensor:
    """Reshape the values of C·K sub-centres along `dim` to two dimensions [C, K]."""
    count, shape = subcenters.count, values.shape
    return values.view(*shape[:dim], shape[dim] // count, count, *shape[dim + 1 :])


def sum_weight_penalty(margin: Margin, unit: Tensor) -> Tensor:
    """Sum of the penalty of all classes with these directions of weights, [C, D] or [C·K, D]."""
    count = 1 if margin.subcenters is None else margin.subcenters.count
    rows = unit.view(len(unit) // count, count, unit.shape[1])
    return margin.weight_penalty(rows @ rows.mT).sum()


def sum_penalty_of_products(margin: Margin, products: Tensor) -> Tensor:
    """The same from the Gram matrices of the K weights of each class [C, K, K], which contain the squared norms."""
    inverse = products.diagonal(dim1=1, dim2=2).rsqrt()
    return margin.weight_penalty(products * inverse.unsqueeze(1) * inverse.unsqueeze(2)).sum()


def flatten_subcenters(weight: Tensor) -> Tensor:
    """Class weights [C, D], or [C, K, D] → [C·K, D]."""
    return weight.flatten(0, 1) if weight.ndim == 3 else weight


class Target(NamedTuple):
    """The target of each sample."""

    theta: Tensor
    """Angle θ_y [N], computed from the chord if vectors are available."""
    radius: Tensor | None
    """`r_y` [N], None if it is 1."""
    bias: Tensor | None
    """`b_y` [N], if any."""


class TargetLogit(NamedTuple):
    """Target whose logit is an ordinary one: no angle is computed, so a class weight of norm 0 can learn."""

    value: Tensor
    """The logit [N] before the margin's offset."""


class SplitLogits(NamedTuple):
    """Logits of each sample split into its target and the others: all that a loss needs from a backend."""

    target: Target | TargetLogit
    others: Tensor
    """`L` [N]: logsumexp over the non-target classes; for a one-vs-all loss, the sum of their losses."""
    logit_sum: Tensor | None
    """Sum of the non-target logits [N], if requested (label smoothing)."""
    weight_penalty: Tensor | None = None
    """Sum over the classes of the margin's penalty on their weights, if it has one."""


class Backend(ABC):
    """Splits the logits of a batch into target and other classes; created for one call, independent of the margin."""

    num_classes: int

    @property
    @abstractmethod
    def x_norm(self) -> Tensor:
        """‖x‖ [N]."""

    def expect(self, margin: Margin) -> None:
        """Prepare for the loss of a margin, before its adaptive and per-sample numbers are asked for."""
        return

    @abstractmethod
    def split(self, margin: Margin, y: Tensor, with_logit_sum: bool = False) -> SplitLogits:
        """Return the target of each sample, and the sums over the classes other than `y`.

        The target is a `TargetLogit` if `Margin.takes_target_logit` is True.
        `with_logit_sum` also requests the sum of the other classes' logits.
        """

    @abstractmethod
    def target_angles(self, y: Tensor) -> Tensor:
        """θ_y [N]: the angle between each embedding and the class weight of its label, or the nearest sub-centre."""

    @abstractmethod
    def largest_cosines(self, y: Tensor, count: int = 1) -> Tensor:
        """Cosines [N, count] of the nearest classes other than `y`, largest first, without a gradient."""


def logit_with_margin(margin: Margin, target: Target | TargetLogit) -> Tensor:
    """`p` [N]: the target's logit with the margin applied."""
    if isinstance(target, TargetLogit):
        return subtract_offset(margin, target.value)
    return target_logit(margin, target.theta, target.radius, target.bias)


def compute_margin_loss(
    backend: Backend,
    margin: Margin,
    y: Tensor,
    *,
    step: Tensor,
    sample_mask: Tensor | None = None,
    adapt: bool = False,
    training: bool = False,
    label_smoothing: float = 0.0,
    gather: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Margin]:
    """Return the loss [N] of a margin on a backend, and the margin that was used (adapted to this batch if `adapt`).

    With `training`, margins that draw a random number per sample do so.

    `gather` collects the rows of all processes that share the adaptive numbers (None: one process).
    """
    backend.expect(margin)
    if adapt and margin.adaptive_fields:
        with torch.no_grad():
            batch = BatchStatistics.from_batch(
                backend.target_angles(y),
                backend.x_norm,
                step,
                lambda of: backend.split(of, y).others,
                lambda: backend.largest_cosines(y).squeeze(-1),
                sample_mask,
                gather,
            )
            margin = margin.adapt_to_batch(batch)
    margin = fill_in_samples(backend, margin, y, training)
    logits = backend.split(margin, y, with_logit_sum=label_smoothing > 0)
    p = logit_with_margin(margin, logits.target)
    loss = margin.combine(p, logits.others)
    if logits.logit_sum is not None:
        loss = apply_label_smoothing(loss, p, logits.logit_sum, backend.num_classes, label_smoothing)
    factor, penalty = margin.loss_weight(), margin.sample_penalty()
    loss = loss * factor if isinstance(factor, Tensor) or factor != 1.0 else loss
    loss = loss if penalty is None else loss + penalty
    if logits.weight_penalty is not None:
        loss = loss + logits.weight_penalty / backend.num_classes
    return loss, margin


def fill_in_samples(backend: Backend, margin: Margin, y: Tensor, training: bool) -> Margin:
    """Return the margin with its per-sample numbers, if it has any."""
    if not margin.sample_fields:
        return margin

    def largest_cosines(count: int) -> Tensor:
        # The entry after the last other class is the target itself, −∞.
        if count > backend.num_classes:
            raise InputError(f"{margin.name}: {count} nearest classes, but there are only {backend.num_classes}")
        return backend.largest_cosines(y, count)

    def theta() -> Tensor:
        with torch.no_grad():
            return backend.target_angles(y)

    return margin.for_samples(SampleStatistics(theta, lambda: backend.x_norm, largest_cosines, training))
