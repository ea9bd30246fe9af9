"""Checkpoints: tensors in safetensors, numbers in JSON, whole or not at all; nothing is ever unpickled.

A checkpoint is a folder: `model.safetensors` (network, class weights, state of the loss), `training.safetensors`
(moments of the optimizer, averaged weights), `state.json` (step, epoch, numbers) and `sha256.json` (of these three).
It is written beside its place, synced, and renamed, so that a killed run leaves the one before it. Of a checkpoint that
is written again and again the one before stays as a spare (`last.old`), and serves where a disk has damaged the last.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import plain_json
from ..bounded_files import check_holes, open_regular
from ..errors import InputError, shown
from ..tensor_files import StoredTensors, all_finite, not_finite_error, stored_tensors

_SUMS = "sha256.json"
_MODEL, _TRAINING, _STATE = "model.safetensors", "training.safetensors", "state.json"
_BESIDE = 64 << 20  # bytes of names and numbers beside what is asked for
_MOST_MOMENTS = 8  # times the model: an optimizer keeps two moments, an average is one more


def save(
    place: Path, model: dict[str, Tensor], training: dict[str, Tensor], state: dict[str, Any], *, spare: bool = False
) -> None:
    """Write a checkpoint to the folder `place`, replacing one that is there, or keeping that as a spare."""
    from safetensors.torch import save_file

    fresh = place.with_name(place.name + ".new")
    _remove(fresh)
    try:
        fresh.mkdir(parents=True)
        save_file(own(model), fresh / _MODEL)
        save_file(own(training), fresh / _TRAINING)
        (fresh / _STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
        sums = {path.name: _sha256(path) for path in sorted(fresh.iterdir())}
        (fresh / _SUMS).write_text(json.dumps(sums, indent=1), encoding="utf-8")
        for path in fresh.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    except Exception:  # a full disk: half a checkpoint would only take the room that the next one wants
        _remove(fresh)
        raise
    _sync(fresh)
    old = place.with_name(place.name + ".old")
    if place.exists():  # else an earlier kill has left `old` as the only good one
        _remove(old)
        place.rename(old)
    fresh.rename(place)
    _sync(place.parent)
    if not spare:
        _remove(old)


def _remove(path: Path) -> None:
    """Remove whatever has this name: `rmtree` waits at a pipe for ever, and leaves a link where it is."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        check_holes(file, path)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(folder: Path) -> None:
    """Names on disk too, where a folder can be synced."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def exists(place: Path) -> bool:
    """Whether there is a checkpoint, be it the one that a kill between two renames has left."""
    if os.path.lexists(place) and not place.is_dir():
        # Otherwise a run that is resumed would begin anew, and drop its log.
        raise InputError(f"{place}: not a folder, as a checkpoint is; remove it, or put the checkpoint back")
    return place.is_dir() or place.with_name(place.name + ".old").is_dir()


@dataclass(frozen=True)
class Kept:
    """The files of a checkpoint, looked at: the state, and which tensors there are; none of these is read yet."""

    model: StoredTensors
    training: StoredTensors
    state: dict[str, Any]

    @property
    def averages(self) -> dict[str, str]:
        """Of each averaged tensor, by the name that it has in the model, the file that holds it and its name there."""
        held = self.training.held
        return {name.removeprefix(AVERAGE): place for name, place in held.items() if name.startswith(AVERAGE)}


class Loaded(NamedTuple):
    """A checkpoint that was read."""

    model: dict[str, Tensor]
    training: dict[str, Tensor]
    state: dict[str, Any]
    held: dict[str, str]
    """Of each tensor of the model the file that holds it and its name there."""
    averages: dict[str, str]
    """The same of each averaged tensor, by the name that it has in the model."""


def load(place: Path, model_bytes: int | None = None) -> Loaded:
    """Model tensors, training tensors and state of a checkpoint; of its spare, with a warning, where it is damaged.

    A file of far more than the `model_bytes` that the model has is refused before it is read.
    """
    kept = look(place)
    for stored, times in ((kept.model, 2), (kept.training, 2 * _MOST_MOMENTS)):
        if model_bytes is not None:
            check_size(stored.nbytes, times * model_bytes, str(stored.path))
    training = kept.training.read()
    moments = {name: value for name, value in training.items() if not name.startswith(AVERAGE)}
    check_finite(moments, kept.training.held)  # averages are looked at where they are restored
    return Loaded(kept.model.read(), training, kept.state, kept.model.held, kept.averages)


def check_size(found: int, wanted: int, where: str) -> None:
    """Refuse tensors of far more bytes than are wanted, before they are read."""
    if found > wanted + _BESIDE:
        raise InputError(
            f"{where}: these weights are of another model (tensors of {found:,} bytes, at most {wanted:,} are wanted)"
        )


def look(place: Path) -> Kept:
    """What a checkpoint holds; its spare, with a warning, where it is damaged."""
    spare = place.with_name(place.name + ".old")
    if not place.is_dir() and spare.is_dir():
        return _look(spare)  # killed between the two renames
    try:
        return _look(place)
    except DamagedError as error:
        if not spare.is_dir():
            raise
        found = _look(spare)
        warnings.warn(f"{error}; going on from the one before it", stacklevel=4)
        return found


def has_ended(place: Path, epochs: int) -> bool:
    """Whether a run of so many epochs has nothing left to train after its checkpoint."""
    return exists(place) and look(place).state.get("epoch") == epochs


class DamagedError(InputError):
    """A checkpoint whose files are there but are not what was written."""


def _look(place: Path) -> Kept:
    try:
        sums = plain_json.read(place / _SUMS) if os.path.lexists(place / _SUMS) else {}
        for name, wanted in sums.items():
            if name not in (_MODEL, _TRAINING, _STATE):  # each is read whole: a million names would take hours
                raise ValueError(f"{_SUMS} names {shown(name)}, which is no file of a checkpoint")
            if _sha256(place / name) != wanted:
                raise ValueError(f"SHA-256 of {name} is another than when it was written")
        model, training = (stored_tensors(place / name) for name in (_MODEL, _TRAINING))
        state = plain_json.read(place / _STATE)
        if not isinstance(state, dict):
            raise ValueError("state.json holds no names with values")
    except FileNotFoundError as error:
        raise InputError(f"{error.filename or place}: not there; is this a checkpoint?") from None
    except (ValueError, AttributeError, TypeError, OSError) as error:
        raise DamagedError(f"{place}: damaged, cannot be read ({error}); take an earlier checkpoint") from None
    return Kept(model, training, state)


AVERAGE = "average."


@dataclass(frozen=True)
class Judged:
    """The model's tensors as they are judged, averaged ones where there is an average; not read yet."""

    kept: Kept

    @property
    def averaged(self) -> dict[str, int]:
        """Bytes of every averaged tensor, by the name that it has in the model."""
        sizes = self.kept.training.sizes
        return {name.removeprefix(AVERAGE): size for name, size in sizes.items() if name.startswith(AVERAGE)}

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every tensor by its name."""
        return {**self.kept.model.sizes, **self.averaged}

    @property
    def held(self) -> dict[str, str]:
        """Of each tensor the file that holds it and its name there."""
        return {**self.kept.model.held, **self.kept.averages}

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(self.sizes.values())

    def read(self, names: Collection[str] | None = None) -> dict[str, Tensor]:
        """All of them, or those of these names."""
        wanted = list(self.sizes) if names is None else list(names)
        averaged = self.kept.training.read([AVERAGE + name for name in wanted])
        found = {name.removeprefix(AVERAGE): value for name, value in averaged.items()}
        return {**self.kept.model.read([name for name in wanted if name not in found]), **found}


def load_judged(place: Path) -> tuple[Judged, dict[str, Any]]:
    """The model's tensors as they are judged, to be read when it is known what is wanted of them, and the state."""
    kept = look(place)
    return Judged(kept), kept.state


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Everything an optimizer remembers, as tensors by name and numbers for JSON."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, memory in optimizer.state_dict()["state"].items():
        for name, value in memory.items():
            key = f"optimizer.{index}.{name}"
            if isinstance(value, Tensor):
                tensors[key] = value
            elif value is None or isinstance(value, int | float | bool | str):
                numbers[key] = value
    return tensors, numbers


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """What `optimizer_tensors` gave, put back.

    Moments lie in memory as their parameters do, as they did before: other strides can mean another order of
    additions, and then other last bits.
    """
    parameters: list[Tensor] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **numbers}.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            like = parameters[int(index)]
            laid = isinstance(value, Tensor) and value.shape == like.shape
            if isinstance(value, Tensor) and value.ndim and not laid:
                raise InputError(f"{key} in the checkpoint is {list(value.shape)}, its weights {list(like.shape)}")
            kept = torch.empty_like(like, dtype=value.dtype).copy_(value) if laid else value
            state.setdefault(int(index), {})[name] = kept
    _check_whole(optimizer, state)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _check_whole(optimizer: torch.optim.Optimizer, state: dict[int, dict[str, Any]]) -> None:
    """Parameters of one group are remembered by the same numbers: one that lacks some would fail at the next step."""
    for group in optimizer.state_dict()["param_groups"]:
        kept = [frozenset(state[index]) for index in group["params"] if index in state]
        if len(set(kept)) > 1:
            raise InputError(
                f"the optimizer's {', '.join(sorted(max(kept, key=len) - min(kept, key=len)))} are not whole"
            )


