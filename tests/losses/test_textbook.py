"""Every margin against independent textbook references in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import textbook
import widemargin as wm

ROADS = ("dense", "stream")
Logits = Callable[[Tensor, Tensor, Tensor], Tensor]

# Spelling → textbook logits of a fresh head in evaluation. Bare names check the defaults.
FIXED: dict[str, Logits] = {
    "softmax": textbook.softmax,
    "modified_softmax": textbook.modified_softmax,
    "normface": textbook.normface,
    "normface(s=7.5)": partial(textbook.normface, s=7.5),
    "cosine_softmax(s=16)": partial(textbook.normface, s=16.0),
    "m_softmax": textbook.m_softmax,
    "m_softmax(m=1.7)": partial(textbook.m_softmax, m=1.7),
    "l_softmax": textbook.l_softmax,
    "l_softmax(m=2, lam=0)": partial(textbook.l_softmax, m=2, lam=0.0),
    "l_softmax(m=3, lam=1.5)": partial(textbook.l_softmax, m=3, lam=1.5),
    "l_softmax(m=4, lam=0)": partial(textbook.l_softmax, m=4, lam=0.0),
    "a_softmax": textbook.a_softmax,
    "a_softmax(m=2, lam=5)": partial(textbook.a_softmax, m=2, lam=5.0),
    "sphereface(m=4, lam=0)": partial(textbook.a_softmax, m=4, lam=0.0),
    "a_softmax(m=5, lam=0.3)": partial(textbook.a_softmax, m=5, lam=0.3),
    "cosface": textbook.cosface,
    "am_softmax(s=20, m=0.2)": partial(textbook.cosface, s=20.0, m=0.2),
    "arcface": textbook.arcface,
    "arcface(s=20, m=0.1)": partial(textbook.arcface, s=20.0, m=0.1),
    "arcface(s=12, m=1.4)": partial(textbook.arcface, s=12.0, m=1.4),
    "combined": textbook.combined,
    "combined(s=16, m1=1.35, m2=0.2, m3=0.1)": partial(textbook.combined, s=16.0, m1=1.35, m2=0.2, m3=0.1),
    "combined(s=8, m1=3.2, m2=1.1, m3=0.4)": partial(textbook.combined, s=8.0, m1=3.2, m2=1.1, m3=0.4),
    "arcgrad": textbook.arcgrad,
    "arcgrad(s=30)": partial(textbook.arcgrad, s=30.0),
}
ADAPTIVE: dict[str, Callable[[int], textbook.AdaCos | textbook.AdaAcos]] = {
    "adacos": textbook.AdaCos,
    "adacos(fixed=True)": partial(textbook.AdaCos, fixed=True),
    "adacos(floor=4)": partial(textbook.AdaCos, floor=4.0),
    "adaacos": textbook.AdaAcos,
    "adaacos(s=6)": partial(textbook.AdaAcos, s=6.0),
    "adaacos(floor=20)": partial(textbook.AdaAcos, floor=20.0),
}
TWO_CLASS_ADAPTIVE = ("adacos(floor=4)", "adaacos(s=6)", "adaacos(floor=20)")
# One setting of each loss, for tests that combine it with something else.
EACH = (
    "softmax",
    "modified_softmax",
    "normface(s=7.5)",
    "m_softmax",
    "l_softmax(m=3, lam=1.5)",
    "a_softmax(m=2, lam=5)",
    "cosface",
    "arcface(s=12, m=1.4)",
    "combined(s=16, m1=1.35, m2=0.2, m3=0.1)",
    "arcgrad",
)
SIZES = ((1, 2, 3), (9, 2, 4), (16, 5, 3), (24, 17, 8), (12, 40, 6))

quick = settings(max_examples=30, deadline=None, database=None, derandomize=True)


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors are faster on one thread, and sums are then the same on every machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ---------------------------------------------------------------- making inputs, comparing


def make_head(dim: int, classes: int, margin, road: str = "dense", seed: int = 0, **options) -> wm.Head:
    """A head in double precision whose class weights differ in length."""
    head = wm.Head(dim, classes, margin, backend=road, dtype=torch.float64, **options)
    random = torch.Generator().manual_seed(seed + 1000)
    with torch.no_grad():
        head.weight.copy_(torch.randn(classes, dim, dtype=torch.float64, generator=random))
        head.weight.mul_(0.5 + torch.rand(classes, 1, dtype=torch.float64, generator=random))
        if head.bias is not None:
            head.bias.copy_(torch.randn(classes, dtype=torch.float64, generator=random))
    return head


def make_batch(head: wm.Head, samples: int, regime: str = "random", seed: int = 0) -> tuple[Tensor, Tensor]:
    """Embeddings anywhere (random), near their class weight (trained), or on its far side (opposed)."""
    random = torch.Generator().manual_seed(seed)
    y = torch.randint(head.num_classes, (samples,), generator=random)
    noise = torch.randn(samples, head.embedding_dim, dtype=torch.float64, generator=random)
    own = F.normalize(head.weight.detach())[y]
    x = {"random": noise, "trained": own + 0.15 * noise, "opposed": -own + 0.15 * noise}[regime]
    return 1.7 * x, y


def reference_result(head: wm.Head, x: Tensor, y: Tensor, loss_of: Callable, cotangent: Tensor):
    """Loss of the reference and its gradients to x, to the weights and, if there is one, to the bias."""
    x = x.detach().clone().requires_grad_()
    leaves = [p.detach().clone().requires_grad_() for p in (head.weight, head.bias) if p is not None]
    loss = loss_of(x, *leaves[:1], y, *leaves[1:])
    return loss.detach(), torch.autograd.grad(loss @ cotangent, [x, *leaves])


def head_result(head: wm.Head, x: Tensor, y: Tensor, cotangent: Tensor, **call):
    """Loss of the head and its gradients, in the order of `reference_result`."""
    x = x.detach().clone().requires_grad_()
    leaves = [x, *(p for p in (head.weight, head.bias) if p is not None)]
    loss = head(x, y, **call)
    return loss.detach(), torch.autograd.grad(loss @ cotangent, leaves)


def assert_same_loss(got: Tensor, wanted: Tensor) -> None:
    """Within 1e-12 of the loss, or of 1 where it is smaller."""
    assert got.shape == wanted.shape
    assert got.dtype == torch.float64
    off = (got - wanted).abs() / wanted.abs().clamp(min=1.0)
    assert off.max() <= 1e-12, f"loss {got[off.argmax()]} instead of {wanted[off.argmax()]}"


def assert_same_gradient(got: Tensor, wanted: Tensor) -> None:
    """Within 1e-10 of the largest entry; the last term is the rounding of `softmax − one_hot` in the reference."""
    off = (got - wanted).abs().max()
    assert off <= 1e-10 * wanted.abs().max() + 1e-12, f"gradient off by {off:.2e} of {wanted.abs().max():.2e}"


def assert_matches(head: wm.Head, x: Tensor, y: Tensor, loss_of: Callable, **call) -> None:
    """Loss and every gradient of the head's call are those of the reference."""
    cotangent = 0.5 + torch.rand(len(x), dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    wanted, wanted_gradients = reference_result(head, x, y, loss_of, cotangent)
    got, gradients = head_result(head, x, y, cotangent, **call)
    assert_same_loss(got, wanted)
    for one, other in zip(gradients, wanted_gradients, strict=True):
        assert_same_gradient(one, other)


def plain_loss(logits_of: Logits, smoothing: float = 0.0) -> Callable:
    """Cross-entropy of textbook logits as a function of x, W, y."""
    return lambda x, W, y: textbook.loss(logits_of(x, W, y), y, smoothing)


def target_angles(head: wm.Head, x: Tensor, y: Tensor) -> Tensor:
    return torch.acos(textbook.target_of(textbook.cosines(x, head.weight.detach()), y))


# ---------------------------------------------------------------- every margin against its reference


@pytest.mark.parametrize("regime", ["random", "trained", "opposed"])
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("spelling", FIXED)
def test_loss_and_gradients(spelling, road, regime):
    for seed, (samples, classes, dim) in enumerate(SIZES):
        head = make_head(dim, classes, spelling, road, seed).eval()
        x, y = make_batch(head, samples, regime, seed)
        assert_matches(head, x, y, plain_loss(FIXED[spelling]))


@pytest.mark.parametrize("regime", ["random", "trained", "opposed"])
@pytest.mark.parametrize("road", ROADS)
def test_softmax_with_bias(road, regime):
    for seed, (samples, classes, dim) in enumerate(SIZES):
        head = make_head(dim, classes, "softmax(bias=True)", road, seed).eval()
        x, y = make_batch(head, samples, regime, seed)
        assert_matches(head, x, y, lambda x, W, y, b: textbook.loss(textbook.softmax(x, W, y, b), y))


@pytest.mark.parametrize("regime", ["random", "trained", "opposed"])
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("spelling", ADAPTIVE)
def test_adaptive_loss_and_gradients(spelling, road, regime):
    for seed, (samples, classes, dim) in enumerate(SIZES):
        if classes == 2 and spelling not in TWO_CLASS_ADAPTIVE:
            continue
        head = make_head(dim, classes, spelling, road, seed)
        simulation = ADAPTIVE[spelling](classes)
        for call in range(2):  # the second batch is the first that moves an AdaCos scale
            x, y = make_batch(head, samples, regime, seed + call)
            simulation.observe(x, head.weight.detach(), y)
            assert_matches(head, x, y, plain_loss(simulation.logits))


@pytest.mark.parametrize("spelling", EACH)
def test_stream_over_several_blocks_of_classes(spelling):
    """So many samples that the streamed road takes its smallest blocks, and the last one is not full."""
    head = make_head(3, 300, spelling, "stream", smoothing=0.1).eval()
    x, y = make_batch(head, 4200)
    assert_matches(head, x, y, plain_loss(FIXED[spelling], smoothing=0.1))


@pytest.mark.parametrize("road", ROADS)
def test_arcface_past_the_jump(road):
    """Angles on both sides of π − m, in the same batch."""
    head = make_head(4, 6, "arcface(s=20, m=0.8)", road).eval()
    near, y_near = make_batch(head, 20, "trained")
    far, y_far = make_batch(head, 20, "opposed", seed=1)
    x, y = torch.cat([near, far]), torch.cat([y_near, y_far])
    past = target_angles(head, x, y) > math.pi - 0.8
    assert 5 < past.sum() < 35
    assert_matches(head, x, y, lambda x, W, y: textbook.loss(textbook.arcface(x, W, y, 20.0, 0.8), y))


scales = st.floats(0.05, 128.0)
angles = st.floats(0.0, math.pi / 2)
REGIMES = st.sampled_from(["random", "trained", "opposed"])


def assert_drawn(margin, logits_of: Logits, regime: str, road: str) -> None:
    head = make_head(5, 7, margin, road).eval()
    x, y = make_batch(head, 10, regime)
    assert_matches(head, x, y, plain_loss(logits_of))


@given(s=scales, regime=REGIMES, road=st.sampled_from(ROADS))
@quick
def test_normface_and_arcgrad_anywhere_in_their_domain(s, regime, road):
    assert_drawn(wm.NormFace(s=s), lambda x, W, y: textbook.normface(x, W, y, s), regime, road)
    assert_drawn(wm.ArcGrad(s=s), lambda x, W, y: textbook.arcgrad(x, W, y, s), regime, road)


@given(s=scales, m=st.floats(0.0, 2.0), regime=REGIMES, road=st.sampled_from(ROADS))
@quick
def test_cosface_anywhere_in_its_domain(s, m, regime, road):
    assert_drawn(f"cosface(s={s!r}, m={m!r})", lambda x, W, y: textbook.cosface(x, W, y, s, m), regime, road)


@given(s=scales, m=angles, regime=REGIMES, road=st.sampled_from(ROADS))
@quick
def test_arcface_anywhere_in_its_domain(s, m, regime, road):
    assert_drawn(f"arcface(s={s!r}, m={m!r})", lambda x, W, y: textbook.arcface(x, W, y, s, m), regime, road)


@given(
    s=scales,
    margins=st.fixed_dictionaries({"m1": st.floats(1.0, 4.0), "m2": angles, "m3": st.floats(0.0, 2.0)}),
    regime=REGIMES,
    road=st.sampled_from(ROADS),
)
@quick
def test_combined_anywhere_in_its_domain(s, margins, regime, road):
    margin = wm.Combined(s=s, **margins)
    assert_drawn(margin, lambda x, W, y: textbook.combined(x, W, y, s=s, **margins), regime, road)


@given(m=st.floats(0.0, 50.0), regime=REGIMES, road=st.sampled_from(ROADS))
@quick
def test_m_softmax_anywhere_in_its_domain(m, regime, road):
    assert_drawn(wm.MSoftmax(m=m), lambda x, W, y: textbook.m_softmax(x, W, y, m), regime, road)


@given(m=st.integers(1, 8), lam=st.floats(0.0, 2000.0), regime=REGIMES, road=st.sampled_from(ROADS))
@quick
def test_l_and_a_softmax_anywhere_in_their_domain(m, lam, regime, road):
    assert_drawn(wm.LSoftmax(m=m, lam=lam), lambda x, W, y: textbook.l_softmax(x, W, y, m, lam), regime, road)
    assert_drawn(wm.ASoftmax(m=m, lam=lam), lambda x, W, y: textbook.a_softmax(x, W, y, m, lam), regime, road)


# ---------------------------------------------------------------- margin_softmax on given cosines


def cosines_and_lengths(head: wm.Head, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    W = head.weight.detach()
    return textbook.cosines(x, W), textbook.lengths(x).squeeze(1), textbook.lengths(x) * textbook.lengths(W).T


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("spelling", FIXED)
def test_margin_softmax_on_given_cosines(spelling, smoothing):
    head = make_head(6, 9, spelling).eval()
    x, y = make_batch(head, 14)
    cos, x_length, both_lengths = cosines_and_lengths(head, x)
    radius = None
    if "softmax" in spelling and not spelling.startswith(("cosine", "am")):
        radius = both_lengths if spelling.startswith(("softmax", "m_", "l_")) else x_length
    elif spelling.startswith("sphereface"):
        radius = x_length
    got = wm.margin_softmax(cos, y, spelling, radius=radius, label_smoothing=smoothing)
    assert_same_loss(got, plain_loss(FIXED[spelling], smoothing)(x, head.weight.detach(), y))


@pytest.mark.parametrize("spelling", ["adacos", "adacos(floor=9)", "adaacos", "adaacos(s=6)"])
def test_margin_softmax_is_the_first_training_call(spelling):
    head = make_head(6, 9, spelling)
    x, y = make_batch(head, 15, "trained")
    simulation = {
        "adacos": textbook.AdaCos(9),
        "adacos(floor=9)": textbook.AdaCos(9, floor=9.0),
        "adaacos": textbook.AdaAcos(9),
        "adaacos(s=6)": textbook.AdaAcos(9, s=6.0),
    }[spelling]
    W = head.weight.detach()
    simulation.observe(x, W, y)
    got = wm.margin_softmax(textbook.cosines(x, W), y, spelling)
    assert_same_loss(got, textbook.loss(simulation.logits(x, W, y), y))
    assert_same_loss(head(x, y).detach(), got)


@pytest.mark.parametrize("step", [0, 1, 7, 100, 5000])
def test_margin_softmax_anneals_by_step(step):
    head = make_head(6, 9, "a_softmax")
    x, y = make_batch(head, 14)
    cos, radius, _ = cosines_and_lengths(head, x)
    got = wm.margin_softmax(cos, y, "a_softmax", radius=radius, step=step)
    assert_same_loss(got, plain_loss(lambda x, W, y: textbook.a_softmax(x, W, y, t=step))(x, head.weight.detach(), y))


# ---------------------------------------------------------------- smoothing, weights, ignored labels, mixup


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("spelling", EACH)
def test_label_smoothing(spelling, road):
    for seed, regime in enumerate(("random", "trained", "opposed")):
        for smoothing in (0.05, 0.9):
            head = make_head(5, 7, spelling, road, smoothing=smoothing).eval()
            x, y = make_batch(head, 12, regime, seed)
            assert_matches(head, x, y, plain_loss(FIXED[spelling], smoothing))


@pytest.mark.parametrize("road", ROADS)
def test_label_smoothing_with_bias(road):
    head = make_head(5, 7, "softmax(bias=True)", road, smoothing=0.1).eval()
    x, y = make_batch(head, 12)
    assert_matches(head, x, y, lambda x, W, y, b: textbook.loss(textbook.softmax(x, W, y, b), y, 0.1))


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("spelling", EACH)
def test_weights_multiply_the_whole_smoothed_loss(spelling, road):
    """A class weight takes the smoothing term with it and nothing is divided by the sum of the weights."""
    class_weight = torch.tensor([0.5, 2.0, 0.0, 1.25, 3.0], dtype=torch.float64)
    head = make_head(4, 5, spelling, road, smoothing=0.1, class_weight=class_weight).eval()
    x, y = make_batch(head, 20)
    sample_weight = torch.rand(20, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    smoothed = plain_loss(FIXED[spelling], 0.1)
    assert_matches(
        head, x, y, lambda x, W, y: sample_weight * class_weight[y] * smoothed(x, W, y), sample_weight=sample_weight
    )


def test_class_weights_are_as_precise_as_the_head():
    class_weight = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    head = make_head(4, 3, "cosface(s=8, m=0.2)", class_weight=class_weight).eval()
    x, y = make_batch(head, 12)
    assert_matches(head, x, y, lambda x, W, y: class_weight[y] * textbook.loss(textbook.cosface(x, W, y, 8.0, 0.2), y))


@pytest.mark.parametrize("label", [-100, 3])
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("spelling", EACH)
def test_ignored_labels_count_for_nothing(spelling, road, label):
    head = make_head(4, 5, spelling, road, ignore_index=label, smoothing=0.1).eval()
    x, y = make_batch(head, 12)
    y[::3] = label
    kept = y != label

    def reference(x, W, y):
        loss = torch.zeros(len(x), dtype=x.dtype)
        loss[kept] = textbook.loss(FIXED[spelling](x[kept], W, y[kept]), y[kept], 0.1)
        return loss

    assert_matches(head, x, y, reference)
    loss, (to_x, _) = head_result(head, x, y, torch.ones(12, dtype=torch.float64))
    assert not loss[~kept].any()
    assert not to_x[~kept].any()


@pytest.mark.parametrize("spelling", ["adacos", "adaacos"])
def test_ignored_labels_do_not_move_adaptive_state(spelling):
    head = make_head(4, 6, spelling, ignore_index=-1)
    simulation = ADAPTIVE[spelling](6)
    for seed, regime in enumerate(("trained", "trained", "random")):
        x, y = make_batch(head, 15, regime, seed)
        y[:5] = -1
        simulation.observe(x[5:], head.weight.detach(), y[5:])
        got = head(x, y).detach()
        assert not got[:5].any()
        assert_same_loss(got[5:], textbook.loss(simulation.logits(x[5:], head.weight.detach(), y[5:]), y[5:]))


@pytest.mark.parametrize("lam_kind", ["number", "per sample"])
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("spelling", EACH)
def test_mixup(spelling, road, lam_kind):
    class_weight = torch.tensor([0.5, 2.0, 1.0, 1.25, 3.0], dtype=torch.float64)
    head = make_head(4, 5, spelling, road, smoothing=0.05, class_weight=class_weight).eval()
    x, y = make_batch(head, 12)
    y_b = y.flip(0)
    lam = 0.3 if lam_kind == "number" else torch.linspace(0, 1, 12, dtype=torch.float64)
    one = plain_loss(FIXED[spelling], 0.05)

    def reference(x, W, y):
        return lam * class_weight[y] * one(x, W, y) + (1 - lam) * class_weight[y_b] * one(x, W, y_b)

    assert_matches(head, x, y, reference, mix=(y_b, lam))


@pytest.mark.parametrize("spelling", ADAPTIVE)
def test_mixup_updates_the_state_once_by_the_first_labels(spelling):
    head = make_head(4, 6, spelling)
    simulation = ADAPTIVE[spelling](6)
    W = head.weight.detach()
    for seed in range(3):
        x, y = make_batch(head, 11, "trained", seed)
        y_b = (y + 1) % 6
        simulation.observe(x, W, y)
        mixed = 0.6 * textbook.loss(simulation.logits(x, W, y), y)
        mixed = mixed + 0.4 * textbook.loss(simulation.logits(x, W, y_b), y_b)
        assert_same_loss(head(x, y, mix=(y_b, 0.6)).detach(), mixed)
    assert head.margin_state.steps == 3


@pytest.mark.parametrize("side", ["first", "second"])
def test_mixup_with_ignored_labels(side):
    """λ head(x, y_a) + (1−λ) head(x, y_b), where an ignored label makes its own part 0."""
    head = make_head(4, 5, "normface", ignore_index=-1).eval()
    x, y = make_batch(head, 12)
    y_b = y.flip(0)
    (y if side == "first" else y_b)[:4] = -1
    wanted = 0.25 * head(x, y) + 0.75 * head(x, y_b)
    assert_same_loss(head(x, y, mix=(y_b, 0.25)).detach(), wanted.detach())


PER_CLASS = torch.tensor([0.0, 0.1, 0.25, 0.4, 0.55, 1.2], dtype=torch.float64)
PER_CLASS_CASES: dict[str, Logits] = {
    "m_softmax(m={m})": partial(textbook.m_softmax, m=PER_CLASS),
    "cosface(s=16, m={m})": partial(textbook.cosface, s=16.0, m=PER_CLASS),
    "arcface(s=16, m={m})": partial(textbook.arcface, s=16.0, m=PER_CLASS),
    "combined(s=16, m1=1.5, m2={m}, m3=0.1)": partial(textbook.combined, s=16.0, m1=1.5, m2=PER_CLASS, m3=0.1),
    "combined(s=16, m2=0.2, m3={m})": partial(textbook.combined, s=16.0, m1=1.0, m2=0.2, m3=PER_CLASS),
}


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("spelling", PER_CLASS_CASES)
def test_one_margin_per_class(spelling, road):
    head = make_head(4, 6, spelling.format(m=PER_CLASS.tolist()), road, smoothing=0.1).eval()
    for seed, regime in enumerate(("random", "trained", "opposed")):
        x, y = make_batch(head, 20, regime, seed)
        assert_matches(head, x, y, plain_loss(PER_CLASS_CASES[spelling], 0.1))


def test_one_margin_per_class_as_a_tensor():
    x, y = make_batch(make_head(4, 6, "arcface"), 20)
    for margin, spelling in (
        (wm.MSoftmax(m=PER_CLASS), "m_softmax(m={m})"),
        (wm.CosFace(s=16, m=PER_CLASS), "cosface(s=16, m={m})"),
        (wm.ArcFace(s=16, m=PER_CLASS), "arcface(s=16, m={m})"),
        (wm.Combined(s=16, m1=1.5, m2=PER_CLASS, m3=0.1), "combined(s=16, m1=1.5, m2={m}, m3=0.1)"),
    ):
        assert_matches(make_head(4, 6, margin).eval(), x, y, plain_loss(PER_CLASS_CASES[spelling]))


# ---------------------------------------------------------------- adaptive sequences


def state_of(head: wm.Head) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in head.margin_state.state_dict().items()}


def assert_state(head: wm.Head, simulation: textbook.AdaCos | textbook.AdaAcos) -> None:
    if isinstance(simulation, textbook.AdaCos):
        assert head.margin_state.state_s.item() == pytest.approx(simulation.s, rel=1e-12, abs=1e-12)
    else:
        assert head.margin_state.state_m.item() == pytest.approx(simulation.m, rel=1e-12, abs=1e-12)
        assert head.scale == pytest.approx(simulation.s, rel=1e-6)  # read in single precision


@pytest.mark.parametrize("samples", [14, 15])
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("spelling", ADAPTIVE)
def test_five_training_batches(spelling, road, samples):
    """Odd and even batches (the median is the lower one), easy and hard ones, evaluation in between."""
    head = make_head(6, 9, spelling, road)
    simulation = ADAPTIVE[spelling](9)
    assert_state(head, simulation)
    values = set()
    for seed, regime in enumerate(("random", "trained", "trained", "random", "opposed")):
        x, y = make_batch(head, samples, regime, seed)
        simulation.observe(x, head.weight.detach(), y)
        assert_matches(head, x, y, plain_loss(simulation.logits))
        assert_state(head, simulation)
        assert head.margin_state.steps == seed + 1
        head.eval()
        other, labels = make_batch(head, samples, "random", seed + 50)
        assert_matches(head, other, labels, plain_loss(simulation.logits))
        head.train()
        assert_state(head, simulation)
        values.add(round(simulation.s if "adacos" in spelling else simulation.m, 9))
    assert len(values) > 1 or "fixed" in spelling


def test_adacos_uses_the_angle_only_below_45_degrees():
    """A trained batch has its median below π/4 and a random one above: both branches of the minimum."""
    head = make_head(6, 9, "adacos")
    simulation = textbook.AdaCos(9)
    medians = []
    for seed, regime in enumerate(("random", "random", "trained")):
        x, y = make_batch(head, 15, regime, seed)
        medians.append(target_angles(head, x, y).median().item())
        simulation.observe(x, head.weight.detach(), y)
        head(x, y)
        assert_state(head, simulation)
    assert medians[2] < math.pi / 4 < medians[1]


def test_adacos_floor_takes_over():
    head = make_head(6, 9, "adacos(floor=2.9)")
    seen = []
    for seed, regime in enumerate(("random", "random", "trained", "trained", "trained")):
        head(*make_batch(head, 15, regime, seed))
        seen.append(head.margin_state.state_s.item())
    assert seen[0] == pytest.approx(math.sqrt(2) * math.log(8), rel=1e-12)
    assert min(seen) == 2.9


def test_adacos_average_does_not_overflow():
    """log B_avg by logsumexp: a scale of 2000 would overflow exp."""
    head = make_head(6, 9, "adacos(floor=2000)")
    x, y = make_batch(head, 15)
    for _ in range(2):
        head(x, y)
    c = textbook.cosines(x, head.weight.detach())
    others = 2000.0 * textbook.without_target(c, y)
    log_average = torch.logsumexp(others.flatten(), 0) - math.log(15)
    assert torch.isinf(others.exp().sum(1).mean())
    median = min(math.pi / 4, target_angles(head, x, y).median().item())
    assert head.margin_state.state_s.item() == pytest.approx(
        max(2000.0, log_average.item() / math.cos(median)), rel=1e-12
    )


@pytest.mark.parametrize(
    ("regime", "wanted"), [("opposed", 0.0), ("trained", math.pi / 2)], ids=["clipped at 0", "clipped at π/2"]
)
def test_adaacos_clips_its_margin(regime, wanted):
    """Three classes in a plane, 120° apart: gaps near 120° when trained, negative when opposed."""
    head = make_head(2, 3, "adaacos(s=6)")
    turns = torch.tensor([0.0, 2 * math.pi / 3, 4 * math.pi / 3], dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(torch.stack([turns.cos(), turns.sin()], 1))
    x, y = make_batch(head, 11, regime)
    assert_matches(head, x, y, lambda x, W, y: textbook.loss(textbook.arcface(x, W, y, 6.0, wanted), y))
    assert head.margin_state.state_m.item() == pytest.approx(wanted, abs=1e-15)


@pytest.mark.parametrize("spelling", [*ADAPTIVE, "a_softmax", "arcface(m=warmup(0, 0.5, steps=10))"])
def test_evaluation_and_logits_never_advance(spelling):
    head = make_head(6, 9, spelling)
    for seed in range(2):
        head(*make_batch(head, 15, "trained", seed))
    before = state_of(head)
    x, y = make_batch(head, 15, "opposed", 9)
    head.logits(x)
    head.logits(x, y)
    head.target_angles(x, y)
    assert state_of(head) == before
    head.eval()
    first = head(x, y)
    head.logits(x, y)
    assert state_of(head) == before
    assert torch.equal(head(x, y), first)
    head.train()
    head(x, y)
    assert head.margin_state.steps == before["steps"] + 1


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("spelling", ["adacos", "adacos(fixed=True)", "adaacos"])
def test_two_classes_without_a_floor_cannot_learn(spelling, road):
    with pytest.warns(UserWarning, match="2 classes"):
        head = make_head(4, 2, spelling, road)
    for seed in range(3):
        x, y = make_batch(head, 9, "random", seed)
        loss, gradients = head_result(head, x, y, torch.ones(9, dtype=torch.float64))
        assert_same_loss(loss, torch.full((9,), math.log(2), dtype=torch.float64))
        assert not any(gradient.any() for gradient in gradients)
        assert head.scale == 0.0
        assert head.margin_state.steps == seed + 1


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("spelling", TWO_CLASS_ADAPTIVE)
def test_two_classes_with_a_floor_learn(spelling, road):
    head = make_head(4, 2, spelling, road)
    x, y = make_batch(head, 20, "random")
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
    right_before = (head.logits(x).argmax(1) == y).sum()
    for _ in range(60):
        optimizer.zero_grad()
        head(x, y).mean().backward()
        optimizer.step()
    assert (head.logits(x).argmax(1) == y).sum() > right_before
    assert head.scale >= 4.0


# ---------------------------------------------------------------- numbers that move by step


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", ["l_softmax", "a_softmax"])
def test_annealing_by_training_calls(name, road):
    logits_of = getattr(textbook, name)
    head = make_head(4, 6, f"{name}(m=3)", road)
    for t in range(5):
        x, y = make_batch(head, 10, "random", t)
        assert_matches(head, x, y, plain_loss(lambda x, W, y, t=t: logits_of(x, W, y, 3, t=t)))
    for t in (50, 1000, 1658, 1659, 10**6):  # λ reaches its least value of 5 between 1658 and 1659
        head.margin_state.steps.fill_(t)
        assert_matches(head, x, y, plain_loss(lambda x, W, y, t=t: logits_of(x, W, y, 3, t=t)))
        assert head.margin_state.steps == t + 1


@pytest.mark.parametrize("t", [0, 3, 40, 4000])
def test_annealing_with_numbers_of_ones_own(t):
    spelling = "a_softmax(m=3, lam=anneal(start=50, gamma=0.3, power=1.5, floor=0.25))"
    head = make_head(4, 6, spelling).eval()
    head.numbers.steps.fill_(t)
    x, y = make_batch(head, 10, "random")
    lam = textbook.anneal(t, 50.0, 0.3, 1.5, 0.25)
    assert_matches(head, x, y, plain_loss(lambda x, W, y: textbook.a_softmax(x, W, y, 3, lam)))


@pytest.mark.parametrize("road", ROADS)
def test_warmup_at_each_step(road):
    head = make_head(4, 6, "arcface(s=20, m=warmup(0, 0.5, steps=10))", road)
    for t in range(13):
        m = 0.5 * min(t, 10) / 10
        x, y = make_batch(head, 10, "random", t)
        reference = plain_loss(lambda x, W, y, m=m: textbook.arcface(x, W, y, 20.0, m))
        head.eval()
        assert_matches(head, x, y, reference)
        head.train()
        assert_matches(head, x, y, reference)
        assert head.margin_state.steps == t + 1


# ---------------------------------------------------------------- logits


@pytest.mark.parametrize("regime", ["random", "trained", "opposed"])
@pytest.mark.parametrize("spelling", FIXED)
def test_logits(spelling, regime):
    """With labels they are the textbook's and their cross-entropy is the loss; without, nothing has a margin."""
    head = make_head(5, 8, spelling, smoothing=0.1).eval()
    x, y = make_batch(head, 12, regime)
    z = head.logits(x, y).detach()
    wanted = FIXED[spelling](x, head.weight.detach(), y)
    torch.testing.assert_close(z, wanted, rtol=1e-12, atol=1e-12)
    assert_same_loss(F.cross_entropy(z, y, reduction="none", label_smoothing=0.1), head(x, y).detach())
    plain = head.logits(x).detach()
    for other in range(1, 8):  # the entry of any class is the plain one whenever the label is another
        labels = (y + other) % 8
        shifted = FIXED[spelling](x, head.weight.detach(), labels)
        torch.testing.assert_close(textbook.target_of(plain, y), textbook.target_of(shifted, y), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spelling", [*ADAPTIVE, "softmax(bias=True)"])
def test_cross_entropy_of_logits_is_the_loss(spelling):
    head = make_head(5, 8, spelling)
    for seed in range(3):
        head(*make_batch(head, 13, "trained", seed))
    head.eval()
    x, y = make_batch(head, 13)
    assert_same_loss(F.cross_entropy(head.logits(x, y), y, reduction="none").detach(), head(x, y).detach())


def test_logits_of_arcgrad_are_angles():
    head = make_head(5, 8, "arcgrad(s=3)")
    x, _ = make_batch(head, 6)
    angles = torch.acos(textbook.cosines(x, head.weight.detach()))
    torch.testing.assert_close(head.logits(x).detach(), -3.0 * angles, rtol=1e-12, atol=0)


# ---------------------------------------------------------------- gradients by finite differences


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("spelling", [*EACH, "softmax(bias=True)", "arcface(s=6, m=0.5)", "adacos", "adaacos"])
def test_finite_differences(spelling, road):
    head = make_head(3, 4, spelling, road, smoothing=0.1)
    for seed in range(2):
        head(*make_batch(head, 7, "trained", seed))
    head.eval()
    x, y = make_batch(head, 4, "random", 3)
    names = [name for name in ("weight", "bias") if getattr(head, name) is not None]
    leaves = [getattr(head, name).detach().clone().requires_grad_() for name in names]

    def loss(x, *leaves):
        return torch.func.functional_call(head, dict(zip(names, leaves, strict=True)), (x, y))

    assert torch.autograd.gradcheck(loss, (x.requires_grad_(), *leaves))


# ---------------------------------------------------------------- identities of the papers


def assert_same_heads(one: str, other: str, road: str, unit_x: bool = False) -> None:
    """Two losses agree in value and gradient, wherever the embeddings are."""
    for seed, regime in enumerate(("random", "trained", "opposed")):
        heads = [make_head(4, 6, spelling, road).eval() for spelling in (one, other)]
        x, y = make_batch(heads[0], 16, regime, seed)
        x = F.normalize(x) if unit_x else x
        cotangent = torch.linspace(0.5, 1.5, 16, dtype=torch.float64)
        (loss, gradients), (wanted, wanted_gradients) = (head_result(head, x, y, cotangent) for head in heads)
        assert_same_loss(loss, wanted)
        # The length of x is kept by some losses: only directions are compared where x has unit length.
        if not unit_x:
            assert_same_gradient(gradients[0], wanted_gradients[0])
        assert_same_gradient(gradients[1], wanted_gradients[1])


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("arcface(s=20, m=0)", "normface(s=20)"),
        ("cosface(s=20, m=0)", "normface(s=20)"),
        ("l_softmax(m=1)", "softmax"),
        ("l_softmax(m=1, lam=0)", "softmax"),
        ("a_softmax(m=1)", "modified_softmax"),
        ("a_softmax(m=1, lam=0)", "modified_softmax"),
        ("m_softmax(m=0)", "softmax"),
        ("combined(s=20, m1=1, m2=0, m3=0.3)", "cosface(s=20, m=0.3)"),
        ("combined(s=20, m1=1, m2=0, m3=0)", "normface(s=20)"),
    ],
)
def test_identity(one, other, road):
    assert_same_heads(one, other, road)


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_combined_with_a_whole_factor_is_psi(m):
    """As a curve on [0, π], and as A-Softmax on embeddings of unit length."""
    theta = torch.linspace(0, math.pi, 1001, dtype=torch.float64)[1:-1]
    curve = wm.Combined(s=1, m1=m, m2=0, m3=0).psi(theta)
    torch.testing.assert_close(curve, textbook.psi_curve(theta, m), rtol=0, atol=1e-13)
    assert_same_heads(f"combined(s=1, m1={m}, m2=0, m3=0)", f"a_softmax(m={m}, lam=0)", "dense", unit_x=True)


@pytest.mark.parametrize("name", ["a_softmax", "l_softmax"])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 7])
def test_psi_is_continuous_and_decreasing(name, m):
    theta = torch.linspace(0, math.pi, 20001, dtype=torch.float64)
    steps = wm.parse(f"{name}(m={m}, lam=0)").psi(theta).diff()
    assert steps.max() <= 1e-12
    assert steps.min() >= -1.01 * m * math.pi / 20000


