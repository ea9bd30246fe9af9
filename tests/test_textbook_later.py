"""The references of the later losses: values by hand in the plane, neutral points, finite differences, a peer.

In the plane the classes lie at 60°, 90° and 120° from x, so that the cosines are 1/2, 0 and −1/2; sample i of the
batch has class i.
"""

from __future__ import annotations

import math
import statistics
from math import cos, exp, log, log1p, pi, sin, sqrt

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import regularizers as pml_regularizers
from torch import Tensor

import textbook
import textbook_later
from textbook_later import REFERENCES, Reference

ANGLES = (pi / 3, pi / 2, 2 * pi / 3)
LENGTHS = (2.0, 0.5, 3.0)
COUNTS = torch.tensor([16, 1, 81])


def make(name: str, num_classes: int = 3, **options) -> Reference:
    return REFERENCES[name](num_classes, **options)


def plane(r: float = 4.0) -> tuple[Tensor, Tensor, Tensor]:
    """Three copies of x with length r, class weights at `ANGLES` from it with `LENGTHS`, labels 0, 1, 2."""
    x = torch.tensor([[r, 0.0]] * 3, dtype=torch.float64)
    half, root = 0.5, sqrt(3) / 2
    directions = torch.tensor([[half, root], [0.0, 1.0], [-half, root]], dtype=torch.float64)
    return x, directions * torch.tensor(LENGTHS, dtype=torch.float64).unsqueeze(1), torch.arange(3)


def space(
    n: int = 12, classes: int = 5, dim: int = 3, *, k: int | None = None, r: float = 4.0, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """A random batch; in three dimensions angles close to 0 and to π occur."""
    generator = torch.Generator().manual_seed(seed)
    x = r * torch.randn(n, dim, generator=generator, dtype=torch.float64)
    shape = (classes, dim) if k is None else (classes, k, dim)
    W = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x, W, torch.randint(classes, (n,), generator=generator)


def entropy(target: float, *others: float) -> float:
    """Cross-entropy of the target's logit among the others."""
    return log1p(sum(exp(z - target) for z in others))


def plus(z: float) -> float:
    return log1p(exp(z))


def assert_close(found: Tensor, expected: Tensor | list[float], tolerance: float = 1e-13) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found.detach(), expected.detach(), rtol=tolerance, atol=tolerance)