def restore_module(module: nn.Module, tensors: dict[str, Tensor], where: str, held: Mapping[str, str]) -> None:
    """Weights into a module as it was built; another shape, another set of names or a NaN is one clear line.

    `held` says of each tensor which file holds it, for that line.
    """
    built = not_finite(module.state_dict())
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        first = str(error).strip().splitlines()[-1].strip()
        raise InputError(f"{where}: these weights are of another model ({first})") from None
    except InputError as error:  # a head's own words
        raise InputError(f"{where}: {error}") from None
    check_finite(module.state_dict(), held, built)


def not_finite(tensors: Mapping[str, Any]) -> set[str]:
    """Names of tensors with numbers that are not finite; a network may be built with some, as a mask."""
    return {name for name, value in tensors.items() if isinstance(value, Tensor) and not all_finite(value)}


def check_finite(tensors: Mapping[str, Any], held: Mapping[str, str], spared: Iterable[str] = ()) -> None:
    """Refuse numbers that are not finite, of which nothing but others would come; once, where they are loaded."""
    for name in sorted(not_finite(tensors).difference(spared)):
        raise not_finite_error(held.get(name, name), tensors[name], "take an earlier checkpoint, or train again")


def own(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor contiguous and with memory of its own, as safetensors wants them."""
    return {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
