"""Laws that every margin obeys; a margin added as a file is tested here without another word.

Where a margin declares that it departs from the base case (`non_monotone`, `detached`, `one_vs_all`, …) the law is that
of what it declares, and a declaration that is not true fails too.
"""

import copy
import math
import pickle
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import widemargin as wm
from benchmarks import numerics
from widemargin.head.backends import class_blocks
from widemargin.losses import registry
from widemargin.losses.margin import SampleStatistics
from widemargin.losses.schedule import Schedule
from widemargin.numerics import angles

N, C, D = 7, 5, 6
MARGINS = registry.list_losses("margins")
every_margin = pytest.mark.parametrize("name", MARGINS)
# Options that make another curve of a margin, for laws on curves.
OTHER_CURVES = (
    "aam_softmax(topk=2, penalty=0.3)",
    "arcface(m=1.2, gradient=straight_through)",
    "arcgrad(m=0.4)",
    "combined(m1=1.3, gradient=straight_through)",
    "curricularface(t=0.6, m=0.9)",
    "elasticface(form=cos)",
    "magface(easy=True)",
    "mv_softmax(form=arc)",
    "mv_softmax(easy=True)",
    "sphereface2(form=a)",
    "sphereface2(form=m, m=1.6)",
    "sphereface_r(version=v2)",
    "sphereface_r(gradient=detached)",
    "sphereface_r(version=v2, gradient=detached)",
)
every_curve = pytest.mark.parametrize("name", [*MARGINS, *OTHER_CURVES])


def batch(dtype=torch.float64, n=N, c=C, d=D):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(n, d, generator=draw, dtype=torch.float64)
    return x.to(dtype).requires_grad_(), torch.randint(c, (n,), generator=draw)


def with_counts(name, classes=C, order=None):
    """The margin, with uneven numbers of samples per class where it wants them."""
    counts = [2 + 3 * c**2 for c in range(classes)]
    margin = wm.parse(name) if isinstance(name, str) else name
    return margin.with_class_counts(counts if order is None else [counts[place] for place in order])


def head_of(name, dtype=torch.float64, c=C, d=D, order=None, **options):
    torch.manual_seed(2)
    return wm.Head(d, c, with_counts(name, c, order), dtype=dtype, **options)


def loss_of(head, x, y, **call):
    """Its loss, with the same draws every time."""
    torch.manual_seed(3)
    return head(x, y, **call)


def at_rest(name, classes=C, like=None):
    """The margin with its numbers as a trained head has them."""
    like = torch.zeros(1, dtype=torch.float64) if like is None else like
    y = torch.zeros(like.shape, dtype=torch.int64)
    return with_counts(name, classes).for_num_classes(classes).at_step(torch.tensor(10**9), y, like.dtype)


def samples_with(theta, length, cosines=(0.6, 0.5, 0.4, 0.3), asked=None):
    """Samples that all have this target angle and length, and the same nearest other classes."""

    def x_norm():
        if asked is not None:
            asked.append("x_norm")
        return torch.full_like(theta, length)

    largest = torch.tensor(cosines, dtype=theta.dtype).expand(*theta.shape, -1)
    return SampleStatistics(lambda: theta, x_norm, lambda count: largest[..., :count], training=False)


def each_curve(name, theta):
    """ψ and φ over the angle, for samples of different target angles and lengths where the margin looks at them."""
    margin = at_rest(name, like=theta)
    found = []
    for own, length in product((0.2, 1.0, 1.9, 3.0), (0.5, 20.0, 60.0, 500.0)):
        filled = margin.for_samples(samples_with(torch.full_like(theta, own), length))
        found.append((filled, filled.psi(theta) - filled.offset() / float(filled.s), filled.phi(torch.cos(theta))))
        if not margin.sample_fields:
            break
    return found


def away_from_kinks(curve, at, step):
    """Points whose neighbourhood holds no jump or kink: where the curve's own slope is the same on both sides."""
    left, right = (torch.func.jvp(curve, (at + d,), (torch.ones_like(at),))[1] for d in (-step, step))
    jump = (curve(at + step) - curve(at - step)).abs() > 0.01
    return ((left - right).abs() < 0.05) & ~jump


