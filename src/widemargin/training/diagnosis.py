"""What to say when a loss stops being a number."""

from __future__ import annotations

import torch
from torch import Tensor

from ..classifier import MarginModel
from ..errors import InputError


class DivergedError(InputError):
    """Training went wrong; the last good checkpoint is kept."""


@torch.no_grad()
def diagnosis(model: MarginModel, images: Tensor, y: Tensor, step: int, loss: float) -> str:
    """One line: where, which part, how large, and what to try."""
    model.eval()
    parts = model.objective.last
    bad = [name for name, values in parts.items() if not torch.isfinite(values).all()]
    x = model.embed(images)
    weights = [name for name, p in model.named_parameters() if not torch.isfinite(p).all()]
    told = f"step {step}: the loss is {loss}"
    if bad:
        told += f" (in {', '.join(bad)})"
    if weights:
        told += f", weights are not finite in {weights[0]}" + (f" and {len(weights) - 1} more" if weights[1:] else "")
    elif torch.isfinite(x).all():
        logits = model.objective.logits(x)
        told += f", largest logit {float(logits.abs().max()):.3g}, largest embedding {float(x.norm(dim=1).max()):.3g}"
    return told + ". Try a smaller --lr, --clip 1, or a warm-up; the last good checkpoint is kept"
