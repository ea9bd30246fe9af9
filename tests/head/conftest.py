"""Sharded heads trained on several ranks, once for all tests of this folder."""

from pathlib import Path
from typing import Any

import pytest

import sharded_worker as worker
from rank_processes import read_ranks, run_ranks

FILES = {2: "2-{rank}.pt", 3: "3-{rank}.pt"}


@pytest.fixture(scope="session")
def sharded_runs(shared_folder) -> dict[int | str, Any]:
    """Two ranks, which write a checkpoint, then three, which read it."""

    def train(folder: Path) -> None:
        for count, file in FILES.items():
            run_ranks(worker, count, folder, file=file)

    folder = shared_folder("ranks-sharded", train)
    return {"folder": folder, **{count: read_ranks(folder, count, file) for count, file in FILES.items()}}
