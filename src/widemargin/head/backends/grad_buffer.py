"""GradBuffer: the memory of the weight gradient, reused in the next step unless something else refers to it.

Fresh memory of that size is expensive: the system provides it page by page and zeroed, which takes up to a sixth of a
step. With `zero_grad()`, which drops gradients, the same memory is used in every step.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch
from torch import Tensor

from ...numerics import torch_compat

_OWN_REFERENCES = 2  # references to the storage object: the attribute, and the argument of getrefcount


class GradBuffer:
    """The storage of the last gradient, reused if no other reference exists. Copies and pickles are empty."""

    def __init__(self) -> None:
        self.storage: torch.UntypedStorage | None = None
        self._lock = threading.Lock()  # two threads must not get the same storage

    def allocate_like(self, like: Tensor) -> Tensor:
        """Return an uninitialised tensor for the gradient of `like`, in the kept storage if that is free."""
        with self._lock:
            if self._is_reusable(like):
                assert self.storage is not None
                strides = torch.empty(like.shape, device="meta").stride()
                empty = torch.empty(0, dtype=like.dtype, device=like.device)
                with torch.no_grad():
                    return empty.set_(self.storage, 0, like.shape, strides)
            fresh = torch.empty(like.shape, dtype=like.dtype, device=like.device)
            if self.storage is None or not self._is_in_use():
                self.storage = fresh.untyped_storage()
            return fresh

    def clear(self) -> None:
        """Release the memory."""
        with self._lock:
            self.storage = None

    def _is_reusable(self, like: Tensor) -> bool:
        if self.storage is None or self._is_in_use() or self.storage.device != like.device:
            return False
        return self.storage.nbytes() == like.numel() * like.element_size()

    def _is_in_use(self) -> bool:
        """True if something else refers to the storage: a tensor in it (a kept gradient, a view, an array of it), or
        the storage itself, for which torch returns one and the same Python object."""
        if self.storage is None:
            return False
        users = torch_compat.count_storage_users(self.storage)
        return users is None or users > 1 or sys.getrefcount(self.storage) > _OWN_REFERENCES

    def __deepcopy__(self, memo: Any) -> GradBuffer:
        return GradBuffer()

    def __reduce__(self) -> Any:
        return GradBuffer, ()
