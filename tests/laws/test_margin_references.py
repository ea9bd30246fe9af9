"""What several margins share, against the textbook: adaptive sequences, logits, identities, degenerate points."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import textbook
import widemargin as wm
from later_cases import SETTINGS
from margin_cases import (
    ADAPTIVE,
    BACKENDS,
    EACH,
    FIXED,
    LATER,
    LATER_ADAPTIVE,
    REGIMES,
    SMOOTHED,
    TWO_CLASS_ADAPTIVE,
    assert_is_later_textbook,
    assert_matches,
    assert_same_heads,
    assert_same_loss,
    assert_state,
    head_result,
    later_loss,
    loss_reference,
    make_batch,
    make_head,
    plain_loss,
    simulate,
    state_of,
)
from textbook_later import REFERENCES
from widemargin.losses.registry import list_losses

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_later_loss_has_a_reference_and_settings():
    """The others have theirs in `FIXED` and `ADAPTIVE`."""
    known = {wm.parse(spelling).name for spelling in (*FIXED, *ADAPTIVE)}
    assert known | set(SETTINGS) == set(list_losses("margins"))
    assert set(SETTINGS) <= set(REFERENCES)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", LATER)
def test_loss_and_gradients_of_later_losses(spelling, backend):
    for regime in REGIMES:
        assert_is_later_textbook(spelling, backend, regime)


# Loops that laws/test_heads.py does not compile in single precision, and products without a length, in double: of each
# loss the first spelling, for the loops of the others are the same.
COMPILED_NAMES = ("l_softmax", "arcgrad", "aam_softmax(s=9.0, k", "soft_triple(s", "uniface", "curricularface")
COMPILED = [next(spelling for spelling in EACH if spelling.startswith(name)) for name in COMPILED_NAMES]


@pytest.mark.parametrize(
    ("spelling", "kernels"),
    [
        *((spelling, "plain") for spelling in EACH),
        *(pytest.param(spelling, "compiled", marks=pytest.mark.slow) for spelling in COMPILED),
        *(pytest.param(one, "compiled", marks=pytest.mark.exhaustive) for one in EACH if one not in COMPILED),
    ],
)
def test_stream_over_several_blocks_of_classes(spelling, kernels, monkeypatch):
    """So many samples that the streamed backend takes its smallest blocks, and the last one is not full."""
    if kernels == "plain":
        monkeypatch.setenv("WIDEMARGIN_COMPILE", "0")
    smoothing = 0.1 if spelling in SMOOTHED else 0.0
    head = make_head(3, 300, spelling, "stream", label_smoothing=smoothing).eval()
    x, y = make_batch(head, 4200)
    assert_matches(head, x, y, loss_reference(spelling, 300, smoothing))


@pytest.mark.parametrize("samples", [14, 15])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", ADAPTIVE)
def test_five_training_batches(spelling, backend, samples):
    """Odd and even batches (the median is the lower one), easy and hard ones, evaluation in between."""
    head = make_head(6, 9, spelling, backend)
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


@pytest.mark.parametrize("samples", [1, 14])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", LATER_ADAPTIVE)
def test_five_training_batches_of_later_losses(spelling, backend, samples):
    """With label smoothing, evaluation in between; one sample alone has no standard deviation."""
    head = make_head(6, 9, spelling, backend, label_smoothing=0.1)
    simulation = simulate(spelling, 9)
    loss_of, values = later_loss(simulation, 0.1), set()
    for seed, regime in enumerate(("random", "trained", "trained", "random", "opposed")):
        x, y = make_batch(head, samples, regime, seed)
        simulation.observe(x, head.weight.detach(), y)
        assert_matches(head, x, y, loss_of)
        assert_state(head, simulation)
        other, labels = make_batch(head, samples, "random", seed + 50)
        assert_matches(head.eval(), other, labels, loss_of)
        assert_state(head.train(), simulation)
        values.add(tuple(value.item() for value in state_of(head).values() if value.is_floating_point()))
    assert len(values) == 5


@pytest.mark.parametrize("spelling", [*ADAPTIVE, *LATER_ADAPTIVE, "a_softmax", "arcface(m=warmup(0, 0.5, steps=10))"])
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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", ["adacos", "adacos(fixed=True)", "adaacos"])
def test_two_classes_without_a_floor_cannot_learn(spelling, backend):
    with pytest.warns(UserWarning, match="2 classes"):
        head = make_head(4, 2, spelling, backend)
    for seed in range(3):
        x, y = make_batch(head, 9, "random", seed)
        loss, gradients = head_result(head, x, y, torch.ones(9, dtype=torch.float64))
        assert_same_loss(loss, torch.full((9,), math.log(2), dtype=torch.float64))
        assert not any(gradient.any() for gradient in gradients)
        assert head.scale == 0.0
        assert head.margin_state.steps == seed + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", TWO_CLASS_ADAPTIVE)
def test_two_classes_with_a_floor_learn(spelling, backend):
    head = make_head(4, 2, spelling, backend)
    x, y = make_batch(head, 20, "random")
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
    right_before = (head.logits(x).argmax(1) == y).sum()
    for _ in range(60):
        optimizer.zero_grad()
        head(x, y).mean().backward()
        optimizer.step()
    assert (head.logits(x).argmax(1) == y).sum() > right_before
    assert head.scale >= 4.0


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("spelling", FIXED)
def test_logits(spelling, regime):
    """With labels they are the textbook's and their cross-entropy is the loss; without, nothing has a margin."""
    head = make_head(5, 8, spelling, label_smoothing=0.1).eval()
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


