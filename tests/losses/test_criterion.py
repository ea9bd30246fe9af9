"""What holds for several classical losses: means over a sample, gradients, extremes, shapes, wrong inputs."""

from __future__ import annotations

import math

import pytest
import torch

import widemargin as wm
from criterion_cases import (
    BINARY,
    POINTWISE,
    REFERENCES,
    cross_entropy_of,
    random_values,
)


@pytest.mark.parametrize("spec", [*REFERENCES, *BINARY])
def test_the_loss_of_a_sample_is_the_mean_over_its_numbers(spec):
    loss = wm.parse(spec)
    prediction, target = random_values(4, 3), (random_values(4, 3, seed=1) > 0).double()
    rows = [loss(prediction[i], target[i]).tolist() for i in range(4)]
    assert loss(prediction, target).tolist() == pytest.approx([sum(row) / 3 for row in rows], rel=1e-12)
    deep = loss(prediction.reshape(2, 2, 3), target.reshape(2, 2, 3))
    assert deep.tolist() == pytest.approx([sum(rows[0] + rows[1]) / 6, sum(rows[2] + rows[3]) / 6], rel=1e-12)


@pytest.mark.parametrize("spec", [*REFERENCES, *BINARY, "bce(probabilities=True)"])
def test_gradients_of_pointwise_losses_are_exact(spec):
    loss = wm.parse(spec)
    prediction, target = random_values(5, 3), (random_values(5, 3, seed=1) > 0).double()
    if "probabilities" in spec:
        prediction = torch.sigmoid(prediction)
    assert torch.autograd.gradcheck(lambda p: loss(p, target), prediction.requires_grad_())


@pytest.mark.parametrize("spec", ["cross_entropy", "cross_entropy(label_smoothing=0.2)", "focal", "focal(gamma=0.5)"])
def test_gradients_of_multi_class_losses_are_exact(spec):
    y = torch.tensor([0, 3, 1, 2, 2])
    assert torch.autograd.gradcheck(lambda z: wm.parse(spec)(z, y), random_values(5, 4).requires_grad_())


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
@pytest.mark.parametrize("spec", POINTWISE)
def test_half_precision_predictions_give_a_float32_loss(spec, dtype):
    prediction, target = random_values(6, 3).to(dtype), (random_values(6, 3, seed=1) > 0).double()
    loss = wm.parse(spec)(prediction, target)
    assert loss.dtype == torch.float32
    assert loss.tolist() == pytest.approx(wm.parse(spec)(prediction.double(), target).tolist(), rel=1e-5)


@pytest.mark.parametrize("spec", [*POINTWISE, "bce(probabilities=True)", "l2(half=False)"])
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


@pytest.mark.parametrize("spec", POINTWISE)
def test_targets_of_another_shape_are_an_error(spec):
    loss = wm.parse(spec)
    assert_one_line_error(loss, torch.zeros(4, 3), torch.zeros(4, 2), r"\[4, 2\].*\[4, 3\]")
    assert_one_line_error(loss, torch.zeros(4), torch.zeros(4, 1), r"\[4, 1\].*\[4\]")
    assert_one_line_error(loss, torch.zeros(4, 1), torch.zeros(4), r"\[4\].*\[4, 1\]")


@pytest.mark.parametrize("spec", [*POINTWISE, "cross_entropy"])
def test_targets_of_another_number_are_an_error(spec):
    assert_one_line_error(wm.parse(spec), torch.zeros(4, 3), torch.zeros(5, 3), "one target per prediction")


@pytest.mark.parametrize("spec", [*POINTWISE, "cross_entropy"])
def test_a_single_number_as_target_is_an_error(spec):
    assert_one_line_error(wm.parse(spec), torch.zeros(4, 3), torch.tensor(1.0), "one target per prediction")


@pytest.mark.parametrize("spec", [*POINTWISE, "cross_entropy"])
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


@pytest.mark.parametrize(
    "text", ["huber(delta=0)", "focal(gamma=-1)", "cross_entropy(label_smoothing=1.5)", "l2(half=2)"]
)
def test_options_out_of_their_domain_are_an_error(text):
    with pytest.raises(wm.InputError):
        wm.parse(text)
