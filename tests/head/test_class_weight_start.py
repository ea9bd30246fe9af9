"""Deferred re-weighting: class weights that count from a training call on."""

import copy

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import widemargin as wm
from head_batch import C, D, batch

WEIGHT = [0.5, 2.0, 0.25, 1.5, 3.0]
START = 2


def make_heads(spec="cosface(s=8, m=0.2)", **options):
    """A head with deferred class weights and the same without any."""
    deferred = wm.Head(D, C, spec, class_weight=WEIGHT, class_weight_start=START, dtype=torch.float64, **options)
    plain = wm.Head(D, C, spec, dtype=torch.float64, **options)
    plain.weight = deferred.weight
    return deferred, plain


def factor(call: int, y: torch.Tensor) -> torch.Tensor:
    return torch.tensor(WEIGHT, dtype=torch.float64)[y] if call >= START else torch.ones(len(y), dtype=torch.float64)


@pytest.mark.parametrize("backend", ["dense", "stream", "sampled"])
@pytest.mark.parametrize("spec", ["cosface(s=8, m=0.2)", "softmax(bias=True)", "cosface(s=8, m=[0, 0.1, 0.2, 0.1, 0])"])
def test_every_factor_is_one_before_the_start(backend, spec):
    deferred, plain = make_heads(spec, backend=backend)
    x, y = batch(dtype=torch.float64)
    for call in range(4):
        deferred.eval(), plain.eval()
        torch.testing.assert_close(deferred(x, y), factor(call, y) * plain(x, y))  # evaluation: as at this step
        assert int(deferred.margin_state.steps) == call
        deferred.train(), plain.train()
        loss, expected = deferred(x, y), factor(call, y) * plain(x, y)
        torch.testing.assert_close(loss, expected)
        gradients = [torch.autograd.grad(value.sum(), x)[0] for value in (loss, expected)]
        torch.testing.assert_close(*gradients)


def test_mixed_samples_and_sample_weights():
    deferred, plain = make_heads()
    x, y = batch(dtype=torch.float64)
    y_b, given = y.flip(0), torch.linspace(0.1, 1, len(y), dtype=torch.float64)
    for call in range(4):
        found = deferred(x, y, mix=(y_b, 0.3), sample_weight=given)
        one, other = plain(x, y), plain(x, y_b)
        torch.testing.assert_close(found, given * (0.3 * factor(call, y) * one + 0.7 * factor(call, y_b) * other))


def test_a_checkpoint_goes_on_at_its_step():
    deferred, _ = make_heads()
    x, y = batch(dtype=torch.float64)
    deferred(x, y), deferred(x, y)
    again, plain = make_heads()
    again.load_state_dict(deferred.state_dict())
    plain.weight = again.weight
    torch.testing.assert_close(again(x, y), factor(START, y) * plain(x, y))


def test_copies_and_new_classes_keep_the_start():
    deferred, _ = make_heads()
    assert copy.deepcopy(deferred).class_weight_start == START
    assert repr(deferred).endswith(f"class_weight_start={START})")
    assert "class_weight_start" not in repr(wm.Head(D, C, "cosface", class_weight=WEIGHT))
    deferred.extend(1, class_weight=[4.0])
    assert deferred.class_weight_start == START
    x, _ = batch(dtype=torch.float64)
    y = torch.full((len(x),), C)
    losses = [deferred(x, y) for _ in range(3)]
    torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(losses[2], 4.0 * losses[0])
    other, _ = make_heads()
    other.assign_from(wm.Head(D, C, "cosface", class_weight=WEIGHT, class_weight_start=7))
    assert other.class_weight_start == 7


def test_an_objective_passes_it_to_its_heads():
    objective = wm.Objective("cosface + 0.5*center", D, C, class_weight=WEIGHT, class_weight_start=START)
    assert objective.head.class_weight_start == START


def test_compiled_once_for_all_steps():
    torch._dynamo.reset()
    deferred, _ = make_heads(backend="dense")
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(copy.deepcopy(deferred), backend=counter, fullgraph=True)
    x, y = batch(dtype=torch.float64)
    for _ in range(5):
        torch.testing.assert_close(compiled(x, y), deferred(x, y))
    assert counter.frame_count == 1


@pytest.mark.parametrize("start", [-1, 0.5, "3", True])
def test_a_start_is_a_whole_number(start):
    with pytest.raises(wm.InputError, match="class_weight_start"):
        wm.Head(D, C, "cosface", class_weight=WEIGHT, class_weight_start=start)


def test_a_start_without_weights_is_refused():
    with pytest.raises(wm.InputError, match="class_weight_start=5 needs class_weight"):
        wm.Head(D, C, "cosface", class_weight_start=5)