@pytest.mark.parametrize("spelling", LATER)
def test_logits_of_later_losses(spelling):
    """With labels those whose cross-entropy is the loss; without, the reference's, up to a constant of the sample."""
    head = make_head(5, 8, spelling).eval()
    simulation = simulate(spelling, 8)
    for regime in REGIMES:
        x, y = make_batch(head, 12, regime)
        with torch.no_grad():
            plain, wanted = head.logits(x), simulation.logits(x, head.weight)
            assert_same_up_to_a_constant(plain, wanted)
            if hasattr(simulation, "margin_logits") and head.margin.name != "elasticface":
                assert_same_up_to_a_constant(head.logits(x, y), simulation.margin_logits(x, head.weight, y))


def assert_same_up_to_a_constant(got: Tensor, wanted: Tensor) -> None:
    off = got - wanted
    torch.testing.assert_close(off, off[:, :1].expand_as(off), rtol=0, atol=1e-12 * wanted.abs().max().item() + 1e-13)


@pytest.mark.parametrize("spelling", [*ADAPTIVE, "softmax(bias=True)"])
def test_cross_entropy_of_logits_is_the_loss(spelling):
    head = make_head(5, 8, spelling)
    for seed in range(3):
        head(*make_batch(head, 13, "trained", seed))
    head.eval()
    x, y = make_batch(head, 13)
    assert_same_loss(F.cross_entropy(head.logits(x, y), y, reduction="none").detach(), head(x, y).detach())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "spelling",
    [
        *(spelling for spelling in EACH if "circle" not in spelling and "gradient=" not in spelling),  # by design not
        "softmax(bias=True)",
        "arcface(s=6, m=0.5)",
        "adacos",
        "adaacos",
    ],
)
def test_finite_differences(spelling, backend):
    head = make_head(
        3, 4, spelling, backend, label_smoothing=0.0 if spelling in EACH and spelling not in SMOOTHED else 0.1
    )
    for seed in range(2):
        head(*make_batch(head, 7, "trained", seed))
    head.eval()
    x, y = make_batch(head, 4, "random", 3)
    names = [name for name, _ in head.named_parameters()]
    leaves = [parameter.detach().clone().requires_grad_() for parameter in head.parameters()]

    length = textbook.lengths(x)

    def loss(x, *leaves):
        # The quality that AdaFace reads off the length has no gradient.
        x = F.normalize(x) * length if head.margin.name == "adaface" else x
        return torch.func.functional_call(head, dict(zip(names, leaves, strict=True)), (x, y))

    assert torch.autograd.gradcheck(loss, (x.requires_grad_(), *leaves))


