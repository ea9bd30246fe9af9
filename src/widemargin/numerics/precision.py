"""Which dtype is used to compute and to store, and autocast switched off."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def widest_float_dtype(device: torch.device) -> torch.dtype:
    """The widest float of a device: numbers of a loss are kept in it, whatever the model's dtype."""
    return torch.float32 if device.type == "mps" else torch.float64


def at_least_fp32(x: Tensor) -> Tensor:
    """`x` in its own dtype, but never in a half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def autocast_disabled(x: Any) -> AbstractContextManager[Any]:
    """Autocast switched off on the device of `x`: inside, dtypes are what the code says."""
    device_type = x.device.type if isinstance(x, Tensor) else "cpu"
    if device_type == "meta" or not (torch.compiler.is_compiling() or torch.is_autocast_enabled(device_type)):
        return nullcontext()  # shapes without values, or nothing to switch off: entering a context has its price
    return torch.autocast(device_type, enabled=False)
