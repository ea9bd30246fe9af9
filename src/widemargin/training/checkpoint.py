"""Checkpoints: tensors in safetensors, numbers in JSON, written atomically; nothing is ever unpickled.

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

from ..io import bounded
from ..io.bounded import check_not_sparse, open_regular
from ..io.errors import InputError, format_value
from ..io.tensor_files import SafetensorsFile, all_finite, clone_contiguous, not_finite_error, read_safetensors_header

_SHA256_FILE = "sha256.json"
_MODEL_FILE, _TRAINING_FILE, STATE_FILE = "model.safetensors", "training.safetensors", "state.json"
_SIZE_SLACK_BYTES = 64 << 20  # bytes for names and numbers in addition to the tensors
_MAX_OPTIMIZER_STATE_RATIO = 8  # times the model: two moments of an optimizer, one average, and some slack


def save(
    folder: Path,
    model: dict[str, Tensor],
    training: dict[str, Tensor],
    state: dict[str, Any],
    *,
    keep_backup: bool = False,
) -> None:
    """Write a checkpoint to `folder`, replacing one that is there, or keeping that as a spare."""
    from safetensors.torch import save_file

    fresh = folder.with_name(folder.name + ".new")
    remove(fresh)
    try:
        fresh.mkdir(parents=True)
        save_file(clone_contiguous(model), fresh / _MODEL_FILE)
        save_file(clone_contiguous(training), fresh / _TRAINING_FILE)
        (fresh / STATE_FILE).write_text(json.dumps(state, indent=1), encoding="utf-8")
        sums = {path.name: _sha256(path) for path in sorted(fresh.iterdir())}
        (fresh / _SHA256_FILE).write_text(json.dumps(sums, indent=1), encoding="utf-8")
        for path in fresh.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    except Exception:  # a full disk: an incomplete checkpoint would only take space
        remove(fresh)
        raise
    _fsync_folder(fresh)
    old = folder.with_name(folder.name + ".old")
    if folder.exists():  # else an earlier kill has left `old` as the only good one
        remove(old)
        folder.rename(old)
    fresh.rename(folder)
    _fsync_folder(folder.parent)
    if not keep_backup:
        remove(old)


def remove(path: Path) -> None:
    """Remove a file, link or folder; `rmtree` alone would hang on a pipe and not remove a link."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        check_not_sparse(file, path)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk, where the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def exists(folder: Path) -> bool:
    """Whether there is a checkpoint, or the backup left by a run that was killed between two renames."""
    if os.path.lexists(folder) and not folder.is_dir():
        # Otherwise a resumed run would start from the beginning and discard its log.
        raise InputError(f"{folder}: a checkpoint must be a folder; remove the file, or restore the checkpoint")
    return folder.is_dir() or folder.with_name(folder.name + ".old").is_dir()


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of a checkpoint, their hashes checked: the state, and which tensors there are, not read yet."""

    model: SafetensorsFile
    training: SafetensorsFile
    state: dict[str, Any]

    @property
    def ema_sources(self) -> dict[str, str]:
        """By the name of a tensor in the model: the file and name under which its average is stored, for messages."""
        held = self.training.sources
        return {name.removeprefix(EMA_PREFIX): place for name, place in held.items() if name.startswith(EMA_PREFIX)}


class LoadedCheckpoint(NamedTuple):
    """A checkpoint that was read."""

    model: dict[str, Tensor]
    training: dict[str, Tensor]
    state: dict[str, Any]
    sources: dict[str, str]
    """By the name of a tensor in the model: the file that holds it and its name there, for messages."""
    ema_sources: dict[str, str]
    """The same for its average."""


def load(folder: Path, model_bytes: int | None = None) -> LoadedCheckpoint:
    """Model tensors, training tensors and state of a checkpoint; if it is damaged, of the previous one, with a warning.

    A file much larger than the `model_bytes` of the model is rejected before it is read.
    """
    files = inspect_checkpoint(folder)
    for stored, times in ((files.model, 2), (files.training, 2 * _MAX_OPTIMIZER_STATE_RATIO)):
        if model_bytes is not None:
            check_size(stored.nbytes, times * model_bytes, str(stored.path))
    training = files.training.read()
    moments = {name: value for name, value in training.items() if not name.startswith(EMA_PREFIX)}
    check_finite(moments, files.training.sources)  # averages are checked when they are restored
    return LoadedCheckpoint(files.model.read(), training, files.state, files.model.sources, files.ema_sources)


def check_size(num_bytes: int, max_bytes: int, where: str) -> None:
    """Refuse tensors that are far larger than expected, before they are read."""
    if num_bytes > max_bytes + _SIZE_SLACK_BYTES:
        raise InputError(
            f"{where}: these weights belong to another model "
            f"(tensors of {num_bytes:,} bytes, expected at most {max_bytes:,})"
        )


def inspect_checkpoint(folder: Path) -> CheckpointFiles:
    """Open a checkpoint; its backup, with a warning, if it is damaged."""
    backup = folder.with_name(folder.name + ".old")
    if not folder.is_dir() and backup.is_dir():
        return _inspect_folder(backup)  # killed between the two renames
    try:
        return _inspect_folder(folder)
    except CorruptCheckpointError as error:
        if not backup.is_dir():
            raise
        found = _inspect_folder(backup)
        warnings.warn(f"{error}; using the previous checkpoint", stacklevel=4)
        return found


def is_training_complete(folder: Path, epochs: int) -> bool:
    """Whether the checkpoint is at the end of a run of `epochs` epochs."""
    return exists(folder) and inspect_checkpoint(folder).state.get("epoch") == epochs


class CorruptCheckpointError(InputError):
    """A checkpoint whose files exist but are not those that were written."""


def _inspect_folder(folder: Path) -> CheckpointFiles:
    try:
        sums = bounded.read_json(folder / _SHA256_FILE) if os.path.lexists(folder / _SHA256_FILE) else {}
        for name, wanted in sums.items():
            if name not in (_MODEL_FILE, _TRAINING_FILE, STATE_FILE):  # each is read whole; many take hours
                raise ValueError(f"{_SHA256_FILE} names {format_value(name)}, which is not a file of a checkpoint")
            if _sha256(folder / name) != wanted:
                raise ValueError(f"the SHA-256 of {name} has changed since it was written")
        model, training = (read_safetensors_header(folder / name) for name in (_MODEL_FILE, _TRAINING_FILE))
        state = bounded.read_json(folder / STATE_FILE)
        if not isinstance(state, dict):
            raise ValueError("state.json is not a mapping")
    except FileNotFoundError as error:
        raise InputError(f"{error.filename or folder}: does not exist; is this a checkpoint?") from None
    except (ValueError, AttributeError, TypeError, OSError) as error:
        raise CorruptCheckpointError(
            f"{folder}: damaged, cannot be read ({error}); use an earlier checkpoint"
        ) from None
    return CheckpointFiles(model, training, state)


EMA_PREFIX = "average."


@dataclass(frozen=True)
class EvalWeights:
    """The model's tensors as they are evaluated, averaged ones where there is an average; not read yet."""

    files: CheckpointFiles

    @property
    def ema_sizes(self) -> dict[str, int]:
        """Bytes of every averaged tensor, by the name that it has in the model."""
        sizes = self.files.training.sizes
        return {name.removeprefix(EMA_PREFIX): size for name, size in sizes.items() if name.startswith(EMA_PREFIX)}

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every tensor by its name."""
        return {**self.files.model.sizes, **self.ema_sizes}

    @property
    def sources(self) -> dict[str, str]:
        """Of each tensor the file that holds it and its name there."""
        return {**self.files.model.sources, **self.files.ema_sources}

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(self.sizes.values())

    def read(self, names: Collection[str] | None = None) -> dict[str, Tensor]:
        """All of them, or those of these names."""
        wanted = list(self.sizes) if names is None else list(names)
        ema_tensors = self.files.training.read([EMA_PREFIX + name for name in wanted])
        found = {name.removeprefix(EMA_PREFIX): value for name, value in ema_tensors.items()}
        return {**self.files.model.read([name for name in wanted if name not in found]), **found}


def open_eval_weights(folder: Path) -> tuple[EvalWeights, dict[str, Any]]:
    """The model's tensors as they are evaluated, to be read when it is known what is wanted of them, and the state."""
    files = inspect_checkpoint(folder)
    return EvalWeights(files), files.state


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimizer, as tensors by name and as numbers for JSON."""
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
    """Load the state of a checkpoint into an optimizer.

    Moments lie in memory as their parameters do, as they did before: other strides can mean another order of
    additions, and then other last bits.
    """
    parameters: list[Tensor] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **numbers}.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            like = parameters[int(index)]
            same_shape = isinstance(value, Tensor) and value.shape == like.shape
            if isinstance(value, Tensor) and value.ndim and not same_shape:
                raise InputError(
                    f"{key} in the checkpoint has the shape {list(value.shape)}, its weights {list(like.shape)}"
                )
            kept = torch.empty_like(like, dtype=value.dtype).copy_(value) if same_shape else value
            state.setdefault(int(index), {})[name] = kept
    _check_optimizer_state(optimizer, state)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _check_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[int, dict[str, Any]]) -> None:
    """Refuse a state in which a parameter lacks an entry that others of its group have: the next step would fail."""
    for group in optimizer.state_dict()["param_groups"]:
        kept = [frozenset(state[index]) for index in group["params"] if index in state]
        if len(set(kept)) > 1:
            raise InputError(
                f"the optimizer's {', '.join(sorted(max(kept, key=len) - min(kept, key=len)))} are incomplete"
            )


def restore_module(module: nn.Module, tensors: dict[str, Tensor], where: str, sources: Mapping[str, str]) -> None:
    """Load weights into a module; raises InputError for other shapes or names, or NaN.

    `sources` maps each tensor to its file, for the message.
    """
    initial_non_finite = non_finite_names(local_state_dict(module))
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        first = str(error).strip().splitlines()[-1].strip()
        raise InputError(f"{where}: these weights belong to another model ({first})") from None
    except InputError as error:  # messages of the head itself
        raise InputError(f"{where}: {error}") from None
    check_finite(local_state_dict(module), sources, initial_non_finite)


def local_state_dict(module: nn.Module) -> dict[str, Any]:
    """The state dict of a module, of class weights that are split over processes this process's part."""
    return {
        name: value.to_local() if hasattr(value, "to_local") else value for name, value in module.state_dict().items()
    }


def non_finite_names(tensors: Mapping[str, Any]) -> set[str]:
    """Names of tensors with numbers that are not finite; a network may be built with some, as a mask."""
    return {name for name, value in tensors.items() if isinstance(value, Tensor) and not all_finite(value)}


def check_finite(tensors: Mapping[str, Any], sources: Mapping[str, str], ignored_names: Iterable[str] = ()) -> None:
    """Refuse tensors with NaN or infinite values, when they are loaded: all that is computed from them would be too."""
    for name in sorted(non_finite_names(tensors).difference(ignored_names)):
        raise not_finite_error(sources.get(name, name), tensors[name], "use an earlier checkpoint, or train again")
