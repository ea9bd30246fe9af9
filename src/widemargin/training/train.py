"""`train`: train a model from the first step, or from its last checkpoint, and write its record."""

from __future__ import annotations

import copy
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data.images import manifest
from ..io import bounded
from ..io.errors import InputError, StoppedError, spell_option
from ..io.locks import lock_folder, translate_disk_errors, write_chunks_atomic, write_text_atomic
from ..io.provenance import source_commit, versions
from ..io.resources import peak_memory
from ..io.text import print_stderr
from ..numerics import distributed
from ..recognition.evaluation import EVALUATION_VERSION
from . import checkpoint
from .averaging import average_checkpoints, epochs_to_average
from .config import TrainConfig, format_with_options
from .dataset_inputs import GivenObjects, as_config
from .datasets import DATASET_PREFIX, CollateFn
from .distributed import DEFAULT_TIMEOUT_SECONDS, StopRequest, handle_stop_signals, is_connection_error, lost_rank_error
from .evaluation import verify_pair_files
from .folder_inputs import read_run_manifest
from .logging import MetricsLog, ProgressReporter, check_loggers, open_reporter
from .model import MODULE_PREFIX, ObjectiveFactory
from .resume import RunFile, check_same_run, is_run_folder, recorded_data_dir, resume_config, write_run_file
from .run import Run
from .run_files import check_no_run, default_run_folder
from .run_loading import parse_input_spec
from .selection import selection_far, selection_metric
from .trainer import Trainer

_NOT_SINGLE_FIGURES = ("angles", "confusion", "intervals", "average_precision")  # keys of their own in the record
_MIN_AVERAGE_LENGTHS = 3.0  # after three times its length, initial weights make up 5 % of a moving average
_LOST_RANK_WAIT_SECONDS = 10.0  # seconds for the remaining processes to find the missing rank


