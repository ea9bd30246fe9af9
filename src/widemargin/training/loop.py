"""The loop: one run on images, from its first step or from its last checkpoint."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from .. import plain_json, ranks
from ..data import manifest
from ..errors import InputError, StoppedError
from ..folder_lock import alone_in
from ..origin import commit
from ..results import versions
from ..run import Run
from ..spelling import command_of, with_options
from . import checkpoint
from .inputs import kept_manifest
from .judging import choosing
from .launch import TIMEOUT
from .log import Log, check_logs
from .moving import Training
from .network import Another
from .roll_call import broken, lost
from .stopping import Stop, stopping
from .telling import Telling, telling
from .unseen import EVALUATION
from .writing import write_pieces, write_whole, writing

_CALLING = 10.0  # seconds in which the processes that are left find out who is missing


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
    timeout: float = TIMEOUT,
    assign_new: bool = False,
) -> dict[str, Any]:
    """Train a run in a folder to its end (or for `stop_after` epochs); the record of what came out.

    `quiet` shows no bar and prints no lines; `command` is what the record says to type, if another than `command_of`'s.
    `timeout` seconds after the last word of another process it is given up.
    `another(dim, classes)` makes an objective that no text names, such as another library's, under the name `run.loss`.
    `assign_new` resumes on a folder of images as it is now: see `data.changes.take_in`.
    """
    folder, also = Path(folder), check_logs(also)
    if checkpoint.exists(folder / "checkpoints" / "last") and not resume:
        raise InputError(f"{folder} holds a run already: go on with --resume, or choose another --out")
    with alone_in(folder) if ranks.speaks() else nullcontext():
        training: Training | None = None
        try:
            training = _ready(run, folder, data_dir, devices, another, timeout, assign_new)
            return _trained(training, folder, also, stop_after, quiet, command)
        except RuntimeError as error:
            if not broken(error):
                raise
            raise lost(min(_CALLING, timeout), timedelta(seconds=timeout)) from None


def _ready(
    run: Run,
    folder: Path,
    data_dir: str | None,
    devices: Any,
    another: Another | None,
    timeout: float,
    assign_new: bool,
) -> Training:
    """The run at its first step, or where its last checkpoint is."""
    last = folder / "checkpoints" / "last"
    there = checkpoint.exists(last)
    if there:
        _refuse_another(run, folder)
    kept = kept_manifest(run, folder) if there else None
    if assign_new and kept is not None and checkpoint.has_ended(last, run.epochs):
        raise InputError(
            f"{folder}: the run has ended, so that --resume with --assign-new would train on no new image; "
            "evaluate --assign-new takes new test images in, and new training images want another run"
        )
    training = Training(
        run,
        data_dir,
        devices,
        resumed=there,
        another=another,
        timeout=timeout,
        manifest=kept,
        assign_new=assign_new,
    )
    if there:
        training.restore(last)
    return training


def _trained(
    training: Training, folder: Path, also: list[str], stop_after: int | None, quiet: bool, command: str | None
) -> dict[str, Any]:
    """All epochs that are left, and the record at the end."""
    run, first = training.run, training.rank == 0
    if first:
        with writing(folder):
            if training.inputs.manifest is not None and training.inputs.drawn:
                write_pieces(folder / manifest.NAME, training.inputs.manifest.to_csv())
            write_whole(folder / "run.json", run.to_json())
        commit()  # the source as it is now: it may have moved on when the run ends
    end = run.epochs if stop_after is None else min(run.epochs, training.epoch + stop_after)
    also = also if training.epoch < end else []
    with (
        stopping() as stop,
        _log(folder, training, also) if first else nullcontext() as log,
        telling(run, training.epoch, end) if first and not quiet else nullcontext(Telling()) as told,
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


def _log(folder: Path, training: Training, also: list[str]) -> Log:
    with writing(folder):
        return Log(folder, training.epoch, also, training.run)


def _epoch(training: Training, folder: Path, log: Log | None, told: Telling, stop: Stop) -> bool:
    """Train, judge, log and keep one epoch; `last` last, so that whatever a kill leaves out is done again.

    False where it was left in the middle, which is kept too.
    """
    run, places = training.run, folder / "checkpoints"
    line = training.one_epoch(told, stop)
    if line is None:
        with writing(folder):
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
        with writing(folder):
            log.add(line)
    told.epoch(line)
    with writing(folder):
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
    test = training.judge(training.inputs.test, intervals=True)
    record = {
        "data": run.data,
        "loss": run.loss,
        "model": with_options(run.model, run.model_options),
        "seed": run.seed,
        "epochs": run.epochs,
        "seconds": round(training.seconds, 1),
        "cores": torch.get_num_threads(),
        "processes": training.fabric.world_size,
        "test": {name: value for name, value in test.items() if name not in ("angles", "confusion", "intervals")},
        "angles": test.get("angles", {}),
        "versions": versions(),
        "command": command or shlex.join(command_of(run)),
        "commit": commit(),
    }
    if training.inputs.manifest is not None:
        record["manifest"] = training.inputs.manifest_facts()
    if "intervals" in test:
        record |= {"intervals": test["intervals"], "evaluation": EVALUATION}
    if training.inputs.held_out is not None:
        record["held_out"] = choosing(training.judge(training.inputs.held_out, flips=False))
    if training.rank == 0:
        with writing(folder):
            whole = {**record, "confusion": test.get("confusion")}
            write_whole(folder / "record.json", plain_json.line_per_name(whole))
    return record
