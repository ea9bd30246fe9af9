"""Validation of embeddings, labels, class names and numbers: one-line errors.

A check reads values at most once; those of a head's training step are read late on an accelerator (`host_reads.py`).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..io.errors import InputError, format_value
from . import host_reads, torch_compat

_INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_labels(
    y: Tensor, samples: int, num_classes: int | None, norms: Tensor | None = None, device: torch.device | None = None
) -> None:
    """Check shape, dtype, device and range of class labels [N]; with `norms` [N] also that embeddings are finite.

    Values are checked in eager mode only: a compiled or `vmap`ped step must not synchronise.
    """
    check_label_shape(y, samples, device)
    if samples == 0 or must_not_sync(y):
        return
    least, most = torch.aminmax(y)
    try:
        if host_reads.is_read_free(y):  # values are available without synchronisation: fewer operations
            inside = least.item() >= 0 and (num_classes is None or most.item() < num_classes)
            if inside and (norms is None or math.isfinite(norms.detach().sum().item())):
                return
        is_valid = least >= 0 if num_classes is None else (least >= 0) & (most < num_classes)
        if norms is not None:
            is_valid = is_valid & torch.isfinite(norms.detach()).all()
        if is_valid:  # the one synchronisation
            return
    except RuntimeError as error:
        if "vmap" in str(error):
            return
        raise
    message = _describe_bad_labels(int(y.min()), int(y.max()), num_classes)
    if message is None:
        assert norms is not None
        bad = torch.nonzero(~torch.isfinite(norms.detach())).flatten().tolist()
        more = "" if len(bad) <= 3 else f" and {len(bad) - 3} more"
        message = f"embedding(s) {', '.join(map(str, bad[:3]))}{more} {_NOT_FINITE}"
    raise InputError(message)


_NOT_FINITE = (
    "hold NaN or infinite values: the network before the head has diverged (lower the learning rate, check the input)"
)


def check_labels_or_defer(
    y: Tensor, samples: int, num_classes: int | None, norms: Tensor | None, device: torch.device
) -> Tensor | None:
    """Check like `check_labels`, at the time that `WIDEMARGIN_CHECK` sets.

    Returns None if the labels are valid. If they are checked later, returns the mask [N] of those in range: the caller
    must not use others as indices, which ends a CUDA process.
    """
    check_label_shape(y, samples, device)
    mode = host_reads.check_mode(y)
    if mode == "sync":
        check_labels(y, samples, num_classes, norms, device)
        return None
    if mode == "off" or samples == 0 or must_not_sync(y) or torch_compat.is_inside_transform():
        return None
    low, high = torch.aminmax(y.long())
    bad = torch.zeros_like(low) if norms is None else (~torch.isfinite(norms.detach())).sum()

    def explain(values: Sequence[int]) -> str | None:
        message = _describe_bad_labels(values[0], values[1], num_classes)
        return f"{values[2]} embedding(s) {_NOT_FINITE}" if message is None and values[2] else message

    host_reads.defer_check(torch.stack((low, high, bad)), explain)
    return y >= 0 if num_classes is None else (y >= 0) & (y < num_classes)


def raise_earlier_errors(x: Any) -> None:
    """Raise the error of an earlier call whose labels or embeddings were checked late, if it is known by now."""
    if host_reads.has_deferred_checks() and isinstance(x, Tensor) and not must_not_sync(x):
        host_reads.raise_deferred_errors(wait=False)


def _describe_bad_labels(low: int, high: int, num_classes: int | None) -> str | None:
    """Return what is wrong with labels from `low` to `high`; None if they are in range."""
    if num_classes is None:
        return f"label {low} is out of range: classes are numbered from 0" if low < 0 else None
    if low >= 0 and high < num_classes:
        return None
    wrong = low if low < 0 else high
    hint = " (set ignore_index to leave samples out)" if low < 0 else ""
    return f"label {wrong} is out of range: {num_classes} classes are numbered 0 to {num_classes - 1}{hint}"


def check_label_shape(y: Tensor, samples: int, device: torch.device | None = None) -> None:
    """Check type, shape, dtype and device of class labels [N], but no values."""
    if not isinstance(y, Tensor):
        raise InputError(f"labels must be a tensor [N] of class numbers, got {type(y).__name__}")
    if y.ndim == 2 and y.shape[1] > 1 and len(y) == samples:
        raise InputError(
            f"labels must be exactly one class number per sample, [{samples}], got targets {list(y.shape)}; "
            "for several labels per sample use bce or focal"
        )
    if y.dtype not in _INTEGER_DTYPES:
        raise InputError(f"labels must be integer class numbers (int64), got {y.dtype}")
    if y.shape != (samples,):
        raise InputError(f"labels must have shape [{samples}], one per embedding, got {list(y.shape)}")
    if device is not None and y.device != device:  # labels on the meta device have no values to read
        raise device_mismatch_error("labels", y, "embeddings", device)


def must_not_sync(values: Tensor) -> bool:
    """True if values must not be read: a step is being compiled or captured, or the tensor is on the meta device."""
    capturing = values.is_cuda and torch.cuda.is_current_stream_capturing()
    return torch.compiler.is_compiling() or capturing or values.is_meta


def device_mismatch_error(what: str, tensor: Tensor, other: str, device: torch.device) -> InputError:
    """Return the error for two tensors on different devices."""
    return InputError(f"the {what} are on {tensor.device}, the {other} on {device}: move one of them with .to()")


def is_plain_float(x: Any) -> bool:
    """True for a dense tensor of real floating-point numbers."""
    return isinstance(x, Tensor) and x.is_floating_point() and x.layout == torch.strided


def describe_type(x: Any) -> str:
    """Describe a value that is not a dense float tensor, in a few words."""
    if not isinstance(x, Tensor):
        return type(x).__name__
    return str(x.dtype) if x.layout == torch.strided else f"a sparse tensor ({x.layout}; use .to_dense())"


def check_embeddings(x: Tensor, embedding_dim: int, device: torch.device | None = None) -> None:
    """Check shape, dtype and, if given, device of embeddings [N, D]."""
    if not is_plain_float(x):
        raise InputError(f"embeddings must be a float tensor [N, {embedding_dim}], got {describe_type(x)}")
    if x.ndim != 2 or x.shape[1] != embedding_dim:
        hint = "; use x.flatten(1)" if x.ndim > 2 else ""
        raise InputError(f"embeddings must have shape [N, {embedding_dim}], got {list(x.shape)}{hint}")
    if device is not None and x.device != device:
        raise device_mismatch_error("embeddings", x, "class weights", device)


def check_embeddings_and_labels(what: str, x: Tensor, y: Tensor) -> None:
    """Check non-empty finite embeddings [N, D] for a metric, and as many labels [N] with any numbering."""
    if not is_plain_float(x):
        raise InputError(f"{what}: embeddings must be a float tensor [N, D], got {describe_type(x)}")
    if not isinstance(y, Tensor) or y.dtype not in _INTEGER_DTYPES:
        actual = y.dtype if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"{what}: labels must be a tensor [N] of whole numbers, got {actual}")
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y) or not x.numel():
        shapes = f"{list(x.shape)}, {list(y.shape)}"
        raise InputError(f"{what}: embeddings [N, D] and labels [N] must match, got {shapes}")
    if x.device != y.device or x.is_meta:
        raise device_mismatch_error("labels", y, f"embeddings of {what}", x.device)
    if not bool(torch.isfinite(x).all()):
        raise InputError(f"{what}: an embedding contains NaN or infinity")


def check_sample_weight(sample_weight: Tensor, loss: Tensor) -> Tensor:
    """Return sample weights [N] in the dtype of `loss` [N]."""
    if not isinstance(sample_weight, Tensor) or sample_weight.shape != loss.shape or sample_weight.is_complex():
        shape = list(sample_weight.shape) if isinstance(sample_weight, Tensor) else type(sample_weight).__name__
        raise InputError(f"sample_weight must be a tensor of shape {list(loss.shape)}, got {shape}")
    if sample_weight.device != loss.device:
        raise device_mismatch_error("sample weights", sample_weight, "embeddings", loss.device)
    return sample_weight.to(loss.dtype)


def check_mix_lam(lam: Any, loss: Tensor) -> Tensor | float:
    """Check mixup's λ: one number in [0, 1], or one per sample [N]."""
    if isinstance(lam, Tensor):
        if lam.ndim and lam.shape != loss.shape:
            raise InputError(f"mix: lam must be one number or have shape {list(loss.shape)}, got {list(lam.shape)}")
        if host_reads.is_read_free(lam) and not must_not_sync(lam) and not bool(((lam >= 0) & (lam <= 1)).all()):
            raise InputError("mix: lam must lie between 0 and 1 for every sample")
        return lam.to(loss)
    if isinstance(lam, bool) or not isinstance(lam, numbers.Real) or not 0.0 <= float(lam) <= 1.0:
        raise InputError(f"mix: lam={lam!r} must be a number from 0 to 1")
    return float(lam)