@torch.random.fork_rng(devices=[])  # leaves the caller's random state unchanged
def train(
    config: TrainConfig | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    *,
    train: Any = None,
    val: Any = None,
    test: Any = None,
    model: str | nn.Module | None = None,
    at: str | None = "auto",
    sampler: Any = None,
    callbacks: Any = (),
    class_names: Sequence[str] | None = None,
    workers: int = 0,
    collate_fn: CollateFn | None = None,
    resume: bool = False,
    data_dir: str | Path | None = None,
    loggers: Iterable[str] = (),
    devices: Any = "auto",
    stop_after: int | None = None,
    quiet: bool = False,
    command: str | None = None,
    objective_factory: ObjectiveFactory | None = None,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    assign_new: bool = False,
) -> Run:
    """Train a model with a loss and return the trained `Run`. `widemargin train` calls this function.

    Without `train` and `model`, it trains `config.model` on the images that `config.data` names. A dataset is used
    without augmentation, since it has its own transforms. A module is trained in place, starting from its weights;
    the returned run holds a copy, which later training does not change.

    Args:
        config: a `TrainConfig`, a mapping of its fields, or None for the defaults. Of a run
            that is resumed the fields that a mapping leaves out are those of the run; `epochs` may be another number.
        out: run folder; by default `runs/NAME`.
        train: training items, in place of `config.data`: a map-style `torch.utils.data.Dataset` whose items are
            `(x, y)` or mappings with "image" or "x" and "label" or "y", or arrays or tensors `(X, y)`. An `x` has any
            shape that the model takes. Labels are class numbers, names, or other values, which are sorted.
        val: items that select the checkpoint `best`, in place of `config.val_fraction` and `config.val_classes`.
        test: items to evaluate on at the end, of classes of `train`, or of none of them: an open set, which is
            evaluated by its embeddings. The same holds for `val`.
        model: a name, or an `nn.Module` that returns embeddings [N, D] or ends in a classifier, or a `MarginModel`.
        at: path of the classifier in `model` that the loss replaces; "auto" finds those of timm and torchvision, and
            layers named fc, classifier or head with as many outputs as there are classes; None: outputs are embeddings.
        sampler: torch sampler of rows or of batches, or `sampler(epoch)` that returns either; over the whole dataset,
            its batches are divided among the processes.
        callbacks: objects with `on_step_end` or `on_epoch_end`, or one of them, see `Callback`.
        class_names: names of the classes 0 … C−1; by default `train.classes`, or the labels.
        workers: processes that load items of a dataset, or threads that decode image files (by default one per core).
        collate_fn: turns a list of items into `(x, y)` or a mapping; by default items are stacked.
        resume: continue from the last checkpoint in `out`; data, model, sampler and callbacks must be passed again.
        data_dir: folder with the data sets, also `WIDEMARGIN_DATA`.
        loggers: "tensorboard", "wandb".
        devices: as in Lightning Fabric.
        stop_after: epochs to train now; the run can be resumed.
        quiet: print no progress.
        command: command line for the record, if it differs from `config.to_command()`.
        objective_factory: `objective_factory(embedding_dim, num_classes)` returns an objective that the grammar cannot
            express, such as one of another library; `config.loss` is its name.
        timeout: seconds after which the other processes give up on a process that does not answer.
        assign_new: resume with the current contents of an image folder: see `data.images.changes.update_manifest`.

    A resumed run equals the uninterrupted one bit for bit: weights, optimizer, averages, schedule, order, dropout, and
    random numbers that a dataset draws from the global generators of torch, NumPy or Python, which are seeded for every
    batch. Not restored are random numbers from a dataset's own generators, and the state of a sampler or callback
    without `state_dict` and `load_state_dict`. A different dataset is an error.

    Returns:
        The run; its `record` is {} until all epochs are trained.

    >>> import tempfile, torch
    >>> x = torch.randn(64, 8)
    >>> y = (x[:, 0] > 0).long()
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    >>> config = {"loss": "arcgrad(s=10)", "epochs": 5, "batch_size": 16, "lr": 0.01}
    >>> with tempfile.TemporaryDirectory() as out:
    ...     run = train(config, out, train=(x, y), test=(x, y), model=net, quiet=True)
    ...     [line["epoch"] for line in run.history]
    [1, 2, 3, 4, 5]
    >>> run.record["test"]["top1"] > 60, run.embed(x[:3]).shape
    (True, torch.Size([3, 4]))
    """
    if resume and out is not None and not isinstance(config, TrainConfig) and is_run_folder(out):
        config, data_dir = resume_config(out, config), data_dir or recorded_data_dir(out)
    config = as_config(config)
    if isinstance(model, str):
        config, model = replace(config, model=model), None
    given = GivenObjects(
        train=train,
        val=val,
        test=test,
        model=model,
        at=at,
        sampler=sampler,
        class_names=class_names,
        workers=workers,
        collate_fn=collate_fn,
        quiet=quiet,
    )
    config = given.update_config(config)
    out = default_run_folder(config) if out is None else Path(out)
    loggers = check_loggers(loggers)
    callbacks = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    if not resume:
        check_no_run(out, f"use {spell_option('resume', True)} to continue it, or choose another {spell_option('out')}")
    elif not checkpoint.exists(out / "checkpoints" / "last") and distributed.is_rank_zero():
        warnings.warn(f"{out}: there is no checkpoint to resume from; the run starts from the beginning", stacklevel=3)
    with lock_folder(out) if distributed.is_rank_zero() else nullcontext():
        try:
            trainer = _prepare_trainer(
                config, out, data_dir, devices, objective_factory, timeout, assign_new, given, callbacks
            )
            run = _run_epochs(trainer, out, loggers, stop_after, quiet, command)
            return replace(run, test=test, model=run.model if model is None else copy.deepcopy(run.model))
        except RuntimeError as error:
            if not is_connection_error(error):
                raise
            raise lost_rank_error(min(_LOST_RANK_WAIT_SECONDS, timeout), timedelta(seconds=timeout)) from None


def _prepare_trainer(
    config: TrainConfig,
    folder: Path,
    data_dir: str | Path | None,
    devices: Any,
    objective_factory: ObjectiveFactory | None,
    timeout: float,
    assign_new: bool,
    given: GivenObjects,
    callbacks: tuple[Any, ...],
) -> Trainer:
    """A trainer at the first step, or restored from the last checkpoint."""
    last = folder / "checkpoints" / "last"
    has_checkpoint = checkpoint.exists(last)
    if has_checkpoint:
        check_same_run(config, folder)
    kept = read_run_manifest(config, folder) if has_checkpoint else None
    if assign_new and kept is not None and checkpoint.is_training_complete(last, config.epochs):
        raise InputError(
            f"{folder}: the run has ended, so {spell_option('assign_new')} adds no training images; evaluate with "
            f"{spell_option('assign_new')} to add test images, or start another run to train on new images"
        )
    class_counts = None
    if has_checkpoint and assign_new:
        input_spec = parse_input_spec(checkpoint.inspect_checkpoint(last).state.get("input_spec"), str(last))
        class_counts = input_spec.get("class_counts")
    trainer = Trainer(
        config,
        data_dir,
        devices,
        resume=has_checkpoint,
        objective_factory=objective_factory,
        timeout=timeout,
        manifest=kept,
        assign_new=assign_new,
        given=given,
        callbacks=callbacks,
        class_counts=class_counts,
        workers=given.workers or None,
    )
    if has_checkpoint:
        trainer.restore(last)
        for note in trainer.resume_notes() if trainer.rank == 0 else ():
            warnings.warn(f"resumed: {note}", stacklevel=3)
    return trainer


