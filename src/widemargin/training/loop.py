"""The loop: one run on images, from its first step or from its last checkpoint."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..errors import InputError, StoppedError
from ..origin import commit
from ..results import versions
from ..run import Run
from ..spelling import command_of, with_options
from . import checkpoint
from .judging import choosing
from .log import Log, check_logs
from .moving import Training
from .network import Another
from .stopping import Stop, stopping
from .telling import Telling, telling


def train(
    run: Run,
    folder: str | Path,
    *,
    resume: bool = False,
    data_dir: str | None = None,
    also: Iterable[str] = (),
    devices: Any = "auto",
    stop_after: int | None = None,
    quiet: bool = False,
    command: str | None = None,
    another: Another | None = None,
) -> dict[str, Any]:
    """Train a run in a folder to its end (or for `stop_after` epochs); the record of what came out.

    `quiet` shows no bar and prints no lines; `command` is what the record says to type, if another than `command_of`'s.
    `another(dim, classes)` makes an objective that no text names, such as another library's, under the name `run.loss`.
    """
    folder, also = Path(folder), check_logs(also)
    last = folder / "checkpoints" / "last"
    there = checkpoint.exists(last)
    if there and not resume:
        raise InputError(f"{folder} holds a run already: go on with --resume, or choose another --out")
    if there:
        _refuse_another(run, folder)
    training = Training(run, data_dir, devices, resumed=there, another=another)
    if there:
        training.restore(last)
    first = training.rank == 0
    if first:
        _write(folder / "run.json", run.to_json())
        commit()  # the source as it is now: it may have moved on when the run ends
    end = run.epochs if stop_after is None else min(run.epochs, training.epoch + stop_after)
    also = also if training.epoch < end else []
    with (
        Log(folder, training.epoch, also, run) if first else nullcontext() as log,
        telling(run, training.epoch, end) if first and not quiet else nullcontext(Telling()) as told,
        stopping() as stop,
    ):
        while training.epoch < end:
            if not _epoch(training, folder, log, told, stop):
                break
    if training.within is not None:
        step = f"epoch {training.epoch + 1}, step {training.within['step']} of {len(training.inputs.batches)}"
        raise StoppedError(f"stopped at {step}; everything is kept, --resume goes on from there")
    record = _record(training, folder, command) if training.epoch == run.epochs else {}
    training.fabric.barrier()  # a process that leaves early tears down the connections of the others
    return record


def _epoch(training: Training, folder: Path, log: Log | None, told: Telling, stop: Stop) -> bool:
    """Train, judge, log and keep one epoch; `last` last, so that whatever a kill leaves out is done again.

    False where it was left in the middle, which is kept too.
    """
    run, places = training.run, folder / "checkpoints"
    line = training.one_epoch(told, stop)
    if line is None:
        training.save(places / "last")
        return False
    held = training.inputs.held_out
    better = False
    if held is not None:
        judged = training.fabric.broadcast(training.judge(held))  # running statistics differ between processes
        line["held_out"] = {name: value for name, value in judged.items() if name != "confusion"}
        better = choosing(judged) > training.best
        training.best = max(training.best, choosing(judged))
    training.plateau.told(line.get("held_out", {}).get("loss", line["loss"]))
    if log is not None:  # a resumed run drops lines beyond its checkpoint, but could not make up a lost one
        log.add(line)
    told.epoch(line)
    if better:
        training.save(places / "best")
    if run.ckpt_freq and training.epoch % run.ckpt_freq == 0:
        training.save(places / f"epoch-{training.epoch:04d}")
    training.save(places / "last")
    return True


def _refuse_another(run: Run, folder: Path) -> None:
    """Only the run that is there goes on; its name may have changed, nothing else."""
    there = Run.read(folder)
    for name, value in vars(replace(run, name=there.name)).items():
        if getattr(there, name) != value:
            was = getattr(there, name)
            raise InputError(f"{folder} holds another run ({name} is {was!r}, not {value!r}): choose another --out")


def _record(training: Training, folder: Path, command: str | None) -> dict[str, Any]:
    """The last epoch's figures on the test images, written to `record.json`."""
    run = training.run
    test = training.judge(training.inputs.test)
    record = {
        "data": run.data,
        "loss": run.loss,
        "model": with_options(run.model, run.model_options),
        "seed": run.seed,
        "epochs": run.epochs,
        "seconds": round(training.seconds, 1),
        "cores": torch.get_num_threads(),
        "processes": training.fabric.world_size,
        "test": {name: value for name, value in test.items() if name not in ("angles", "confusion")},
        "angles": test.get("angles", {}),
        "versions": versions(),
        "command": command or shlex.join(command_of(run)),
        "commit": commit(),
    }
    if training.inputs.held_out is not None:
        record["held_out"] = choosing(training.judge(training.inputs.held_out, flips=False))
    if training.rank == 0:
        _write(folder / "record.json", json.dumps({**record, "confusion": test.get("confusion")}, indent=1))
    return record


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