def gradients(loss: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    weights = torch.linspace(1.0, 2.0, len(loss), dtype=torch.float64)  # no sample's share hides another's
    return torch.autograd.grad((weights * loss).sum(), leaves)


def assert_same(one, other, x: Tensor, W: Tensor, tolerance: float = 1e-12) -> None:
    """Both functions of (x, W) have the same values [N] and gradients."""
    x, W = x.clone().requires_grad_(), W.clone().requires_grad_()
    found, expected = one(x, W), other(x, W)
    assert_close(found, expected, tolerance)
    for found_slope, expected_slope in zip(gradients(found, x, W), gradients(expected, x, W), strict=True):
        torch.testing.assert_close(found_slope, expected_slope, rtol=tolerance, atol=tolerance)


def loss_of(name: str, y: Tensor, num_classes: int = 5, *, call: dict | None = None, **options):
    reference = make(name, num_classes, **options)
    return lambda x, W: reference.loss(x, W, y, **(call or {}))


def plain(name: str, y: Tensor, **options):
    """A loss of `textbook` as a function of (x, W)."""
    return lambda x, W: textbook.loss(getattr(textbook, name)(x, W, y, **options), y)


# ---------------------------------------------------------------- by hand, in the plane


IN_THE_PLANE = {
    "arcgrad(s=2, m=0.1)": [
        entropy(-2 * (pi / 3 + 0.1), -pi, -4 * pi / 3),
        entropy(-2 * (pi / 2 + 0.1), -2 * pi / 3, -4 * pi / 3),
        entropy(-2 * (2 * pi / 3 + 0.1), -2 * pi / 3, -pi),
    ],
    "combined(s=2, m1=1.5, m2=0.25, m3=0.1)": [  # the third turns past π: −cos(π + 0.25) − 2
        entropy(2 * (cos(pi / 2 + 0.25) - 0.1), 0, -1),
        entropy(2 * (cos(3 * pi / 4 + 0.25) - 0.1), 1, -1),
        entropy(2 * (cos(0.25) - 2 - 0.1), 1, 0),
    ],
    # m = 0.5 / 2, 0.5 and 0.5 / 3
    "ldam(s=2)": [entropy(0.5, 0, -1), entropy(-1, 1, -1), entropy(-4 / 3, 1, 0)],
    # x·W = 4, 0, −6; the prior is (16, 1, 81) / 98
    "logit_adjusted()": [
        log1p(1 / 16 * exp(0 - 4) + 81 / 16 * exp(-6 - 4)),
        log1p(16 * exp(4 - 0) + 81 * exp(-6 - 0)),
        log1p(16 / 81 * exp(4 + 6) + 1 / 81 * exp(0 + 6)),
    ],
    "logit_adjusted(s=2, tau=0.5)": [
        log1p(sqrt(1 / 16) * exp(0 - 1) + sqrt(81 / 16) * exp(-1 - 1)),
        log1p(sqrt(16) * exp(1 - 0) + sqrt(81) * exp(-1 - 0)),
        log1p(sqrt(16 / 81) * exp(1 + 1) + sqrt(1 / 81) * exp(0 + 1)),
    ],
    # cos(θ + m) is 0.024, −0.479, −0.853: the others above it become c (0.3 + c)
    "curricularface(s=2, t=0.3)": [
        entropy(2 * cos(pi / 3 + 0.5), 0, -1),
        entropy(-2 * sin(0.5), 2 * 0.5 * 0.8, -1),
        entropy(2 * cos(2 * pi / 3 + 0.5), 2 * 0.5 * 0.8, 0),
    ],
    # the third is past π − m; compared with cos(θ + m) = −0.988
    "curricularface(s=2, m=1.2, t=0.3)": [
        entropy(2 * cos(pi / 3 + 1.2), 0 * 0.3, 2 * -0.5 * (0.3 - 0.5)),
        entropy(-2 * sin(1.2), 2 * 0.5 * 0.8, 2 * -0.5 * (0.3 - 0.5)),
        entropy(2 * (-0.5 - 1.2 * sin(1.2)), 2 * 0.5 * 0.8, 0),
    ],
    # the target is 0.15, −0.35, −0.85; above it 1.2 c + 0.2
    "mv_softmax(s=2)": [entropy(0.3, 0, -1), entropy(-0.7, 1.6, -1), entropy(-1.7, 1.6, 0.4)],
    "mv_softmax(s=2, easy=True)": [entropy(0.3, 0, -1), entropy(0, 1.6, -1), entropy(-1, 1.6, 0.4)],
    # the target would be −0.1, −0.6, −1.1; that decides which others are above it, also where it is c_y after all
    "mv_softmax(s=2, m=0.6, easy=True)": [entropy(-0.2, 0.4, -1), entropy(0, 1.6, -0.8), entropy(-1, 1.6, 0.4)],
    "mv_softmax(s=2, kind='arc')": [
        entropy(2 * cos(pi / 3 + 0.35), 0, -1),
        entropy(-2 * sin(0.35), 1.6, -1),
        entropy(2 * cos(2 * pi / 3 + 0.35), 1.6, 0.4),
    ],
    # no guard: θ + m = 200° has the cosine of 160°
    f"mv_softmax(s=2, kind='arc', m={4 * pi / 9})": [
        entropy(2 * cos(7 * pi / 9), 0.4, -1 * 1.2 + 0.4),
        entropy(2 * cos(17 * pi / 18), 1.6, -1 * 1.2 + 0.4),
        entropy(2 * cos(8 * pi / 9), 1.6, 0.4),
    ],
    # r = 4: q = 0.5 (4 − 3) / (1.999 + 0.001) = 0.25
    "adaface(s=2, h=0.5, mean=3, std=1.999)": [
        entropy(2 * (cos(pi / 3 - 0.1) - 0.5), 0, -1),
        entropy(2 * (sin(0.1) - 0.5), 1, -1),
        entropy(2 * (cos(2 * pi / 3 - 0.1) - 0.5), 1, 0),
    ],
    # q is clipped to −1: all of the margin is in the angle, and θ + m is clipped to π
    "adaface(s=2, m=1.2, h=1, mean=30, std=1)": [
        entropy(2 * cos(pi / 3 + 1.2), 0, -1),
        entropy(2 * cos(pi / 2 + 1.2), 1, -1),
        entropy(-2, 1, 0),
    ],
    # q is clipped to 1, and θ − m to 0
    "adaface(s=2, m=1.2, h=1, mean=0, std=1)": [
        entropy(2 * (1 - 2.4), 0, -1),
        entropy(2 * (sin(1.2) - 2.4), 1, -1),
        entropy(2 * (cos(2 * pi / 3 - 1.2) - 2.4), 1, 0),
    ],
    # halfway between 3 and 5: m = 0.625; 1/4 + 4/25 = 0.41
    "magface(s=2, l_a=3, u_a=5, lambda_g=10)": [
        entropy(2 * cos(pi / 3 + 0.625), 0, -1) + 4.1,
        entropy(-2 * sin(0.625), 1, -1) + 4.1,
        entropy(2 * cos(2 * pi / 3 + 0.625), 1, 0) + 4.1,
    ],
    "magface(s=2, l_a=3, u_a=5, l_m=1.1, u_m=1.3, lambda_g=0)": [
        entropy(2 * cos(pi / 3 + 1.2), 0, -1),
        entropy(-2 * sin(1.2), 1, -1),
        entropy(2 * (-0.5 - 1.2 * sin(1.2)), 1, 0),
    ],
    "magface(s=2, easy=True)": [  # r = 4 < 10: a = 10, m = 0.45; at 90° itself there is the margin
        entropy(2 * cos(pi / 3 + 0.45), 0, -1) + 35 * (1 / 10 + 10 / 12100),
        entropy(-2 * sin(0.45), 1, -1) + 35 * (1 / 10 + 10 / 12100),
        entropy(-1, 1, 0) + 35 * (1 / 10 + 10 / 12100),
    ],
    "elasticface(s=2)": [  # evaluation: m = 0.5
        entropy(2 * cos(pi / 3 + 0.5), 0, -1),
        entropy(-2 * sin(0.5), 1, -1),
        entropy(2 * cos(2 * pi / 3 + 0.5), 1, 0),
    ],
    "elasticface(s=2, kind='cos')": [entropy(0.3, 0, -1), entropy(-0.7, 1, -1), entropy(-1.7, 1, 0)],
    # 60° → 90°, 90° → 135°, 120° → 180°
    "sphereface_r(s=2)": [entropy(0, 0, -1), entropy(-sqrt(2), 1, -1), entropy(-2, 1, 0)],
    "sphereface_r(s=2, m=1.75, weight=3)": [  # 210° is clipped to 180°
        1.5 * entropy(2 * cos(7 * pi / 12), 0, -1),
        1.5 * entropy(2 * cos(7 * pi / 8), 1, -1),
        1.5 * entropy(-2, 1, 0),
    ],
    "sphereface_r(s=2, version='v2')": [  # the others at 40°, 60°, 80°
        entropy(1, 1, 2 * cos(4 * pi / 9)),
        entropy(0, 2 * cos(2 * pi / 9), 2 * cos(4 * pi / 9)),
        entropy(-1, 2 * cos(2 * pi / 9), 1),
    ],
    # g is −5/32, −3/4, −31/32
    "sphereface2(s=2, b=0.3, weight=4)": [
        2
        * (
            0.7 * plus(-(2 * (-5 / 32 - 0.4) + 0.3)) + 0.3 * (plus(2 * (-0.35) + 0.3) + plus(2 * (0.4 - 31 / 32) + 0.3))
        ),
        2 * (0.7 * plus(-(2 * -1.15 + 0.3)) + 0.3 * (plus(2 * (0.4 - 5 / 32) + 0.3) + plus(2 * (0.4 - 31 / 32) + 0.3))),
        2
        * (0.7 * plus(-(2 * (-31 / 32 - 0.4) + 0.3)) + 0.3 * (plus(2 * (0.4 - 5 / 32) + 0.3) + plus(2 * -0.35 + 0.3))),
    ],
    # the target turned by 60°: 120°, 150°, 180°; (cos 150° + 1) / 2 = (2 − √3) / 4
    f"sphereface2(s=2, b=0.3, kind='a', m={pi / 3})": [
        0.5 * (0.7 * plus(-(2 * -31 / 32 + 0.3)) + 0.3 * (plus(2 * -0.75 + 0.3) + plus(2 * -31 / 32 + 0.3))),
        0.5
        * (
            0.7 * plus(-(2 * (2 * ((2 - sqrt(3)) / 4) ** 3 - 1) + 0.3))
            + 0.3 * (plus(2 * -5 / 32 + 0.3) + plus(2 * -31 / 32 + 0.3))
        ),
        0.5 * (0.7 * plus(-(-2 + 0.3)) + 0.3 * (plus(2 * -5 / 32 + 0.3) + plus(2 * -0.75 + 0.3))),
    ],
    # the target's angle times 4/3: 80°, 120°, 160°
    f"sphereface2(s=2, b=0.3, kind='m', m={4 / 3}, t=1)": [
        0.5 * (0.7 * plus(-(2 * cos(4 * pi / 9) + 0.3)) + 0.3 * (plus(0.3) + plus(-1 + 0.3))),
        0.5 * (0.7 * plus(-(-1 + 0.3)) + 0.3 * (plus(1 + 0.3) + plus(-1 + 0.3))),
        0.5 * (0.7 * plus(-(2 * cos(8 * pi / 9) + 0.3)) + 0.3 * (plus(1 + 0.3) + plus(0.3))),
    ],
    "uniface(s=2, l=0.5)": [
        plus(log(30) - 0.2) + 0.5 * (plus(-log(30)) + plus(-1 - log(30))),
        plus(log(30) + 0.8) + 0.5 * (plus(1 - log(30)) + plus(-1 - log(30))),
        plus(log(30) + 1.8) + 0.5 * (plus(1 - log(30)) + plus(-log(30))),
    ],
    # targets 0.75 · −0.25, 1.25 · −0.75, 1.75 · −1.25; others 0.75 · 0.25, 0.25 · −0.25, 0
    "circle(s=2)": [
        entropy(-0.375, -0.125, 0),
        entropy(-1.875, 0.375, 0),
        entropy(-4.375, 0.375, -0.125),
    ],
    "p2sgrad()": [0.25, 0.75, 1.25],
    "p2sgrad(mean=True)": [0.5 / 3, 1.5 / 3, 2.5 / 3],
    "lm_softmax(s=2)": [log(1 + exp(-1)) - 1, log(exp(1) + exp(-1)), log(exp(1) + 1) + 1],
    # d = 4 ‖x̂ − ŵ‖² = 4, 8, 12
    "proxy_nca(scale=2)": [
        4 + log(exp(-8) + exp(-12)),
        8 + log(exp(-4) + exp(-12)),
        12 + log(exp(-4) + exp(-8)),
    ],
    "proxy_nca_pp(temperature=0.5)": [entropy(-2, -4, -6), entropy(-4, -2, -6), entropy(-6, -2, -4)],
    "aam_softmax(s=2)": [
        entropy(2 * cos(pi / 3 + 0.2), 0, -1),
        entropy(-2 * sin(0.2), 1, -1),
        entropy(2 * cos(2 * pi / 3 + 0.2), 1, 0),
    ],
    # the third is past π − m, and the nearest other class is 0.1 nearer
    "aam_softmax(s=2, m=1.2, topk=1, penalty=0.1)": [
        entropy(2 * cos(pi / 3 + 1.2), 2 * sin(0.1), -1),
        entropy(-2 * sin(1.2), 2 * cos(pi / 3 - 0.1), -1),
        entropy(2 * (-0.5 - 1 + cos(1.2)), 2 * cos(pi / 3 - 0.1), 0),
    ],
    "aam_softmax(s=2, topk=2, penalty=0.1)": [
        entropy(2 * cos(pi / 3 + 0.2), 2 * sin(0.1), 2 * cos(2 * pi / 3 - 0.1)),
        entropy(-2 * sin(0.2), 2 * cos(pi / 3 - 0.1), 2 * cos(2 * pi / 3 - 0.1)),
        entropy(2 * cos(2 * pi / 3 + 0.2), 2 * cos(pi / 3 - 0.1), 2 * sin(0.1)),
    ],
    "subcenter_arcface(s=2)": [
        entropy(2 * cos(pi / 3 + 0.5), 0, -1),
        entropy(-2 * sin(0.5), 1, -1),
        entropy(2 * cos(2 * pi / 3 + 0.5), 1, 0),
    ],
}


def options_of(spelling: str) -> tuple[str, dict]:
    name, arguments = spelling.split("(", 1)
    options = eval(f"dict({arguments}")
    return name, options | ({"counts": COUNTS} if name in ("ldam", "logit_adjusted") else {})


@pytest.mark.parametrize("spelling", IN_THE_PLANE)
def test_values_by_hand(spelling):
    name, options = options_of(spelling)
    assert_close(make(name, **options).loss(*plane()), IN_THE_PLANE[spelling])


def test_every_reference_has_a_value_by_hand():
    by_hand = {spelling.split("(")[0] for spelling in IN_THE_PLANE}
    elsewhere = {"soft_triple", "l_softmax", "a_softmax"}  # with tests of their own below
    assert by_hand | elsewhere == set(REFERENCES)


SCALED_COSINES = (
    "combined",
    "subcenter_arcface",
    "ldam",
    "curricularface",
    "mv_softmax",
    "adaface",
    "magface",
    "elasticface",
    "sphereface_r",
    "circle",
    "lm_softmax",
    "aam_softmax",
    "soft_triple",  # here with one centre per class
)


def test_logits_by_hand():
    x, W, _ = plane()
    c = [0.5, 0.0, -0.5]
    expected = {
        "arcgrad(s=2, m=0.1)": [-2 * theta for theta in ANGLES],
        "logit_adjusted()": [4.0, 0.0, -6.0],
        "logit_adjusted(s=2)": [1.0, 0.0, -1.0],
        "sphereface2(s=2, b=0.3)": [0.3 - 10 / 32, 0.3 - 1.5, 0.3 - 62 / 32],
        "uniface(s=2)": [2 * each - log(30) for each in c],
        "p2sgrad()": c,
        "proxy_nca(scale=2)": [-4.0, -8.0, -12.0],
        "proxy_nca_pp(temperature=0.5)": [-2.0, -4.0, -6.0],
        "l_softmax()": [4.0, 0.0, -6.0],
        "a_softmax()": [2.0, 0.0, -2.0],
    }
    for spelling in [*expected, *(name + "(s=2)" for name in SCALED_COSINES)]:
        name, options = options_of(spelling)
        assert_close(make(name, **options).logits(x, W), [expected.get(spelling, [1.0, 0.0, -1.0])] * 3)


def test_the_nearest_subcenter_counts():
    """Two classes of two centres: the first at 60° and 100°, the second at 90° and 50°."""
    at = torch.tensor([[60.0, 100.0], [90.0, 50.0]], dtype=torch.float64).deg2rad()
    W = torch.stack([at.cos(), at.sin()], 2)
    x, y = torch.tensor([[3.0, 0.0]] * 2, dtype=torch.float64), torch.tensor([0, 1])
    near, nearer = pi / 3, 5 * pi / 18
    m = torch.tensor([0.5, 0.3], dtype=torch.float64)
    by_hand = [entropy(2 * cos(near + 0.5), 2 * cos(nearer)), entropy(2 * cos(nearer + 0.3), 1)]
    assert_close(make("subcenter_arcface", 2, s=2.0, m=m, k=2).loss(x, W, y), by_hand)
    assert_close(make("aam_softmax", 2, s=2.0, m=m, k=2).loss(x, W, y), by_hand)
    penalised = [
        entropy(2 * cos(near + 0.5), 2 * cos(nearer - 0.1)),
        entropy(2 * cos(nearer + 0.3), 2 * cos(near - 0.1)),
    ]
    assert_close(make("aam_softmax", 2, s=2.0, m=m, k=2, topk=1, penalty=0.1).loss(x, W, y), penalised)
    assert_close(make("subcenter_arcface", 2, s=2.0).logits(x, W), [[1.0, 2 * cos(nearer)]] * 2)


def test_soft_triple_by_hand():
    """Classes with centres at (60°, 90°) and (120°, 90°): within a class 30° apart."""
    at = torch.tensor([[60.0, 90.0], [120.0, 90.0]], dtype=torch.float64).deg2rad()
    W = torch.stack([at.cos(), at.sin()], 2) * 3.0
    x, y = torch.tensor([[3.0, 0.0]] * 2, dtype=torch.float64), torch.tensor([0, 1])
    first, second = 0.5 * exp(2) / (exp(2) + 1), -0.5 * exp(-2) / (exp(-2) + 1)  # gamma = 1/4
    penalty = 0.3 / (2 * 2 * 1) * 2 * sqrt(2 + 1e-5 - 2 * cos(pi / 6))
    reference = make("soft_triple", 2, s=2.0, m=0.1, gamma=0.25, k=2, tau=0.3)
    expected = [entropy(2 * (first - 0.1), 2 * second), entropy(2 * (second - 0.1), 2 * first)]
    assert_close(reference.loss(x, W, y), [each + penalty for each in expected])
    assert_close(reference.logits(x, W), [[2 * first, 2 * second]] * 2)


def test_draws_of_elasticface():
    x, W, y = plane()
    draws = torch.tensor([2.0, -1.0, 0.0], dtype=torch.float64)

    def by_hand(*m: float) -> list[float]:
        return [
            entropy(2 * cos(pi / 3 + m[0]), 0, -1),
            entropy(-2 * sin(m[1]), 1, -1),
            entropy(2 * cos(2 * pi / 3 + m[2]), 1, 0),
        ]

    trained = make("elasticface", s=2.0).loss(x, W, y, training=True, draws=draws)
    assert_close(trained, by_hand(0.6, 0.45, 0.5))
    reference = make("elasticface", s=2.0, plus=True)
    assert_close(reference.loss(x, W, y, training=True, draws=draws), by_hand(0.4825, 0.5, 0.535))
    wide = make("elasticface", s=2.0, plus=True, sigma=0.05)
    assert_close(wide.loss(x, W, y, training=True, draws=draws), by_hand(0.45, 0.5, 0.6))
    assert_close(reference.loss(x, W, y, draws=draws), by_hand(0.5, 0.5, 0.5))
    cosine = make("elasticface", s=2.0, kind="cos").loss(x, W, y, training=True, draws=draws)
    assert_close(cosine, [entropy(2 * (0.5 - 0.45), 0, -1), entropy(-0.6, 1, -1), entropy(2 * (-0.5 - 0.35), 1, 0)])
    with pytest.raises(ValueError, match="needs draws"):
        reference.loss(x, W, y, training=True)


@pytest.mark.parametrize("kind", ["arc", "cos"])
def test_elasticface_plus_orders_the_margins_against_the_cosines(kind):
    x, W, y = space(n=40)
    own = textbook.target_of(textbook.cosines(x, W), y)
    draws = torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    margins = make("elasticface", 5, kind=kind, plus=True).margins(own, draws)
    assert torch.equal(margins.argsort(), own.argsort(descending=True))
    m, sigma = {"arc": (0.5, 0.0175), "cos": (0.35, 0.02)}[kind]
    assert_close(margins.sort().values, (m + sigma * draws).sort().values)


# ---------------------------------------------------------------- state


def test_state_of_curricularface():
    x, W, _ = plane()
    y = torch.tensor([0, 0, 1])  # mean target cosine 1/3
    reference = make("curricularface")
    reference.loss(x, W, y, training=True)
    assert reference.t == 0.0
    reference.observe(x, W, y)
    assert reference.t == pytest.approx(0.01 / 3, rel=1e-13)
    reference.observe(x, W, y)
    assert reference.t == pytest.approx(0.01 / 3 * 1.99, rel=1e-13)


def test_state_of_adaface():
    _, W, y = plane()
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [120.0, 160.0]], dtype=torch.float64)  # 5, 0.001 and 100 after clipping
    reference = make("adaface", alpha=0.25)
    reference.observe(x, W, y)
    lengths = [5.0, 0.001, 100.0]
    assert reference.mean == pytest.approx(0.25 * statistics.mean(lengths) + 0.75 * 20, rel=1e-13)
    assert reference.std == pytest.approx(0.25 * statistics.stdev(lengths) + 0.75 * 100, rel=1e-13)
    mean, std = reference.mean, reference.std
    reference.observe(x[:1], W, y[:1])
    assert reference.mean == pytest.approx(0.25 * 5 + 0.75 * mean, rel=1e-13)
    assert reference.std == std


