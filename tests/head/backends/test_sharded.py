"""Classes split over real processes: the same losses, gradients and figures as one process that holds them all."""

import pytest
import torch

import sharded_worker as worker
import widemargin as wm
from widemargin.head.backends.sharded import ClassShard


def assert_close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("spec", [*worker.SPECS, worker.PER_CLASS])
def test_ranks_together_are_one_head(sharded_runs, world, spec):
    ranks = [seen[spec] for seen in sharded_runs[world]]
    alone = worker.record_training(worker.build_head(spec, False), 0, 1)
    for batch in range(3):
        assert_close(torch.cat([rank["loss"][batch] for rank in ranks]), alone["loss"][batch])
        # Each rank differentiated R times its part of the mean, as a mean over its own samples is on average.
        assert_close(torch.cat([rank["to_x"][batch] for rank in ranks]) / world, alone["to_x"][batch])
        assert_close(torch.cat([rank["to_weight"][batch] for rank in ranks]), alone["to_weight"][batch])
        for rank in ranks:
            assert_close(rank["margin_values"][batch], alone["margin_values"][batch])
        for number, wanted in enumerate(alone["to_rest"][batch]):
            parts = [rank["to_rest"][batch][number] for rank in ranks]
            if wanted.numel() > 1:  # a bias is split as the weights are
                assert_close(torch.cat(parts), wanted)
            else:
                for part in parts:
                    assert_close(part, wanted)


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, 3])
def test_deferred_class_weights_of_ranks(sharded_runs, world):
    alone = worker.record_training(worker.build_head(worker.SPECS[0], False, **worker.DEFERRED), 0, 1)
    plain = worker.record_training(worker.build_head(worker.SPECS[0], False), 0, 1)
    factors = torch.tensor(worker.DEFERRED["class_weight"], dtype=torch.float64)
    for batch in range(3):
        losses = torch.cat([seen["deferred"]["loss"][batch] for seen in sharded_runs[world]])
        assert_close(losses, alone["loss"][batch])
        y = worker.global_batches()[batch][1]
        assert_close(losses, plain["loss"][batch] * (factors[y] if batch else 1.0))
        gradients = torch.cat([seen["deferred"]["to_weight"][batch] for seen in sharded_runs[world]])
        assert_close(gradients, alone["to_weight"][batch])


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, 3])
def test_figures_of_ranks_are_those_of_one_process(sharded_runs, world):
    ranks = [seen["evaluated"] for seen in sharded_runs[world]]
    head = worker.build_head("arcface", False)
    x, y = worker.global_batches()[0]
    assert_close(torch.cat([rank["logits"] for rank in ranks]), head.logits(x).detach())
    assert_close(torch.cat([rank["theta"] for rank in ranks]), head.target_angles(x, y).detach())
    metrics = wm.angles(x, y, head.weight)
    for rank in ranks:
        assert_close(rank["angles"], torch.tensor([metrics.wc_intra, metrics.w_inter, metrics.c_inter]))


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, 3])
def test_sub_centres_of_ranks_are_those_of_one_process(sharded_runs, world):
    ranks = [seen["sub-centres"] for seen in sharded_runs[world]]
    alone = worker.use_subcenters(worker.build_head(worker.SUBCENTERS, False), 0, 1)
    assert set(alone["dominant"].tolist()) != {0}
    assert alone["outliers"].any()
    for name in ("logits", "theta", "loss", "outliers"):  # of the samples each has
        together = torch.cat([rank[name] for rank in ranks])
        if name == "loss":  # the two new classes have random weights
            assert together.isfinite().all()
        else:
            assert_close(together, alone[name].detach())
    for name in ("angles", "means", "dominant", "counts", "extended", "kept"):  # of all
        for rank in ranks:
            assert_close(rank[name], alone[name])


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, 3])
def test_a_sampled_shard_keeps_its_positives_and_touches_no_more(sharded_runs, world):
    held = 0
    for seen in sharded_runs[world]:
        rows, labels = seen["sampled"]["rows"], seen["sampled"]["labels"]
        held += int(seen["sampled"]["held"])
        assert set(labels.tolist()) <= set(rows.tolist())
        assert len(rows) <= max(len(labels), -(-int(seen["sampled"]["held"]) // 2), 2)
    assert held == worker.C


def test_shards_are_cut_as_torch_cuts():
    for classes, world in ((7, 2), (7, 3), (10, 4), (1000, 7)):
        parts = [ClassShard(classes, rank, world) for rank in range(world)]
        assert [len(part) for part in parts] == [len(chunk) for chunk in torch.arange(classes).chunk(world)]
        assert parts[-1].stop == classes
