"""TensorBoard and Weights & Biases beside `metrics.jsonl`: the same numbers under flat names, one point per epoch.

A resumed run goes on in the same place: points beyond its checkpoint are taken back (TensorBoard), or come again with
the number they had, under the same id (W&B).
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from ..bounded_files import read_file
from ..errors import InputError
from ..run import TrainConfig
from .writing import write_text_atomic

_EVENT_FILE_PATTERN = re.compile(r"events\.out\.tfevents\.(\d{10})\.")  # as TensorFlow, TensorBoard and torch name them
_MAX_ID_BYTES = 1000  # bytes


class Tracker(Protocol):
    """Told of every epoch."""

    def add(self, line: dict[str, Any]) -> None: ...
    def close(self, failed: bool) -> None: ...


def flatten_metrics(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a line with its path as its name; lists are left out.

    >>> dict(flat({"loss": 1.5, "held_out": {"top1": 50.0, "angles": {"w_inter": 1.2}}, "histogram": {"own": [1, 2]}}))
    {'loss': 1.5, 'held_out/top1': 50.0, 'held_out/angles/w_inter': 1.2}
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
        self.record_writer: Any = RecordWriter((event_folder / next_name(event_folder)).open("xb"))
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


def next_name(folder: Path) -> str:
    """The name of a new event file in a folder: with the time of the clock, or one second after the last name's."""
    times = [int(found[1]) for path in folder.iterdir() if (found := _EVENT_FILE_PATTERN.match(path.name))]
    stamp = max([int(time.time()), *(before + 1 for before in times)])
    return f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}.0"


class Wandb:
    """A run of W&B whose id lies in the run's folder. Keys are its own matter: none is read or written here."""

    def __init__(self, folder: Path, last_epoch: int, config: TrainConfig) -> None:
        import wandb

        # Its files are its own and name user, machine and settings: nobody else's to read.
        (folder / "wandb").mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self.run: Any = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or "widemargin",
                name=config.name,
                id=_load_or_create_id(folder / "wandb_id"),
                resume="allow",
                dir=str(folder),
                config=asdict(config),
                # The address of a checkout may hold a password, and a terminal anything.
                settings=wandb.Settings(disable_git=True, console="off", save_code=False),
            )
        except wandb.errors.Error as error:
            said = str(error).strip().splitlines()[0].rstrip(".")
            advice = "log in with `wandb login`, or keep everything here with WANDB_MODE=offline"
            raise InputError(f"--logger wandb: {said}; {advice}") from None

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