def check_mix(mix: Any) -> tuple[Tensor, Any]:
    """Check mixup's pair: the other labels and λ."""
    if not isinstance(mix, tuple | list) or len(mix) != 2:
        raise InputError("mix must be a pair (y_b, lam): the second labels, and the weight of the first ones")
    return mix[0], mix[1]


def not_ignored_mask(y: Tensor, ignore_index: int) -> Tensor:
    """Return the mask [N] of samples that count; int64, because a small dtype cannot hold every `ignore_index`."""
    return (y.long() if y.dtype in _INTEGER_DTYPES else y) != ignore_index


def apply_with_ignore_index(
    loss_fn: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, ignore_index: int | None
) -> Tensor:
    """Loss [N] of the samples that count; 0 for those with the label `ignore_index`."""
    if ignore_index is None or not isinstance(y, Tensor) or y.dtype not in _INTEGER_DTYPES:
        return loss_fn(x, y)
    if y.shape != x.shape[:1] or y.device != x.device:
        return loss_fn(x, y)  # raises the error for invalid labels
    rows = not_ignored_mask(y, ignore_index).nonzero().squeeze(1)
    some = loss_fn(x[rows], y[rows])
    return some.new_zeros(len(y)).index_copy(0, rows, some)


def check_label_smoothing(label_smoothing: Any) -> float:
    """Check label smoothing ε."""
    if (
        isinstance(label_smoothing, bool)
        or not isinstance(label_smoothing, numbers.Real)
        or not 0.0 <= float(label_smoothing) < 1.0
    ):
        raise InputError(f"label_smoothing={label_smoothing!r} must be a number of at least 0 and below 1")
    return float(label_smoothing)