@pytest.mark.parametrize("name", ["l_softmax", "a_softmax"])
def test_annealing_counts_before_it_is_used(name):
    x, W, y = plane()
    reference = make(name)
    for t in range(3):
        reference.observe(x, W, y)
        lam = 1000 / (1 + 0.12 * (t + 1))
        assert textbook_later.anneal_after(t) == pytest.approx(lam, rel=1e-13)
        expected = getattr(textbook, name)(x, W, y, lam=lam)
        assert_close(reference.loss(x, W, y, training=True), textbook.loss(expected, y))
    assert textbook_later.anneal_after(10**6) == 5.0
    assert make(name, lam=0.0).lam == 0.0


# ---------------------------------------------------------------- neutral points and identities


NEUTRAL = {
    "arcgrad, m = 0": (("arcgrad", {}), ("arcgrad", {})),
    "combined": (("combined", {"m1": 1.3}), ("combined", {"m1": 1.3})),
    "sub-centres, K = 1": (("subcenter_arcface", {}), ("arcface", {})),
    "inter-top-K, K = 1, m = 0, penalty 0": (
        ("aam_softmax", {"m": 0.0, "topk": 2, "penalty": 0.0}),
        ("normface", {"s": 32}),
    ),
    "LDAM, equal counts": (("ldam", {"counts": [7] * 5}), ("cosface", {"s": 30, "m": 0.5})),
    "logit adjustment, tau = 0": (("logit_adjusted", {"counts": [1, 2, 3, 4, 5], "tau": 0.0}), ("softmax", {})),
    "logit adjustment, equal counts": (("logit_adjusted", {"counts": [3] * 5, "s": 9.0}), ("normface", {"s": 9.0})),
    "MV-AM, t = 0": (("mv_softmax", {"t": 0.0}), ("cosface", {"s": 32})),
    "AdaFace, h = 0": (("adaface", {"h": 0.0}), ("cosface", {"m": 0.4})),
    "MagFace, one margin": (("magface", {"l_m": 0.5, "u_m": 0.5, "lambda_g": 0.0}), ("arcface", {})),
    "ElasticFace-Cos in evaluation": (("elasticface", {"kind": "cos"}), ("cosface", {})),
    "SphereFace-R v1, m = 1": (("sphereface_r", {"m": 1.0}), ("normface", {})),
    "SphereFace-R v2, m = 1": (("sphereface_r", {"m": 1.0, "version": "v2"}), ("normface", {})),
    "Proxy-NCA++": (("proxy_nca_pp", {}), ("normface", {"s": 18})),
    "SoftTriple, K = 1": (("soft_triple", {}), ("cosface", {"s": 20, "m": 0.01})),
}


