"""Logs of a run: `metrics.jsonl` with one line per epoch, TensorBoard and Weights & Biases, and progress for people.

The trackers get the same numbers as `metrics.jsonl` under flat names, one point per epoch. A resumed run goes on in the
same place: points beyond its checkpoint are taken back (TensorBoard), or come again with the number they had, under the
same id (W&B). People see a progress bar on a terminal; in the log of a batch job a line per epoch, and lines
of long epochs in between.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ..io import bounded
from ..io.bounded import MAX_IN_MEMORY_LOG_BYTES, MAX_LOG_BYTES, read_file, read_lines
from ..io.errors import InputError, spell_option, unknown_name_error
from ..io.locks import write_chunks_atomic, write_text_atomic
from ..io.progress import ProgressBar, ProgressLines, progress_bar
from ..io.text import print_stderr
from ..numerics import distributed
from .config import TrainConfig
from .run_files import check_epoch_line
from .selection import selection_metric, selection_metric_name

_EVENT_FILE_PATTERN = re.compile(r"events\.out\.tfevents\.(\d{10})\.")  # as TensorFlow, TensorBoard and torch name them
_MAX_ID_BYTES = 1000  # bytes


class Tracker(Protocol):
    """Base class of loggers, which receive the metrics of every epoch."""

    def add(self, line: dict[str, Any]) -> None: ...
    def close(self, failed: bool) -> None: ...


def flatten_metrics(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a line with its path as its name; lists are left out.

    >>> val = {"top1": 50.0, "angles": {"w_inter": 1.2}}
    >>> dict(flatten_metrics({"loss": 1.5, "val": val, "histogram": {"target": [1, 2]}}))
    {'loss': 1.5, 'val/top1': 50.0, 'val/angles/w_inter': 1.2}
    """
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from flatten_metrics(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            yield prefix + name, value


class TensorBoard:
    """Event files in the run's folder, one for each time that the run is started.

    TensorBoard reads them in the order of their names, which begin with a time, and each takes back what earlier ones
    say of later epochs. So a clock that is set back between a kill and a resume would make the new file the first and
    the old one take its epochs back, and within one second the number of the process would decide. Torch's writer has
    no say in the name; the files here have a time in theirs that is later than all that are there.
    """

    def __init__(self, folder: Path, last_epoch: int, config: TrainConfig) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        event_folder = folder / "tensorboard"
        event_folder.mkdir(parents=True, exist_ok=True)
        self.record_writer: Any = RecordWriter((event_folder / next_event_file_name(event_folder)).open("xb"))
        self._write_event(file_version="brain.Event:2")
        self._write_event(step=last_epoch + 1, session_log=SessionLog(status=SessionLog.START))
        self.record_writer.flush()

    def _write_event(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self.record_writer.write(Event(wall_time=time.time(), **fields).SerializeToString())

    def add(self, line: dict[str, Any]) -> None:
        from torch.utils.tensorboard.summary import scalar

        for name, value in flatten_metrics(line):
            self._write_event(step=line["epoch"], summary=scalar(name, value))  # type: ignore[no-untyped-call]
        for name, counts in line.get("histogram", {}).items():
            self._write_angle_histogram(f"angles/{name}", counts, line["epoch"])
        self.record_writer.flush()

    def _write_angle_histogram(self, name: str, counts: list[int], epoch: int) -> None:
        """A histogram in degrees; a bin's moments are those of its middle."""
        from torch.utils.tensorboard.summary import histogram_raw

        size = 180.0 / len(counts)
        middles = [(place + 0.5) * size for place in range(len(counts))]
        found = histogram_raw(  # type: ignore[no-untyped-call]
            name,
            min=0.0,
            max=180.0,
            num=sum(counts),
            sum=sum(middle * count for middle, count in zip(middles, counts, strict=True)),
            sum_squares=sum(middle**2 * count for middle, count in zip(middles, counts, strict=True)),
            bucket_limits=[middle + size / 2 for middle in middles],
            bucket_counts=counts,
        )
        self._write_event(step=epoch, summary=found)

    def close(self, failed: bool) -> None:
        self.record_writer.close()


def next_event_file_name(folder: Path) -> str:
    """The name of a new event file in a folder: with the time of the clock, or one second after the last name's."""
    times = [int(found[1]) for path in folder.iterdir() if (found := _EVENT_FILE_PATTERN.match(path.name))]
    stamp = max([int(time.time()), *(before + 1 for before in times)])
    return f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}.0"


class Wandb:
    """A run of W&B whose id is stored in the run's folder. API keys are neither read nor written here."""

    def __init__(self, folder: Path, last_epoch: int, config: TrainConfig) -> None:
        import wandb

        # Its files name user, machine and settings, so only the user may read them.
        (folder / "wandb").mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self.run: Any = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or "widemargin",
                name=config.name,
                id=_load_or_create_id(folder / "wandb_id"),
                resume="allow",
                dir=str(folder),
                config=asdict(config),
                # The URL of a checkout may contain a password.
                settings=wandb.Settings(disable_git=True, console="off", save_code=False),
            )
        except wandb.errors.Error as error:
            said = str(error).strip().splitlines()[0].rstrip(".")
            advice = "log in with `wandb login`, or keep everything here with WANDB_MODE=offline"
            raise InputError(f"wandb: {said}; {advice}") from None

    def add(self, line: dict[str, Any]) -> None:
        self.run.log(dict(flatten_metrics(line)), step=line["epoch"])

    def close(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


def _load_or_create_id(path: Path) -> str:
    """The id that was drawn when the run began."""
    if not os.path.lexists(path):
        write_text_atomic(path, secrets.token_hex(4) + "\n")
    return read_file(path, _MAX_ID_BYTES).decode("utf-8", "replace").strip()


TRACKERS: dict[str, type[TensorBoard] | type[Wandb]] = {"tensorboard": TensorBoard, "wandb": Wandb}


class MetricsLog:
    """`metrics.jsonl` of a run, and its trackers.

    A resumed run drops the lines that came after its checkpoint, so that none is lost or doubled.
    """

    def __init__(self, folder: Path, last_epoch: int, loggers: Iterable[str], config: TrainConfig) -> None:
        self.path = folder / "metrics.jsonl"
        # Line by line: a run of thousands of epochs, resumed again and again, needs no more memory each time.
        write_chunks_atomic(
            self.path,
            (text for text, line in _read_epoch_lines(self.path, MAX_LOG_BYTES) if line["epoch"] <= last_epoch),
        )
        self.trackers: list[Tracker] = [TRACKERS[kind](folder, last_epoch, config) for kind in check_loggers(loggers)]

    @staticmethod
    def read_epochs(path: Path) -> list[dict[str, Any]]:
        """The lines in a file; a last one that was cut off is left out."""
        return [line for _, line in _read_epoch_lines(path, MAX_IN_MEMORY_LOG_BYTES)]

    def add(self, line: dict[str, Any]) -> None:
        """Append the line of an epoch, and pass it to the trackers."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        for tracker in self.trackers:
            tracker.add(line)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the trackers."""
        for tracker in self.trackers:
            tracker.close(failed=kind is not None)


def _read_epoch_lines(path: Path, max_bytes: int) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each line as it stands, and what it says; a last one that was cut off is left out."""
    if not os.path.lexists(path):
        return
    for number, text in enumerate(read_lines(path, max_bytes), 1):
        if not text.endswith(b"\n"):
            return
        try:
            yield text, check_epoch_line(bounded.parse_json(text, "JSON"))
        except ValueError as error:
            why = f"line {number} is not an epoch of a run ({error})"
            raise InputError(f"{path}: {why}; the file was edited by hand, delete the line") from None


def check_loggers(loggers: Iterable[str]) -> list[str]:
    """The names of trackers, each once; an unknown or missing one is refused, before any process waits for another."""
    kinds = [loggers] if isinstance(loggers, str) else list(dict.fromkeys(loggers))
    for kind in kinds:
        if kind not in TRACKERS:
            raise unknown_name_error("logger", kind, list(TRACKERS))
        if find_spec(kind) is None:
            raise InputError(f'{kind} is not installed: pip install "widemargin[{kind}]"')
    return kinds


TRAIN_METRICS = {
    "train_top1": "train",
    "train_exact_match": "train exact match",
    "train_recall1": "recall@1 in the batch",
}
"""How well training samples are told apart: name in the log, and in progress for people."""


_VAL_METRICS = {"top1": "", "map": "mAP ", "recall1": "recall@1 "}  # accuracy is what is meant without a word


@dataclass(frozen=True)
class EpochProgress:
    """Progress of the current epoch."""

    loss: float
    right: float
    images_per_second: float
    metric: str = "train_top1"
    """Name of `right` in the log: one of `TRAIN_METRICS`."""

    def __str__(self) -> str:
        train = f"{TRAIN_METRICS[self.metric]} {self.right:.1f} %"
        return f"loss {self.loss:.3f}, {train}, {self.images_per_second:,.0f} images/s"


class ProgressReporter:
    """Shows the progress of every step and epoch on a bar; shows nothing without one."""

    def __init__(
        self, epoch_bar: ProgressBar | ProgressLines | None = None, start_epoch: int = 0, end_epoch: int = 0
    ) -> None:
        self.bar, self.start_epoch, self.end_epoch = epoch_bar, start_epoch, end_epoch
        self.start_time = time.monotonic()
        self.val_text, self.has_warned = "", False

    def step(self, fraction: float, progress: EpochProgress | None = None) -> None:
        """Advance by a fraction of an epoch; `progress` is given at the steps where the loop reads its sums anyway."""
        if self.bar is not None:
            self.bar(fraction, None if progress is None else f"{progress}{self.val_text}")

    def report_epoch(self, line: dict[str, Any]) -> None:
        """Show the line that was logged for an epoch."""
        self._warn_on_collapse(line)
        self._warn_on_missing_triplets(line)
        val = line.get("val")
        self.val_text = (
            "" if val is None else f", held out {_VAL_METRICS[selection_metric_name(val)]}{selection_metric(val):.1f} %"
        )
        self.val_text += f", k-NN {line['knn']:.1f} %" if "knn" in line else ""
        if self.bar is None or isinstance(self.bar, ProgressBar):
            return
        metric = next(name for name in TRAIN_METRICS if name in line)
        progress = EpochProgress(line["loss"], line[metric], line["images_per_second"], metric)
        each = (time.monotonic() - self.start_time) / (line["epoch"] - self.start_epoch)
        left = round(each * (self.end_epoch - line["epoch"]))
        clock = f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
        print_stderr(
            f"epoch {line['epoch']}/{self.end_epoch}: {progress}{self.val_text}{describe_anchors(line)}, {clock} left"
        )
        self.bar.postpone()

    def _warn_on_collapse(self, line: dict[str, Any]) -> None:
        """Warn once if all embeddings have collapsed into one point, from which no pair or triplet loss recovers."""
        if self.bar is None or self.has_warned or "collapsed" not in line.get("mining", {}):
            return
        self.has_warned = True
        remedy = f"lower {spell_option('lr')}, or use mining=semihard or mining=distance instead of mining=hard"
        print_stderr(f"epoch {line['epoch']}: all embeddings have collapsed into one point; {remedy}")

    def _warn_on_missing_triplets(self, line: dict[str, Any]) -> None:
        """Warn once if almost no anchor has a triplet: batches have one image per class, or one class."""
        if self.bar is None or self.has_warned or anchors_without_percent(line) < _FEW_TRIPLETS_PERCENT:
            return
        self.has_warned = True
        print_stderr(
            f"epoch {line['epoch']}:{describe_anchors(line)[1:]}; batches need several images of a class and several "
            f"classes: use {spell_option('per_class', 4)}"
        )


_FEW_TRIPLETS_PERCENT = 90.0


def anchors_without_percent(line: Mapping[str, Any]) -> float:
    """Anchors for which the mining of an epoch found no triplet, in percent; 0 for other losses."""
    found = [value for name, value in line.get("mining", {}).items() if name.endswith("/anchors_without_percent")]
    return float(max(found, default=0.0))


def describe_anchors(line: Mapping[str, Any]) -> str:
    """Anchors without a triplet as text; empty where all have one."""
    percent = anchors_without_percent(line)
    return f", {percent:.0f} % of the anchors without a triplet" if percent >= 0.5 else ""


@contextmanager
def open_reporter(config: TrainConfig, start_epoch: int, end_epoch: int) -> Iterator[ProgressReporter]:
    """A bar for the epochs from `start_epoch` to `end_epoch` on a terminal; elsewhere lines."""
    with progress_bar(
        f"{os.path.basename(config.data)} {config.model} {config.loss}", end_epoch, start_epoch, message=""
    ) as epoch_bar:
        yield ProgressReporter(epoch_bar, start_epoch, end_epoch)


def is_main_process() -> bool:
    """Whether this process prints and writes for all: rank 0, or the only one."""
    return distributed.is_rank_zero()
