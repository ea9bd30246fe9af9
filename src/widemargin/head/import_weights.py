"""Class weights from heads of other libraries; only tensors are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from ..io.errors import InputError, shorten
from ..io.tensor_files import all_finite, not_finite_error, read_safetensors, read_torch
from ..numerics.angles import group_weights

if TYPE_CHECKING:
    from .head import Head


WeightSource: TypeAlias = Mapping[str, Any] | str | Path | Sequence[str | Path]

# Names of the class weights, and whether they are stored as [D, C] instead of [C, D]. K sub-centres per class are C·K
# rows or columns, those of a class adjacent, in all of these.
_WEIGHT_KEYS = {
    "weight": False,  # insightface (PartialFC, sub-centres), wespeaker, our own head, torch.nn.Linear
    "W": True,  # pytorch-metric-learning
    "kernel": True,  # CurricularFace, AdaFace and TFace
    "proxies": False,  # ProxyNCA and ProxyAnchor, of their authors and of pytorch-metric-learning
    "fc": True,  # SoftTriple, of its authors and of pytorch-metric-learning
}
# insightface's training checkpoints keep the head's state dict under this name.
_NESTED_STATE_KEYS = ("state_dict_softmax_fc", "state_dict")


def read_class_weights(source: WeightSource, embedding_dim: int) -> tuple[Tensor, Tensor | None]:
    """Read class weights [C, D] and bias [C], if any, from a state dict, a file, or the files of all shards in order.

    Sub-centres are [C·K, D], or [C, K, D] if written by this library.
    """
    if isinstance(source, Mapping):
        return _weights_from_state_dict(source, "the state dict", embedding_dim)
    if not isinstance(source, str | Path | list | tuple):
        raise InputError(f"source must be a state dict, a file or a list of files, got {type(source).__name__}")
    paths = [source] if isinstance(source, str | Path) else list(source)
    if not all(isinstance(path, str | Path) for path in paths):
        raise InputError("a list of sources must contain the paths of all shards, in order")
    if not paths:
        raise InputError("no weight file given")
    weights, biases = zip(
        *(_weights_from_state_dict(_load_state_dict(Path(path)), str(path), embedding_dim) for path in paths),
        strict=True,
    )
    return torch.cat(weights), None if None in biases else torch.cat(biases)


def copy_into_head(head: Head, source: WeightSource) -> None:
    """Copy the class weights of a source into a head; into a sharded head, this rank's part."""
    weight, bias = read_class_weights(source, head.embedding_dim)
    if weight.ndim == 3 and weight.shape[1:] == head.weight.shape[1:]:
        weight = weight.flatten(0, 1)
    count = group_weights(head.weight).shape[1]
    if weight.shape != (head.num_classes * count, head.embedding_dim):
        each = "" if count == 1 else f" with {count} sub-centres each"
        raise InputError(
            f"the weights have {' × '.join(map(str, weight.shape[:-1]))} classes of dimension {weight.shape[-1]}, "
            f"this head {head.num_classes}{each} of {head.embedding_dim}"
        )
    weight = weight.view(head.num_classes, *head.weight.shape[1:])
    if bias is not None and head.bias is None and bool(bias.any()):
        raise InputError("the weights include a bias, but this margin has none; use softmax(bias=True)")
    local_rows = slice(None) if head.shard is None else slice(head.shard.start, head.shard.stop)
    with torch.no_grad():
        head.weight.copy_(weight[local_rows])
        if bias is not None and head.bias is not None:
            head.bias.copy_(bias[local_rows])


def _load_state_dict(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    state = read_torch(path)
    if not isinstance(state, Mapping):
        raise InputError(f"{path}: contains a {type(state).__name__}, not a state dict")
    return state


def _weights_from_state_dict(state: Mapping[str, Any], where: str, embedding_dim: int) -> tuple[Tensor, Tensor | None]:
    for name in _NESTED_STATE_KEYS:
        if isinstance(state.get(name), Mapping):
            state = state[name]
    matrices = {}
    for key, value in state.items():
        last = str(key).rpartition(".")[2]
        if last not in _WEIGHT_KEYS or not isinstance(value, Tensor):
            continue
        # Three dimensions are sub-centres of our own head; the kernel of a convolution has other last dimensions.
        if value.ndim == 2 or (value.ndim == 3 and last == "weight" and value.shape[2] == embedding_dim):
            matrices[key] = value.T if _WEIGHT_KEYS[last] else value
    if len(matrices) != 1:
        keys = ", ".join(map(str, list(state)[:8])) or "nothing"
        raise InputError(
            f"{where}: expected one matrix named one of {', '.join(_WEIGHT_KEYS)}, got {len(matrices)} among: {keys}"
        )
    ((key, weight),) = matrices.items()
    if weight.shape[-1] != embedding_dim:
        raise InputError(f"{where}: {key} has embeddings of dimension {weight.shape[-1]}, this head of {embedding_dim}")
    other = str(key).removesuffix("weight") + "bias"
    bias = state.get(other)
    for name, value in ((key, weight), (other, bias)):
        if isinstance(value, Tensor) and not all_finite(value):
            raise not_finite_error(f"{where}: {shorten(str(name))}", value, "use another checkpoint")
    return weight.detach().contiguous(), bias.detach() if isinstance(bias, Tensor) else None