@pytest.mark.parametrize("case", NEUTRAL)
@pytest.mark.parametrize("seed", range(3))
def test_neutral_points(case, seed):
    (name, options), (plain_name, plain_options) = NEUTRAL[case]
    x, W, y = space(seed=seed)
    assert_same(loss_of(name, y, **options), plain(plain_name, y, **plain_options), x, W)


def narrow(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """A batch whose target angles are all below 2, where no curve is past π − m."""
    x, W, y = space(n=60, seed=seed)
    near = torch.acos(textbook.target_of(textbook.cosines(x, W), y)) < 2.0
    return x[near], W, y[near]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mv_softmax", {"kind": "arc", "t": 0.0, "s": 64, "m": 0.5}),
        ("elasticface", {}),
        ("elasticface", {"sigma": 0.0, "plus": True}),
        ("aam_softmax", {"s": 64, "m": 0.5, "topk": 3, "penalty": 0.0}),
        ("combined", {}),
    ],
)
def test_unguarded_curves_are_arcface_up_to_the_guard(name, options):
    x, W, y = narrow()
    call = {"draws": torch.ones(len(y), dtype=torch.float64), "training": True} if "sigma" in options else None
    assert_same(loss_of(name, y, call=call, **options), plain("arcface", y), x, W)


def test_inter_top_k_without_penalty_is_the_subcentre_loss():
    x, W, y = space(k=3)
    assert_same(loss_of("aam_softmax", y, k=3, topk=2, penalty=0.0), loss_of("aam_softmax", y, k=3, topk=0), x, W)


