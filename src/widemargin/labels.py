"""Checks of embeddings and labels, one line each, with at most one wait for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from .errors import InputError

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_labels(y: Tensor, samples: int, classes: int, lengths: Tensor | None = None) -> None:
    """Shape, dtype and range of class labels [N]; with `lengths` [N] also that embeddings are finite.

    Values are looked at in eager mode only: a compiled or `vmap`ped step must not wait for them.
    """
    if not isinstance(y, Tensor):
        raise InputError(f"labels must be a tensor [N] of class numbers, got {type(y).__name__}")
    if y.dtype not in _INTEGERS:
        raise InputError(f"labels must be whole class numbers (int64), got {y.dtype}")
    if y.shape != (samples,):
        raise InputError(f"labels must have shape [{samples}], one per embedding, got {list(y.shape)}")
    if samples == 0 or torch.compiler.is_compiling():
        return
    facts = [y.min().to(torch.float64), y.max().to(torch.float64)] if y.device.type != "mps" else [y.min(), y.max()]
    if lengths is not None:
        facts.append(torch.isfinite(lengths.detach()).all().to(facts[0].dtype))
    try:
        seen = torch.stack(facts).tolist()  # the one wait
    except RuntimeError as error:
        if "vmap" in str(error):
            return
        raise
    low, high = int(seen[0]), int(seen[1])
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        hint = " (set ignore_index to leave samples out)" if low < 0 else ""
        raise InputError(f"label {wrong} is out of range: {classes} classes are numbered 0 to {classes - 1}{hint}")
    if lengths is not None and not seen[2]:
        bad = torch.nonzero(~torch.isfinite(lengths.detach())).flatten().tolist()
        more = "" if len(bad) <= 3 else f" and {len(bad) - 3} more"
        raise InputError(
            f"embedding(s) {', '.join(map(str, bad[:3]))}{more} hold NaN or infinite values: "
            "the network before the head has diverged (lower the learning rate, check the input)"
        )


def check_embeddings(x: Tensor, dim: int) -> None:
    """Shape and dtype of embeddings [N, D]."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        given = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"embeddings must be a float tensor [N, {dim}], got {given}")
    if x.ndim != 2 or x.shape[1] != dim:
        raise InputError(f"embeddings must have shape [N, {dim}], got {list(x.shape)}")
