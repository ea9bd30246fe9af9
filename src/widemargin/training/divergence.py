"""`DivergedError`, and its message for a loss that is no longer finite: where, which part, how large, what to try."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..io.errors import InputError, spell_option
from ..models.attach import MarginModel
from ..numerics.angles import group_weights, smallest_angle, unit_and_norm


class DivergedError(InputError):
    """The loss or the weights are no longer finite; the last good checkpoint is kept."""


@torch.no_grad()
def describe_divergence(
    model: MarginModel,
    x: Tensor | None,
    y: Tensor,
    step: int,
    loss: float,
    has_checkpoint: bool,
    earlier_magnitudes: str,
) -> str:
    """One line: where, which part, how large, and what to try; with `has_checkpoint` there is a good checkpoint.

    `x` are the embeddings that the step has seen, None where there are none that a head would take;
    `earlier_magnitudes` says what was seen in the steps before, where nothing can be said of this one.
    """
    objective = model.objective
    parts = {name: objective.factors.get(name, 1.0) * values for name, values in objective.last_losses.items()}
    bad = [name for name, values in parts.items() if not torch.isfinite(values).all()]
    weights = non_finite_parameters(model)
    message = f"step {step}: the loss is {loss}"
    if bad:
        message += f" (in {', '.join(bad)})"
    if weights:
        message += f", weights are not finite in {weights[0]}" + (
            f" and {len(weights) - 1} more" if weights[1:] else ""
        )
        message += earlier_magnitudes
    elif x is None or not torch.isfinite(x).all():
        message += f", embeddings are not finite{earlier_magnitudes}"
    else:
        message += _describe_magnitudes(model, x, y)
    ending = "; the last good checkpoint is kept" if has_checkpoint else ""
    return f"{message}. Try a smaller {spell_option('lr')}, {spell_option('clip', 1)}, or a warm-up{ending}"


def non_finite_parameters(model: MarginModel) -> list[str]:
    """Names of the parameters that hold NaN or infinity."""
    return [name for name, p in model.named_parameters() if not torch.isfinite(p).all()]


def _describe_magnitudes(model: MarginModel, x: Tensor, y: Tensor) -> str:
    """Largest logit, angle to the target class, and norm of the embeddings."""
    message = ""
    if model.objective.has_logits:
        message += f", largest logit {float(model.objective.logits(x).abs().max()):.3g}"
    head = model.objective.head
    if head is not None:
        weight = group_weights(head.weight.detach())[y].double()
        theta = smallest_angle(unit_and_norm(x.double())[0].unsqueeze(1), unit_and_norm(weight)[0])
        message += f", largest angle to the own class {math.degrees(float(theta.max())):.0f}°"
    return f"{message}, largest embedding {float(x.double().norm(dim=1).max()):.3g}"
