"""Two real processes with unequal batches: adaptive state, centres and weights are those of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ranks_worker


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    command += [str(Path(ranks_worker.__file__)), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    # What counts is what the ranks wrote down: gloo's threads may abort a process that has ended its work.
    written = [folder / f"{rank}.json" for rank in range(2)]
    assert all(file.exists() for file in written), done.stderr[-3000:]
    return [json.loads(file.read_text()) for file in written]


@pytest.mark.parametrize("spec", ["adacos", "adaacos(s=6)", "softmax + 0.1*center", "a_softmax"])
def test_ranks_see_what_one_process_sees(two_ranks, spec):
    alone = ranks_worker.losses_of(spec, None)
    for batch, whole in enumerate(alone["losses"]):
        joined = two_ranks[0][spec]["losses"][batch] + two_ranks[1][spec]["losses"][batch]
        torch.testing.assert_close(torch.tensor(joined), torch.tensor(whole), rtol=1e-10, atol=1e-10)
    for rank in two_ranks:
        for mine, one in zip(rank[spec]["state"], alone["state"], strict=True):
            torch.testing.assert_close(torch.tensor(mine), torch.tensor(one), rtol=1e-10, atol=1e-10)


def test_data_parallel_ranks_stay_equal(two_ranks):
    first, second = (torch.tensor(rank["parallel"]) for rank in two_ranks)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert torch.isfinite(first).all()
