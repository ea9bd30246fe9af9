"""Cosines of everything with everything, and the sum over the others, as one node of the graph each.

Products divided by lengths: with few classes far cheaper than unit vectors, and the cosines are as good. Classes come
first, so that a row's samples lie side by side and sums over classes run down the columns. Both can be differentiated
twice; forward mode, `torch.func` and `torch.compile` want the plain graph of `dense`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Cosines(torch.autograd.Function):
    """x [..., N, D], w [..., C, D] → cosines [..., C, N], ‖x‖ [..., N], ‖w‖ [..., C]; lengths must be moderate or 0.

    Who knows the lengths already gives them; then none may be 0.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, x_known: Tensor | None, w_known: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        x_length, x_inverse = _length_and_inverse(x, x_known)
        w_length, w_inverse = _length_and_inverse(w, w_known)
        x_inverse, w_inverse = x_inverse.unsqueeze(-2), w_inverse.unsqueeze(-1)
        cos = torch.matmul(w, x.mT).mul_(w_inverse).mul_(x_inverse)
        ctx.save_for_backward(x, w, cos, x_inverse, w_inverse)
        ctx.set_materialize_grads(False)
        return cos, x_length, w_length

    @staticmethod
    def backward(ctx: Any, to_cos: Tensor | None, to_x_length: Tensor | None, to_w_length: Tensor | None) -> Any:
        x, w, cos, x_inverse, w_inverse = ctx.saved_tensors
        to_cos = torch.zeros_like(cos) if to_cos is None else to_cos
        if torch.is_grad_enabled():  # a second derivative: the inverse lengths are functions again
            x_inverse = _differentiable_inverse(x).unsqueeze(-2)
            w_inverse = _differentiable_inverse(w).unsqueeze(-1)
        along = to_cos * cos
        pull = to_cos * w_inverse * x_inverse
        # What points along a vector does not turn it; only its length may want that part.
        x_along, w_along = along.sum(-2) * x_inverse.squeeze(-2), along.sum(-1) * w_inverse.squeeze(-1)
        if to_x_length is not None:
            x_along = x_along - to_x_length
        if to_w_length is not None:
            w_along = w_along - to_w_length
        to_x = to_w = None
        if ctx.needs_input_grad[0]:
            to_x = _less(x * (x_along * x_inverse.squeeze(-2)).unsqueeze(-1), pull.mT, w)
        if ctx.needs_input_grad[1]:
            to_w = _less(w * (w_along * w_inverse.squeeze(-1)).unsqueeze(-1), pull, x)
        return to_x, to_w, None, None


class CosinesAlone(Cosines):
    """The cosines without the lengths, which must be known."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, x_known: Tensor, w_known: Tensor) -> Tensor:  # type: ignore[override]
        x_inverse, w_inverse = x_known.reciprocal().unsqueeze(-2), w_known.reciprocal().unsqueeze(-1)
        cos = torch.matmul(w, x.mT).mul_(w_inverse).mul_(x_inverse)
        ctx.save_for_backward(x, w, cos, x_inverse, w_inverse)
        return cos

    @staticmethod
    def backward(ctx: Any, to_cos: Tensor) -> Any:  # type: ignore[override]
        return Cosines.backward(ctx, to_cos, None, None)


class LogSumOthers(torch.autograd.Function):
    """Logits z [C, ...], targets [1, ...] → log Σ exp z over the other classes [...]; its slope is their softmax."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, row: Tensor) -> Tensor:
        others = z.scatter(0, row, -torch.inf)
        top = others.amax(0, keepdim=True)
        raised = others.sub_(top).exp_()
        total = raised.sum(0, keepdim=True)
        found = total.log().add_(top).squeeze(0)
        ctx.save_for_backward(z, row, found, raised, total)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        z, row, found, raised, total = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative: the shares are functions of the logits again
            return torch.exp(z - found).scatter(0, row, 0.0) * gradient, None
        return raised * (gradient / total), None


def _less(along: Tensor, pull: Tensor, others: Tensor) -> Tensor:
    """`pull · others − along`, in the memory of `along` where nobody wants to go through it again."""
    if torch.is_grad_enabled():
        return torch.matmul(pull, others) - along
    return along.addmm_(pull, others, beta=-1) if along.ndim == 2 else along.baddbmm_(pull, others, beta=-1)


def _length_and_inverse(vectors: Tensor, known: Tensor | None) -> tuple[Tensor, Tensor]:
    """‖v‖ and 1/‖v‖, 0 where there is none, so that a zero vector has cosines and gradients of 0."""
    if known is not None:
        return known.clone(), known.reciprocal()
    length = torch.linalg.vector_norm(vectors, dim=-1)
    return length, length.reciprocal().masked_fill_(length == 0, 0.0)


def _differentiable_inverse(vectors: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(vectors, dim=-1)
    return torch.where(length == 0, torch.zeros_like(length), 1.0 / length)
