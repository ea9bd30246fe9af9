"""`train`: one run on images, from its first step or from its last checkpoint to its record."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from ..data.images import manifest
from ..io import bounded
from ..io.errors import InputError, StoppedError
from ..io.locks import lock_folder, translate_disk_errors, write_chunks_atomic, write_text_atomic
from ..io.provenance import source_commit, versions
from ..numerics import distributed
from ..recognition.evaluation import EVALUATION_VERSION
from . import checkpoint
from .config import TrainConfig, format_with_options
from .distributed import DEFAULT_TIMEOUT_SECONDS, StopRequest, handle_stop_signals, is_connection_error, lost_rank_error
from .evaluate import selection_metric
from .inputs import read_run_manifest
from .logging import MetricsLog, ProgressReporter, check_loggers, open_reporter
from .model import ObjectiveFactory
from .resume import RunFile, check_same_run, write_run_file
from .trainer import Trainer

_LOST_RANK_WAIT_SECONDS = 10.0  # seconds in which the processes that are left find out who is missing


def train(
    config: TrainConfig,
    out: str | Path,
    *,
    resume: bool = False,
    data_dir: str | None = None,
    loggers: Iterable[str] = (),
    devices: Any = "auto",
    stop_after: int | None = None,
    quiet: bool = False,
    command: str | None = None,
    objective_factory: ObjectiveFactory | None = None,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    assign_new: bool = False,
) -> dict[str, Any]:
    """Train a run in a folder to its end (or for `stop_after` epochs) and return its record, {} while epochs are left.

    `quiet` shows no bar and prints no lines; `command` is what the record says to type, if another than
    `config.to_command`'s.
    A process that does not answer for `timeout` seconds is given up by the others.
    `objective_factory(embedding_dim, num_classes)` makes an objective that no text names, such as another library's,
    under the name `config.loss`.
    `assign_new` resumes on a folder of images as it is now: see `data.images.changes.update_manifest`.
    """
    out, loggers = Path(out), check_loggers(loggers)
    if checkpoint.exists(out / "checkpoints" / "last") and not resume:
        raise InputError(f"{out} holds a run already: go on with --resume, or choose another --out")
    with lock_folder(out) if distributed.is_rank_zero() else nullcontext():
        trainer: Trainer | None = None
        try:
            trainer = _prepare_trainer(config, out, data_dir, devices, objective_factory, timeout, assign_new)
            return _run_epochs(trainer, out, loggers, stop_after, quiet, command)
        except RuntimeError as error:
            if not is_connection_error(error):
                raise
            raise lost_rank_error(min(_LOST_RANK_WAIT_SECONDS, timeout), timedelta(seconds=timeout)) from None


def _prepare_trainer(
    config: TrainConfig,
    folder: Path,
    data_dir: str | None,
    devices: Any,
    objective_factory: ObjectiveFactory | None,
    timeout: float,
    assign_new: bool,
) -> Trainer:
    """The run at its first step, or where its last checkpoint is."""
    last = folder / "checkpoints" / "last"
    has_checkpoint = checkpoint.exists(last)
    if has_checkpoint:
        check_same_run(config, folder)
    kept = read_run_manifest(config, folder) if has_checkpoint else None
    if assign_new and kept is not None and checkpoint.is_training_complete(last, config.epochs):
        raise InputError(
            f"{folder}: the run has ended, so that --resume with --assign-new would train on no new image; "
            "evaluate --assign-new takes new test images in, and new training images want another run"
        )
    trainer = Trainer(
        config,
        data_dir,
        devices,
        resume=has_checkpoint,
        objective_factory=objective_factory,
        timeout=timeout,
        manifest=kept,
        assign_new=assign_new,
    )
    if has_checkpoint:
        trainer.restore(last)
    return trainer


def _run_epochs(
    trainer: Trainer, folder: Path, loggers: list[str], stop_after: int | None, quiet: bool, command: str | None
) -> dict[str, Any]:
    """All epochs that are left, and the record at the end."""
    config, is_rank_zero = trainer.config, trainer.rank == 0
    if is_rank_zero:
        with translate_disk_errors(folder):
            if trainer.inputs.manifest is not None and trainer.inputs.has_new_manifest:
                write_chunks_atomic(folder / manifest.MANIFEST_NAME, trainer.inputs.manifest.to_csv())
            write_run_file(folder, config, trainer.epoch, trainer.step, trainer.data_dir)
        source_commit()  # the source as it is now: it may have moved on when the run ends
    end = config.epochs if stop_after is None else min(config.epochs, trainer.epoch + stop_after)
    loggers = loggers if trainer.epoch < end else []
    with (
        handle_stop_signals() as stop,
        _open_log(folder, trainer, loggers) if is_rank_zero else nullcontext() as log,
        open_reporter(config, trainer.epoch, end)
        if is_rank_zero and not quiet
        else nullcontext(ProgressReporter()) as reporter,
    ):
        while trainer.epoch < end:
            if not _run_epoch(trainer, folder, log, reporter, stop):
                break
    if trainer.mid_epoch_state is not None:
        step = f"epoch {trainer.epoch + 1}, step {trainer.mid_epoch_state['step']} of {len(trainer.inputs.batches)}"
        raise StoppedError(f"stopped at {step}; everything is kept, --resume goes on from there")
    record = _evaluate_and_record(trainer, folder, command) if trainer.epoch == config.epochs else {}
    trainer.fabric.barrier()  # a process that leaves early tears down the connections of the others
    return record


def _open_log(folder: Path, trainer: Trainer, loggers: list[str]) -> MetricsLog:
    with translate_disk_errors(folder):
        return MetricsLog(folder, trainer.epoch, loggers, trainer.config)


def _run_epoch(
    trainer: Trainer, folder: Path, log: MetricsLog | None, reporter: ProgressReporter, stop: StopRequest
) -> bool:
    """Train, evaluate, log and keep one epoch; `last` last, so that whatever a kill leaves out is done again.

    False where it was left in the middle, which is kept too.
    """
    config, places = trainer.config, folder / "checkpoints"
    line = trainer.train_epoch(reporter, stop)
    if line is None:
        with translate_disk_errors(folder):
            trainer.save(places / "last")
        return False
    val = trainer.inputs.val
    is_best = False
    if val is not None:
        metrics = trainer.val_metrics = trainer.evaluate(val)
        line["val"] = {name: value for name, value in metrics.items() if name != "confusion"}
        is_best = selection_metric(metrics) > trainer.best
        trainer.best = max(trainer.best, selection_metric(metrics))
    trainer.plateau.step(line.get("val", {}).get("loss", line["loss"]))
    if log is not None:  # a resumed run drops lines beyond its checkpoint, but could not make up a lost one
        with translate_disk_errors(folder):
            log.add(line)
    reporter.report_epoch(line)
    with translate_disk_errors(folder):
        if is_best:
            trainer.save(places / "best")
        if config.ckpt_freq and trainer.epoch % config.ckpt_freq == 0:
            trainer.save(places / f"epoch-{trainer.epoch:04d}")
        trainer.save(places / "last")
    return True


def _evaluate_and_record(trainer: Trainer, folder: Path, command: str | None) -> dict[str, Any]:
    """The last epoch's figures on the test images, written to `record.json`."""
    config = trainer.config
    test = trainer.evaluate(trainer.inputs.test, intervals=True)
    record = {
        "data": config.data,
        "loss": config.loss,
        "model": format_with_options(config.model, config.model_options),
        "seed": config.seed,
        "epochs": config.epochs,
        "seconds": round(trainer.seconds, 1),
        "cores": torch.get_num_threads(),
        "processes": trainer.fabric.world_size,
        "test": {name: value for name, value in test.items() if name not in ("angles", "confusion", "intervals")},
        "angles": test.get("angles", {}),
        "versions": versions(),
        "command": command or shlex.join(config.to_command()),
        "commit": source_commit(),
    }
    if trainer.rank == 0 and (changes := RunFile.read(folder).epochs_changed):
        record["epochs_changed"] = list(changes)
    if trainer.inputs.manifest is not None:
        record["manifest"] = trainer.inputs.manifest_summary()
    if "intervals" in test:
        record |= {"intervals": test["intervals"], "evaluation": EVALUATION_VERSION}
    if trainer.inputs.val is not None:
        record["val"] = selection_metric(trainer.val_metrics or trainer.evaluate(trainer.inputs.val, flips=False))
    if trainer.rank == 0:
        with translate_disk_errors(folder):
            whole = {**record, "confusion": test.get("confusion")}
            write_text_atomic(folder / "record.json", bounded.dumps_one_line_per_key(whole))
    return record
