"""`margin_softmax`: the loss of a margin on given cosines."""

from __future__ import annotations

import torch
from torch import Tensor

from ..io.errors import InputError, format_value
from ..losses.grammar import parse_margin
from ..losses.margin import Margin
from ..numerics.precision import at_least_fp32, autocast_disabled
from ..numerics.validation import check_label_smoothing, check_labels_or_defer, describe_type, exceeds, is_plain_float
from .backends.base import compute_margin_loss
from .backends.dense import PrecomputedCosinesBackend


def margin_softmax(
    cos: Tensor,
    y: Tensor,
    margin: Margin | str,
    *,
    radius: Tensor | None = None,
    step: int = 0,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Per-sample loss [N] of a margin on your own cosines `cos` [N, C] and labels `y` [N].

    Equal to the first training call of a fresh head with these cosines; with sub-centres they are the reduced cosines,
    one per class, and norms of embeddings are assumed to be 1. Losses that keep norms (softmax, A-Softmax, …) need
    `radius`: ‖x‖ as [N], or ‖x‖‖w_j‖ as [N, C]. Angles are computed from the given cosines, so in fp32 they are only as
    accurate as those; `Head` computes them from the vectors.

    >>> cos = torch.tensor([[0.8, 0.1, -0.3]])
    >>> [round(v, 4) for v in margin_softmax(cos, torch.tensor([0]), "cosface(s=8, m=0.2)").tolist()]
    [0.0189]
    """
    margin = parse_margin(margin) if isinstance(margin, str) else margin
    if not isinstance(margin, Margin):
        raise InputError(f"margin must be a loss string or a Margin such as ArcFace(), got {format_value(margin)}")
    in_range = check_cosines(cos, y)
    if margin.bias:
        raise InputError(f"{margin.name} has bias parameters: use Head")
    if margin.has_weight_penalty:
        raise InputError(f"{margin.name} has a penalty on the class weights, which needs more than cosines: use Head")
    with autocast_disabled(cos):
        cos = at_least_fp32(cos)
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**63:
            raise InputError(f"step={format_value(step)} must be a whole number of at least 0")
        label_smoothing = check_label_smoothing(label_smoothing)
        margin.check_label_smoothing(label_smoothing)
        y = y.long() if in_range is None else y.long().clamp(0, cos.shape[1] - 1)
        step_tensor = torch.full((), step, dtype=torch.int64, device=cos.device)
        resolved = margin.for_num_classes(cos.shape[1])
        offsets = resolved.class_offsets()
        bias = None if offsets is None else torch.tensor(offsets, dtype=cos.dtype, device=cos.device)
        backend = PrecomputedCosinesBackend(cos, _check_radius(margin, radius, cos), bias)
        current_margin = resolved.at_step(step_tensor, y, cos.dtype)
        loss = compute_margin_loss(
            backend,
            current_margin,
            y,
            step=step_tensor,
            adapt=True,
            training=True,
            label_smoothing=label_smoothing,
        )[0]
        return loss if in_range is None else torch.where(in_range, loss, torch.zeros_like(loss))


def _check_radius(margin: Margin, radius: Tensor | None, cos: Tensor) -> Tensor | None:
    """Return ‖x‖ or ‖x‖‖w_j‖ as [N, C] for the losses that keep norms, None for the others."""
    uses_norms = margin.uses_x_norm or margin.uses_w_norm
    if radius is None:
        if uses_norms:
            raise InputError(f"{margin.name} keeps norms: pass radius=‖x‖ [N] or ‖x‖‖w‖ [N, C]")
        return None
    if not uses_norms:
        raise InputError(f"{margin.name} normalises embeddings and weights: leave radius out")
    if not isinstance(radius, Tensor) or radius.is_complex() or radius.device != cos.device:
        raise InputError(f"radius must be a tensor of norms on {cos.device}, got {describe_type(radius)}")
    if radius.shape not in (cos.shape[:1], cos.shape):
        raise InputError(f"radius must have shape [{cos.shape[0]}] or {list(cos.shape)}, got {list(radius.shape)}")
    return radius.to(cos.dtype).reshape(len(cos), -1).expand_as(cos)


def check_cosines(cos: Tensor, y: Tensor) -> Tensor | None:
    """Check shapes and label range of `margin_softmax`; return the mask of labels in range if they are checked later.

    That cosines are no logits is only checked where reading them is free, or with `WIDEMARGIN_CHECK=sync`.
    """
    if not is_plain_float(cos) or cos.ndim != 2:
        actual = f"{tuple(cos.shape)} {describe_type(cos)}" if isinstance(cos, Tensor) else describe_type(cos)
        raise InputError(f"cosines must be a float tensor [N, C], got {actual}")
    if cos.shape[1] < 2:
        raise InputError(f"at least 2 classes are needed, cos has {cos.shape[1]} column(s)")
    in_range = check_labels_or_defer(y, cos.shape[0], cos.shape[1], None, cos.device)
    if exceeds(cos, 1.01):  # a frequent mistake
        raise InputError("cos must lie between -1 and 1: pass cosines, not logits or dot products")
    return in_range
