"""Cosines of everything with everything, and the sum over the others, as one node of the graph each.

Products divided by lengths: with few classes far cheaper than unit vectors, and the cosines are as good. Classes come
first, so that a row's samples lie side by side and sums over classes run down the columns. Both can be differentiated
twice; forward mode, `torch.func` and `torch.compile` want the plain graph of `dense`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class CosinesAndNorms(torch.autograd.Function):
    """x [..., N, D], w [..., C, D] → cosines [..., C, N], ‖x‖ [..., N], ‖w‖ [..., C]; lengths must be moderate or 0.

    Who knows the lengths already gives them; then none may be 0.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, known_x_norm: Tensor | None, known_w_norm: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        x_norm, x_inverse = _length_and_inverse(x, known_x_norm)
        w_norm, w_inverse = _length_and_inverse(w, known_w_norm)
        x_inverse, w_inverse = x_inverse.unsqueeze(-2), w_inverse.unsqueeze(-1)
        cos = torch.matmul(w, x.mT).mul_(w_inverse).mul_(x_inverse)
        ctx.save_for_backward(x, w, cos, x_inverse, w_inverse)
        ctx.set_materialize_grads(False)
        return cos, x_norm, w_norm

    @staticmethod
    def backward(ctx: Any, grad_cos: Tensor | None, grad_x_norm: Tensor | None, grad_w_norm: Tensor | None) -> Any:
        x, w, cos, x_inverse, w_inverse = ctx.saved_tensors
        grad_cos = torch.zeros_like(cos) if grad_cos is None else grad_cos
        if torch.is_grad_enabled():  # a second derivative: the inverse lengths are functions again
            x_inverse = _differentiable_inverse(x).unsqueeze(-2)
            w_inverse = _differentiable_inverse(w).unsqueeze(-1)
        along = grad_cos * cos
        pull = grad_cos * w_inverse * x_inverse
        # What points along a vector does not turn it; only its length may want that part.
        x_along, w_along = along.sum(-2) * x_inverse.squeeze(-2), along.sum(-1) * w_inverse.squeeze(-1)
        if grad_x_norm is not None:
            x_along = x_along - grad_x_norm
        if grad_w_norm is not None:
            w_along = w_along - grad_w_norm
        grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            grad_x = _matmul_minus(x * (x_along * x_inverse.squeeze(-2)).unsqueeze(-1), pull.mT, w)
        if ctx.needs_input_grad[1]:
            grad_w = _matmul_minus(w * (w_along * w_inverse.squeeze(-1)).unsqueeze(-1), pull, x)
        return grad_x, grad_w, None, None


class CosinesOnly(CosinesAndNorms):
    """The cosines without the lengths, which must be known."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, known_x_norm: Tensor, known_w_norm: Tensor) -> Tensor:  # type: ignore[override]
        x_inverse, w_inverse = known_x_norm.reciprocal().unsqueeze(-2), known_w_norm.reciprocal().unsqueeze(-1)
        cos = torch.matmul(w, x.mT).mul_(w_inverse).mul_(x_inverse)
        ctx.save_for_backward(x, w, cos, x_inverse, w_inverse)
        return cos

    @staticmethod
    def backward(ctx: Any, grad_cos: Tensor) -> Any:  # type: ignore[override]
        return CosinesAndNorms.backward(ctx, grad_cos, None, None)


class NonTargetLogSumExp(torch.autograd.Function):
    """Logits z [C, ...], targets [1, ...] → log Σ exp z over the other classes [...]; its slope is their softmax."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, target_row: Tensor) -> Tensor:
        others = z.scatter(0, target_row, -torch.inf)
        top = others.amax(0, keepdim=True)
        raised = others.sub_(top).exp_()
        total = raised.sum(0, keepdim=True)
        found = total.log().add_(top).squeeze(0)
        ctx.save_for_backward(z, target_row, found, raised, total)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        z, row, found, raised, total = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative: the shares are functions of the logits again
            return torch.exp(z - found).scatter(0, row, 0.0) * gradient, None
        return raised * (gradient / total), None


def _matmul_minus(subtrahend: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """`pull · others − along`, in the memory of `along` where nobody wants to go through it again."""
    if torch.is_grad_enabled():
        return torch.matmul(left, right) - subtrahend
    return (
        subtrahend.addmm_(left, right, beta=-1) if subtrahend.ndim == 2 else subtrahend.baddbmm_(left, right, beta=-1)
    )


def _length_and_inverse(vectors: Tensor, known_norm: Tensor | None) -> tuple[Tensor, Tensor]:
    """‖v‖ and 1/‖v‖, 0 where there is none, so that a zero vector has cosines and gradients of 0."""
    if known_norm is not None:
        return known_norm.clone(), known_norm.reciprocal()
    length = torch.linalg.vector_norm(vectors, dim=-1)
    return length, length.reciprocal().masked_fill_(length == 0, 0.0)


def _differentiable_inverse(vectors: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(vectors, dim=-1)
    return torch.where(length == 0, torch.zeros_like(length), 1.0 / length)