@pytest.mark.parametrize("road", ROADS)
def test_combined_with_an_added_angle_is_arcface_up_to_the_jump(road):
    arcface = make_head(4, 6, "arcface(s=20, m=0.7)", road).eval()
    combined = make_head(4, 6, "combined(s=20, m1=1, m2=0.7, m3=0)", road).eval()
    near, y_near = make_batch(arcface, 30, "random")
    far, y_far = make_batch(arcface, 10, "opposed")
    x, y = torch.cat([near, far]), torch.cat([y_near, y_far])
    before = target_angles(arcface, x, y) <= math.pi - 0.7
    one, other = arcface(x, y).detach(), combined(x, y).detach()
    assert before.sum() > 10
    assert_same_loss(one[before], other[before])
    assert (~before).sum() > 5
    assert ((one - other).abs()[~before] > 1e-3).any()


# ---------------------------------------------------------------- straight-through ArcFace


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("regime", ["random", "trained", "opposed"])
def test_straight_through_keeps_the_loss_and_takes_the_slope_of_the_cosine(regime, road):
    head = make_head(4, 6, "arcface(s=20, m=0.5, gradient=straight_through)", road).eval()
    x, y = make_batch(head, 16, regime)
    assert_same_loss(head(x, y).detach(), textbook.loss(textbook.arcface(x, head.weight.detach(), y, 20.0, 0.5), y))
    assert_matches(head, x, y, lambda x, W, y: textbook.loss(textbook.arcface_straight_through(x, W, y, 20.0, 0.5), y))