def test_aam_curve_is_continuous():
    m, step = 0.2, 1e-9
    theta = torch.tensor([pi - m - step, pi - m + step], dtype=torch.float64)
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    values = []
    for each in theta:
        W = torch.stack([torch.stack([each.cos(), each.sin()]), torch.tensor([0.0, 1.0], dtype=torch.float64)])
        values.append(make("aam_softmax", 2, s=1.0, m=m).margin_logits(x, W, torch.tensor([0]))[0, 0].item())
    assert values == pytest.approx([-1.0, -1.0], abs=1e-8)


def test_proxy_nca_is_large_margin_softmax():
    x, W, y = space()
    assert_same(loss_of("proxy_nca", y, scale=3.0), loss_of("lm_softmax", y, s=18.0), x, W)


def test_li_arcface_is_arcgrad_with_a_margin():
    x, W, y = space()
    s, m = 64.0, 0.45

    def li_arcface(x: Tensor, W: Tensor) -> Tensor:
        theta = torch.acos(textbook.cosines(x, W))
        value = 1.0 - 2.0 * (theta + m * F.one_hot(y, 5).double()) / math.pi
        return textbook.loss(s * value, y)

    assert_same(loss_of("arcgrad", y, s=2 * s / math.pi, m=m), li_arcface, x, W)