@pytest.mark.parametrize("backend", BACKENDS)
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
        ("subcenter_arcface(s=20, m=0.3, k=1)", "arcface(s=20, m=0.3)"),
        ("soft_triple(s=20, m=0.3, k=1)", "cosface(s=20, m=0.3)"),
        ("mv_softmax(s=20, m=0.3, t=0)", "cosface(s=20, m=0.3)"),
        ("adaface(s=20, m=0.3, h=0)", "cosface(s=20, m=0.3)"),
        ("elasticface(s=20, m=0.3, form=cos)", "cosface(s=20, m=0.3)"),
        ("ldam(s=20, counts=[4, 4, 4, 4, 4, 4])", "cosface(s=20, m=0.5)"),
        ("ldam(s=20, m=0.3)", "cosface(s=20, m=0.3)"),
        ("magface(s=20, l_m=0.3, u_m=0.3, lambda_g=0)", "arcface(s=20, m=0.3)"),
        ("sphereface_r(s=20, m=1)", "normface(s=20)"),
        ("sphereface_r(s=20, m=1, version=v2)", "normface(s=20)"),
        ("logit_adjusted(tau=0, counts=[1, 2, 3, 4, 5, 6])", "softmax"),
        ("logit_adjusted(counts=[3, 3, 3, 3, 3, 3])", "softmax"),
        ("logit_adjusted(counts=[3, 3, 3, 3, 3, 3], cosine=True, s=20)", "normface(s=20)"),
        ("proxy_nca(s=20)", "lm_softmax(s=20)"),
        ("proxy_nca_pp(s=20)", "normface(s=20)"),
        ("aam_softmax(s=20, m=0.3, topk=3, penalty=0)", "aam_softmax(s=20, m=0.3)"),
        ("combined(s=20, m1=1.3, m2=0.2, gradient=exact)", "combined(s=20, m1=1.3, m2=0.2)"),
        ("sphereface2(s=20, form=a, m=0)", "sphereface2(s=20, form=c, m=0)"),
        ("sphereface2(s=20, form=m, m=1)", "sphereface2(s=20, form=c, m=0)"),
    ],
)
def test_identity(one, other, backend):
    assert_same_heads(one, other, backend)


DEGENERATE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    # Target logit over the angle, other logits over the cosine.
    "normface(s=4)": (lambda theta: 4 * theta.cos(), lambda c: 4 * c),
    "arcface(s=4, m=0.5)": (lambda theta: 4 * textbook.arcface_curve(theta, 0.5), lambda c: 4 * c),
    "combined(s=4, m1=2, m2=0, m3=0.1)": (lambda theta: 4 * (textbook.psi_curve(theta, 2) - 0.1), lambda c: 4 * c),
    "arcgrad(s=4)": (lambda theta: -4 * theta, lambda c: -4 * torch.acos(c)),
}


@pytest.mark.parametrize("theta", [0.0, math.pi])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", DEGENERATE)
def test_no_slope_exactly_on_the_line_of_the_class_weight(spelling, backend, theta):
    """At a target angle of exactly 0 or π the target's logit counts as constant; the others' gradients stay."""
    target, others = DEGENERATE[spelling]
    head = make_head(3, 4, spelling, backend).eval()
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


def result_at_length_zero(name: str, backend: str) -> tuple[Tensor, Tensor, Tensor]:
    head = make_head(3, 4, name, backend).eval()
    x = torch.zeros(2, 3, dtype=torch.float64)
    loss, (to_x, to_weight) = head_result(head, x, torch.tensor([1, 3]), torch.ones(2, dtype=torch.float64))
    return loss, to_x, to_weight


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", [spelling for spelling in LATER if not spelling.startswith("proxy")])
def test_an_embedding_of_length_zero_in_later_losses(spelling, backend):
    """All its cosines are 0, as in the reference, and it has no gradient; weights have that of a penalty on them."""
    head = make_head(3, 4, spelling, backend).eval()
    x, y = torch.zeros(2, 3, dtype=torch.float64), torch.tensor([1, 3])
    reference = loss_reference(spelling, 4)
    loss, (to_x, to_weight, *_) = head_result(head, x, y, torch.ones(2, dtype=torch.float64))
    assert_same_loss(loss, reference(x, head.weight.detach(), y).detach())
    assert not to_x.any()
    assert bool(to_weight.any()) == head.margin.has_weight_penalty
    if not head.margin.uses_x_norm:
        assert_matches(head, x, y, reference)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", AT_LENGTH_ZERO)
def test_loss_of_an_embedding_of_length_zero(name, backend):
    loss, _, to_weight = result_at_length_zero(name, backend)
    target, others = AT_LENGTH_ZERO[name]
    wanted = math.log(math.exp(target) + 3 * math.exp(others)) - target
    assert_same_loss(loss, torch.full((2,), wanted, dtype=torch.float64))
    assert not to_weight.any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", AT_LENGTH_ZERO)
def test_no_gradient_to_an_embedding_of_length_zero(name, backend):
    _, to_x, _ = result_at_length_zero(name, backend)
    assert not to_x.any(), f"gradient {to_x.tolist()}"
