"""Classes of a head: names, `class_weight`, adding classes, weights from class means; optimizer groups."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..io import bounded
from ..io.errors import InputError, format_value, unknown_name_error
from ..losses.base import PerClass
from ..numerics.angles import unit_and_norm
from ..numerics.precision import widest_float_dtype
from ..numerics.validation import check_class_names, check_integer

if TYPE_CHECKING:
    from ..losses.margin import Margin
    from .head import Head


def check_class_weight(
    class_weight: Tensor | Sequence[float] | None, num_classes: int, device: torch.device
) -> Tensor | None:
    """Return the factors of the loss of each class [C] as a checked tensor; None if not given."""
    if class_weight is None:
        return None
    try:
        weight = torch.as_tensor(class_weight, dtype=widest_float_dtype(device), device=device)
    except (TypeError, ValueError):
        raise InputError(f"class_weight must be {num_classes} numbers, got {format_value(class_weight)}") from None
    if weight.shape != (num_classes,) or not bool((torch.isfinite(weight) & (weight >= 0)).all()):
        raise InputError(
            f"class_weight must be {num_classes} finite numbers of at least 0, got shape {list(weight.shape)}"
        )
    return weight


def check_class_weight_start(start: Any, class_weight: Tensor | None) -> int:
    """Check the number of training calls before which class weights are 1; it requires class weights."""
    calls = check_integer("class_weight_start", start, 0)
    if calls and class_weight is None:
        raise InputError(f"class_weight_start={calls} needs class_weight; give both or neither")
    return calls


def encode_extra_state(margin: Margin, names: list[str] | None) -> Tensor:
    """Encode margin and class names as JSON bytes in a tensor, which any checkpoint format can store."""
    facts = {"format": 1, "margin": repr(margin), "class_names": names}
    return torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8).clone()


def decode_extra_state(state: Tensor) -> tuple[str, list[str] | None]:
    """Decode the result of `encode_extra_state`: the margin's loss string and the class names."""
    try:
        facts = bounded.parse_json(state.cpu().numpy().tobytes(), "the head's extra state")
        return facts["margin"], facts["class_names"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError("the head's extra state is damaged (not JSON of a head); use another checkpoint") from None


def align_to_class_means(weight: Tensor, unit: Tensor, y: Tensor) -> Tensor:
    """Rotate weights [C, D] to the mean of the unit embeddings with label `y`; norms and empty rows stay."""
    mean, norm = unit_and_norm(torch.zeros_like(weight, dtype=unit.dtype).index_add_(0, y, unit))
    length = unit_and_norm(weight.to(unit.dtype))[1]
    length = torch.where(length > 0, length, torch.ones_like(length))
    return torch.where((norm > 0).unsqueeze(1), mean * length.unsqueeze(1), weight.to(unit.dtype)).to(weight.dtype)


def extend_head(
    head: Head,
    n: int,
    class_names: Iterable[str] | None,
    class_weight: Sequence[float] | None,
    per_class: Mapping[str, Sequence[float]],
) -> Head:
    """Return a new head with `n` more classes and the weights, numbers and settings of `head`."""
    n = check_integer("n", n, 1)
    if (head.class_names is None) != (class_names is None):
        raise InputError("give class_names for the new classes if and only if the head has class names")
    names = check_class_names(class_names, n)
    weights = None
    if head.margin_state.class_weight is not None:
        if class_weight is None or len(class_weight) != n:
            raise InputError(f"the head has class_weight; give {n} factors for the new classes: class_weight=[…]")
        weights = [*head.margin_state.class_weight.tolist(), *class_weight]
    elif class_weight is not None:
        raise InputError("the head has no class_weight; leave class_weight out")
    all_names = None if head.class_names is None else [*head.class_names, *(names or [])]
    new = rebuild_head(head, _extend_margin(head.spec, n, per_class), head.num_classes + n, weights, all_names)
    _copy_rows(head, new)
    return new


def rebuild_head(
    head: Head,
    margin: Margin,
    num_classes: int | None = None,
    class_weight: Tensor | Sequence[float] | None = None,
    class_names: Sequence[str] | None = None,
) -> Head:
    """Return a new head with another margin or more classes, the settings and numbers of `head`, and new weights.

    Without `num_classes` the classes are those of `head`, with their names and factors.
    """
    if num_classes is None:
        num_classes, class_weight, class_names = head.num_classes, head.margin_state.class_weight, head.class_names
    new = type(head)(
        head.embedding_dim,
        num_classes,
        margin,
        backend=head.backend,
        compile=head.compile_kernels,
        sample_rate=head.sample_rate,
        group=head.sync_group.group,
        label_smoothing=head.label_smoothing,
        class_weight=class_weight,
        class_weight_start=head.class_weight_start,
        ignore_index=head.ignore_index,
        class_names=class_names,
        device=head.weight.device,
        dtype=head.weight.dtype,
    )
    new.train(head.training)
    numbers = {key: value for key, value in head.margin_state.state_dict().items() if key != "class_weight"}
    new.margin_state.load_state_dict(numbers, strict=False)
    frozen = {name for name, parameter in head.named_parameters() if not parameter.requires_grad}
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(name not in frozen)
    return new


@torch.no_grad()
def _copy_rows(head: Head, new: Head) -> None:
    """Copy weights and biases of the classes of `head` into `new`, across ranks if both are sharded."""
    for old, rows in ((head.weight, new.weight), (head.bias, new.bias)):
        if old is None or rows is None:
            continue
        if head.shard is None or new.shard is None:
            rows[: len(old)] = old
        else:
            head.shard.copy_rows(old, rows, new.shard)


def _extend_margin(margin: Margin, n: int, per_class: Mapping[str, Sequence[float]]) -> Margin:
    values = dict(margin.named_values())
    names = [name for name, value in values.items() if isinstance(value, PerClass)]
    for name in per_class:
        if name not in names:
            raise unknown_name_error("per-class option of this head", name, names)
    for name in names:
        extra = per_class.get(name)
        if extra is None or len(extra) != n:
            raise InputError(f"{margin.name}: {name} is per class; give {n} numbers for the new classes: {name}=[…]")
        values[name] = [*values[name].values, *extra]
    return type(margin)(**values)


def decay_groups(
    parameters: Iterable[Tensor], decayed: Sequence[Tensor], weight_decay: float | None
) -> list[dict[str, Any]]:
    """Return optimizer groups: `decayed` with weight decay (None: the optimizer's own), the others without."""
    free = [p for p in parameters if not any(p is d for d in decayed)]
    first: dict[str, Any] = {"params": list(decayed)}
    if weight_decay is not None:
        first["weight_decay"] = weight_decay
    return [group for group in (first, {"params": free, "weight_decay": 0.0}) if group["params"]]
