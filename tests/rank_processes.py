"""Run a worker module on several ranks, forked from a process that has imported torch; read what each rank wrote."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from stress.commands import CommandProcess, start_ranks
from widemargin.cli.main import main


def run_ranks(
    worker: ModuleType,
    count: int,
    folder: Path,
    *words: str,
    file: str = "{rank}.json",
    timeout: float = 180.0,
    **extra: str,
) -> None:
    """`worker.main(FOLDER, *words)` on `count` ranks, which each write `file`; `extra` are environment variables."""
    argv = [worker.__name__, str(folder), *words]
    ranks = start_ranks(argv, folder / "output", count, extra, call_worker)
    wait_for_all(ranks, timeout)
    # What counts is what the ranks wrote: gloo's threads may abort a process that has ended its work.
    for rank, process in enumerate(ranks):
        assert (folder / file.format(rank=rank)).exists(), process.read_output()[-3000:]


def call_worker(argv: list[str]) -> int:
    """Entry point of a rank: the name of a module, and the arguments of its `main`."""
    importlib.import_module(argv[0]).main(*argv[1:])
    return 0


def train_on_ranks(words: list[str], output: Path, count: int = 2, entry_point: Any = main) -> None:
    """`widemargin WORDS` on several ranks, which must all succeed."""
    ranks = start_ranks(words, output, count, entry_point=entry_point)
    codes = wait_for_all(ranks, 180.0)
    assert codes == [0] * count, "\n".join(process.read_output()[-2000:] for process in ranks)


def wait_for_all(ranks: list[CommandProcess], timeout: float) -> list[int | None]:
    """The exit codes; where one rank did not end in time, none of them is left."""
    return [process.wait(timeout) for process in ranks]


def read_ranks(folder: Path, count: int, file: str = "{rank}.json") -> list[Any]:
    """What each rank wrote: JSON, or tensors in a .pt file."""
    paths = [folder / file.format(rank=rank) for rank in range(count)]
    if file.endswith(".json"):
        return [json.loads(path.read_text()) for path in paths]
    return [torch.load(path, weights_only=True) for path in paths]