def find_rises(name):
    """Which curves rise with the angle, and whether a target is easier than another class at the same angle."""
    theta = torch.linspace(0.0, math.pi, 4001, dtype=torch.float64)
    found = set()
    for _, psi, phi in each_curve(name, theta):
        found |= {"ψ"} if (psi.diff() > 1e-15).any() else set()
        found |= {"φ"} if (phi.diff() > 1e-12).any() else set()  # φ goes through the cosine and back
        found |= {"easy target"} if (psi > phi + 1e-7).any() else set()
        assert psi[0] > psi[-1]
    return found


@every_curve
def test_target_curve_falls(name):
    """And so does φ, and no target is easier than another class at the same angle; else the margin says so."""
    assert bool(find_rises(name)) == at_rest(name).non_monotone, find_rises(name)


def slope_error(curve, at):
    slope = torch.func.jvp(curve, (at,), (torch.ones_like(at),))[1]
    step = 1e-6
    difference = (curve(at + step) - curve(at - step)) / (2 * step)
    smooth = away_from_kinks(curve, at, step)
    assert smooth.sum() > 0.9 * len(at)
    return ((slope - difference)[smooth].abs() / (1e-7 + 1e-5 * difference[smooth].abs())).max().item()


@every_curve
def test_slope_is_the_finite_difference(name):
    """Of both curves; a margin whose slopes are another curve's says so."""
    theta = torch.linspace(0.01, math.pi - 0.01, 500, dtype=torch.float64)
    worst = 0.0
    for filled, _, _ in each_curve(name, theta):
        worst = max(worst, slope_error(filled.psi, theta), slope_error(filled.phi, torch.cos(theta)))
    assert (worst > 1.0) == at_rest(name).detached, f"{worst:.3g} times the tolerance"


@every_margin
def test_rotation_changes_nothing(name):
    x, y = batch()
    turn = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64))[0]
    head, turned = head_of(name), head_of(name)
    with torch.no_grad():
        turned.weight.copy_(head.weight @ turn)
    torch.testing.assert_close(loss_of(turned, x @ turn, y), loss_of(head, x, y), rtol=1e-11, atol=1e-11)


@every_margin
def test_order_of_classes_changes_nothing(name):
    x, y = batch()
    order = torch.randperm(C)
    head, other = head_of(name), head_of(name, order=order.tolist())
    with torch.no_grad():
        other.weight.copy_(head.weight[order])
    torch.testing.assert_close(loss_of(other, x, order.argsort()[y]), loss_of(head, x, y), rtol=1e-12, atol=1e-12)


@every_margin
def test_lengths_count_only_where_they_are_kept(name):
    x, y = batch()
    head = head_of(name)
    before = loss_of(head_of(name), x, y)
    same_x = torch.allclose(loss_of(head_of(name), 3 * x, y), before, rtol=1e-12)
    with torch.no_grad():
        head.weight.mul_(torch.linspace(0.5, 2.0, head.weight.shape[:-1].numel()).view(*head.weight.shape[:-1], 1))
    same_w = torch.allclose(loss_of(head, x, y), before, rtol=1e-12)
    asked = []
    at_rest(name).for_samples(samples_with(torch.ones(N, dtype=torch.float64), 1.0, asked=asked))
    assert same_x or head.margin.uses_x_norm or asked  # a margin of its own for each length
    assert not (same_x and head.margin.uses_x_norm)
    assert same_w is not head.margin.uses_w_norm


