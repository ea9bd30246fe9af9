"""Log-sum-exp over all classes except the target, and over masked entries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .angles import is_reverse_mode_only
from .custom_autograd import custom_autograd


def define_non_target_logsumexp(z: Tensor, target_row: Tensor) -> Tensor:
    """Logits z [C, ...], targets [1, ...] → log Σ exp z over the other classes [...], for plain autograd."""
    return torch.logsumexp(z.scatter(0, target_row, -torch.inf), 0)


@custom_autograd(
    "speed", "autograd computes all exponentials a second time, and copies the logits", define_non_target_logsumexp
)
class NonTargetLogSumExp(torch.autograd.Function):
    """Logits z [C, ...], targets [1, ...] → log Σ exp z over the other classes [...]; its gradient is their softmax."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, target_row: Tensor) -> Tensor:
        others = z.scatter(0, target_row, -torch.inf)
        top = others.amax(0, keepdim=True)
        exps = others.sub_(top).exp_()
        total = exps.sum(0, keepdim=True)
        log_sum = total.log().add_(top).squeeze(0)
        ctx.save_for_backward(z, target_row, log_sum, exps, total)
        return log_sum

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        z, row, log_sum, exps, total = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivative: the softmax is a function of the logits again
            return torch.exp(z.scatter(0, row, -torch.inf) - log_sum) * gradient, None
        return exps * (gradient / total), None


def without_target(z: Tensor, y: Tensor, fill: float) -> Tensor:
    """Return the logits [N, C] with each sample's target replaced by `fill`."""
    return z.scatter(1, y.unsqueeze(1), fill)


def non_target_logsumexp(z: Tensor, y: Tensor) -> Tensor:
    """log Σ exp over the non-target classes [N], from logits [N, C] and labels [N]."""
    function = NonTargetLogSumExp.apply if is_reverse_mode_only(z, "log_sum") else define_non_target_logsumexp
    log_sum: Tensor = function(z.T, y.unsqueeze(0))
    return log_sum


EMPTY_LOG_SUM = -1e30
"""What the log-sum of nothing is, in place of −∞: its exponential is 0, and differences with it are numbers."""


def masked_logsumexp(z: Tensor, mask: Tensor, dim: int = 1) -> Tensor:
    """log Σ exp z over the entries in `mask`, along `dim`; about −1e30, and without gradient, where there are none.

    >>> z = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    >>> masked_logsumexp(z, torch.tensor([[True, True, False], [False, False, False]])).tolist()
    [1.31326162815094, -1.0000000150474662e+30]
    """
    return torch.logsumexp(z.masked_fill(~mask, EMPTY_LOG_SUM), dim)