def test_arcgrad_margin_is_an_offset_of_the_target():
    x, W, y = space()
    expected = textbook.arcgrad(x, W, y) - 10.0 * 0.3 * F.one_hot(y, 5).double()
    assert_close(make("arcgrad", 5, m=0.3).loss(x, W, y), textbook.loss(expected, y))


def test_logit_adjustment_is_a_bias():
    x, W, y = space()
    counts = torch.tensor([4, 1, 9, 30, 2])
    bias = torch.linspace(-1, 1, 5, dtype=torch.float64)
    reference = make("logit_adjusted", 5, counts=counts, tau=0.7)
    prior = torch.log(counts / counts.sum().double())
    expected = textbook.softmax(x, W, y, bias + 0.7 * prior)
    assert_close(reference.loss(x, W, y, bias=bias), textbook.loss(expected, y))
    assert_close(reference.logits(x, W, bias=bias), textbook.softmax(x, W, y, bias))


def test_p2sgrad_has_the_gradient_it_is_named_for():
    """∂/∂c_j = c_j − [j = y]: the probability in softmax's gradient replaced by the cosine."""
    x, W, y = space()
    x.requires_grad_()
    c = textbook.cosines(x, W)
    coefficients = (c - F.one_hot(y, 5)).detach()
    (found,) = gradients(make("p2sgrad", 5).loss(x, W, y), x)
    (expected,) = gradients((coefficients * c).sum(1), x)
    assert_close(found, expected)


