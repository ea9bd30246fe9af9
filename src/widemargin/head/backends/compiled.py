"""Compiled kernels: when they are compiled, and their cache.

The setting is `Head(compile=…)`, overridden for a whole process by the environment variable `WIDEMARGIN_COMPILE`
(`auto`, `1` or `0`). A kernel is compiled once for a loss with its fixed numbers, a dtype and a device, and serves
every batch size, number of classes and embedding dimension: the sizes of a block are symbolic. Only the number of
samples is a multiple of `LANES`, to which `class_blocks.py` pads a batch, so that no loop over samples has a remainder.
Compilation takes some seconds, so only large heads do it by default. Without a compiler, or if it fails, the plain
functions do the same work: slower, with the same results up to the last digits of single precision.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor

from ...io.errors import InputError, format_value
from ...numerics import angles, torch_compat
from .kernels import Block, KernelSpec

CompileSetting = Literal["auto"] | bool
KernelFunction = Callable[..., Any]

MIN_COMPILE_LOGITS = 1 << 20  # logits per step from which compiling pays off within minutes of training
MIN_FORCED_COMPILE_LOGITS = 1 << 16  # with compile=True; below this a step is all overhead
MAX_KERNELS = 64  # compiled kernels in the cache (least recently used are dropped); a loss has two to four
LANES = 16  # samples of a compiled kernel are a multiple of this, the fp32 numbers in the widest vector register
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
        needed = "Triton" if device.type == "cuda" else "a C++ compiler (g++, or the one that CXX names)"
        _warn_once(f"compile=True needs {needed} for kernels on {device.type}: plain PyTorch is used")
    return False


def can_compile(device: torch.device) -> bool:
    """True if kernels can be compiled: a C++ compiler for a CPU, Triton for a GPU."""
    if device.type == "cpu":
        return _is_on_path(os.environ.get("CXX", "g++"))
    return device.type == "cuda" and find_spec("triton") is not None


@cache
def _is_on_path(command: str) -> bool:
    return shutil.which(command) is not None


_kernel_cache: OrderedDict[Any, KernelFunction] = OrderedDict()
_cache_lock = threading.Lock()  # held during a cache lookup
_compile_lock = threading.Lock()  # held during compilation, so that cached kernels do not wait
_warnings_given: set[str] = set()
_compiled_names: list[str] = []


def compilation_count() -> int:
    """Number of kernels that this process has compiled."""
    return len(_compiled_names)


def get_kernel(function: KernelFunction, spec: KernelSpec, block: Block, inputs: Sequence[Tensor]) -> KernelFunction:
    """Return `function(spec, block, *inputs)` compiled for blocks of any size; the plain function if that fails.

    `inputs` are vectors [N], then the numbers of the margin.
    """
    vectors, numbers = _split_inputs(spec, inputs)
    key = (
        function,
        spec,
        block.dot_products.device,
        torch.get_num_threads(),  # loops are split among this many threads
        tuple(None if t is None else t.dtype for t in (*block[:-1], *vectors)),
        tuple((t.dtype, _unknown_sizes(t)) for t in numbers),
    )
    with _cache_lock:
        kernel = _kernel_cache.get(key)
        if kernel is not None:
            _kernel_cache.move_to_end(key)
            return kernel
    with _compile_lock:
        kernel = _kernel_cache.get(key)  # another thread may have been first
        if kernel is None:
            kernel = _compile_or_fallback(function, spec, block, inputs)
            with _cache_lock:
                _kernel_cache[key] = kernel
                while len(_kernel_cache) > MAX_KERNELS:
                    _kernel_cache.popitem(last=False)
        return kernel


def _compile_or_fallback(
    function: KernelFunction, spec: KernelSpec, block: Block, inputs: Sequence[Tensor]
) -> KernelFunction:
    name, began = f"{spec.margin.name} ({function.__name__})", time.perf_counter()
    try:
        compiled = _trace_and_compile(function, spec, block, inputs)
    except Exception as error:
        # Only this kernel: another loss or dtype may compile.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        _warn_once(f"could not compile the kernel of {name}, plain PyTorch is used: {reason}", reason)
        return function
    _compiled_names.append(name)
    products = block.dot_products
    seconds = time.perf_counter() - began
    _logger.info("compiled %s for %s on %s in %.1f s", name, products.dtype, products.device, seconds)
    return compiled


def _warn_once(message: str, reason: str | None = None) -> None:
    if (reason or message) not in _warnings_given:
        _warnings_given.add(reason or message)
        warnings.warn(message, stacklevel=2)


def _split_inputs(spec: KernelSpec, inputs: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Split a kernel's inputs into vectors [N] and the numbers of the margin, which are last."""
    count = max(0, len(inputs) - len(spec.value_names))
    return inputs[:count], inputs[count:]


