"""Laws that every margin obeys; a margin added as a file is tested here without another word."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given, reject
from hypothesis import strategies as st

import widemargin as wm
from benchmarks import numerics
from widemargin.head.backends import class_blocks
from widemargin.losses import registry
from widemargin.losses.schedule import Schedule
from widemargin.numerics import angles

N, C, D = 7, 5, 6
MARGINS = registry.list_losses("margins")
every_margin = pytest.mark.parametrize("name", MARGINS)


def batch(dtype=torch.float64, n=N, c=C, d=D):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(n, d, generator=draw, dtype=torch.float64)
    return x.to(dtype).requires_grad_(), torch.randint(c, (n,), generator=draw)


def head_of(name, dtype=torch.float64, c=C, d=D, **options):
    torch.manual_seed(2)
    return wm.Head(d, c, name, **options).to(dtype)


def at_rest(name, classes=C, like=None):
    """The margin with its numbers as a trained head has them."""
    like = torch.zeros(1, dtype=torch.float64) if like is None else like
    y = torch.zeros(like.shape, dtype=torch.int64)
    return wm.parse(name).for_num_classes(classes).at_step(torch.tensor(10**9), y, like.dtype)


def psi_and_phi(name, theta):
    margin = at_rest(name, like=theta)
    return margin.psi(theta) - margin.offset() / float(margin.s), margin.phi(torch.cos(theta))


def away_from_kinks(margin, theta, step):
    """Angles whose neighbourhood holds no jump or kink: where ψ's own slope is the same on both sides."""
    left, right = (torch.func.jvp(margin.psi, (theta + d,), (torch.ones_like(theta),))[1] for d in (-step, step))
    return (left - right).abs() < 0.05


@every_margin
def test_target_curve_falls(name):
    theta = torch.linspace(0.0, math.pi, 4001, dtype=torch.float64)
    psi, _ = psi_and_phi(name, theta)
    assert (psi.diff() <= 1e-15).all()
    assert psi[0] > psi[-1]


@every_margin
def test_target_is_never_easier_than_the_others(name):
    theta = torch.linspace(0.0, math.pi, 2001, dtype=torch.float64)
    psi, phi = psi_and_phi(name, theta)
    assert (psi <= phi + 1e-7).all()  # φ goes through the cosine and back


@every_margin
def test_slope_is_the_finite_difference(name):
    theta = torch.linspace(0.01, math.pi - 0.01, 500, dtype=torch.float64)
    margin = at_rest(name, like=theta)
    slope = torch.func.jvp(margin.psi, (theta,), (torch.ones_like(theta),))[1]
    step = 1e-6
    difference = (margin.psi(theta + step) - margin.psi(theta - step)) / (2 * step)
    smooth = away_from_kinks(margin, theta, step)
    assert smooth.sum() > 480
    torch.testing.assert_close(slope[smooth], difference[smooth], rtol=1e-5, atol=1e-7)


@every_margin
def test_rotation_changes_nothing(name):
    x, y = batch()
    turn = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64))[0]
    head, turned = head_of(name), head_of(name)
    with torch.no_grad():
        turned.weight.copy_(head.weight @ turn)
    torch.testing.assert_close(turned(x @ turn, y), head(x, y), rtol=1e-11, atol=1e-11)


@every_margin
def test_order_of_classes_changes_nothing(name):
    x, y = batch()
    order = torch.randperm(C)
    head, other = head_of(name), head_of(name)
    with torch.no_grad():
        other.weight.copy_(head.weight[order])
    torch.testing.assert_close(other(x, order.argsort()[y]), head(x, y), rtol=1e-12, atol=1e-12)


@every_margin
def test_lengths_count_only_where_they_are_kept(name):
    x, y = batch()
    head = head_of(name)
    before = head_of(name)(x, y)
    same_x = torch.allclose(head_of(name)(3 * x, y), before, rtol=1e-12)
    with torch.no_grad():
        head.weight.mul_(torch.linspace(0.5, 2.0, C, dtype=torch.float64).unsqueeze(1))
    same_w = torch.allclose(head(x, y), before, rtol=1e-12)
    assert (same_x, same_w) == (not head.margin.uses_x_norm, not head.margin.uses_w_norm)


@every_margin
def test_neutral_margin_is_the_plain_loss(name):
    kind = type(wm.parse(name))
    if kind.neutral is None:
        theta = torch.linspace(0.0, math.pi, 101, dtype=torch.float64)
        psi, phi = psi_and_phi(name, theta)
        torch.testing.assert_close(psi, phi)
        return
    options, plain = kind.neutral
    x, y = batch()
    takes_s = "s" in kind.options()
    neutral = kind(**options, **({"s": 9.0} if takes_s else {}))
    reference = wm.parse(f"{plain}(s=9)" if takes_s else plain)
    ours, theirs = head_of(neutral).eval(), head_of(reference).eval()
    torch.testing.assert_close(ours(x, y), theirs(x, y), rtol=1e-12, atol=1e-12)


@every_margin
def test_repr_is_the_parse_string(name):
    margin = wm.parse(name)
    assert wm.parse(repr(margin)) == margin
    assert repr(wm.parse(repr(margin))) == repr(margin)
    assert hash(wm.parse(repr(margin))) == hash(margin)
    assert pickle.loads(pickle.dumps(margin)) == margin == copy.deepcopy(margin)


