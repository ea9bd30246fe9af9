"""Compiled kernels: when they are compiled, and their cache.

The setting is `Head(compile=…)`, overridden for a whole process by the environment variable `WIDEMARGIN_COMPILE`
(`auto`, `1` or `0`). On a CPU a kernel is a loop in a C++ library (`native.py`), built once on a machine for a loss and
a dtype and kept on disk; it serves every batch size, number of classes and embedding dimension. Elsewhere it is
`torch.compile` of the plain function. Building takes some seconds, so only heads of many logits do it by default; by
size alone and not if a library happens to be on disk, so that equal runs have equal digits. Without a compiler, or if
it fails, the plain functions do the same work: slower, with the same results up to the last digits.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor

from ...io.errors import InputError, format_value
from . import native, native_library
from .kernels import Block, KernelSpec

CompileSetting = Literal["auto"] | bool
KernelFunction = Callable[..., Any]

MIN_COMPILE_LOGITS = 1 << 20  # logits per step from which compiling pays off within minutes of training
MIN_FORCED_COMPILE_LOGITS = 1 << 16  # of blocks, with compile=True; below this a step is all overhead
MIN_DENSE_COMPILE_LOGITS = 1 << 17  # of a training step of the dense backend; with compile=True always
MAX_KERNELS = 64  # compiled kernels in the cache (least recently used are dropped); a loss has two to four
_ENVIRONMENT = "WIDEMARGIN_COMPILE"

_logger = logging.getLogger("widemargin")


def check_compile_setting(value: Any) -> CompileSetting:
    """Return `value` if it is valid for `Head(compile=…)`, otherwise raise an InputError.

    >>> check_compile_setting("auto"), check_compile_setting(False)
    ('auto', False)
    """
    if isinstance(value, bool) or value == "auto":
        return value  # type: ignore[no-any-return]
    raise InputError(f'compile={format_value(value)} must be "auto", True or False')


def effective_setting(setting: CompileSetting) -> CompileSetting:
    """Return the setting of the environment, or else that of the head."""
    text = os.environ.get(_ENVIRONMENT)
    if not text:
        return setting
    if text not in ("auto", "0", "1"):
        raise InputError(f"{_ENVIRONMENT}={format_value(text)} must be auto, 1 or 0")
    return "auto" if text == "auto" else text == "1"


def should_compile(setting: CompileSetting, logits: int, device: torch.device) -> bool:
    """True if a step of this size should and can have compiled kernels; warns once if it should and cannot."""
    setting = effective_setting(setting)
    least = min(MIN_COMPILE_LOGITS, MIN_FORCED_COMPILE_LOGITS) if setting is True else MIN_COMPILE_LOGITS
    if setting is False or logits < least:
        return False
    if can_compile(device):
        return True
    if setting is True:
        _warn_about_compiler(device)
    return False


def _warn_about_compiler(device: torch.device) -> None:
    needed = "Triton" if device.type == "cuda" else "a C++ compiler (g++, or the one that CXX names)"
    _warn_once(f"compile=True needs {needed} for kernels on {device.type}: plain PyTorch is used")


def should_compile_dense(setting: CompileSetting, logits: int, device: torch.device) -> bool:
    """True if a training step of the dense backend should and can have native kernels; warns like `should_compile`."""
    if device.type != "cpu":
        return False
    setting = effective_setting(setting)
    if setting is False or (setting is not True and logits < MIN_DENSE_COMPILE_LOGITS):
        return False
    if can_compile(device):
        return True
    if setting is True:
        _warn_about_compiler(device)
    return False


def can_compile(device: torch.device) -> bool:
    """True if kernels can be compiled: a C++ compiler for a CPU, Triton for a GPU."""
    if device.type == "cpu":
        return native_library.find_compiler() is not None
    return device.type == "cuda" and find_spec("triton") is not None


_kernel_cache: OrderedDict[Any, KernelFunction] = OrderedDict()
_library_cache: OrderedDict[Any, native.NativeLibrary | None] = OrderedDict()  # of whole heads; None: cannot be built
_cache_lock = threading.Lock()  # held during a cache lookup
_compile_lock = threading.Lock()  # held during compilation, so that cached kernels do not wait
_warnings_given: set[str] = set()
_compiled_names: list[str] = []


def compilation_count() -> int:
    """Number of libraries and kernels that this process has compiled; those found on disk do not count."""
    return len(_compiled_names)


def get_kernel(function: KernelFunction, spec: KernelSpec, block: Block, inputs: Sequence[Tensor]) -> KernelFunction:
    """Return `function(spec, block, *inputs)` compiled for blocks of any size; the plain function if that fails."""
    device, dtype = block.dot_products.device, block.dot_products.dtype
    if device.type == "cpu" and not native.has_native_kernel(function):
        return function  # used once per step at most: a maximum, which is as fast in plain PyTorch
    key = (function, spec, device, dtype, block.bias is None)
    with _cache_lock:
        kernel = _kernel_cache.get(key)
        if kernel is not None:
            _kernel_cache.move_to_end(key)
            return kernel
    with _compile_lock:
        kernel = _kernel_cache.get(key)  # another thread may have been first
        if kernel is None:
            kernel = _compile_or_fallback(function, spec, block)
            with _cache_lock:
                _kernel_cache[key] = kernel
                while len(_kernel_cache) > MAX_KERNELS:
                    _kernel_cache.popitem(last=False)
        return kernel


def get_dense_library(spec: KernelSpec, has_bias: bool, dtype: torch.dtype) -> native.NativeLibrary | None:
    """Return the library of a loss for a whole head on a CPU; None if it cannot be built."""
    key = ("dense", spec, has_bias, dtype)
    with _cache_lock:
        if key in _library_cache:
            _library_cache.move_to_end(key)
            return _library_cache[key]
    with _compile_lock:
        if key not in _library_cache:
            library, name, began = None, f"{spec.margin.name} (dense)", time.perf_counter()
            try:
                library = native.NativeLibrary(spec, has_bias, dtype)
            except Exception as error:
                _warn_about_failure(name, error)
            if library is not None and library.is_new:
                _log_compilation(name, dtype, torch.device("cpu"), began)
            with _cache_lock:
                _library_cache[key] = library
                while len(_library_cache) > MAX_KERNELS:
                    _library_cache.popitem(last=False)
        return _library_cache[key]


def _compile_or_fallback(function: KernelFunction, spec: KernelSpec, block: Block) -> KernelFunction:
    name, began, products = f"{spec.margin.name} ({function.__name__})", time.perf_counter(), block.dot_products
    try:
        kernel, is_new = _compile(function, spec, block)
    except Exception as error:
        # Only this kernel: another loss or dtype may compile.
        _warn_about_failure(name, error)
        return function
    if is_new:
        _log_compilation(name, products.dtype, products.device, began)
    return kernel


def _warn_about_failure(name: str, error: Exception) -> None:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    _warn_once(f"could not compile the kernel of {name}, plain PyTorch is used: {reason}", reason)


def _log_compilation(name: str, dtype: torch.dtype, device: torch.device, began: float) -> None:
    _compiled_names.append(name)
    _logger.info("compiled %s for %s on %s in %.1f s", name, dtype, device, time.perf_counter() - began)


def _compile(function: KernelFunction, spec: KernelSpec, block: Block) -> tuple[KernelFunction, bool]:
    """Return the compiled function, and whether it was not on disk."""
    if block.dot_products.device.type != "cpu":
        return torch.compile(function, dynamic=True), True
    library = native.NativeLibrary(spec, block.bias is not None, block.dot_products.dtype)
    return native.make_native_kernel(function, library), library.is_new


def _warn_once(message: str, reason: str | None = None) -> None:
    if (reason or message) not in _warnings_given:
        _warnings_given.add(reason or message)
        warnings.warn(message, stacklevel=2)