def test_straight_through_slope_at_the_target_cosine():
    """d loss / d cos_y = −σ s with σ = 1 − p_y, and s p_j for the others; the exact form's differs."""
    s, m = 20.0, 0.5
    head = make_head(4, 6, "arcface")
    x, y = make_batch(head, 16)
    cos = textbook.cosines(x, head.weight.detach())
    slopes = {}
    for gradient in ("straight_through", "exact"):
        leaf = cos.clone().requires_grad_()
        loss = wm.margin_softmax(leaf, y, f"arcface(s={s}, m={m}, gradient={gradient})")
        (slopes[gradient],) = torch.autograd.grad(loss.sum(), leaf)
    p = textbook.arcface(x, head.weight.detach(), y, s, m).softmax(1)
    wanted = s * (p - F.one_hot(y, 6))
    torch.testing.assert_close(slopes["straight_through"], wanted, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(slopes["exact"], wanted, rtol=1e-3)


# ---------------------------------------------------------------- degenerate points


DEGENERATE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    # Target logit over the angle, other logits over the cosine.
    "normface(s=4)": (lambda theta: 4 * theta.cos(), lambda c: 4 * c),
    "arcface(s=4, m=0.5)": (lambda theta: 4 * textbook.arcface_curve(theta, 0.5), lambda c: 4 * c),
    "combined(s=4, m1=2, m2=0, m3=0.1)": (lambda theta: 4 * (textbook.psi_curve(theta, 2) - 0.1), lambda c: 4 * c),
    "arcgrad(s=4)": (lambda theta: -4 * theta, lambda c: -4 * torch.acos(c)),
}


