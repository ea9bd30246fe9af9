"""What to say when a loss stops being a number."""

from __future__ import annotations

import torch
from torch import Tensor

from ..classifier import MarginModel
from ..errors import InputError


class DivergedError(InputError):
    """Training went wrong; the last good checkpoint is kept."""


@torch.no_grad()
def diagnosis(model: MarginModel, images: Tensor, step: int, loss: float, kept: bool) -> str:
    """One line: where, which part, how large, and what to try; `kept` says whether there is a good checkpoint."""
    parts = model.objective.last
    bad = [name for name, values in parts.items() if not torch.isfinite(values).all()]
    weights = [name for name, p in model.named_parameters() if not torch.isfinite(p).all()]
    told = f"step {step}: the loss is {loss}"
    if bad:
        told += f" (in {', '.join(bad)})"
    if weights:
        told += f", weights are not finite in {weights[0]}" + (f" and {len(weights) - 1} more" if weights[1:] else "")
    else:
        model.eval()
        x = model.embed(images)
        if torch.isfinite(x).all():
            logit, length = float(model.objective.logits(x).abs().max()), float(x.norm(dim=1).max())
            told += f", largest logit {logit:.3g}, largest embedding {length:.3g}"
        else:
            told += ", embeddings are not finite"
    ending = "; the last good checkpoint is kept" if kept else ""
    return f"{told}. Try a smaller --lr, --clip 1, or a warm-up{ending}"
