"""Classical losses against their formulas in plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import widemargin as wm

EVERY = ("l1", "l2", "huber", "bce", "focal")


def numbers(*shape: int, seed: int = 0, spread: float = 2.0) -> Tensor:
    """Random numbers in double precision."""
    random = torch.Generator().manual_seed(seed)
    return spread * torch.randn(*shape, dtype=torch.float64, generator=random)


def slope(loss, prediction: list[float], target: Tensor) -> list[float]:
    """∂ loss / ∂ prediction in single precision."""
    leaf = torch.tensor(prediction, requires_grad=True)
    loss(leaf, target).sum().backward()
    return leaf.grad.tolist()


# ---------------------------------------------------------------- references in plain Python


def softplus(z: float) -> float:
    return max(z, 0.0) + math.log1p(math.exp(-abs(z)))


def focal_of_lead(lead: float, gamma: float) -> float:
    """−(1 − p)^γ log p with p = sigmoid(lead)."""
    return math.exp(-gamma * softplus(lead)) * softplus(-lead)


def focal_slope_of_lead(lead: float, gamma: float) -> float:
    """Its derivative: −q^γ (γ p (−log p) + q), q = 1 − p."""
    q = math.exp(-softplus(lead))
    return -(q**gamma) * (gamma * (1 - q) * softplus(-lead) + q)


def cross_entropy_of(row: list[float], target: int) -> float:
    top = max(row)
    return top + math.log(sum(math.exp(z - top) for z in row)) - row[target]


def huber_of(error: float, delta: float) -> float:
    return 0.5 * error**2 if abs(error) <= delta else delta * (abs(error) - delta / 2)


REFERENCES = {
    "l1": lambda p, t: abs(t - p),
    "l2": lambda p, t: 0.5 * (t - p) ** 2,
    "l2(half=False)": lambda p, t: (t - p) ** 2,
    "huber": lambda p, t: huber_of(t - p, 1.0),
    "huber(delta=0.3)": lambda p, t: huber_of(t - p, 0.3),
}
BINARY = {
    "bce": lambda z, t: t * softplus(-z) + (1 - t) * softplus(z),
    "focal": lambda z, t: focal_of_lead(z if t else -z, 2.0),
    "focal(gamma=0)": lambda z, t: focal_of_lead(z if t else -z, 0.0),
    "focal(gamma=0.5)": lambda z, t: focal_of_lead(z if t else -z, 0.5),
    "focal(gamma=5)": lambda z, t: focal_of_lead(z if t else -z, 5.0),
}


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("spec", REFERENCES)
def test_regression_losses_are_their_formulas(spec):
    prediction, target = numbers(40), numbers(40, seed=1)
    wanted = [REFERENCES[spec](p, t) for p, t in zip(prediction.tolist(), target.tolist(), strict=True)]
    assert wm.parse(spec)(prediction, target).tolist() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("spec", BINARY)
def test_yes_or_no_losses_are_their_formulas(spec):
    z, target = numbers(40, spread=4.0), (numbers(40, seed=1) > 0).double()
    wanted = [BINARY[spec](a, b) for a, b in zip(z.tolist(), target.tolist(), strict=True)]
    assert wm.parse(spec)(z, target).tolist() == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("spec", [*REFERENCES, *BINARY])
def test_the_loss_of_a_sample_is_the_mean_over_its_numbers(spec):
    loss = wm.parse(spec)
    prediction, target = numbers(4, 3), (numbers(4, 3, seed=1) > 0).double()
    rows = [loss(prediction[i], target[i]).tolist() for i in range(4)]
    assert loss(prediction, target).tolist() == pytest.approx([sum(row) / 3 for row in rows], rel=1e-12)
    deep = loss(prediction.reshape(2, 2, 3), target.reshape(2, 2, 3))
    assert deep.tolist() == pytest.approx([sum(rows[0] + rows[1]) / 6, sum(rows[2] + rows[3]) / 6], rel=1e-12)


def test_bce_takes_probabilities_where_told_so():
    p, target = torch.sigmoid(numbers(20)), torch.sigmoid(numbers(20, seed=1))
    wanted = [-t * math.log(q) - (1 - t) * math.log(1 - q) for q, t in zip(p.tolist(), target.tolist(), strict=True)]
    assert wm.BCE(probabilities=True)(p, target).tolist() == pytest.approx(wanted, rel=1e-12)
    logits = torch.log(p / (1 - p))
    assert wm.BCE()(logits, target).tolist() == pytest.approx(wanted, rel=1e-9)


def test_cross_entropy_is_minus_the_log_softmax_of_the_truth():
    z, y = numbers(6, 4), torch.tensor([0, 3, 1, 2, 2, 0])
    wanted = [cross_entropy_of(row, target) for row, target in zip(z.tolist(), y.tolist(), strict=True)]
    assert wm.CrossEntropy()(z, y).tolist() == pytest.approx(wanted, rel=1e-12)


def test_cross_entropy_takes_probabilities_of_classes():
    z, target = numbers(5, 4), torch.softmax(numbers(5, 4, seed=1), 1)
    wanted = [
        sum(t * cross_entropy_of(row, j) for j, t in enumerate(shares))
        for row, shares in zip(z.tolist(), target.tolist(), strict=True)
    ]
    assert wm.CrossEntropy()(z, target).tolist() == pytest.approx(wanted, rel=1e-12)


def test_cross_entropy_smoothing_gives_every_class_its_share():
    z, y = numbers(5, 4), torch.tensor([0, 3, 1, 2, 2])
    wanted = [
        0.9 * cross_entropy_of(row, target) + 0.1 * sum(cross_entropy_of(row, j) for j in range(4)) / 4
        for row, target in zip(z.tolist(), y.tolist(), strict=True)
    ]
    assert wm.CrossEntropy(smoothing=0.1)(z, y).tolist() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 5.0])
def test_multi_class_focal_turns_down_by_the_probability_of_the_truth(gamma):
    z, y = numbers(6, 4), torch.tensor([0, 3, 1, 2, 2, 0])
    wanted = []
    for row, target in zip(z.tolist(), y.tolist(), strict=True):
        minus_log_p = cross_entropy_of(row, target)
        wanted.append((1 - math.exp(-minus_log_p)) ** gamma * minus_log_p)
    assert wm.Focal(gamma=gamma)(z, y).tolist() == pytest.approx(wanted, rel=1e-10)


def test_focal_is_cross_entropy_at_gamma_0():
    z, y, multi = numbers(6, 4), torch.tensor([0, 3, 1, 2, 2, 0]), (numbers(6, 4, seed=1) > 0).double()
    assert torch.allclose(wm.Focal(gamma=0)(z, y), wm.CrossEntropy()(z, y), rtol=1e-12, atol=0)
    assert torch.allclose(wm.Focal(gamma=0)(z, multi), wm.BCE()(z, multi), rtol=1e-12, atol=0)
    assert torch.allclose(wm.Focal(gamma=0)(z[:, 0], multi[:, 0]), wm.BCE()(z[:, 0], multi[:, 0]), rtol=1e-12, atol=0)


def test_focal_of_two_classes_is_binary_focal_of_their_difference():
    z, y = numbers(8, 2), torch.tensor([0, 1] * 4)
    assert torch.allclose(wm.Focal()(z, y), wm.Focal()(z[:, 1] - z[:, 0], y), rtol=1e-12, atol=0)


def test_defaults_are_half_l2_delta_1_gamma_2():
    assert wm.parse("l2") == wm.L2(half=True)
    assert wm.parse("huber") == wm.Huber(delta=1.0)
    assert wm.parse("focal") == wm.Focal(gamma=2.0)


# ---------------------------------------------------------------- the slides' numbers


def test_the_slides_values_of_a_prediction_of_0_1_for_a_target_of_1():
    prediction, target = torch.tensor([0.1]), torch.tensor([1.0])
    assert round(wm.L2(half=False)(prediction, target).item(), 2) == 0.81
    assert round(wm.BCE(probabilities=True)(prediction, target).item(), 2) == 2.30


def test_the_slides_slopes_against_the_prediction():
    target = torch.tensor([1.0])
    assert slope(wm.L2(half=False), [0.1], target) == pytest.approx([-1.8], rel=1e-6)
    assert slope(wm.BCE(probabilities=True), [0.1], target) == pytest.approx([-10.0], rel=1e-6)


# ---------------------------------------------------------------- gradients and extremes


@pytest.mark.parametrize("spec", [*REFERENCES, *BINARY, "bce(probabilities=True)"])
def test_gradients_of_pointwise_losses_are_exact(spec):
    loss = wm.parse(spec)
    prediction, target = numbers(5, 3), (numbers(5, 3, seed=1) > 0).double()
    if "probabilities" in spec:
        prediction = torch.sigmoid(prediction)
    assert torch.autograd.gradcheck(lambda p: loss(p, target), prediction.requires_grad_())


@pytest.mark.parametrize("spec", ["cross_entropy", "cross_entropy(smoothing=0.2)", "focal", "focal(gamma=0.5)"])
def test_gradients_of_multi_class_losses_are_exact(spec):
    y = torch.tensor([0, 3, 1, 2, 2])
    assert torch.autograd.gradcheck(lambda z: wm.parse(spec)(z, y), numbers(5, 4).requires_grad_())


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("lead", [10.0, 20.0, 40.0, 80.0, 1e3, 1e4])
def test_focal_stays_finite_and_right_where_the_truth_is_almost_certain(gamma, lead):
    wanted, wanted_slope = focal_of_lead(lead, gamma), focal_slope_of_lead(lead, gamma)
    loss = wm.Focal(gamma=gamma)
    almost = {"rel": 1e-4, "abs": 1e-37}  # below 1e-37 float32 has no digits left
    for prediction, target in (
        ([lead], torch.tensor([1.0])),
        ([-lead], torch.tensor([0])),
        ([[lead, 0.0]], torch.tensor([0])),
    ):
        z = torch.tensor(prediction, requires_grad=True)
        value = loss(z, target)
        value.sum().backward()
        assert value.tolist() == pytest.approx([wanted], **almost)
        assert z.grad.isfinite().all()
        assert abs(z.grad.flatten()[0].item()) == pytest.approx(abs(wanted_slope), **almost)


@pytest.mark.parametrize("spec", ["bce", "focal", "focal(gamma=0)", "focal(gamma=0.5)"])
@pytest.mark.parametrize("z", [-1e4, 1e4])
@pytest.mark.parametrize("target", [0.0, 1.0])
def test_extreme_logits_of_yes_or_no_are_finite(spec, z, target):
    leaf = torch.tensor([z], requires_grad=True)
    loss = wm.parse(spec)(leaf, torch.tensor([target]))
    loss.sum().backward()
    right = (z > 0) == (target == 1.0)
    assert loss.item() == pytest.approx(0.0 if right else 1e4)
    assert leaf.grad.item() == pytest.approx(0.0 if right else math.copysign(1.0, z))


@pytest.mark.parametrize("spec", ["cross_entropy", "focal", "focal(gamma=0)", "focal(gamma=0.5)"])
@pytest.mark.parametrize("row", [[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [1e4, 1e4, -1e4], [-1e4, -1e4, -1e4]])
def test_extreme_logits_of_classes_are_finite(spec, row):
    leaf = torch.tensor([row], requires_grad=True)
    loss = wm.parse(spec)(leaf, torch.tensor([0]))
    loss.sum().backward()
    minus_log_p = cross_entropy_of(row, 0)
    gamma = {"cross_entropy": 0.0, "focal": 2.0, "focal(gamma=0)": 0.0, "focal(gamma=0.5)": 0.5}[spec]
    assert loss.item() == pytest.approx((1 - math.exp(-minus_log_p)) ** gamma * minus_log_p, abs=1e-3)
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("spec", ["cross_entropy", "focal", "focal(gamma=0)"])
@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_a_common_shift_of_all_logits_changes_nothing(spec, shift):
    z, y = torch.tensor([[0.0, 1.0, -2.0], [4.0, 0.0, 0.0]]), torch.tensor([0, 1])  # exact in float32, shifted or not
    assert wm.parse(spec)(z + shift, y).tolist() == pytest.approx(wm.parse(spec)(z, y).tolist(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spec", EVERY)
def test_half_precision_predictions_give_a_float32_loss(spec, dtype):
    prediction, target = numbers(6, 3).to(dtype), (numbers(6, 3, seed=1) > 0).double()
    loss = wm.parse(spec)(prediction, target)
    assert loss.dtype == torch.float32
    assert loss.tolist() == pytest.approx(wm.parse(spec)(prediction.double(), target).tolist(), rel=1e-5)


# ---------------------------------------------------------------- shapes


@pytest.mark.parametrize("spec", [*EVERY, "bce(probabilities=True)", "l2(half=False)"])
@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 2), (1,), (0,), (0, 3)])
def test_every_pointwise_loss_gives_one_number_per_sample(spec, shape):
    prediction, target = torch.full(shape, 0.3), torch.ones(shape)
    loss = wm.parse(spec)(prediction, target)
    assert loss.shape == shape[:1]
    assert loss.isfinite().all()


@pytest.mark.parametrize("spec", ["cross_entropy", "focal"])
def test_multi_class_losses_give_one_number_per_sample(spec):
    loss = wm.parse(spec)
    assert loss(torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])).shape == (4,)
    assert loss(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).shape == (0,)


def assert_one_line_error(loss, prediction, target, match: str) -> None:
    with pytest.raises(wm.InputError, match=match) as caught:
        loss(prediction, target)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(loss.name)


@pytest.mark.parametrize("spec", EVERY)
def test_targets_of_another_shape_are_an_error(spec):
    loss = wm.parse(spec)
    assert_one_line_error(loss, torch.zeros(4, 3), torch.zeros(4, 2), r"\[4, 2\].*\[4, 3\]")
    assert_one_line_error(loss, torch.zeros(4), torch.zeros(4, 1), r"\[4, 1\].*\[4\]")
    assert_one_line_error(loss, torch.zeros(4, 1), torch.zeros(4), r"\[4\].*\[4, 1\]")


@pytest.mark.parametrize("spec", [*EVERY, "cross_entropy"])
def test_targets_of_another_number_are_an_error(spec):
    assert_one_line_error(wm.parse(spec), torch.zeros(4, 3), torch.zeros(5, 3), "one target per prediction")


@pytest.mark.parametrize("spec", [*EVERY, "cross_entropy"])
def test_a_single_number_as_target_is_an_error(spec):
    assert_one_line_error(wm.parse(spec), torch.zeros(4, 3), torch.tensor(1.0), "one target per prediction")


@pytest.mark.parametrize("spec", [*EVERY, "cross_entropy"])
@pytest.mark.parametrize(
    "prediction", [[0.1, 0.2], torch.tensor([1, 2]), torch.tensor(0.5)], ids=["list", "integers", "one number"]
)
def test_predictions_must_be_a_float_tensor(spec, prediction):
    assert_one_line_error(wm.parse(spec), prediction, torch.tensor([1.0, 0.0]), "float tensor")


@pytest.mark.parametrize("spec", ["cross_entropy", "focal"])
@pytest.mark.parametrize("label", [4, -1, -100])
def test_class_numbers_out_of_range_are_an_error(spec, label):
    with pytest.raises(wm.InputError, match=f"label {label} is out of range"):
        wm.parse(spec)(torch.zeros(3, 4), torch.tensor([0, label, 1]))


@pytest.mark.parametrize("target", [torch.zeros(3, 5), torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3)])
def test_cross_entropy_targets_of_another_shape_are_an_error(target):
    with pytest.raises(wm.InputError):
        wm.CrossEntropy()(torch.zeros(3, 4), target)


def test_cross_entropy_needs_logits_of_classes():
    with pytest.raises(wm.InputError):
        wm.CrossEntropy()(torch.zeros(3), torch.tensor([0.0, 1.0, 0.0]))


@pytest.mark.parametrize("text", ["huber(delta=0)", "focal(gamma=-1)", "cross_entropy(smoothing=1.5)", "l2(half=2)"])
def test_options_out_of_their_domain_are_an_error(text):
    with pytest.raises(wm.InputError):
        wm.parse(text)