def _unknown_sizes(number: Tensor) -> tuple[int, ...]:
    """Return the shape of a number of the margin, in which only a size of 1 is known, because it broadcasts."""
    return tuple(1 if size == 1 else -1 for size in number.shape)


def _trace_and_compile(
    function: KernelFunction, spec: KernelSpec, block: Block, inputs: Sequence[Tensor]
) -> KernelFunction:
    has_bias, count = block.bias is not None, len(_split_inputs(spec, inputs)[0])
    per_class = spec.rows_per_class

    def flat(products: Tensor, inverse_norm: Tensor, *tensors: Tensor) -> Any:
        runs, run_rows, *_, groups, lanes = products.shape
        rows, samples = runs * run_rows, groups * lanes
        # The views show which sizes are equal.
        x_norm, target_row, *rest = tensors
        bias = rest.pop(0).view(rows) if has_bias else None
        x_norm, target_row, *vectors = (t.view(samples) for t in (x_norm, target_row, *rest[:count]))
        flat_products = products.view(rows * per_class, samples)
        same = Block(flat_products, inverse_norm.view(rows * per_class), x_norm, target_row, bias, run_rows)
        return function(spec, same, *vectors, *rest[count:])

    with angles.use_polynomial_arccos():
        compiled = torch_compat.compile_for_all_sizes(flat, *_make_examples(spec, block, inputs))
    with torch.no_grad():
        compiled(_flatten(block, inputs, per_class))  # fails here or never

    def call(spec: KernelSpec, block: Block, *inputs: Tensor) -> Any:
        return compiled(_flatten(block, inputs, per_class))

    return call


def _flatten(block: Block, inputs: Sequence[Tensor], per_class: int) -> list[Tensor]:
    """Return the tensors of a block, with its products as [runs, rows of a run, groups of samples, `LANES`].

    The rows of a class's sub-centres are one more dimension, after the second.
    """
    products, run_rows = block.dot_products, block.run_rows
    (stride, next_sample), (rows, samples) = products.stride(), products.shape
    assert next_sample == 1
    assert rows % (run_rows * per_class) == samples % LANES == 0
    shape, strides = [rows // (run_rows * per_class), run_rows], [run_rows * per_class * stride, per_class * stride]
    if per_class > 1:
        shape, strides = [*shape, per_class], [*strides, stride]
    parts = products.as_strided((*shape, samples // LANES, LANES), (*strides, LANES, 1))
    start = [parts, block.inverse_norm, block.x_norm, block.target_row]
    return [*start, *inputs] if block.bias is None else [*start, block.bias, *inputs]


def _make_examples(spec: KernelSpec, block: Block, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[set[int]]]:
    """Return tensors like those of a block, with sizes that do not coincide by chance; and which sizes are fixed."""
    rows, run_rows, samples, row_stride, per_class = 1020, 60, 18 * LANES, 640, spec.rows_per_class
    vectors, numbers = _split_inputs(spec, inputs)
    example = Block(
        block.dot_products.new_empty(rows * per_class, row_stride)[:, :samples],
        block.inverse_norm.new_empty(rows * per_class),
        block.x_norm.new_empty(samples),
        block.target_row.new_empty(samples),
        None if block.bias is None else block.bias.new_empty(rows),
        run_rows,
    )
    shapes = [_unknown_sizes(number) for number in numbers]
    examples = [
        number.new_empty([23 if n < 0 else n for n in shape]) for number, shape in zip(numbers, shapes, strict=True)
    ]
    tensors = _flatten(example, [*(vector.new_empty(samples) for vector in vectors), *examples], per_class)
    of_products = {3} if per_class == 1 else {2, 4}
    fixed: list[set[int]] = [of_products, *(set() for _ in tensors[1 : len(tensors) - len(numbers)])]
    return tensors, [*fixed, *({i for i, n in enumerate(shape) if n == 1} for shape in shapes)]