def _run_epochs(
    trainer: Trainer, folder: Path, loggers: list[str], stop_after: int | None, quiet: bool, command: str | None
) -> Run:
    """Train the remaining epochs, then write the record."""
    config, is_rank_zero = trainer.config, trainer.rank == 0
    if is_rank_zero:
        with translate_disk_errors(folder):
            if trainer.inputs.manifest is not None and trainer.inputs.has_new_manifest:
                write_chunks_atomic(folder / manifest.MANIFEST_NAME, trainer.inputs.manifest.to_csv())
            write_run_file(folder, config, trainer.epoch, trainer.step, trainer.data_dir)
        source_commit()  # cache it now: the source may have changed by the end of the run
    _warn_about_slow_average(trainer)
    end = config.epochs if stop_after is None else min(config.epochs, trainer.epoch + stop_after)
    loggers = loggers if trainer.epoch < end else []
    with (
        handle_stop_signals() as stop,
        _open_log(folder, trainer, loggers) if is_rank_zero else nullcontext() as log,
        open_reporter(config, trainer.epoch, end)
        if is_rank_zero and not quiet
        else nullcontext(ProgressReporter()) as reporter,
    ):
        if is_rank_zero and not quiet and trainer.epoch < end:
            print_stderr(trainer.describe())
        while trainer.epoch < end and not trainer.stop_requested:
            if not _run_epoch(trainer, folder, log, reporter, stop):
                break
    if trainer.mid_epoch_state is not None and not trainer.stop_requested:
        step = f"epoch {trainer.epoch + 1}, step {trainer.mid_epoch_state['step']} of {len(trainer.inputs.batches)}"
        raise StoppedError(f"stopped at {step}; {spell_option('resume', True)} continues from there")
    record = _evaluate_and_record(trainer, folder, command) if trainer.epoch == config.epochs else {}
    trainer.fabric.barrier()  # a process that exits early would close the connections of the others
    if trainer.ema is not None:
        trainer.ema.swap(trainer.model)
    return Run(
        config,
        trainer.model.eval(),
        trainer.inputs.input_spec,
        folder / "checkpoints" / "last",
        folder=folder,
        has_manifest=trainer.inputs.manifest is not None,
        record=record,
    )


def _warn_about_slow_average(trainer: Trainer) -> None:
    """Warn if the averaged weights, which are evaluated, would still be close to the initial ones at the end."""
    config, steps = trainer.config, trainer.config.epochs * trainer.steps_per_epoch
    if config.ema and trainer.rank == 0 and steps * (1.0 - config.ema) < _MIN_AVERAGE_LENGTHS:
        warnings.warn(
            f"{spell_option('ema', config.ema)} averages over about {1.0 / (1.0 - config.ema):,.0f} steps and the "
            f"run has {steps:,}: "
            "the evaluated weights stay close to the initial ones; use a smaller value, or 0",
            stacklevel=5,
        )


def _open_log(folder: Path, trainer: Trainer, loggers: list[str]) -> MetricsLog:
    with translate_disk_errors(folder):
        return MetricsLog(folder, trainer.epoch, loggers, trainer.config)


