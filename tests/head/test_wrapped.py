"""Models under FSDP2 and DDP in two real processes: the numbers of one process, or one line; never a hang."""

from functools import partial

import pytest
import torch

import wrapped_worker as worker
from rank_processes import read_ranks, run_ranks

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def ranks(shared_folder) -> list[dict]:
    return read_ranks(shared_folder("ranks-wrapped", partial(run_ranks, worker, 2)), 2)


def assert_equal(found: list, expected: list) -> None:
    options = {"dtype": torch.float64}
    torch.testing.assert_close(
        torch.tensor(found, **options), torch.tensor(expected, **options), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("backend", ["dense", "stream"])
@pytest.mark.parametrize("spec", worker.SPECS)
def test_a_fully_sharded_model_learns_as_one_process(ranks, spec, backend):
    seen = [rank[f"{spec} {backend}"] for rank in ranks]
    x, y = worker.batch()
    alone = worker.build_model(spec, backend=backend)
    losses = worker.train(alone, x, y)
    for step, loss in enumerate(losses):
        assert_equal([sum(rank["losses"][step] for rank in seen) / 2], [loss])
    for rank in seen:
        state = worker.state_of(alone)
        assert rank["state"].keys() == state.keys()
        for name, values in state.items():
            assert_equal(rank["state"][name], values)
    with torch.no_grad():
        embeddings = alone.embed(x)
        assert_equal(seen[0]["logits"] + seen[1]["logits"], alone.head.logits(embeddings).tolist())
        assert_equal(seen[0]["angles"] + seen[1]["angles"], alone.head.target_angles(embeddings, y).tolist())
        assert_equal(seen[0]["whole"] + seen[1]["whole"], alone(x).tolist())
    for rank in seen:
        assert rank["values"] == pytest.approx(alone.head.margin_values(), rel=1e-12)
    assert_equal([rank["scale"] for rank in seen], [alone.head.scale] * 2)


@pytest.mark.parametrize("spec", worker.SPECS)
def test_sharded_parameters_outside_of_forward_are_refused_in_one_line(ranks, spec):
    for rank in ranks:
        seen = rank[f"{spec} dense"]
        assert 'register_fsdp_forward_method(head, "logits")' in seen["refused"]
        assert ("head.unshard()" in seen["no_scale"]) == ("learnable" in spec)


def test_a_head_that_splits_its_classes_is_left_out(ranks):
    x, y = worker.batch()
    alone = worker.build_model("arcface(s=8)", backend="dense")
    losses = worker.train(alone, x, y)
    for step, loss in enumerate(losses):
        assert_equal([sum(rank["beside"]["losses"][step] for rank in ranks) / 2], [loss])
    for name, values in worker.state_of(alone).items():
        assert_equal(ranks[0]["beside"]["state"][name], values)


def test_a_wrapper_that_would_mix_the_classes_of_ranks_is_refused(ranks):
    for rank in ranks:
        for message in rank["replicated"]:
            assert message.startswith("a sharded head holds different classes on every rank")


@pytest.mark.parametrize(("spec", "name"), [("adacos", "adacos"), ("softmax + 0.1*center", "center")])
def test_a_loss_over_all_ranks_is_refused_at_the_first_step_inside_join(ranks, spec, name):
    for rank in ranks:
        seen = rank[f"join {spec}"]
        assert seen["steps"] == 0
        assert seen["message"].startswith(f"{name} cannot be used inside DDP join()")
        assert "drop_last=True" in seen["message"]
        assert seen["error"] == "InputError"


def test_a_sharded_head_behind_a_joined_backbone_is_refused_at_the_first_step(ranks):
    for rank in ranks:
        assert rank["sharded"]["steps"] == 0
        assert rank["sharded"]["message"].startswith("a sharded head cannot be used inside DDP join()")


def test_other_losses_train_on_unequal_batches_inside_join(ranks):
    seen = [rank["join arcface"] for rank in ranks]
    assert [rank["message"] for rank in seen] == ["", ""]
    assert [rank["steps"] for rank in seen] == [2, 3]
    assert seen[0]["weight"] == seen[1]["weight"]


def test_a_join_that_ends_all_ranks_with_the_first_takes_any_loss(ranks):
    for rank in ranks:
        assert rank["throw"]["steps"] == 2
        assert rank["throw"]["error"] == "RuntimeError"
        assert "exhausted" in rank["throw"]["message"]


def test_after_join_the_same_module_takes_any_loss(ranks):
    assert ranks[0]["after"] == ranks[1]["after"]
    assert any(ranks[0]["after"])
