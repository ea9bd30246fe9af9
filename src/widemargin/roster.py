"""The classes of a head: their names, new ones, and weights pointed at what is known of them."""

from __future__ import annotations

import json
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import plain_json
from .angle import direction
from .errors import InputError, shown, unknown
from .option import PerClass
from .precision import widest

if TYPE_CHECKING:
    from .head import Head
    from .margin import Margin


def whole(what: str, value: Any, least: int) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not least <= int(value) <= 2**62:
        bound = f" of at least {least}" if least > -(2**62) else ""
        raise InputError(f"{what}={shown(value)} must be a whole number{bound}")
    return int(value)


def room_for(classes: int, dim: int, device: torch.device | str | None, dtype: torch.dtype | None) -> Tensor:
    """An empty matrix for class weights [C, D], or one line that says why there can be none."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputError(f"dtype={shown(dtype)}: class weights are of a real kind such as torch.float32")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError):
        raise InputError(f"device={shown(device)} cannot be used here; device='cpu' always can") from None
    try:
        return torch.empty(classes, dim, device=device, dtype=dtype)
    except (RuntimeError, MemoryError):
        what = f"{classes:,} × {dim:,} class weights"
        raise InputError(f"too little memory for {what}; split them over ranks with road='sharded'") from None


def checked_names(given: Iterable[str] | None, classes: int) -> list[str] | None:
    """Class names as a list, one per class."""
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"class_names must be a list of {classes} names, got {shown(given)}")
    names = [str(name) for name in given]
    if len(names) != classes:
        raise InputError(f"class_names has {len(names)} names for {classes} classes")
    return names


def checked_class_weight(given: Tensor | Sequence[float] | None, classes: int, device: torch.device) -> Tensor | None:
    """One factor per class."""
    if given is None:
        return None
    try:
        weight = torch.as_tensor(given, dtype=widest(device), device=device)
    except (TypeError, ValueError):
        raise InputError(f"class_weight must be {classes} numbers, got {shown(given)}") from None
    if weight.shape != (classes,) or not bool((torch.isfinite(weight) & (weight >= 0)).all()):
        raise InputError(f"class_weight must be {classes} finite numbers of at least 0, got shape {list(weight.shape)}")
    return weight


def as_bytes(margin: Margin, names: list[str] | None) -> Tensor:
    """Margin and class names as JSON bytes in a tensor, so that any checkpoint format carries them."""
    facts = {"format": 1, "margin": repr(margin), "class_names": names}
    return torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8).clone()


def from_bytes(state: Tensor) -> tuple[str, list[str] | None]:
    """What `as_bytes` wrote: the margin's parse string and the class names."""
    try:
        facts = plain_json.parsed(state.cpu().numpy().tobytes(), "the head's extra state")
        return facts["margin"], facts["class_names"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError("the head's extra state is damaged: not the JSON bytes a head writes") from None


def pointed_at_means(weight: Tensor, unit: Tensor, y: Tensor) -> Tensor:
    """Class weights [C, D] turned to the mean of their unit embeddings; lengths and empty classes stay."""
    mean, found = direction(torch.zeros_like(weight, dtype=unit.dtype).index_add_(0, y, unit))
    length = direction(weight.to(unit.dtype))[1]
    length = torch.where(length > 0, length, torch.ones_like(length))
    return torch.where((found > 0).unsqueeze(1), mean * length.unsqueeze(1), weight.to(unit.dtype)).to(weight.dtype)


def extended(
    head: Head,
    n: int,
    class_names: Iterable[str] | None,
    class_weight: Sequence[float] | None,
    per_class: Mapping[str, Sequence[float]],
) -> Head:
    """A head with `n` more classes that knows all that `head` has learned."""
    n = whole("n", n, 1)
    if (head.class_names is None) != (class_names is None):
        raise InputError("class_names must be given for new classes exactly when the head has names")
    names = checked_names(class_names, n)
    weights = None
    if head.numbers.class_weight is not None:
        if class_weight is None or len(class_weight) != n:
            raise InputError(f"the head has class weights; give {n} of them for the new classes: class_weight=[…]")
        weights = [*head.numbers.class_weight.tolist(), *class_weight]
    elif class_weight is not None:
        raise InputError("class_weight for new classes needs a head that has class weights")
    new = type(head)(
        head.dim,
        head.classes + n,
        _with_more_classes(head.spec, n, per_class),
        road=head.road,
        rate=head.rate,
        group=head.shared.group,
        smoothing=head.smoothing,
        class_weight=weights,
        ignore_index=head.ignore_index,
        class_names=None if head.class_names is None else [*head.class_names, *(names or [])],
        device=head.weight.device,
        dtype=head.weight.dtype,
    )
    _copy_rows(head, new)
    new.train(head.training)
    known = {key: value for key, value in head.numbers.state_dict().items() if key != "class_weight"}
    new.numbers.load_state_dict(known, strict=False)
    frozen = {name for name, parameter in head.named_parameters() if not parameter.requires_grad}
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(name not in frozen)
    return new


@torch.no_grad()
def _copy_rows(head: Head, new: Head) -> None:
    """Weights and biases of the classes that `head` has, to where they are in `new`."""
    for old, rows in ((head.weight, new.weight), (head.bias, new.bias)):
        if old is None or rows is None:
            continue
        if head.shard is None or new.shard is None:
            rows[: len(old)] = old
        else:
            head.shard.copy_rows(old, rows, new.shard)


def _with_more_classes(margin: Margin, n: int, per_class: Mapping[str, Sequence[float]]) -> Margin:
    values = dict(margin.values())
    wanted = [name for name, value in values.items() if isinstance(value, PerClass)]
    for name in per_class:
        if name not in wanted:
            raise unknown("per-class option of this head", name, wanted)
    for name in wanted:
        extra = per_class.get(name)
        if extra is None or len(extra) != n:
            raise InputError(f"{margin.name}: {name} is per class; give {n} numbers for the new ones: {name}=[…]")
        values[name] = [*values[name].values, *extra]
    return type(margin)(**values)


def decay_groups(
    parameters: Iterable[Tensor], decayed: Sequence[Tensor], weight_decay: float | None
) -> list[dict[str, Any]]:
    """Optimizer groups: `decayed` with weight decay (None: the optimizer's own), all other parameters without."""
    free = [p for p in parameters if not any(p is d for d in decayed)]
    first: dict[str, Any] = {"params": list(decayed)}
    if weight_decay is not None:
        first["weight_decay"] = weight_decay
    return [group for group in (first, {"params": free, "weight_decay": 0.0}) if group["params"]]