def exceeds(values: Tensor, bound: float) -> bool:
    """True if any magnitude is larger than `bound`; False if values must not be read at once."""
    if not values.numel() or must_not_sync(values) or host_reads.check_mode(values) != "sync":
        return False
    try:
        return bool(values.detach().abs().max() > bound)
    except RuntimeError as error:
        if "vmap" in str(error):
            return False
        raise


def check_integer(name: str, value: Any, minimum: int) -> int:
    """Check an integer of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not minimum <= int(value) <= 2**62:
        bound = f" of at least {minimum}" if minimum > -(2**62) else ""
        raise InputError(f"{name}={format_value(value)} must be a whole number{bound}")
    return int(value)


def allocate_class_matrix(
    num_classes: int,
    embedding_dim: int,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
    subcenters: int | None = None,
) -> Tensor:
    """Allocate an empty matrix for class weights [C, D] or [C, subcenters, D]; raise a one-line error if that fails."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputError(f"dtype={format_value(dtype)}: class weights need a float dtype such as torch.float32")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError):
        raise InputError(f"device={format_value(device)} is not available; device='cpu' always is") from None
    try:
        shape = (num_classes, embedding_dim) if subcenters is None else (num_classes, subcenters, embedding_dim)
        return torch.empty(shape, device=device, dtype=dtype)
    except (RuntimeError, MemoryError):
        what = f"{' × '.join(f'{size:,}' for size in shape)} class weights"
        raise InputError(f"too little memory for {what}; split them over ranks with backend='sharded'") from None


def check_class_names(class_names: Iterable[str] | None, num_classes: int) -> list[str] | None:
    """Return class names as a list, one per class."""
    if class_names is None:
        return None
    if isinstance(class_names, str) or not isinstance(class_names, Iterable):
        raise InputError(f"class_names must be a list of {num_classes} names, got {format_value(class_names)}")
    names = [str(name) for name in class_names]
    if len(names) != num_classes:
        raise InputError(f"class_names has {len(names)} names for {num_classes} classes")
    return names
