"""MarginState: schedules, learnable, adaptive and per-class numbers of a head."""

import math

import pytest
import torch

import widemargin as wm
from head_batch import C, D, batch


def test_margin_warms_up_with_training_calls_only():
    head = wm.Head(D, C, "arcface(s=8, m=warmup(0, 0.4, steps=4))")
    x, y = batch()
    fixed = [wm.Head(D, C, f"arcface(s=8, m={m})") for m in (0.0, 0.1, 0.2, 0.3, 0.4, 0.4)]
    for expected in fixed:
        expected.weight = head.weight
        head.eval()(x, y)
        torch.testing.assert_close(head.train()(x, y), expected(x, y))


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("warmup(10, 30, steps=2)", [10, 20, 30, 30]),
        ("decay(40, 10, steps=2)", [40, 20, 10, 10]),
        ("cosine(30, 10, steps=2)", [30, 20, 10, 10]),
        ("anneal(start=100, gamma=1, power=1, floor=30)", [50, 100 / 3, 30, 30]),
    ],
)
def test_scale_follows_its_schedule(schedule, values):
    head = wm.Head(D, C, f"arcgrad(s={schedule})" if "anneal" not in schedule else f"normface(s={schedule})")
    x, y = batch()
    for value in values:
        assert head.scale == pytest.approx(value)
        head(x, y)


@pytest.mark.parametrize("backend", ["dense", "stream"])
def test_learnable_scale_gets_the_gradient_of_the_loss(backend):
    head = wm.Head(D, C, "cosface(s=learnable(12), m=0.2)", backend=backend, dtype=torch.float64)
    x, y = batch(dtype=torch.float64)
    (slope,) = torch.autograd.grad(head(x, y).sum(), [head.margin_state.log_s])
    losses = []
    for scale in (12 * math.exp(1e-5), 12 * math.exp(-1e-5)):
        fixed = wm.Head(D, C, f"cosface(s={scale!r}, m=0.2)", dtype=torch.float64)
        fixed.weight = head.weight
        losses.append(fixed(x, y).sum())
    assert slope.item() == pytest.approx(((losses[0] - losses[1]) / 2e-5).item(), rel=1e-6)
    assert any(p is head.margin_state.log_s for p in head.parameters())


def test_per_class_margin_is_each_class_its_own_head():
    margins = [0.0, 0.1, 0.2, 0.3, 0.4]
    head = wm.Head(D, C, wm.ArcFace(s=16, m=torch.tensor(margins, dtype=torch.float64)), dtype=torch.float64)
    assert head.spec == wm.parse("arcface(s=16, m=[0, 0.1, 0.2, 0.3, 0.4])")
    x, y = batch(dtype=torch.float64)
    loss = head(x, y)
    for label, m in enumerate(margins):
        one = wm.Head(D, C, wm.ArcFace(s=16, m=m), dtype=torch.float64)
        one.weight = head.weight
        torch.testing.assert_close(loss[y == label], one(x, y)[y == label], rtol=1e-12, atol=1e-12)


def test_half_precision_does_not_round_the_numbers():
    head = wm.Head(D, C, wm.AdaCos()).half()
    assert head.weight.dtype == torch.float16
    assert head.margin_state.state_s.dtype == torch.float64
    assert head.scale == math.sqrt(2) * math.log(C - 1)
    weighted = wm.Head(D, C, "cosface(m=[0.1, 0.2, 0.3, 0.1, 0.1])", class_weight=[0.1] * C).bfloat16().double()
    assert weighted.margin_state.per_class_m[0].item() == 0.1
    assert weighted.margin_state.class_weight[0].item() == 0.1


def test_half_precision_does_not_round_a_learnable_scale():
    head = wm.Head(D, C, "normface(s=learnable(30))").half()
    assert head.weight.dtype == torch.float16
    assert head.scale == pytest.approx(30, abs=1e-5)


def test_two_forwards_before_one_backward():
    head = wm.Head(D, C, "adacos", dtype=torch.float64)
    x, y = batch(dtype=torch.float64)
    total = head(x, y).sum() + head(x, y).sum() + head(x, y, mix=(y.flip(0), 0.3)).sum()
    total.backward()
    assert torch.isfinite(x.grad).all()


def test_margin_values_are_the_current_ones():
    head = wm.Head(D, C, "arcface(s=learnable(12), m=warmup(0, 0.4, steps=4))")
    x, y = batch()
    head(x, y), head(x, y)
    assert head.margin_values() == pytest.approx({"s": 12.0, "m": 0.2})
    assert wm.Head(D, C, "cosface(m=[0.1, 0.2, 0.3, 0.1, 0.1])").margin_values() == {"s": 64.0}


@pytest.mark.parametrize("spec", ["cosface(m=[0.1, 0.2, 0.3, 0.1, 0.1])", "normface(s=learnable(30))", "adacos"])
def test_a_head_made_on_the_meta_device_starts_like_any_other(spec):
    made, real = wm.Head(D, C, spec, device="meta").to_empty(device="cpu"), wm.Head(D, C, spec)
    made.reset_parameters()
    for key, value in real.margin_state.state_dict().items():
        torch.testing.assert_close(made.margin_state.state_dict()[key], value)
    x, y = batch()
    loaded = wm.Head(D, C, spec, device="meta").to_empty(device="cpu")
    loaded.load_state_dict(real.state_dict())
    torch.testing.assert_close(loaded(x, y), real(x, y))


def test_a_learnable_scale_has_one_dimension_and_older_state_dicts_are_read():
    head = wm.Head(D, C, "normface(s=learnable(30))")
    assert head.margin_state.log_s.shape == (1,)
    older = head.state_dict()
    older["margin_state.log_s"] = torch.tensor(2.5)  # as version 0.1.0 wrote it
    head.load_state_dict(older)
    assert head.scale == pytest.approx(math.exp(2.5), rel=1e-6)
    assert head.state_dict()["margin_state.log_s"].shape == (1,)
