"""Private interfaces of torch, each with a fallback for versions that lack it.

Every other module uses only public names of torch (a test checks this). A private name is looked up when it is needed,
and its absence costs time or memory, never correctness: a loop instead of one call, a fresh allocation, the general
formula instead of the short one, a kernel that is not compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor


def find_private(module: str, name: str) -> Any:
    """Return an attribute of a torch module, None if this version of torch has no such module or attribute."""
    try:
        return getattr(import_module(module), name, None)
    except ImportError:
        return None


# Looked up once: a small head uses them in every step.
_peek_interpreter_stack = find_private("torch._C._functorch", "peek_interpreter_stack")
_storage_use_count = find_private("torch._C", "_storage_Use_Count")
_foreach_mul_ = find_private("torch", "_foreach_mul_")


def is_inside_transform() -> bool:
    """True if a `torch.func` transform (vmap, grad, jvp) is running, or if that is unknown."""
    return _peek_interpreter_stack is None or _peek_interpreter_stack() is not None


def is_forward_mode_on() -> bool:
    """True if forward-mode differentiation may be on, or if that is unknown."""
    level = getattr(torch.autograd.forward_ad, "_current_level", None)
    return level is None or level >= 0


def count_storage_users(storage: torch.UntypedStorage) -> int | None:
    """Return how many tensors and storage objects share this memory, None if unknown."""
    return None if _storage_use_count is None else int(_storage_use_count(storage._cdata))


def multiply_all_(tensors: Sequence[Tensor], factor: float) -> None:
    """Multiply every tensor by a number, in place.

    >>> some = [torch.ones(2), torch.ones(1)]
    >>> multiply_all_(some, 3.0); some
    [tensor([3., 3.]), tensor([3.])]
    """
    if _foreach_mul_ is not None and tensors:
        _foreach_mul_(tensors, factor)
        return
    for tensor in tensors:
        tensor.mul_(factor)