def test_magface_falls_where_the_easy_margin_ends():
    """At length 60, m = 0.625: the target's logit jumps from −64 sin m to 0 on crossing 90°."""
    x, W = torch.tensor([[60.0, 0.0, 0.0]], dtype=torch.float64), torch.eye(3, dtype=torch.float64)[1:]
    for shift, expected in ((1e-12, 64 * sin(0.625)), (-1e-12, log(2))):
        tilted = W + torch.tensor([[shift, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
        found = make("magface", 2, easy=True, lambda_g=0.0).loss(x, tilted, torch.tensor([0]))
        assert found.item() == pytest.approx(expected, abs=1e-9)


# ---------------------------------------------------------------- the start of SphereFace2's bias


@pytest.mark.parametrize(("kind", "m"), [("c", 0.4), ("a", 0.4), ("a", 1.2), ("m", 1.7), ("m", 2.5)])
@pytest.mark.parametrize("classes", [2, 3, 4, 10, 1000])
@pytest.mark.parametrize("lam", [0.5, 0.7, 0.99])
def test_start_of_the_bias_of_sphereface2(kind, m, classes, lam):
    reference = make("sphereface2", classes, kind=kind, m=m, lam=lam)
    eye = torch.eye(classes + 1, dtype=torch.float64)
    each = reference.loss(eye[:1], eye[1:], torch.tensor([0]))  # every cosine is 0
    b = reference.learnt["b"]
    (slope,) = torch.autograd.grad(each.sum(), b)
    scores = {
        "c": (-0.75 - m, -0.75 + m),
        "a": (2 * ((1 + cos(min(pi / 2 + m, pi))) / 2) ** 3 - 1, -0.75),
        "m": (2 * ((1 + cos(min(m * pi / 2, pi))) / 2) ** 3 - 1, -0.75),
    }[kind]
    own, other = (40 * score for score in scores)

    def balance(b: float) -> float:
        return log(lam) - plus(min(own + b, 700)) - (log((1 - lam) * (classes - 1)) - plus(min(-other - b, 700)))

    low, high = -300.0, 300.0  # the balance falls with b
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if balance(middle) > 0 else (low, middle)
    assert b.item() == pytest.approx(low, abs=1e-8)  # where z = 1 the balance is flat
    pull = lam / 40 / (1 + exp(own + b.item()))
    assert slope.item() == pytest.approx(0.0, abs=1e-11 * pull)


# ---------------------------------------------------------------- gradients


EXACT = {
    "arcgrad": {"m": 0.3},
    "combined": {"s": 4.0, "m1": 1.3},
    "subcenter_arcface": {"s": 4.0},
    "ldam": {"s": 4.0, "counts": [1, 2, 3, 4, 5]},
    "logit_adjusted": {"counts": [1, 2, 3, 4, 5]},
    "curricularface": {"s": 4.0, "t": 0.3},
    "mv_softmax": {"s": 4.0, "kind": "arc"},
    "magface": {"s": 4.0, "l_a": 4.0, "u_a": 8.0, "l_m": 0.5, "u_m": 1.4},
    "elasticface": {"s": 4.0, "plus": True},
    "sphereface_r": {"s": 4.0, "weight": 2.0},
    "sphereface2": {"s": 4.0},
    "uniface": {"s": 4.0},
    "p2sgrad": {},
    "lm_softmax": {"s": 4.0},
    "proxy_nca": {"scale": 1.5},
    "proxy_nca_pp": {},
    "soft_triple": {"s": 4.0, "k": 3},
    "aam_softmax": {"s": 4.0, "topk": 2, "penalty": 0.3, "m": 0.6},
    "l_softmax": {"lam": 0.5},
    "a_softmax": {"lam": 0.5},
}
VARIANTS = [
    *EXACT.items(),
    ("mv_softmax", {"s": 4.0, "easy": True}),
    ("magface", {"s": 4.0, "l_a": 4.0, "u_a": 8.0, "easy": True}),
    ("elasticface", {"s": 4.0, "kind": "cos"}),
    ("sphereface_r", {"s": 4.0, "version": "v2"}),
    ("sphereface2", {"s": 4.0, "kind": "a"}),
    ("sphereface2", {"s": 4.0, "kind": "m", "m": 1.5}),
    ("logit_adjusted", {"counts": [1, 2, 3, 4, 5], "s": 4.0}),
    ("p2sgrad", {"mean": True}),
]
DETACHED = {"circle", "adaface"}  # by design; tested against their detached form below


def test_every_reference_has_its_gradient_tested():
    assert EXACT.keys() | DETACHED == set(REFERENCES)


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(VARIANTS)])
@pytest.mark.parametrize("seed", range(3))
def test_gradients_by_finite_differences(name, options, seed):
    x, W, y = space(n=8, k=3 if name in ("subcenter_arcface", "soft_triple", "aam_softmax") else None, seed=seed)
    reference = make(name, 5, **options)
    draws = torch.linspace(-2, 2, 8, dtype=torch.float64)
    call = {"training": True, "draws": draws} if name == "elasticface" else {}

    def function(x: Tensor, W: Tensor, *learnt: Tensor) -> Tensor:
        reference.learnt = dict(zip(reference.learnt, learnt, strict=True))
        return reference.loss(x, W, y, **call)

    leaves = [x.requires_grad_(), W.requires_grad_(), *reference.learnt.values()]
    assert torch.autograd.gradcheck(function, leaves, atol=1e-6, rtol=1e-5)


def test_curves_past_the_guard_are_among_the_gradients_tested():
    past = 0
    for seed in range(3):
        x, W, y = space(n=8, seed=seed)
        past += (torch.acos(textbook.target_of(textbook.cosines(x, W), y)) > pi - 0.5).sum().item()
    assert past >= 2


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("combined", {"s": 4.0, "m1": 1.3, "gradient": "straight_through"}),
        ("sphereface_r", {"s": 4.0, "gradient": "detached"}),
        ("sphereface_r", {"s": 4.0, "version": "v2", "gradient": "detached"}),
        ("circle", {"s": 4.0}),
    ],
)
def test_detached_gradients(name, options):
    """Softmax's gradient at the loss's own logits, through cosines times fixed factors."""
    x, W, y = space()
    reference = make(name, 5, **options)
    leaves = x.requires_grad_(), W.requires_grad_()
    found = reference.loss(x, W, y)
    c = textbook.cosines(x, W)
    own = F.one_hot(y, 5).bool()
    factor = torch.where(own, 1.25 - c, (c + 0.25).clamp(min=0)) if name == "circle" else torch.ones_like(c)
    surplus = torch.softmax(reference.margin_logits(x, W, y), 1) - own.double()
    expected = ((surplus * factor).detach() * 4.0 * c).sum(1)
    for found_slope, expected_slope in zip(gradients(found, *leaves), gradients(expected, *leaves), strict=True):
        assert_close(found_slope, expected_slope)
    if "gradient" in options:
        assert_close(found, make(name, 5, **options | {"gradient": "exact"}).loss(x, W, y))


@pytest.mark.parametrize("seed", range(3))
def test_gradients_of_adaface_at_fixed_lengths(seed):
    """The length is detached: the gradient is that of a loss whose embeddings keep their lengths."""
    x, W, y = space(n=8, seed=seed)
    lengths = textbook.lengths(x)
    reference = make("adaface", 5, s=4.0, mean=6.0, std=2.0, m=0.5)

    def function(x: Tensor, W: Tensor) -> Tensor:
        return reference.loss(lengths * textbook.unit(x), W, y)

    assert torch.autograd.gradcheck(function, [x.requires_grad_(), W.requires_grad_()], atol=1e-6, rtol=1e-5)
    found = gradients(reference.loss(x, W, y), x, W)
    for slope, expected in zip(found, gradients(function(x, W), x, W), strict=True):
        assert_close(slope, expected)
    assert_close((found[0] * x).sum(1), torch.zeros(8))


