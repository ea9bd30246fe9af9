"""Native kernels: the functions of `kernels.py` on a CPU, as loops of a generated C++ library.

`native_source.py` generates a library from the definition of a loss and `native_library.py` builds it. A kernel here
takes and returns what the plain function does.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from . import kernels
from .kernels import Block, KernelSpec
from .native_library import load_library
from .native_source import REAL_NAMES, NativeSource, get_source

_MIN_PARALLEL_ENTRIES = 1 << 14  # with fewer, a second thread costs more than it saves
_MAX_KEPT_BYTES = 1 << 22

_pointer, _long = ctypes.c_void_p, ctypes.c_long
_scratch = threading.local()


class BlockArguments(ctypes.Structure):
    """`Block` of native_kernels.cpp."""

    _fields_ = (
        ("products", _pointer),
        ("row_stride", _long),
        ("classes", _long),
        ("samples", _long),
        ("threads", _long),
        ("inverse_norm", _pointer),
        ("x_norm", _pointer),
        ("x_scale", _pointer),
        ("target", _pointer),
        ("bias", _pointer),
        ("numbers", _pointer),
        ("sample_numbers", _pointer),
        ("partial", _pointer),
        ("anchor", _pointer),
        ("sum", _pointer),
        ("logit_sum", _pointer),
        ("log_sum", _pointer),
        ("grad_others", _pointer),
        ("grad_logit_sum", _pointer),
        ("grad_target", _pointer),
        ("grad_products", _pointer),
        ("grad_stride", _long),
        ("w_coefficient", _pointer),
        ("grad_bias", _pointer),
        ("other_gradients", _pointer),
        ("x_along", _pointer),
    )


class NativeLibrary:
    """The kernels of a loss and dtype."""

    def __init__(self, spec: KernelSpec, has_bias: bool, dtype: torch.dtype) -> None:
        if dtype not in REAL_NAMES:
            raise OSError(f"no native kernels for {dtype}")
        self.spec, self.dtype = spec, dtype
        self.source: NativeSource = get_source(spec, has_bias, dtype)
        self.library, self.is_new = load_library(self.source.text)
        self.real = ctypes.c_float if dtype == torch.float32 else ctypes.c_double
        for function in (self._sum_others, self._gradients):
            function.argtypes, function.restype = (ctypes.POINTER(BlockArguments),), None
        # A structure is passed by its address.
        self.prepare_dense, self.forward_dense = self.library.prepare_dense, self.library.forward_dense
        self.backward_dense = self.library.backward_dense
        self.forward_dense.restype = self.backward_dense.restype = None

    @cached_property
    def _sum_others(self) -> Any:
        return self.library.sum_others

    @cached_property
    def _gradients(self) -> Any:
        return self.library.gradients

    def reads_only_single_numbers(self, values: Sequence[Tensor]) -> bool:
        """True if every number of the margin that a kernel reads is one number."""
        own = dict(zip(self.spec.value_names, values[len(self.spec.sample_names) :], strict=True))
        return all(own[name].numel() == 1 for name in self.source.number_names if name in own)

    def sum_others(
        self, block: Block, anchor: Tensor | None, values: Sequence[Tensor], with_logit_sum: bool
    ) -> tuple[Tensor, ...]:
        """Σ exp(z − anchor) [N], or Σ h(z) of a one-vs-all loss; and Σ z if requested."""
        arguments, keep = self._block_arguments(block, values)
        total = torch.empty(len(block.x_norm), dtype=torch.float64)
        arguments.sum = total.data_ptr()
        if anchor is not None:
            arguments.anchor = _vector(anchor, self.dtype, keep)
        results: tuple[Tensor, ...] = (total,)
        if with_logit_sum:
            results = (total, torch.empty_like(total))
            arguments.logit_sum = results[1].data_ptr()
        self._sum_others(arguments)
        return results

    def gradients(
        self,
        block: Block,
        log_sum: Tensor,
        grad_others: Tensor,
        grad_logit_sum: Tensor,
        grad_target: Tensor,
        values: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        """The results of `kernels.gradients`; the first is memory that the next call in this thread overwrites."""
        spec, source, samples = self.spec, self.source, len(block.x_norm)
        arguments, keep = self._block_arguments(block, values)
        grad_products = scratch_like(block.dot_products)
        w_coefficient = torch.empty_like(block.inverse_norm)
        others = torch.empty(samples + len(source.learnt_names), dtype=torch.float64)
        arguments.log_sum = _vector(log_sum, self.dtype, keep)
        arguments.grad_others = _vector(grad_others, self.dtype, keep)
        if spec.with_logit_sum:
            arguments.grad_logit_sum = _vector(grad_logit_sum, self.dtype, keep)
        arguments.grad_target = _vector(grad_target, self.dtype, keep)
        arguments.grad_products, arguments.grad_stride = grad_products.data_ptr(), grad_products.stride(0)
        arguments.w_coefficient, arguments.other_gradients = w_coefficient.data_ptr(), others.data_ptr()
        results = [grad_products, w_coefficient]
        grad_bias = None if block.bias is None else torch.empty_like(block.bias)
        if grad_bias is not None:
            arguments.grad_bias = grad_bias.data_ptr()
        self._gradients(arguments)
        if spec.has_radius:
            results.append(others[:samples].to(self.dtype))
        if grad_bias is not None:
            results.append(grad_bias)
        learnt = dict(zip(source.learnt_names, others[samples:], strict=True))
        own = values[len(spec.sample_names) :]
        for name, value, needed in zip(spec.value_names, own, spec.value_requires_grad, strict=True):
            if needed:
                grad = learnt.get(name)
                results.append(torch.zeros_like(value) if grad is None else grad.to(value.dtype).view(value.shape))
        return tuple(results)

    def _block_arguments(self, block: Block, values: Sequence[Tensor]) -> tuple[BlockArguments, list[Any]]:
        """Arguments that both kernels have, and what must live as long as they do."""
        keep: list[Any] = []
        products, samples = block.dot_products, len(block.x_norm)
        classes = len(products) // self.spec.rows_per_class
        threads = count_threads(products, classes)
        partial = torch.empty(threads * (2 * samples + len(self.source.learnt_names)), dtype=torch.float64)
        keep.append(partial)
        numbers, sample_numbers = pack_numbers(self, values, keep)
        arguments = BlockArguments(
            products.data_ptr(),
            products.stride(0),
            classes,
            samples,
            threads,
            block.inverse_norm.data_ptr(),
            _vector(block.x_norm, self.dtype, keep),
            None,
            _vector(block.target_row, torch.int32, keep),
            None if block.bias is None else _vector(block.bias, self.dtype, keep),
            numbers,
            sample_numbers,
            partial.data_ptr(),
        )
        return arguments, keep


def count_threads(products: Tensor, classes: int) -> int:
    """Return the number of threads that work on some products."""
    return min(torch.get_num_threads(), classes) if products.numel() >= _MIN_PARALLEL_ENTRIES else 1


def pack_numbers(library: NativeLibrary, values: Sequence[Tensor], keep: list[Any]) -> tuple[int, int]:
    """Return the addresses of the numbers of a margin and of those of its samples, which `keep` keeps alive."""
    spec, source = library.spec, library.source
    by_name = dict(zip((*spec.sample_names, *spec.value_names), values, strict=True))
    numbers = [float(by_name.get(name, getattr(spec.margin, name, 0.0))) for name in source.number_names]
    number_array = (library.real * (len(numbers) + 1))(*numbers)
    pointers = [_vector(by_name[name], library.dtype, keep) for name in source.sample_names]
    pointer_array = (ctypes.c_void_p * (len(pointers) + 1))(*pointers)
    keep += [number_array, pointer_array]
    return ctypes.addressof(number_array), ctypes.addressof(pointer_array)


def _vector(values: Tensor, dtype: torch.dtype, keep: list[Any]) -> int:
    """Return the address of a contiguous vector of this dtype, which `keep` keeps alive."""
    if values.dtype != dtype or not values.is_contiguous():
        values = values.to(dtype).contiguous()
    keep.append(values)
    return values.data_ptr()


def scratch_like(products: Tensor) -> Tensor:
    """Return uninitialised memory [R, N], of this thread and used again: fresh memory costs more than the kernel."""
    needed = products.numel() * products.element_size()
    if needed > _MAX_KEPT_BYTES:
        return torch.empty(products.shape, dtype=products.dtype)
    kept = getattr(_scratch, "memory", None)
    if kept is None or kept.nbytes < needed:
        kept = _scratch.memory = torch.empty(needed, dtype=torch.uint8)
    return kept[:needed].view(products.dtype).view(products.shape)


_VECTOR_INPUTS: dict[Callable[..., Any], int] = {
    kernels.sum_exp_logits: 1,
    kernels.sum_other_losses: 0,
    kernels.gradients: 4,
}
"""The functions of `kernels.py` that a library has, with the number of their inputs before those of the margin."""


def has_native_kernel(function: Callable[..., Any]) -> bool:
    """True for the functions of `kernels.py` that a library has."""
    return function in _VECTOR_INPUTS


def make_native_kernel(function: Callable[..., Any], library: NativeLibrary) -> Callable[..., Any]:
    """Return `function` of a spec, a block and inputs as the kernel of a library."""

    def call(spec: KernelSpec, block: Block, *inputs: Tensor) -> tuple[Tensor, ...]:
        vectors = _VECTOR_INPUTS[function]
        values = inputs[vectors:]
        if not library.reads_only_single_numbers(values) or block.dot_products.stride(1) != 1:
            return function(spec, block, *inputs)  # type: ignore[no-any-return]
        if function is kernels.gradients:
            return library.gradients(block, inputs[0], inputs[1], inputs[2], inputs[3], values)
        return library.sum_others(block, inputs[0] if vectors else None, values, spec.with_logit_sum)

    return call
