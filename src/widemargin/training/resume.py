"""Resuming a run folder: the contents of `run.json`, and which settings may differ from it.

`run.json` is the config, and beside its fields `data_dir`, if one was given, and `epochs_changed`: one entry for
every time the run went on with another number of epochs. Onecycle and cosine are functions of the whole number of
epochs, so from then on the rate is that of the new length, and the run is no longer, bit for bit, what a run of that
length from the start would be. The same holds for class weights that start at a part of the training. Under a constant
rate and a plateau it is. The record of the run says so as well.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..io import bounded
from ..io.errors import InputError, format_value, spell_option
from ..io.locks import write_text_atomic
from ..io.options import options_of, spell_field
from ..numerics import distributed
from . import checkpoint
from .config import TrainConfig

RUN_FILE, RECORD_FILE = "run.json", "record.json"
_MAY_DIFFER = ("name", "epochs", "device")
_CHANGE_KEYS = {"from", "to", "at_epoch", "at_step"}
_EPOCH_DEPENDENT_SCHEDULES = ("onecycle", "cosine")


@dataclass(frozen=True)
class RunFile:
    """Contents of `run.json`."""

    config: TrainConfig
    data_dir: str | None = None
    epochs_changed: tuple[dict[str, int], ...] = ()
    """`{"from": 120, "to": 240, "at_epoch": 57, "at_step": 11172}` for every change of the number of epochs."""

    @classmethod
    def read(cls, folder: str | Path) -> RunFile:
        """The file of a run folder."""
        config = TrainConfig.read(folder)
        values = bounded.read_json(Path(folder) / RUN_FILE)
        data_dir, changes = values.get("data_dir"), values.get("epochs_changed", [])
        if data_dir is not None and not isinstance(data_dir, str):
            raise InputError(f"{Path(folder) / RUN_FILE}: data_dir must be a string, got {format_value(data_dir)}")
        if not isinstance(changes, list) or not all(_is_epochs_change(change) for change in changes):
            raise InputError(f"{Path(folder) / RUN_FILE}: epochs_changed must be a list of from, to, at_epoch, at_step")
        return cls(config, data_dir, tuple(changes))

    def write(self, folder: Path) -> None:
        """Write the file; keys other than the config's fields are omitted if empty."""
        extra: dict[str, Any] = {} if self.data_dir is None else {"data_dir": self.data_dir}
        if self.epochs_changed:
            extra["epochs_changed"] = list(self.epochs_changed)
        write_text_atomic(folder / RUN_FILE, self.config.to_json(**extra))


def _is_epochs_change(change: Any) -> bool:
    return isinstance(change, dict) and set(change) == _CHANGE_KEYS and all(type(n) is int for n in change.values())


def is_run_folder(folder: str | Path) -> bool:
    """Whether a folder holds a `run.json`."""
    return (Path(folder) / RUN_FILE).is_file()


def resume_config(folder: str | Path, given: Mapping[str, Any] | None = None) -> TrainConfig:
    """The config of a run folder, updated by `given`; raises InputError for fields that may not change."""
    there, rules = TrainConfig.read(folder), options_of(TrainConfig)
    values = {name: rules[name].check_value(spell_field(name, rules[name]), it) for name, it in (given or {}).items()}
    _check_same_fields(there, values, folder, "omit it, or start another run")
    return replace(there, **{name: value for name, value in values.items() if name in _MAY_DIFFER})


def recorded_data_dir(folder: str | Path) -> str | None:
    """The folder of data sets that a run was started with, if one was given and it is still there."""
    found = RunFile.read(folder).data_dir
    return found if found is not None and os.path.isdir(found) else None


def check_same_run(config: TrainConfig, folder: Path) -> None:
    """Raise InputError if a folder holds another run; the name and the number of epochs may differ.

    The number of epochs may not be smaller than what is trained already. A warning says where a run with another
    number of epochs is not, bit for bit, a run of that length from the start.
    """
    there = TrainConfig.read(folder)
    _check_same_fields(there, vars(config), folder, f"choose another {spell_option('out')}")
    if config.epochs == there.epochs:
        return
    state = checkpoint.inspect_checkpoint(folder / "checkpoints" / "last").state
    trained = state.get("epoch", 0) + (state.get("mid_epoch") is not None)
    if config.epochs < trained:
        raise InputError(
            f"{folder}: epoch {trained} has already started, so the run cannot end after {config.epochs}: "
            f"use {spell_option('epochs', trained)} or more"
        )
    dependent = [f"the {config.schedule} schedule"] if config.schedule in _EPOCH_DEPENDENT_SCHEDULES else []
    dependent += ["the start of the class weights"] if config.class_weight_start else []
    if dependent and distributed.is_rank_zero():
        warnings.warn(
            f"{folder}: from epoch {state.get('epoch', 0) + 1} on, {' with '.join(dependent)} is that of "
            f"{config.epochs} epochs instead of {there.epochs}: the result differs from a run of {config.epochs} "
            "epochs from the start (noted as epochs_changed in run.json and record.json)",
            stacklevel=4,
        )


def _check_same_fields(there: TrainConfig, values: Mapping[str, Any], folder: str | Path, remedy: str) -> None:
    for name, value in values.items():
        if name not in _MAY_DIFFER and getattr(there, name) != value:
            was, field = getattr(there, name), spell_field(name, options_of(TrainConfig)[name])
            raise InputError(f"{folder} holds another run ({field} is {was!r}, not {value!r}): {remedy}")


def write_run_file(
    folder: Path, config: TrainConfig, epoch: int, step: int, data_dir: str | Path | None = None
) -> None:
    """Write `run.json` with the run's history, before it starts or continues at an epoch and step.

    Where the number of epochs has changed, a `record.json` of the run's earlier end is kept under another name: the
    checkpoint it describes is about to be replaced.
    """
    found = RunFile(config, None if data_dir is None else os.path.abspath(data_dir))
    if checkpoint.exists(folder / "checkpoints" / "last") and is_run_folder(folder):
        before = RunFile.read(folder)
        found = replace(found, data_dir=found.data_dir or before.data_dir, epochs_changed=before.epochs_changed)
        if before.config.epochs != config.epochs:
            found = replace(found, epochs_changed=_add_change(before, config.epochs, epoch, step))
            record = folder / RECORD_FILE
            if record.exists():
                record.replace(folder / f"record-{before.config.epochs}-epochs.json")
    found.write(folder)


def _add_change(before: RunFile, epochs: int, epoch: int, step: int) -> tuple[dict[str, int], ...]:
    """Append a change to the history; changes at the same step are merged, or removed if they cancel out."""
    changes, first = list(before.epochs_changed), before.config.epochs
    if changes and changes[-1]["at_step"] == step:
        first = changes.pop()["from"]
    if first != epochs:
        changes.append({"from": first, "to": epochs, "at_epoch": epoch, "at_step": step})
    return tuple(changes)