@pytest.mark.parametrize("r", [2.0, 4.0, 6.0])
def test_gradient_of_magface_along_the_length(r):
    """By hand: s (1 − p_y) times the fall of the curve with m, times m′; nothing outside [3, 5]."""
    x, W, y = plane(r)
    reference = make("magface", s=2.0, l_a=3.0, u_a=5.0, l_m=1.1, u_m=1.3, lambda_g=10.0)
    x.requires_grad_()
    each = reference.loss(x, W, y)
    (slope,) = torch.autograd.grad(each.sum(), x)
    expected = [0.0, 0.0, 0.0]
    if r == 4.0:
        p = torch.softmax(reference.margin_logits(x, W, y), 1).diagonal().tolist()
        fall = [sin(pi / 3 + 1.2), sin(pi / 2 + 1.2), sin(1.2) + 1.2 * cos(1.2)]  # the third is past π − m
        expected = [2 * (1 - p[i]) * fall[i] * 0.1 + 10 * (1 / 25 - 1 / 16) for i in range(3)]
    assert_close((slope * x).sum(1) / r, expected, 1e-12)


# ---------------------------------------------------------------- what all have in common


ALL = EXACT | {"circle": {}, "adaface": {}}


@pytest.mark.parametrize("name", REFERENCES)
def test_losses_are_per_sample_and_leave_the_state_alone(name):
    x, W, y = space()
    reference = make(name, 5, **ALL[name])
    first = reference.loss(x, W, y)
    assert first.shape == (12,)
    assert first.dtype == torch.float64
    assert torch.equal(first, reference.loss(x, W, y))
    assert reference.logits(x, W).shape == (12, 5)
    assert_close(reference.loss(x[3:5], W, y[3:5]), first[3:5])  # no sample's loss depends on another


@pytest.mark.parametrize("name", REFERENCES)
def test_label_smoothing_and_bias(name):
    x, W, y = space()
    reference = make(name, 5, **ALL[name])
    bias = torch.linspace(-1, 1, 5, dtype=torch.float64)
    if not isinstance(reference, textbook_later.Softmax):
        with pytest.raises(ValueError, match="label_smoothing"):
            reference.loss(x, W, y, label_smoothing=0.1)
        with pytest.raises(ValueError, match="bias"):
            reference.loss(x, W, y, bias=bias)
        return
    # smoothing is the mean over all labels of the loss with the target's logits: its slope in ε is linear
    hard, half, full = (reference.loss(x, W, y, bias=bias, label_smoothing=e) for e in (0.0, 0.5, 1.0))
    assert_close(half, (hard + full) / 2, 1e-12)
    assert_close(reference.loss(x, W, y, bias=torch.full_like(bias, 3.0)), reference.loss(x, W, y), 1e-12)
    assert not torch.allclose(hard, reference.loss(x, W, y))


# ---------------------------------------------------------------- against pytorch-metric-learning


def compare_with_pml(name: str, options: dict, other, parameter: str, *, k: int | None, tolerance: float) -> None:
    """Mean loss and its gradients; a row of the other's parameter is one class's (sub-)centre, transposed or not."""
    x, W, y = space(n=20, k=k, seed=3)
    flat = W.reshape(-1, 3)
    stored = getattr(other, parameter)
    transposed = stored.shape == flat.T.shape
    stored.data = (flat.T if transposed else flat).clone()
    x.requires_grad_(), W.requires_grad_()
    theirs = other(x, y)
    their_x, their_W = torch.autograd.grad(theirs, [x, stored])
    ours = make(name, 5, **options).loss(x, W, y).mean()
    our_x, our_W = torch.autograd.grad(ours, [x, W])
    assert_close(ours, theirs, tolerance)
    assert_close(our_x, their_x, tolerance)
    assert_close(our_W, (their_W.T if transposed else their_W).reshape(W.shape), tolerance)


def test_pml_subcenter_arcface():
    degrees = 28.6
    other = pml_losses.SubCenterArcFaceLoss(num_classes=5, embedding_size=3, margin=degrees, scale=64, sub_centers=3)
    compare_with_pml("subcenter_arcface", {"m": math.radians(degrees)}, other, "W", k=3, tolerance=1e-12)


def test_pml_soft_triple():
    other = pml_losses.SoftTripleLoss(num_classes=5, embedding_size=3, centers_per_class=4)
    compare_with_pml("soft_triple", {"k": 4, "tau": 0.0}, other, "fc", k=4, tolerance=1e-12)


def test_pml_soft_triple_with_its_penalty():
    """The peer adds a smaller number than 1e-5 under the root: the penalties differ by less than 1e-5."""
    penalty = pml_regularizers.SparseCentersRegularizer(num_classes=5, centers_per_class=4)
    other = pml_losses.SoftTripleLoss(
        num_classes=5, embedding_size=3, centers_per_class=4, weight_regularizer=penalty, weight_reg_weight=0.2
    )
    compare_with_pml("soft_triple", {"k": 4}, other, "fc", k=4, tolerance=1e-5)


def test_pml_proxy_nca_is_the_form_with_the_target_in_the_denominator():
    other = pml_losses.ProxyNCALoss(num_classes=5, embedding_size=3, softmax_scale=9)
    compare_with_pml("proxy_nca_pp", {}, other, "proxies", k=None, tolerance=1e-11)


def test_pml_p2sgrad_is_the_mean_over_classes():
    """The peer keeps its weights at length 1, to about 1e-8."""
    x, W, y = space(n=20, seed=3)
    other = pml_losses.P2SGradLoss(descriptors_dim=3, num_classes=5)
    other.weight.data = textbook.unit(W).T.clone()
    assert_close(make("p2sgrad", 5, mean=True).loss(x, W, y).mean(), other(x, y), 1e-7)