@every_margin
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["dense", "stream"])
def test_degenerate_points_are_finite(name, dtype, autocast, backend):
    head = head_of(name, torch.float64 if dtype == torch.float64 else torch.float32, backend=backend)
    w = head.weight.detach()
    x = torch.stack([w[0], -w[1], w[3], torch.zeros(D).to(w), 1e-30 * w[4], w[4] * 1e4]).to(dtype).requires_grad_()
    y = torch.tensor([0, 1, 2, 3, 4, 0])
    with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        loss = head(x, y)
    loss.sum().backward()
    assert loss.dtype == head.weight.dtype
    assert x.grad.dtype == dtype
    for tensor in (loss, x.grad, head.weight.grad):
        assert torch.isfinite(tensor).all()
    assert (x.grad[3] == 0).all()


@every_margin
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_streaming_equals_dense(name, label_smoothing, monkeypatch):
    monkeypatch.setattr(class_blocks, "max_block_rows", lambda n, d: 2)
    x, y = batch()
    kind = type(wm.parse(name))
    learnt = {option: wm.Learnable(7) for option, (rule, _) in kind.options().items() if rule.allows_learnable}
    dense = head_of(kind(**learnt), backend="dense", label_smoothing=label_smoothing)
    streamed = head_of(kind(**learnt), backend="stream", label_smoothing=label_smoothing)
    for _ in range(3):  # the third call shows that adaptive state moved alike
        a, b = dense(x, y), streamed(x, y)
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        gradients = [torch.autograd.grad(loss.sum(), (x, *h.parameters())) for loss, h in ((a, dense), (b, streamed))]
        assert len(gradients[0]) == 2 + len(learnt)
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@every_margin
def test_loss_is_the_cross_entropy_of_its_logits(name):
    x, y = batch()
    head = head_of(name).eval()
    z = head.logits(x, y)
    by_torch = torch.nn.functional.cross_entropy(z, y, reduction="none")
    torch.testing.assert_close(head(x, y), by_torch, rtol=1e-12, atol=1e-12)
    plain = head.logits(x)
    others = torch.ones_like(plain, dtype=torch.bool).scatter(1, y.unsqueeze(1), False)
    torch.testing.assert_close(z[others], plain[others])


@every_margin
def test_functional_form_is_a_fresh_head(name):
    x, y = batch()
    head = head_of(name)
    unit, length = angles.unit_and_norm(x)
    weight_unit, weight_length = angles.unit_and_norm(head.weight)
    radius = length.unsqueeze(1) * torch.ones(1, C, dtype=x.dtype)
    if head.margin.uses_w_norm:
        radius = radius * weight_length
    keeps = head.margin.uses_x_norm or head.margin.uses_w_norm
    functional = wm.margin_softmax(unit @ weight_unit.T, y, name, radius=radius if keeps else None)
    torch.testing.assert_close(functional, head(x, y), rtol=1e-10, atol=1e-10)


@every_margin
def test_state_survives_and_freezes(name):
    x, y = batch()
    head = head_of(name)
    for _ in range(3):
        head(x, y)
    twin = head_of(name)
    twin.load_state_dict(copy.deepcopy(head.state_dict()))
    assert int(twin.margin_state.steps) == 3
    torch.testing.assert_close(twin.eval()(x, y), head.eval()(x, y), rtol=0, atol=0)
    before = copy.deepcopy(head.state_dict())
    head(x, y), head.logits(x), head.train().logits(x, y)
    for key, value in head.state_dict().items():
        assert torch.equal(value, before[key]), key
    torch.testing.assert_close(head(x, y), twin.train()(x, y), rtol=0, atol=0)


@every_margin
def test_moving_numbers_do_not_touch_the_value(name):
    x, y = batch()
    head = head_of(name)
    head(x, y)
    assert head.spec == wm.parse(name)


@every_margin
def test_fp32_gradients_keep_their_digits(name, monkeypatch):
    monkeypatch.setattr(numerics, "NUM_CLASSES", 200)
    monkeypatch.setattr(numerics, "NUM_SAMPLES", 64)
    row = numerics.measure_gradient_accuracy(numerics.widemargin_loss(name))
    assert row.initial <= 2e-6
    assert all(error is None or error <= 2e-5 for error in row.trained)
    assert all(row.finite.values())


@pytest.mark.parametrize(
    "spec", ["arcgrad(s=30)", "adacos(s=30, fixed=True)", "arcface(s=64, m=0.5)", "normface(s=64)"]
)
@pytest.mark.parametrize("backend", ["dense", "stream"])
def test_small_losses_keep_their_digits_where_the_scale_allows_them(spec, backend, monkeypatch):
    monkeypatch.setattr(numerics, "NUM_CLASSES", 200)
    monkeypatch.setattr(numerics, "NUM_SAMPLES", 64)
    row = numerics.measure_gradient_accuracy(numerics.widemargin_loss(spec, backend))
    assert None not in row.trained
    assert max(row.trained) <= 2e-5


@every_margin
@given(data=st.data())
def test_any_numbers_of_the_domain_give_finite_losses(name, data):
    kind = type(wm.parse(name))
    chosen = {}
    for option, (rule, default) in kind.options().items():
        if rule.kind is bool or rule.choices or isinstance(default, Schedule):
            continue
        high = min(rule.high, 200.0)
        low = max(rule.low, 0.0) + (1e-3 if rule.open_low or rule.optional else 0.0)
        drawn = st.integers(int(max(low, 1)), 8) if rule.kind is int else st.floats(low, high)
        chosen[option] = data.draw(drawn, label=option)
    try:
        margin = kind(**chosen)
    except wm.InputError:  # two options that exclude each other
        reject()
    x, y = batch()
    head = head_of(margin)
    loss = head(x, y)
    gradients = torch.autograd.grad(loss.sum(), (x, head.weight))
    assert torch.isfinite(loss).all()
    assert (loss >= 0).all()
    assert all(torch.isfinite(g).all() for g in gradients)
