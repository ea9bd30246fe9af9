"""Checkpoints of sharded heads: read by another number of ranks, refused for another model."""

import pytest
import torch

import sharded_worker as worker
import widemargin as wm
from widemargin.head.sharded_checkpoint import load_sharded, save_sharded


def assert_close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("kept", "folder", "spec"),
    [
        ("resumed", "checkpoint", "adacos"),
        ("resumed sub-centres", "checkpoint-subcenters", worker.SUBCENTERS),
    ],
)
def test_a_checkpoint_of_two_ranks_goes_on_with_three_and_with_one(sharded_runs, kept, folder, spec):
    whole = [torch.cat([seen[kept]["weight"] for seen in sharded_runs[world]]) for world in (2, 3)]
    assert_close(whole[0], whole[1])
    head = worker.build_head(spec, False)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    torch.nn.init.zeros_(head.weight)
    load_sharded(sharded_runs["folder"] / folder, head, optimizer)
    worker.record_training(head, 0, 1, range(2, 4), optimizer)
    assert_close(head.weight.detach(), whole[0])


@pytest.mark.distributed
def test_a_checkpoint_of_another_model_is_one_line(sharded_runs):
    place = sharded_runs["folder"] / "checkpoint"
    with pytest.raises(wm.InputError, match=r"weight is \[7, 6\], the model's is \[8, 6\]"):
        load_sharded(place, wm.Head(worker.D, 8, "adacos", dtype=torch.float64))
    with pytest.raises(wm.InputError, match="has no bias"):
        load_sharded(place, wm.Head(worker.D, worker.C, "softmax(bias=True)", dtype=torch.float64))
    with pytest.raises(wm.InputError, match="not a sharded checkpoint"):
        load_sharded(place.parent, wm.Head(worker.D, worker.C))


def test_one_process_is_a_group_of_one(tmp_path):
    x, y = worker.global_batches()[0]
    plain, alone = worker.build_head("arcface", False), worker.build_head("arcface", True)
    assert_close(alone(x, y), plain(x, y))
    save_sharded(tmp_path / "kept", alone)
    again = worker.build_head("arcface", False)
    torch.nn.init.zeros_(again.weight)
    load_sharded(tmp_path / "kept", again)
    assert_close(again.weight.detach(), alone.weight.detach())