@every_margin
def test_neutral_margin_is_the_plain_loss(name):
    kind = type(wm.parse(name))
    if kind.neutral is None:
        theta = torch.linspace(0.0, math.pi, 101, dtype=torch.float64)
        takes_none = "m" in kind.options() and kind.options()["m"][0].contains(0.0)
        margin = at_rest(kind(m=0.0) if takes_none else name, like=theta)
        # A margin that cannot be taken away has other curves for target and others, and says so.
        if takes_none or not margin.non_monotone:
            torch.testing.assert_close(margin.psi(theta), margin.phi(torch.cos(theta)))
        return
    options, plain = kind.neutral
    x, y = batch()
    takes_s = "s" in kind.options() and "s" in type(wm.parse(plain)).options()
    neutral = kind(**options, **({"s": 9.0} if takes_s else {}))
    reference = wm.parse(f"{plain}(s=9)" if takes_s else plain)
    ours, theirs = head_of(neutral).eval(), head_of(reference).eval()
    with torch.no_grad():
        theirs.weight.copy_(ours.weight)
    torch.testing.assert_close(ours(x, y), theirs(x, y), rtol=1e-12, atol=1e-12)


@every_margin
def test_repr_is_the_parse_string(name):
    for margin in (wm.parse(name), with_counts(name)):
        assert wm.parse(repr(margin)) == margin
        assert repr(wm.parse(repr(margin))) == repr(margin)
        assert hash(wm.parse(repr(margin))) == hash(margin)
        assert pickle.loads(pickle.dumps(margin)) == margin == copy.deepcopy(margin)


def assert_degenerate_points_are_finite(name, dtype, autocast, backend):
    head = head_of(name, torch.float64 if dtype == torch.float64 else torch.float32, backend=backend)
    w = head.weight.detach().view(C, -1, D)[:, -1]  # of sub-centres the last
    x = torch.stack([w[0], -w[1], w[3], torch.zeros(D).to(w), 1e-30 * w[4], w[4] * 1e4]).to(dtype).requires_grad_()
    y = torch.tensor([0, 1, 2, 3, 4, 0])
    with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        loss = head(x, y)
    loss.sum().backward()
    where = f"{dtype}, autocast to {autocast}, {backend}"
    assert loss.dtype == head.weight.dtype, where
    assert x.grad.dtype == dtype, where
    for tensor in (loss, x.grad, head.weight.grad):
        assert torch.isfinite(tensor).all(), where
    assert (x.grad[3] == 0).all(), where


@every_margin
def test_degenerate_points_are_finite(name):
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    for combination in product(dtypes, (None, torch.bfloat16, torch.float16), ("dense", "stream")):
        assert_degenerate_points_are_finite(name, *combination)


