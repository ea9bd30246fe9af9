"""`metrics.jsonl`: one line per epoch, and the same to TensorBoard and Weights & Biases where asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .. import plain_json
from ..bounded_files import MAX_IN_MEMORY_LOG_BYTES, MAX_LOG_BYTES, read_lines
from ..errors import InputError, unknown_name_error
from ..run import TrainConfig
from .run_files import check_epoch_line
from .trackers import TRACKERS, Tracker
from .writing import write_chunks_atomic


class MetricsLog:
    """Lines of a run; a resumed run drops what came after its checkpoint, so that no line is lost or doubled."""

    def __init__(self, folder: Path, last_epoch: int, loggers: Iterable[str], config: TrainConfig) -> None:
        self.path = folder / "metrics.jsonl"
        # Line by line: a run of thousands of epochs, resumed again and again, needs no more memory each time.
        write_chunks_atomic(
            self.path,
            (text for text, line in _read_epoch_lines(self.path, MAX_LOG_BYTES) if line["epoch"] <= last_epoch),
        )
        self.trackers: list[Tracker] = [TRACKERS[kind](folder, last_epoch, config) for kind in check_logs(loggers)]

    @staticmethod
    def read_epochs(path: Path) -> list[dict[str, Any]]:
        """What is there; a last line that was cut off is left out."""
        return [line for _, line in _read_epoch_lines(path, MAX_IN_MEMORY_LOG_BYTES)]

    def add(self, line: dict[str, Any]) -> None:
        """One more epoch."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        for other in self.trackers:
            other.add(line)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Let the others finish."""
        for other in self.trackers:
            other.close(failed=kind is not None)


def _read_epoch_lines(path: Path, max_bytes: int) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each line as it stands, and what it says; a last one that was cut off is left out."""
    if not os.path.lexists(path):
        return
    for number, text in enumerate(read_lines(path, max_bytes), 1):
        if not text.endswith(b"\n"):
            return
        try:
            yield text, check_epoch_line(plain_json.parse_json(text, "JSON"))
        except ValueError as error:
            why = f"line {number} is no epoch of a run ({error})"
            raise InputError(f"{path}: {why}; the file was edited by hand, delete the line") from None


def check_logs(loggers: Iterable[str]) -> list[str]:
    """The kinds that are asked for, refused here, before any process waits for another."""
    kinds = list(dict.fromkeys(loggers))
    for kind in kinds:
        if kind not in TRACKERS:
            raise unknown_name_error("logger", kind, list(TRACKERS))
        if find_spec(kind) is None:
            raise InputError(f'--logger {kind} needs it: pip install "widemargin[{kind}]"')
    return kinds
