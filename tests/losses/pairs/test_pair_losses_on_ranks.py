"""Pair losses on two and three ranks give the losses, gradients and state of one process with the whole batch."""

from __future__ import annotations

import pytest

import pair_ranks_worker
from rank_processes import read_ranks, run_ranks

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def alone():
    return {spec: pair_ranks_worker.train(spec, 0, 1) for spec in pair_ranks_worker.SPECS}


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_together_are_one_process(count, alone, tmp_path):
    file = f"{count}_{{rank}}.json"
    run_ranks(pair_ranks_worker, count, tmp_path, file=file)
    ranks = read_ranks(tmp_path, count, file)
    per_step = pair_ranks_worker.N // count
    for spec in pair_ranks_worker.SPECS:
        losses = [
            loss
            for step in range(3)
            for rank in ranks
            for loss in rank[spec]["losses"][step * per_step : (step + 1) * per_step]
        ]
        assert losses == pytest.approx(alone[spec]["losses"], rel=1e-11, abs=1e-12), spec
        for rank in ranks:
            assert rank[spec]["gradients"] == pytest.approx(alone[spec]["gradients"], rel=1e-9, abs=1e-11), spec
            assert rank[spec]["state"] == pytest.approx(alone[spec]["state"], rel=1e-11, abs=1e-12), spec
