"""What several margins share, against the textbook: adaptive sequences, logits, identities, degenerate points."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import textbook
from margin_cases import (
    ADAPTIVE,
    BACKENDS,
    EACH,
    FIXED,
    REGIMES,
    TWO_CLASS_ADAPTIVE,
    assert_matches,
    assert_same_heads,
    assert_same_loss,
    assert_state,
    head_result,
    make_batch,
    make_head,
    plain_loss,
    state_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("spelling", EACH)
def test_stream_over_several_blocks_of_classes(spelling):
    """So many samples that the streamed backend takes its smallest blocks, and the last one is not full."""
    head = make_head(3, 300, spelling, "stream", label_smoothing=0.1).eval()
    x, y = make_batch(head, 4200)
    assert_matches(head, x, y, plain_loss(FIXED[spelling], label_smoothing=0.1))


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


@pytest.mark.parametrize("spelling", [*ADAPTIVE, "softmax(bias=True)"])
def test_cross_entropy_of_logits_is_the_loss(spelling):
    head = make_head(5, 8, spelling)
    for seed in range(3):
        head(*make_batch(head, 13, "trained", seed))
    head.eval()
    x, y = make_batch(head, 13)
    assert_same_loss(F.cross_entropy(head.logits(x, y), y, reduction="none").detach(), head(x, y).detach())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", [*EACH, "softmax(bias=True)", "arcface(s=6, m=0.5)", "adacos", "adaacos"])
def test_finite_differences(spelling, backend):
    head = make_head(3, 4, spelling, backend, label_smoothing=0.1)
    for seed in range(2):
        head(*make_batch(head, 7, "trained", seed))
    head.eval()
    x, y = make_batch(head, 4, "random", 3)
    names = [name for name in ("weight", "bias") if getattr(head, name) is not None]
    leaves = [getattr(head, name).detach().clone().requires_grad_() for name in names]

    def loss(x, *leaves):
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
