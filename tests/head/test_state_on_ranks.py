"""Two real processes with unequal batches: adaptive state, centres and weights are those of one process."""

from functools import partial

import pytest
import torch

import ranks_worker
from rank_processes import read_ranks, run_ranks

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def two_ranks(shared_folder) -> list[dict]:
    return read_ranks(shared_folder("ranks-ranks", partial(run_ranks, ranks_worker, 2)), 2)


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
