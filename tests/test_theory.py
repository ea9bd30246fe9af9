"""Scale against gap, bounds, boundaries and curves against hand-written formulas."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import widemargin as wm
from widemargin import theory
from widemargin.stats import corrected_t_test

CLASSES = (2, 3, 10, 11, 100, 1_000, 85_742, 1_000_000, 10_000_000)
GRID = torch.linspace(0.02, 3.1, 61, dtype=torch.float64)


def lambert_w(z: float) -> float:
    """W₀(z) for z > 0 by Newton's method on w + log w = log z."""
    w = math.log1p(z)
    for _ in range(100):
        w -= (w + math.log(w) - math.log(z)) / (1 + 1 / w)
    return w


def central_slope(function, at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    return (function(at + step) - function(at - step)) / (2 * step)


# ---------------------------------------------------------------- scale against gap


def test_the_reference_solves_its_equation():
    for z in (1 / math.e, 0.7, 1.0, 50.0, 1e7):
        assert lambert_w(z) * math.exp(lambert_w(z)) == pytest.approx(z, rel=1e-12)


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("number", [0.05, 0.5, 1.0, 3.0])
def test_scale_times_gap_is_lambert_w_plus_1(classes, number):
    reach = lambert_w((classes - 1) / math.e) + 1
    assert wm.suggest_scale(classes, number) == pytest.approx(reach / number, rel=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # small scales ask for more than π
        assert wm.theoretical_gap(classes, number) == pytest.approx(reach / number, rel=1e-12)


def test_the_papers_gaps_of_three_classes():
    assert round(math.degrees(wm.theoretical_gap(3, 1.0)), 1) == 83.8
    assert round(math.degrees(wm.theoretical_gap(3, 40.0)), 1) == 2.1


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("gap", [0.01, 0.3, 1.2, 3.14])
def test_scale_and_gap_are_inverse_to_each_other(classes, gap):
    assert wm.theoretical_gap(classes, wm.suggest_scale(classes, gap)) == pytest.approx(gap, rel=1e-12)


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("gap", [0.05, 0.5, 2.0])
def test_no_other_scale_has_a_larger_gradient(classes, gap):
    def slope(s: np.ndarray) -> np.ndarray:
        pull = (classes - 1) * np.exp(-s * gap)
        return s * pull / (1 + pull)

    best = wm.suggest_scale(classes, gap)
    low, high = 1e-3 * best, 20 * best
    for _ in range(12):  # a grid around the best point of the last one
        grid = np.linspace(low, high, 401)
        top = int(np.argmax(slope(grid)))
        low, high = grid[max(top - 1, 0)], grid[min(top + 1, 400)]
    assert best == pytest.approx((low + high) / 2, rel=1e-6)
    assert theory.gap_gradient(gap, best, classes) == pytest.approx(float(slope(np.array(best))), rel=1e-12)


@pytest.mark.parametrize("classes", [2, 10, 10_000_000])
@pytest.mark.parametrize("scale", [0.5, 10.0, 64.0])
def test_gap_gradient_is_minus_the_slope_of_gap_loss(classes, scale):
    for gap in (-1.0, 0.0, 0.2, 1.0):
        slope = (theory.gap_loss(gap + 1e-6, scale, classes) - theory.gap_loss(gap - 1e-6, scale, classes)) / 2e-6
        assert theory.gap_gradient(gap, scale, classes) == pytest.approx(-slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("classes", [2, 3, 1000])
def test_gap_loss_is_its_formula(classes):
    for gap, scale in ((0.0, 10.0), (0.3, 5.0), (-0.4, 12.0)):
        wanted = math.log(1 + (classes - 1) * math.exp(-scale * gap))
        assert theory.gap_loss(gap, scale, classes) == pytest.approx(wanted, rel=1e-12)


def test_gap_loss_and_gradient_survive_extremes():
    assert theory.gap_loss(3.0, 1e4, 10) == 0.0
    assert theory.gap_gradient(3.0, 1e4, 10) == 0.0
    assert theory.gap_loss(-3.0, 1e4, 10) == pytest.approx(3e4 + math.log(9))
    assert theory.gap_gradient(-3.0, 1e4, 10) == pytest.approx(1e4)


@pytest.mark.parametrize("gap", [0, 0.0, -0.5, math.nan, math.inf, "0.5", None, True])
def test_a_gap_that_is_no_positive_number_is_an_error(gap):
    with pytest.raises(wm.InputError, match="gap="):
        wm.suggest_scale(10, gap)


@pytest.mark.parametrize("scale", [0, -1.0, math.nan, math.inf, "10", None, True])
def test_a_scale_that_is_no_positive_number_is_an_error(scale):
    with pytest.raises(wm.InputError, match="scale="):
        wm.theoretical_gap(10, scale)


@pytest.mark.parametrize("classes", [1, 0, -3, 2.5, True, False, "10", None])
def test_fewer_than_two_classes_are_an_error(classes):
    with pytest.raises(wm.InputError, match="num_classes="):
        wm.suggest_scale(classes, 0.5)
    with pytest.raises(wm.InputError, match="num_classes="):
        wm.theoretical_gap(classes, 10.0)


def test_a_gap_above_pi_is_the_formulas_value_with_a_warning():
    with pytest.warns(UserWarning, match="above π"):
        gap = wm.theoretical_gap(3, 0.1)
    assert gap == pytest.approx((lambert_w(2 / math.e) + 1) / 0.1)
    assert gap > math.pi


# ---------------------------------------------------------------- bounds and gaps


def random_cosines(samples: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    cos = 2 * torch.rand(samples, classes, dtype=torch.float64, generator=random) - 1
    return cos, torch.randint(classes, (samples,), generator=random)


def gaps_by_loops(cos: Tensor, y: Tensor) -> list[float]:
    found = []
    for row, own in zip(cos.tolist(), y.tolist(), strict=True):
        theta = [math.acos(c) for c in row]
        found.append(min(theta[:own] + theta[own + 1 :]) - theta[own])
    return found


@pytest.mark.parametrize("classes", [2, 5, 50])
@pytest.mark.parametrize("scale", [0.5, 5.0, 30.0])
def test_the_gap_losses_bound_arcgrad_in_their_order(classes, scale):
    cos, y = random_cosines(64, classes, seed=classes)
    gaps = gaps_by_loops(cos, y)
    arcgrad = wm.margin_softmax(cos, y, f"arcgrad(s={scale})")
    above = [theory.gap_loss(gap, scale, classes) for gap in gaps]
    slack = 1e-9
    assert all(bound >= loss - slack for bound, loss in zip(above, arcgrad.tolist(), strict=True))
    assert sum(above) / 64 >= arcgrad.mean().item() - slack
    assert theory.gap_loss(sum(gaps) / 64, scale, classes) <= sum(above) / 64 + slack
    if classes == 2:  # one other class: the bound is the loss
        assert above == pytest.approx(arcgrad.tolist(), rel=1e-9)


@pytest.mark.parametrize(("samples", "classes", "dim"), [(1, 2, 2), (9, 5, 3), (20, 40, 8), (0, 3, 2)])
def test_gaps_are_the_nearest_other_angle_minus_the_own(samples, classes, dim):
    random = torch.Generator().manual_seed(samples)
    x = 3 * torch.randn(samples, dim, dtype=torch.float64, generator=random)
    weight = torch.randn(classes, dim, dtype=torch.float64, generator=random)
    y = torch.randint(classes, (samples,), generator=random)
    cosines = [[float(u @ w) / (math.hypot(*u.tolist()) * math.hypot(*w.tolist())) for w in weight.double()] for u in x]
    assert theory.gaps(x, y, weight).tolist() == pytest.approx(gaps_by_loops(torch.tensor(cosines), y), abs=1e-6)


def test_gaps_check_their_input():
    with pytest.raises(wm.InputError, match=r"\[N, 3\]"):
        theory.gaps(torch.zeros(2, 4), torch.tensor([0, 1]), torch.eye(3))
    with pytest.raises(wm.InputError, match="label 3"):
        theory.gaps(torch.zeros(2, 3), torch.tensor([0, 3]), torch.eye(3))


# ---------------------------------------------------------------- boundaries


def test_softmax_boundary_is_the_difference_of_two_inner_products():
    x = 2.5 * torch.stack([torch.cos(GRID), torch.sin(GRID)], 1)
    w1, w2 = torch.tensor([1.2, 0.4], dtype=torch.float64), torch.tensor([-0.3, 0.8], dtype=torch.float64)
    theta1, theta2 = (torch.acos((x @ w) / (2.5 * w.norm())) for w in (w1, w2))
    got = theory.decision_function(
        "softmax(bias=True)",
        theta1,
        theta2,
        x_norm=2.5,
        w_norms=(w1.norm().item(), w2.norm().item()),
        biases=(0.7, -0.2),
    )
    assert torch.allclose(got, x @ (w1 - w2) + 0.7 + 0.2, rtol=0, atol=1e-12)


BOUNDARIES = {
    "modified_softmax": lambda a, b, r: r * (torch.cos(a) - torch.cos(b)),
    "normface(s=12)": lambda a, b, r: 12 * (torch.cos(a) - torch.cos(b)),
    "cosface(s=30, m=0.35)": lambda a, b, r: 30 * (torch.cos(a) - 0.35 - torch.cos(b)),
    "arcface(s=64, m=0.5)": lambda a, b, r: 64 * (torch.cos(a + 0.5) - torch.cos(b)),
    "arcgrad(s=10)": lambda a, b, r: 10 * (b - a),
    "a_softmax(m=1, lam=0)": lambda a, b, r: r * (torch.cos(a) - torch.cos(b)),
    "a_softmax(m=2, lam=0)": lambda a, b, r: r * (torch.cos(2 * a) - torch.cos(b)),
    "a_softmax(m=4, lam=0)": lambda a, b, r: r * (torch.cos(4 * a) - torch.cos(b)),
}
# Where the one-piece formulas hold: ArcFace up to π − m, A-Softmax up to π/m.
REACH = {
    "arcface(s=64, m=0.5)": math.pi - 0.5,
    "a_softmax(m=2, lam=0)": math.pi / 2,
    "a_softmax(m=4, lam=0)": math.pi / 4,
}


@pytest.mark.parametrize("spec", BOUNDARIES)
def test_boundary_is_the_listed_decision_function(spec):
    theta1, theta2 = torch.meshgrid(GRID, GRID, indexing="ij")
    inside = theta1 <= REACH.get(spec, math.pi)
    theta1, theta2 = theta1[inside], theta2[inside]
    assert len(theta1) > 200
    got = theory.decision_function(spec, theta1, theta2, x_norm=1.7)
    assert torch.allclose(got, BOUNDARIES[spec](theta1, theta2, 1.7), rtol=0, atol=1e-11)


@pytest.mark.parametrize("spec", ["modified_softmax", "a_softmax(m=2, lam=0)", "arcface", "arcgrad"])
def test_unit_weights_ignore_the_lengths_of_class_weights(spec):
    plain = theory.decision_function(spec, GRID, GRID.flip(0))
    assert torch.equal(theory.decision_function(spec, GRID, GRID.flip(0), w_norms=(2.0, 5.0)), plain)


@pytest.mark.parametrize("m", range(1, 7))
@pytest.mark.parametrize("class_angle", [0.1, 0.9, 2.0, math.pi])
def test_a_softmax_boundary_lies_at_the_angle_over_m_plus_1(m, class_angle):
    spec = f"a_softmax(m={m}, lam=0)"
    assert theory.boundary_angle(spec, class_angle) == pytest.approx(class_angle / (m + 1), abs=1e-9)
    assert theory.angular_margin(spec, class_angle) == pytest.approx((m - 1) / (m + 1) * class_angle, abs=1e-9)


@pytest.mark.parametrize("m", [0.0, 0.1, 0.5, 1.0])
def test_arcface_keeps_its_margin(m):
    assert theory.angular_margin(f"arcface(m={m})", 1.4) == pytest.approx(m, abs=1e-9)
    assert theory.boundary_angle(f"arcface(m={m})", 1.4) == pytest.approx((1.4 - m) / 2, abs=1e-9)


def test_cosface_boundary_loses_its_margin_in_cosine():
    at = theory.boundary_angle("cosface(m=0.35)", 1.4)
    assert math.cos(at) - 0.35 == pytest.approx(math.cos(1.4 - at), abs=1e-12)


@pytest.mark.parametrize("spec", ["softmax", "modified_softmax", "normface", "arcgrad", "cosface(m=0)"])
@pytest.mark.parametrize("class_angle", [0.2, 1.0, math.pi])
def test_losses_without_a_margin_keep_none(spec, class_angle):
    assert theory.angular_margin(spec, class_angle) == pytest.approx(0.0, abs=1e-7)
    assert theory.boundary_angle(spec, class_angle) == pytest.approx(class_angle / 2, abs=1e-7)


@pytest.mark.parametrize("class_angle", [0.0, -1.0, 3.2, math.nan])
def test_classes_are_at_most_pi_apart(class_angle):
    with pytest.raises(wm.InputError, match="class_angle="):
        theory.boundary_angle("arcface", class_angle)


def test_boundaries_are_for_margins_only():
    with pytest.raises(wm.InputError, match="not a margin"):
        theory.decision_function("triplet", GRID, GRID)


# ---------------------------------------------------------------- curves


def arcface_target(theta: np.ndarray, m: float) -> np.ndarray:
    return np.where(theta <= math.pi - m, np.cos(theta + m), np.cos(theta) - m * math.sin(m))


def psi(theta: np.ndarray, m: int) -> np.ndarray:
    k = np.minimum(np.floor(theta * m / math.pi), m - 1)
    return (-1.0) ** k * np.cos(m * theta) - 2 * k


# Target logit over θ, and the plain logit of another class at θ, at lengths of 1.
CURVES = {
    "softmax": (np.cos, np.cos),
    "m_softmax(m=0.5)": (lambda t: np.cos(t) - 0.5, np.cos),
    "normface(s=30)": (lambda t: 30 * np.cos(t), lambda t: 30 * np.cos(t)),
    "cosface(s=16, m=0.35)": (lambda t: 16 * (np.cos(t) - 0.35), lambda t: 16 * np.cos(t)),
    "arcface(s=16, m=0.5)": (lambda t: 16 * arcface_target(t, 0.5), lambda t: 16 * np.cos(t)),
    "a_softmax(m=4, lam=0)": (lambda t: psi(t, 4), np.cos),
    "l_softmax(m=3, lam=2)": (lambda t: (2 * np.cos(t) + psi(t, 3)) / 3, np.cos),
    "arcgrad(s=10)": (lambda t: -10 * t, lambda t: -10 * t),
}
# Kinks and jumps of these curves lie between the points of the grid.
ANGLES = np.linspace(0.013, 3.129, 97)


@pytest.mark.parametrize("spec", CURVES)
def test_target_curve_is_the_target_and_the_plain_logit(spec):
    target, plain = theory.target_curve(spec, torch.from_numpy(ANGLES))
    assert target.tolist() == pytest.approx(CURVES[spec][0](ANGLES).tolist(), abs=1e-10)
    assert plain.tolist() == pytest.approx(CURVES[spec][1](ANGLES).tolist(), abs=1e-10)


@pytest.mark.parametrize("spec", CURVES)
def test_target_slope_is_the_derivative_of_the_target_curve(spec):
    slope = theory.target_slope(spec, torch.from_numpy(ANGLES))
    assert slope.tolist() == pytest.approx(central_slope(CURVES[spec][0], ANGLES).tolist(), abs=1e-6)


def test_annealed_curves_are_shown_at_the_end_of_the_annealing():
    target, _ = theory.target_curve("a_softmax(m=4)", torch.from_numpy(ANGLES))
    assert target.tolist() == pytest.approx(((5 * np.cos(ANGLES) + psi(ANGLES, 4)) / 6).tolist(), abs=1e-10)


def test_adaptive_scales_are_shown_as_a_fresh_head_has_them():
    target, _ = theory.target_curve("adacos", torch.from_numpy(ANGLES), num_classes=100)
    assert target.tolist() == pytest.approx((math.sqrt(2) * math.log(99) * np.cos(ANGLES)).tolist(), abs=1e-10)


# A loss that keeps ‖x‖ pulls with it.
KEEPS_LENGTH = {"softmax", "a_softmax(m=4, lam=0)", "l_softmax(m=3, lam=2)", "m_softmax(m=0.5)"}


@pytest.mark.parametrize("spec", sorted(set(CURVES) - {"m_softmax(m=0.5)"}))
@pytest.mark.parametrize(
    ("classes", "other_angle", "length"), [(10, math.pi / 2, 1.0), (2, 1.2, 3.0), (1000, 2.0, 0.5)]
)
def test_pull_curve_is_the_derivative_of_the_loss(spec, classes, other_angle, length):
    target, plain = CURVES[spec]
    radius = length if spec in KEEPS_LENGTH else 1.0

    def loss(theta: np.ndarray) -> np.ndarray:
        return np.logaddexp(0.0, math.log(classes - 1) + radius * (plain(np.array(other_angle)) - target(theta)))

    got = theory.gradient_curve(spec, torch.from_numpy(ANGLES), classes, other_angle=other_angle, x_norm=length)
    assert got.tolist() == pytest.approx(central_slope(loss, ANGLES).tolist(), abs=1e-6)


def test_pull_of_a_logit_margin_keeps_the_margin_out_of_the_length():
    def loss(theta: np.ndarray) -> np.ndarray:
        return np.logaddexp(0.0, math.log(9) + 3 * math.cos(1.2) - (3 * np.cos(theta) - 0.5))

    got = theory.gradient_curve("m_softmax(m=0.5)", torch.from_numpy(ANGLES), 10, other_angle=1.2, x_norm=3.0)
    assert got.tolist() == pytest.approx(central_slope(loss, ANGLES).tolist(), abs=1e-6)


def test_arcgrad_pulls_with_its_full_scale_wherever_the_sample_is_wrong():
    pull = theory.gradient_curve("arcgrad(s=10)", torch.tensor([2.5, 3.0, 3.14], dtype=torch.float64), 10)
    assert pull.tolist() == pytest.approx([10.0] * 3, rel=1e-3)


# Every margin of the registry, and settings whose numbers depend on the sample, its length or the class.
AT_ANGLES = [
    *(name for name in wm.list_losses("margins") if name not in ("a_softmax", "l_softmax", "soft_triple")),
    "soft_triple(tau=0)",  # the penalty on class weights does not depend on the angles
    "a_softmax(m=3, lam=0)",  # without annealing, whose end a fresh head has not reached
    "l_softmax(m=2, lam=1)",
    "aam_softmax(topk=4, penalty=0.2)",
    "elasticface(form=cos, plus=True)",
    "mv_softmax(form=arc, t=0.3, easy=True)",
    "curricularface(t=0.4)",
    "sphereface2(form=a, m=0.3, weight=50)",
    "sphereface_r(version=v2, weight=50)",
    "ldam(counts=[9, 1, 1, 1, 1])",
    "logit_adjusted(counts=[9, 1, 2, 3, 4], tau=1.5)",
    "p2sgrad(mean=True)",
]


def head_loss_and_slope(spec: str, theta: float, other_angle: float, length: float) -> tuple[float, float]:
    """Loss of a head of five classes with exactly these angles, and its slope as the target's weight turns away."""
    head = wm.Head(3, 5, spec, dtype=torch.float64).eval()
    target = [math.cos(theta), math.sin(theta), 0.0]
    other = [math.cos(other_angle), 0.0, math.sin(other_angle)]
    weight = torch.tensor([target, other, other, other, other], dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(weight.unsqueeze(1) if head.weight.ndim == 3 else weight)
    loss = head(torch.tensor([[length, 0.0, 0.0]], dtype=torch.float64), torch.tensor([0]))
    loss.sum().backward()
    to_target = head.weight.grad[0].reshape(-1, 3).sum(0)  # of all its sub-centres, which turn together
    return loss.item(), float(to_target @ torch.tensor([-math.sin(theta), math.cos(theta), 0.0], dtype=torch.float64))


@pytest.mark.parametrize("spec", AT_ANGLES)
@pytest.mark.parametrize(("other_angle", "length"), [(1.4, 1.0), (0.6, 40.0)])
@pytest.mark.filterwarnings("ignore:.*without counts:UserWarning")
def test_loss_and_pull_at_given_angles_are_a_heads(spec, other_angle, length):
    angles = (0.2, 0.7, 1.3, 2.0, 2.9)
    wanted = [head_loss_and_slope(spec, theta, other_angle, length) for theta in angles]
    theta = torch.tensor(angles, dtype=torch.float64)
    loss = theory.loss_curve(spec, theta, 5, other_angle=other_angle, x_norm=length)
    pull = theory.gradient_curve(spec, theta, 5, other_angle=other_angle, x_norm=length)
    assert loss.tolist() == pytest.approx([value for value, _ in wanted], rel=1e-9, abs=1e-9)
    assert pull.tolist() == pytest.approx([slope for _, slope in wanted], rel=1e-8, abs=1e-8)


def test_the_loss_of_several_numbers_of_classes_is_that_of_each():
    theta = torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64)
    other = torch.full_like(theta, 1.2)
    for spec in ("arcface", "p2sgrad", "lm_softmax", "mv_softmax"):
        counts = torch.tensor([[2.0], [10.0], [1000.0]], dtype=torch.float64)
        together = theory.loss_at_angles(wm.parse(spec).for_num_classes(2), theta, other, counts)
        for row, count in zip(together, (2, 10, 1000), strict=True):
            assert torch.allclose(row, theory.loss_curve(spec, theta, count, other_angle=1.2), rtol=1e-12, atol=0)


def test_boundaries_of_one_vs_all_losses_are_where_the_logits_are_equal():
    assert theory.angular_margin("p2sgrad", 1.4) == pytest.approx(0.0, abs=1e-7)
    at = theory.boundary_angle("uniface(m=0.3)", 1.4, num_classes=10)
    assert math.cos(at) - 0.3 == pytest.approx(math.cos(1.4 - at), abs=1e-9)
    for b in (-3.0, 0.0, 5.0):  # which the learnt bias does not move
        assert theory.boundary_angle(f"uniface(m=0.3, b={b})", 1.4) == pytest.approx(at, abs=1e-9)


def test_target_curve_has_the_length_where_it_is_kept():
    theta = torch.from_numpy(ANGLES)
    for spec, factor in (("softmax", 7.0), ("a_softmax(m=2, lam=0)", 7.0), ("cosface(s=3)", 1.0)):
        for got, plain in zip(
            theory.target_curve(spec, theta, x_norm=7.0), theory.target_curve(spec, theta), strict=True
        ):
            assert torch.allclose(got, factor * plain, rtol=1e-12)
    short, long = (theory.target_curve("magface", theta, x_norm=r)[0] for r in (10.0, 110.0))
    assert long[3].item() == pytest.approx(64 * math.cos(ANGLES[3] + 0.8), rel=1e-12)
    assert short[3].item() == pytest.approx(64 * math.cos(ANGLES[3] + 0.45), rel=1e-12)


def test_what_is_said_of_measured_scales_is_what_the_record_holds():
    lines = (Path(__file__).resolve().parents[1] / "records" / "table1.jsonl").read_text().splitlines()
    records = {(line["set"], line["loss"]): line for line in map(json.loads, lines)}
    sets = {name for name, _ in records}
    low, high = ([records[name, f"arcgrad(s={s})"] for name in sorted(sets)] for s in (5, 30))
    assert f"on {len(sets)} small tables" in theory.SCALE_EVIDENCE
    for lines, scale in ((low, 5), (high, 30)):
        assert f"s={scale} has {np.mean([line['mean'] for line in lines]):.2f} %" in theory.SCALE_EVIDENCE
    assert min(corrected_t_test(a["folds"], b["folds"], 0.1).p for a, b in zip(low, high, strict=True)) > 0.2


# ---------------------------------------------------------------- beyond one softmax


def test_gaps_with_sub_centres_take_the_nearest():
    x, y = torch.randn(40, 4, dtype=torch.float64), torch.randint(5, (40,))
    weight = torch.randn(5, 3, 4, dtype=torch.float64)
    unit, rows = x / x.norm(dim=1, keepdim=True), weight / weight.norm(dim=2, keepdim=True)
    cos = torch.stack([torch.stack([(unit @ rows[c, k]) for k in range(3)]).amax(0) for c in range(5)], 1)
    assert theory.gaps(x, y, weight).tolist() == pytest.approx(gaps_by_loops(cos, y), abs=1e-6)


@pytest.mark.parametrize("spec", ["sphereface2(s=8)", "uniface(s=8)", "p2sgrad", "arcface(s=8, m=0.3)", "arcgrad(s=5)"])
def test_the_gradient_curve_is_the_slope_of_the_loss_on_cosines(spec):
    theta, classes, step = torch.linspace(0.3, 2.5, 12, dtype=torch.float64), 6, 1e-6

    def loss(angle):
        cos = torch.zeros(len(angle), classes, dtype=torch.float64)  # every other class at 90 degrees
        cos[:, 0] = angle.cos()
        return wm.margin_softmax(cos, torch.zeros(len(angle), dtype=torch.int64), spec)

    slope = (loss(theta + step) - loss(theta - step)) / (2 * step)
    torch.testing.assert_close(theory.gradient_curve(spec, theta, classes), slope, rtol=1e-5, atol=1e-7)
