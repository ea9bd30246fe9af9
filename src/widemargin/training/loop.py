"""The loop: one run on images, from its first step or from its last checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..errors import InputError
from ..progress import bar
from ..results import versions
from ..run import Run
from . import checkpoint
from .log import Log, check_logs
from .moving import Training


def train(
    run: Run,
    folder: str | Path,
    *,
    resume: bool = False,
    data_dir: str | None = None,
    also: Iterable[str] = (),
    devices: Any = "auto",
    stop_after: int | None = None,
) -> dict[str, Any]:
    """Train a run in a folder to its end (or for `stop_after` epochs); the record of what came out."""
    folder, also = Path(folder), check_logs(also)
    last = folder / "checkpoints" / "last"
    there = checkpoint.exists(last)
    if there and not resume:
        raise InputError(f"{folder} holds a run already: go on with --resume, or choose another --out")
    if there:
        _refuse_another(run, folder)
    training = Training(run, data_dir, devices, resumed=there)
    if there:
        training.restore(last)
    first = training.rank == 0
    if first:
        _write(folder / "run.json", run.to_json())
    end = run.epochs if stop_after is None else min(run.epochs, training.epoch + stop_after)
    log = Log(folder, training.epoch, also, run.name) if first else None
    steps = (end - training.epoch) or 1
    with bar(f"{run.data} {run.model} {run.loss}", steps) if first else nullcontext(lambda share: None) as told:
        while training.epoch < end:
            _epoch(training, folder, log, told)
    if log is not None:
        log.close()
    record = _record(training, folder) if training.epoch == run.epochs else {}
    training.fabric.barrier()  # a process that leaves early tears down the connections of the others
    return record


def _epoch(training: Training, folder: Path, log: Log | None, told: Any) -> None:
    """Train, judge, log and keep one epoch; `last` last, so that whatever a kill leaves out is done again."""
    run, places = training.run, folder / "checkpoints"
    line = training.one_epoch(told)
    held = training.inputs.held_out
    better = False
    if held is not None:
        judged = training.fabric.broadcast(training.judge(held))  # running statistics differ between processes
        line["held_out"] = {name: value for name, value in judged.items() if name != "confusion"}
        better = judged["top1"] > training.best
        training.best = max(training.best, judged["top1"])
    training.plateau.told(line["held_out"]["loss"] if held is not None else line["loss"])
    if log is not None:  # a resumed run drops lines beyond its checkpoint, but could not make up a lost one
        log.add(line)
    if better:
        training.save(places / "best")
    if run.ckpt_freq and training.epoch % run.ckpt_freq == 0:
        training.save(places / f"epoch-{training.epoch:04d}")
    training.save(places / "last")


def _refuse_another(run: Run, folder: Path) -> None:
    """Only the run that is there goes on; its name may have changed, nothing else."""
    there = Run.read(folder)
    for name, value in vars(replace(run, name=there.name)).items():
        if getattr(there, name) != value:
            was = getattr(there, name)
            raise InputError(f"{folder} holds another run ({name} is {was!r}, not {value!r}): choose another --out")


def _record(training: Training, folder: Path) -> dict[str, Any]:
    """The last epoch's figures on the test images, written to `record.json`."""
    run = training.run
    test = training.judge(training.inputs.test)
    record = {
        "data": run.data,
        "loss": run.loss,
        "model": run.model,
        "seed": run.seed,
        "epochs": run.epochs,
        "seconds": round(training.seconds, 1),
        "cores": torch.get_num_threads(),
        "test": {name: test[name] for name in ("top1", "top5", "top1_flip", "loss")},
        "angles": test.get("angles", {}),
        "versions": versions(),
    }
    if training.rank == 0:
        _write(folder / "record.json", json.dumps({**record, "confusion": test["confusion"]}, indent=1))
    return record


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