@every_margin
def test_streaming_equals_dense(name, monkeypatch):
    monkeypatch.setattr(class_blocks, "max_block_rows", lambda n, d: 2)
    x, y = batch()
    kind = type(wm.parse(name))
    learnt = {option: wm.Learnable(7) for option, (rule, _) in kind.options().items() if rule.allows_learnable}
    for label_smoothing in (0.0, 0.2):
        if label_smoothing and not kind.allows_label_smoothing:
            with pytest.raises(wm.InputError, match="label_smoothing"):
                head_of(kind(**learnt), label_smoothing=label_smoothing)
            continue
        dense, streamed = (
            head_of(kind(**learnt), backend=backend, label_smoothing=label_smoothing) for backend in ("dense", "stream")
        )
        for _ in range(3):  # the third call shows that adaptive state moved alike
            a, b = loss_of(dense, x, y), loss_of(streamed, x, y)
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
            pairs = ((a, dense), (b, streamed))
            gradients = [torch.autograd.grad(loss.sum(), (x, *head.parameters())) for loss, head in pairs]
            assert len(gradients[0]) == 2 + len(learnt) + len(kind.learnt_fields)
            for one, other in zip(*gradients, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def others_of(values, y):
    """Entries [N, C − 1] of the classes that are not the target's."""
    mask = torch.ones_like(values, dtype=torch.bool).scatter(1, y.unsqueeze(1), False)
    return values[mask].view(len(values), -1)


@every_margin
def test_loss_is_the_cross_entropy_of_its_logits(name):
    """Or what the margin declares: a loss per class added up, or the others against the target; plus penalties."""
    x, y = batch()
    head = head_of(name).eval()
    margin = head.margin_state.current_margin(y, torch.float64)
    z, loss = head.logits(x, y), head(x, y)
    own = z.gather(1, y.unsqueeze(1)).squeeze(1)
    if margin.one_vs_all:
        expected = margin.combine(own, margin.other_loss(others_of(z, y)).sum(1))
    elif margin.is_bounded:
        expected = torch.nn.functional.cross_entropy(z, y, reduction="none")
    else:
        expected = torch.logsumexp(others_of(z, y), 1) - own
    penalty = loss - float(margin.loss_weight()) * expected
    filled = margin.for_samples(samples_with(head.target_angles(x, y).detach(), 1.0))
    if filled.sample_penalty() is not None:  # of the sample, whatever its label
        assert penalty.min() > 0.0
        labels = (y + 1) % C
        again = head(x, labels) - torch.nn.functional.cross_entropy(head.logits(x, labels), labels, reduction="none")
    elif margin.has_weight_penalty:  # the same in every loss
        assert penalty.min() > 0.0
        again = penalty.mean().expand(N)
    else:
        again = torch.zeros_like(penalty)
    torch.testing.assert_close(penalty, again, rtol=0, atol=1e-12)


@every_margin
def test_classes_of_a_one_vs_all_loss_do_not_compete(name):
    """What another class adds does not depend on the rest; in a softmax it does, and margins that say neither fail."""
    x, _ = batch()
    y = torch.zeros(N, dtype=torch.int64)
    draw = torch.Generator().manual_seed(8)
    first, second = (torch.randn(D, generator=draw, dtype=torch.float64) for _ in range(2))

    def loss(**moved):
        head = head_of(name).eval()
        with torch.no_grad():
            for place, row in moved.items():
                head.weight[int(place[1:])] = row
        return head(x, y).detach()

    together = loss(c1=first, c3=second) - loss(c1=first)
    alone = loss(c3=second) - loss()
    assert torch.allclose(together, alone, rtol=1e-12, atol=1e-12) is wm.parse(name).one_vs_all


@every_margin
def test_inference_has_no_margin(name):
    """Logits without labels are those of the others, or of a plain margin that ranks classes by their cosines."""
    x, y = batch()
    head = head_of(name).eval()
    plain, z = head.logits(x).detach(), head.logits(x, y).detach()
    offsets = head.margin.class_offsets()
    if offsets is not None:
        plain = plain + torch.tensor(offsets)
    if not head.margin.phi_sample_fields and head.margin.for_inference() is head.margin:
        torch.testing.assert_close(others_of(z, y), others_of(plain, y))
        return
    unit = angles.unit_and_norm(head.weight.detach().view(C, -1, D))[0]
    cos = (unit @ angles.unit_and_norm(x.detach())[0].T).amax(1).T
    torch.testing.assert_close(plain, head.scale * cos)


@every_margin
def test_functional_form_is_a_fresh_head(name):
    x, y = batch()
    x = angles.unit_and_norm(x.detach())[0] if wm.parse(name).sample_fields else x  # lengths are taken to be 1
    head = head_of(name)
    unit, length = angles.unit_and_norm(x)
    weight_unit, weight_length = angles.unit_and_norm(head.weight.view(-1, D))
    radius = length.unsqueeze(1) * torch.ones(1, C, dtype=x.dtype)
    if head.margin.uses_w_norm:
        radius = radius * weight_length
    keeps = head.margin.uses_x_norm or head.margin.uses_w_norm
    cos = (unit @ weight_unit.T).view(N, C, -1).amax(2)  # of sub-centres the nearest
    torch.manual_seed(3)
    if head.margin.has_weight_penalty:
        with pytest.raises(wm.InputError, match="use Head"):
            wm.margin_softmax(cos, y, name)
        return
    functional = wm.margin_softmax(cos, y, with_counts(name), radius=radius if keeps else None)
    torch.testing.assert_close(functional, loss_of(head, x, y), rtol=1e-10, atol=1e-10)


@every_margin
def test_state_survives_and_freezes(name):
    x, y = batch()
    head = head_of(name)
    with torch.no_grad():
        for number in head.margin_state.parameters():
            number.add_(0.25)
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
    copied = copy.deepcopy(head)
    torch.testing.assert_close(loss_of(head, x, y), loss_of(twin.train(), x, y), rtol=0, atol=0)
    torch.testing.assert_close(loss_of(head, x, y), (loss_of(copied, x, y), loss_of(copied, x, y))[1], rtol=0, atol=0)


@every_margin
def test_only_adaptive_fields_move(name):
    """Training calls change the buffers of `adaptive_fields`, and nothing else that is saved but the step."""
    x, y = batch()
    head = head_of(name)
    before = copy.deepcopy(head.state_dict())
    head(x, y), head(x.detach() + 9 * head.weight.detach().view(C, -1, D)[y, 0], y)
    moved = {key for key, value in head.state_dict().items() if not torch.equal(value, before[key])}
    may_move = {f"margin_state.state_{field}" for field in head.margin.adaptive_fields}
    assert "margin_state.steps" in moved
    assert moved - {"margin_state.steps"} <= may_move
    assert bool(may_move) == bool(moved - {"margin_state.steps"})


@every_margin
def test_moving_numbers_do_not_touch_the_value(name):
    x, y = batch()
    head = head_of(name)
    head(x, y)
    assert head.spec == with_counts(name)


def measured_loss(name):
    """A margin as the benchmark measures it; of several sub-centres the first is the benchmark's class weight."""
    spec = replace(wm.parse(name), **({"sigma": 0.0} if name == "elasticface" else {}))  # both precisions draw alike

    def make(weight):
        head = wm.Head(
            weight.shape[1], len(weight), with_counts(spec, len(weight)), backend="dense", dtype=weight.dtype
        )
        draw = torch.Generator().manual_seed(4)
        with torch.no_grad():
            head.weight.copy_(torch.randn(head.weight.shape, generator=draw) / D**0.5)
            head.weight.view(len(weight), -1, weight.shape[1])[:, 0] = weight
        return head, head.weight

    return numerics.LossImplementation(name, "", make, 64.0 if spec.uses_x_norm else 1.0)


@every_margin
def test_fp32_gradients_keep_their_digits(name, monkeypatch):
    monkeypatch.setattr(numerics, "NUM_CLASSES", 200)
    monkeypatch.setattr(numerics, "NUM_SAMPLES", 64)
    row = numerics.measure_gradient_accuracy(measured_loss(name))
    assert row.initial <= 2e-6
    # 2e-5, with room for the matrix products of other processors: up to 2.3e-5 was measured.
    assert all(error is None or error <= 4e-5 for error in row.trained)
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
    assert max(row.trained) <= 4e-5  # as above


@every_margin
@settings(max_examples=15)
@given(data=st.data())
def test_any_numbers_of_the_domain_give_finite_losses(name, data):
    kind = type(wm.parse(name))
    chosen = {}
    for option, (rule, default) in kind.options().items():
        if isinstance(default, Schedule):
            continue
        if rule.kind is bool or rule.choices:
            chosen[option] = data.draw(st.sampled_from(rule.choices or (True, False)), label=option)
            continue
        high = min(rule.high, 200.0)
        low = max(rule.low, 0.0) + (1e-3 if rule.open_low or rule.optional else 0.0)
        drawn = st.integers(int(max(low, 1)), 8) if rule.kind is int else st.floats(low, high)
        chosen[option] = data.draw(st.just(default) | drawn, label=option)
    x, y = batch()
    refusal = ""
    try:
        head = head_of(kind(**chosen))
    except wm.InputError as error:  # two options that exclude each other
        refusal = str(error)
    if refusal:
        assert "\n" not in refusal
        return
    loss = head(x, y)
    gradients = torch.autograd.grad(loss.sum(), (x, *head.parameters()), allow_unused=True)
    assert torch.isfinite(loss).all()
    assert (loss >= 0).all() or not head.margin.is_bounded
    assert all(torch.isfinite(g).all() for g in gradients if g is not None)