def _run_epoch(
    trainer: Trainer, folder: Path, log: MetricsLog | None, reporter: ProgressReporter, stop: StopRequest
) -> bool:
    """Train, evaluate, log and save one epoch; `last` is written last, so that a killed epoch is repeated.

    Returns False if the epoch was interrupted; its state is saved too.
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
        left_out = ("confusion", "average_precision")
        line["val"] = {name: value for name, value in metrics.items() if name not in left_out}
    if config.knn_probe:
        line["knn"] = trainer.probe()
    if val is not None:
        figure = _selection_figure(trainer, {**metrics, **line})
        is_best, trainer.best = figure > trainer.best, max(trainer.best, figure)
    trainer.plateau.step(line.get("val", {}).get("loss", line["loss"]))
    if log is not None:  # before the checkpoint: a resumed run drops extra lines, but cannot restore a missing one
        with translate_disk_errors(folder):
            log.add(line)
    reporter.report_epoch(line)
    try:
        trainer.finish_epoch(line)
    finally:  # even if a callback fails: the epoch is complete
        with translate_disk_errors(folder):
            if is_best:
                trainer.save(places / "best")
            is_averaged = trainer.epoch in epochs_to_average(config.epochs, config.average_last)
            if is_averaged or (config.ckpt_freq and trainer.epoch % config.ckpt_freq == 0):
                trainer.save(places / f"epoch-{trainer.epoch:04d}")
            trainer.save(places / "last")
    return True


def _selection_figure(trainer: Trainer, metrics: dict[str, Any]) -> float:
    """The metric of the held-out items by which the run selects `best`."""
    val, select_by = trainer.inputs.val, trainer.config.select_by
    if select_by != "tar" or val is None:
        return selection_metric(metrics, select_by)
    return selection_metric(metrics, select_by, selection_far(val))


def _evaluate_average(trainer: Trainer, folder: Path) -> dict[str, Any]:
    """Average the weights of the last epochs into the checkpoint `average`, and evaluate it on the test items."""
    config, places = trainer.config, folder / "checkpoints"
    epochs = epochs_to_average(config.epochs, config.average_last)
    sources = [place for epoch in epochs if checkpoint.exists(place := places / f"epoch-{epoch:04d}")]
    with translate_disk_errors(folder):
        if trainer.rank == 0 and sources:
            average_checkpoints(sources, places / "average")
            for epoch, place in zip(epochs, sources, strict=False):
                if not config.ckpt_freq or epoch % config.ckpt_freq:
                    checkpoint.remove(place)
    trainer.fabric.barrier()
    found: dict[str, Any] = {"epochs": [epochs.start, epochs.stop - 1]}
    if trainer.inputs.test is not None:
        weights = checkpoint.open_eval_weights(places / "average")[0].read()
        test = trainer.evaluate_average(weights, trainer.inputs.test)
        found["test"] = {name: value for name, value in test.items() if name not in _NOT_SINGLE_FIGURES}
    return found


def describe_command(config: TrainConfig) -> str:
    """The command that repeats the run; the Python call if data or model were passed as objects."""
    values, objects = config.changed_values(), []
    for name, field, prefix in (("train", "data", DATASET_PREFIX), ("model", "model", MODULE_PREFIX)):
        if getattr(config, field).startswith(prefix):
            objects.append(f"{name}=<{values.pop(field).removeprefix(prefix)}>")
    if not objects:
        return shlex.join(config.to_command())
    settings = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return f"in Python: widemargin.train(TrainConfig({settings}), {', '.join(objects)})"


def _verify_pair_files(trainer: Trainer) -> dict[str, Any]:
    """Figures of the pairs that lie beside the training images, with the averaged weights if there are any."""
    run = Run(trainer.config, trainer.model, trainer.inputs.input_spec, Path())
    if trainer.ema is not None:
        trainer.ema.swap(trainer.model)
    try:
        return verify_pair_files(run, trainer.inputs)
    finally:
        if trainer.ema is not None:
            trainer.ema.swap(trainer.model)


def _evaluate_and_record(trainer: Trainer, folder: Path, command: str | None) -> dict[str, Any]:
    """Evaluate the last epoch on the test items, if any, and write `record.json`."""
    config = trainer.config
    samples = trainer.inputs.test
    test = {} if samples is None else trainer.evaluate(samples, intervals=True)
    record = {
        "data": config.data,
        "loss": config.loss,
        "model": format_with_options(config.model, config.model_options),
        "seed": config.seed,
        "epochs": config.epochs,
        "seconds": round(trainer.seconds, 1),
        "cores": torch.get_num_threads(),
        "processes": trainer.fabric.world_size,
        "peak_memory_bytes": peak_memory(),
        "test": {name: value for name, value in test.items() if name not in _NOT_SINGLE_FIGURES},
        "angles": test.get("angles", {}),
        "versions": versions(),
        "command": command or describe_command(config),
        "commit": source_commit(),
    }
    if "average_precision" in test:
        record["average_precision"] = test["average_precision"]
    if trainer.rank == 0 and (changes := RunFile.read(folder).epochs_changed):
        record["epochs_changed"] = list(changes)
    if trainer.inputs.manifest is not None:
        record["manifest"] = trainer.inputs.manifest_summary()
    if config.on_bad_image == "skip":
        record["skipped_images"] = trainer.inputs.skipped_images()
    if trainer.inputs.pair_files and trainer.rank == 0:
        record["pairs"] = _verify_pair_files(trainer)
    if "intervals" in test:
        record |= {"intervals": test["intervals"], "evaluation": EVALUATION_VERSION}
    if trainer.inputs.val is not None and config.select_by != "knn":
        metrics = trainer.val_metrics or trainer.evaluate(trainer.inputs.val, flips=False)
        record["val"] = _selection_figure(trainer, metrics)
    if config.average_last:
        record["average"] = _evaluate_average(trainer, folder)
    if trainer.rank == 0:
        with translate_disk_errors(folder):
            whole = {**record, "confusion": test.get("confusion")}
            write_text_atomic(folder / "record.json", bounded.dumps_one_line_per_key(whole))
    return record
