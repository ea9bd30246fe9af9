"""Classes split over real processes: the same losses, gradients and figures as one process that holds them all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sharded_worker as worker
import widemargin as wm
from widemargin.head.backends.sharded import ClassShard
from widemargin.head.sharded_checkpoint import load_sharded, save_sharded


def launch(folder: Path, ranks: int) -> list[dict]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--standalone"]
    command += [str(Path(worker.__file__)), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180, check=False)
    written = [folder / f"{ranks}-{rank}.pt" for rank in range(ranks)]
    assert all(file.exists() for file in written), done.stderr[-3000:]
    return [torch.load(file, weights_only=True) for file in written]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[int, list[dict]]:
    """Two ranks, which write a checkpoint, then three, which read it."""
    folder = tmp_path_factory.mktemp("sharded")
    return {2: launch(folder, 2), 3: launch(folder, 3), "folder": folder}


def assert_close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("spec", [*worker.SPECS, worker.PER_CLASS])
def test_ranks_together_are_one_head(runs, world, spec):
    ranks = [seen[spec] for seen in runs[world]]
    alone = worker.seen_by(worker.made(spec, False), 0, 1)
    for batch in range(3):
        assert_close(torch.cat([rank["loss"][batch] for rank in ranks]), alone["loss"][batch])
        # Each rank differentiated R times its part of the mean, as a mean over its own samples is on average.
        assert_close(torch.cat([rank["to_x"][batch] for rank in ranks]) / world, alone["to_x"][batch])
        assert_close(torch.cat([rank["to_weight"][batch] for rank in ranks]), alone["to_weight"][batch])
        for rank in ranks:
            assert_close(rank["now"][batch], alone["now"][batch])
        for number, wanted in enumerate(alone["to_rest"][batch]):
            parts = [rank["to_rest"][batch][number] for rank in ranks]
            if wanted.numel() > 1:  # a bias is split as the weights are
                assert_close(torch.cat(parts), wanted)
            else:
                for part in parts:
                    assert_close(part, wanted)


@pytest.mark.parametrize("world", [2, 3])
def test_figures_of_ranks_are_those_of_one_process(runs, world):
    ranks = [seen["judged"] for seen in runs[world]]
    head = worker.made("arcface", False)
    x, y = worker.global_batches()[0]
    assert_close(torch.cat([rank["logits"] for rank in ranks]), head.logits(x).detach())
    assert_close(torch.cat([rank["theta"] for rank in ranks]), head.target_angles(x, y).detach())
    metrics = wm.angles(x, y, head.weight)
    for rank in ranks:
        assert_close(rank["angles"], torch.tensor([metrics.wc_intra, metrics.w_inter, metrics.c_inter]))


@pytest.mark.parametrize("world", [2, 3])
def test_a_sampled_shard_keeps_its_positives_and_touches_no_more(runs, world):
    held = 0
    for seen in runs[world]:
        rows, labels = seen["sampled"]["rows"], seen["sampled"]["labels"]
        held += int(seen["sampled"]["held"])
        assert set(labels.tolist()) <= set(rows.tolist())
        assert len(rows) <= max(len(labels), -(-int(seen["sampled"]["held"]) // 2), 2)
    assert held == worker.C


def test_a_checkpoint_of_two_ranks_goes_on_with_three_and_with_one(runs):
    whole = [torch.cat([seen["resumed"]["weight"] for seen in runs[world]]) for world in (2, 3)]
    assert_close(whole[0], whole[1])
    head = worker.made("adacos", False)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    torch.nn.init.zeros_(head.weight)
    load_sharded(runs["folder"] / "checkpoint", head, optimizer)
    worker.seen_by(head, 0, 1, range(2, 4), optimizer)
    assert_close(head.weight.detach(), whole[0])


def test_a_checkpoint_of_another_model_is_one_line(runs):
    place = runs["folder"] / "checkpoint"
    with pytest.raises(wm.InputError, match=r"weight is \[7, 6\], the model's is \[8, 6\]"):
        load_sharded(place, wm.Head(worker.D, 8, "adacos", dtype=torch.float64))
    with pytest.raises(wm.InputError, match="has no bias"):
        load_sharded(place, wm.Head(worker.D, worker.C, "softmax(bias=True)", dtype=torch.float64))
    with pytest.raises(wm.InputError, match="holds no sharded checkpoint"):
        load_sharded(place.parent, wm.Head(worker.D, worker.C))


def test_one_process_is_a_group_of_one(tmp_path):
    x, y = worker.global_batches()[0]
    plain, alone = worker.made("arcface", False), worker.made("arcface", True)
    assert_close(alone(x, y), plain(x, y))
    save_sharded(tmp_path / "kept", alone)
    again = worker.made("arcface", False)
    torch.nn.init.zeros_(again.weight)
    load_sharded(tmp_path / "kept", again)
    assert_close(again.weight.detach(), alone.weight.detach())


def test_shards_are_cut_as_torch_cuts():
    for classes, world in ((7, 2), (7, 3), (10, 4), (1000, 7)):
        parts = [ClassShard(classes, rank, world) for rank in range(world)]
        assert [len(part) for part in parts] == [len(chunk) for chunk in torch.arange(classes).chunk(world)]
        assert parts[-1].stop == classes
