"""A guard that notes every host synchronisation: whatever Python reads from a tensor, and copies to a device.

On a CPU nothing waits, so the operations themselves are noted: those that read a value (`item`, `tolist`, `bool`),
those whose result has a size that depends on values (`nonzero`, boolean indices; not `nonzero_static`), and Python
numbers made into tensors, which on an accelerator are copied there.
"""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

OPERATIONS = [
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "equal",
    "allclose",
    "nonzero",
    "nonzero_numpy",
    "masked_select",
    "unique_dim",
    "_unique2",
    "unique_consecutive",
    "bincount",
    "histc",
    "repeat_interleave",
    "lift",
    "lift_fresh",
    "argwhere",
]
METHODS = ["item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__", "is_nonzero"]
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
READING = [getattr(torch.Tensor, name) for name in METHODS]


class HostReads(TorchDispatchMode):
    """Notes in `seen` what reads values during its context, also in backward passes."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self._methods = _Methods(self)
        self.is_noted = False

    def __enter__(self):
        self._methods.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._methods.__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in OPERATIONS and not self.is_noted:
            self.seen.append(name)
        if name in INDEXING and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
            self.seen.append(f"{name} by a mask")
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    """`tolist` and `numpy` of a CPU tensor never reach the dispatcher."""

    def __init__(self, guard):
        super().__init__()
        self.guard = guard

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in READING:
            self.guard.seen.append(func.__name__)
            self.guard.is_noted = True  # its operations are the same read
            try:
                return func(*args, **(kwargs or {}))
            finally:
                self.guard.is_noted = False
        return func(*args, **(kwargs or {}))