@pytest.mark.parametrize("theta", [0.0, math.pi])
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("spelling", DEGENERATE)
def test_no_slope_exactly_on_the_line_of_the_class_weight(spelling, road, theta):
    """At a target angle of exactly 0 or π the target's logit counts as constant; the others' gradients stay."""
    target, others = DEGENERATE[spelling]
    head = make_head(3, 4, spelling, road).eval()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[2.0, 0, 0], [0, 1, 1], [0.5, 1, -2], [-1, 0.3, 0.2]]))
    x, y = (3.0 if theta == 0.0 else -3.0) * head.weight.detach()[:1], torch.tensor([0])
    own = target(torch.tensor([[theta]], dtype=torch.float64))
    assert_matches(
        head, x, y, lambda x, W, y: textbook.loss(torch.cat([own, others(textbook.cosines(x, W[1:]))], 1), y)
    )


AT_LENGTH_ZERO = {  # margin → target and other logits where every cosine is 0
    "normface": (0.0, 0.0),
    "cosface": (-0.35 * 64, 0.0),
    "arcface": (-64 * math.sin(0.5), 0.0),
    "combined": (-64 * math.sin(0.5), 0.0),
    "arcgrad": (-5 * math.pi, -5 * math.pi),
    "adacos": (0.0, 0.0),
    "adaacos": (0.0, 0.0),
    "softmax": (0.0, 0.0),
    "modified_softmax": (0.0, 0.0),
    "m_softmax": (-0.5, 0.0),
    "l_softmax": (0.0, 0.0),
    "a_softmax": (0.0, 0.0),
}


def result_at_length_zero(name: str, road: str) -> tuple[Tensor, Tensor, Tensor]:
    head = make_head(3, 4, name, road).eval()
    x = torch.zeros(2, 3, dtype=torch.float64)
    loss, (to_x, to_weight) = head_result(head, x, torch.tensor([1, 3]), torch.ones(2, dtype=torch.float64))
    return loss, to_x, to_weight


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", AT_LENGTH_ZERO)
def test_loss_of_an_embedding_of_length_zero(name, road):
    loss, _, to_weight = result_at_length_zero(name, road)
    target, others = AT_LENGTH_ZERO[name]
    wanted = math.log(math.exp(target) + 3 * math.exp(others)) - target
    assert_same_loss(loss, torch.full((2,), wanted, dtype=torch.float64))
    assert not to_weight.any()


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", AT_LENGTH_ZERO)
def test_no_gradient_to_an_embedding_of_length_zero(name, road):
    _, to_x, _ = result_at_length_zero(name, road)
    assert not to_x.any(), f"gradient {to_x.tolist()}"
