"""`metrics.jsonl`: one line per epoch, and the same to TensorBoard and Weights & Biases where asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import InputError, unknown


class Log:
    """Lines of a run; a resumed run drops what came after its checkpoint, so that no line is lost or doubled."""

    def __init__(self, folder: Path, upto: int = 0, also: Iterable[str] = (), name: str | None = None) -> None:
        self.path = folder / "metrics.jsonl"
        kept = [line for line in self.lines(self.path) if line["epoch"] <= upto]
        self._write(kept)
        self.others = [_OTHERS[kind](folder, name) for kind in check_logs(also)]

    @staticmethod
    def lines(path: Path) -> list[dict[str, Any]]:
        """What is there; a last line that was cut off is left out."""
        if not path.exists():
            return []
        found = []
        for text in path.read_text(encoding="utf-8").split("\n")[:-1]:
            try:
                found.append(json.loads(text))
            except ValueError:
                raise InputError(f"{path}: a line is not JSON; the file was edited by hand") from None
        return found

    def _write(self, lines: list[dict[str, Any]]) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
        fresh.replace(self.path)

    def add(self, line: dict[str, Any]) -> None:
        """One more epoch."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        numbers = {key: value for key, value in line.items() if isinstance(value, int | float)}
        for other in self.others:
            other(numbers, line["epoch"])

    def close(self) -> None:
        """Let the others finish."""
        for other in self.others:
            other.close()


class _TensorBoard:
    def __init__(self, folder: Path, name: str | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(folder / "tensorboard")

    def __call__(self, numbers: dict[str, float], epoch: int) -> None:
        for key, value in numbers.items():
            self.writer.add_scalar(key, value, epoch)

    def close(self) -> None:
        self.writer.close()


class _Wandb:
    def __init__(self, folder: Path, name: str | None) -> None:
        import wandb  # type: ignore[import-not-found]

        self.run = wandb.init(project="widemargin", name=name, dir=str(folder))

    def __call__(self, numbers: dict[str, float], epoch: int) -> None:
        self.run.log(numbers, step=epoch)

    def close(self) -> None:
        self.run.finish()


_OTHERS: dict[str, type[_TensorBoard] | type[_Wandb]] = {"tensorboard": _TensorBoard, "wandb": _Wandb}


def check_logs(also: Iterable[str]) -> list[str]:
    """The kinds that are asked for, refused here, before any process waits for another."""
    kinds = list(also)
    for kind in kinds:
        if kind not in _OTHERS:
            raise unknown("log", kind, list(_OTHERS))
        if find_spec(kind) is None:
            raise InputError(f'--log {kind} needs it: pip install "widemargin[{kind}]"')
    return kinds
