"""Dtypes for computing and storing, and disabling of autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def widest_float_dtype(device: torch.device) -> torch.dtype:
    """Return the widest float dtype of a device; numbers of a loss are stored in it, whatever the model's dtype."""
    return torch.float32 if device.type == "mps" else torch.float64


def at_least_fp32(x: Tensor) -> Tensor:
    """Return `x` in its own dtype, but at least in fp32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def number_like(value: float | Tensor, like: Tensor) -> Tensor:
    """Return a number as a tensor with the dtype and device of `like`.

    A Python number is written on the device; copying it there, as `torch.as_tensor` does, would wait for the device.
    """
    return value.to(like) if isinstance(value, Tensor) else torch.full((), value, dtype=like.dtype, device=like.device)


def autocast_disabled(x: Any) -> AbstractContextManager[Any]:
    """Disable autocast on the device of `x`."""
    device_type = x.device.type if isinstance(x, Tensor) else "cpu"
    if device_type == "meta" or not (torch.compiler.is_compiling() or torch.is_autocast_enabled(device_type)):
        return nullcontext()  # meta tensors, or autocast is off: entering a context takes time
    return torch.autocast(device_type, enabled=False)
