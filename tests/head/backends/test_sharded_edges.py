"""Ranks that are not called alike, second derivatives and FSDP: an answer or one line, never a hang or an abort."""

from functools import partial

import pytest
import torch

import sharded_edges_worker as worker
from rank_processes import read_ranks, run_ranks

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def ranks(shared_folder) -> list[dict]:
    return read_ranks(shared_folder("ranks-edges", partial(run_ranks, worker, 2)), 2)


def test_a_second_derivative_is_refused_on_all_ranks(ranks):
    for rank in ranks:
        assert "cannot be differentiated twice" in rank["second"]


def test_a_rank_whose_embeddings_want_no_gradient_teaches_the_weights_all_the_same(ranks):
    x, y = worker.batch()
    head = worker.head_of("arcface(s=8)", False)
    x.requires_grad_()
    head(x, y).mean().backward()
    got = torch.tensor(ranks[0]["frozen"][0] + ranks[1]["frozen"][0], dtype=torch.float64)
    torch.testing.assert_close(got, head.weight.grad, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        torch.tensor(ranks[0]["frozen"][1], dtype=torch.float64) / 2, x.grad[:4], rtol=1e-10, atol=1e-12
    )
    assert ranks[1]["frozen"][1] is None


def test_ranks_that_disagree_about_gradients_are_told(ranks):
    for rank in ranks:
        assert "in the same way on all ranks" in rank["no_grad"]


def test_a_learnable_scale_can_be_fully_sharded(ranks):
    x, y = worker.batch()
    head = worker.head_of("normface(s=learnable(10))", False)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for step in range(2):
        loss = head(x, y).mean()
        torch.testing.assert_close(sum(rank["fsdp"][step] for rank in ranks) / 2, loss.item(), rtol=1e-9, atol=1e-9)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_parts_of_a_loss_are_exchanged_together(ranks):
    """Batch sizes, embeddings, labels, and everything a loss needs from the other ranks; backward, that and the
    embeddings."""
    for rank in ranks:
        for loss in ("arcface", "logit_adjusted", "l_softmax", "soft_triple"):
            forward, backward, _ = rank["exchanges"][loss]
            assert forward == {"all_gather": 4}, loss
            assert backward == {"all_reduce": 2}, loss


def test_a_step_waits_only_for_the_batch_sizes(ranks):
    """The sizes go to the device and come back; an adaptive loss uses them again."""
    for rank in ranks:
        for loss, (_, _, reads) in rank["exchanges"].items():
            assert reads == ["lift_fresh", "tolist"], loss
