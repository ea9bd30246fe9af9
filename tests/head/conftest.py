"""Sharded heads trained on several ranks, once for all tests of this folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sharded_worker as worker


def run_ranks(folder: Path, ranks: int) -> list[dict]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--standalone"]
    command += [str(Path(worker.__file__)), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180, check=False)
    written = [folder / f"{ranks}-{rank}.pt" for rank in range(ranks)]
    assert all(file.exists() for file in written), done.stderr[-3000:]
    return [torch.load(file, weights_only=True) for file in written]


@pytest.fixture(scope="session")
def sharded_runs(tmp_path_factory) -> dict[int, list[dict]]:
    """Two ranks, which write a checkpoint, then three, which read it."""
    folder = tmp_path_factory.mktemp("sharded")
    return {2: run_ranks(folder, 2), 3: run_ranks(folder, 3), "folder": folder}
