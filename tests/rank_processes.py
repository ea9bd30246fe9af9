"""Start a worker script on several ranks (torchrun) and read the file that each rank wrote."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def run_ranks(
    worker: ModuleType,
    count: int,
    folder: Path,
    *words: str,
    file: str = "{rank}.json",
    timeout: float = 180.0,
    **extra: str,
) -> None:
    """`worker FOLDER *words` on `count` ranks, each of which must write `file`; `extra` are environment variables."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(count), "--standalone"]
    command += [str(Path(worker.__file__)), str(folder), *words]
    environment = {**ENVIRONMENT, **extra}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout, check=False)
    # What counts is what the ranks wrote: gloo's threads may abort a process that has ended its work.
    assert all((folder / file.format(rank=rank)).exists() for rank in range(count)), done.stderr[-3000:]


def read_ranks(folder: Path, count: int, file: str = "{rank}.json") -> list[Any]:
    """What each rank wrote: JSON, or tensors in a .pt file."""
    paths = [folder / file.format(rank=rank) for rank in range(count)]
    if file.endswith(".json"):
        return [json.loads(path.read_text()) for path in paths]
    return [torch.load(path, weights_only=True) for path in paths]
