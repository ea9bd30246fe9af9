"""Focal against its formula, also where the truth is almost certain."""

from __future__ import annotations

import math

import pytest
import torch

import widemargin as wm
from criterion_cases import (
    assert_binary_formula,
    cross_entropy_of,
    focal_of_lead,
    focal_slope_of_lead,
    random_values,
)


@pytest.mark.parametrize("spec", ["focal", "focal(gamma=0)", "focal(gamma=0.5)", "focal(gamma=5)"])
def test_values_are_the_formula(spec):
    assert_binary_formula(spec)


def test_default():
    assert wm.parse("focal") == wm.Focal(gamma=2.0)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 5.0])
def test_multi_class_focal_turns_down_by_the_probability_of_the_truth(gamma):
    z, y = random_values(6, 4), torch.tensor([0, 3, 1, 2, 2, 0])
    wanted = []
    for row, target in zip(z.tolist(), y.tolist(), strict=True):
        minus_log_p = cross_entropy_of(row, target)
        wanted.append((1 - math.exp(-minus_log_p)) ** gamma * minus_log_p)
    assert wm.Focal(gamma=gamma)(z, y).tolist() == pytest.approx(wanted, rel=1e-10)


def test_focal_is_cross_entropy_at_gamma_0():
    z, y, multi = random_values(6, 4), torch.tensor([0, 3, 1, 2, 2, 0]), (random_values(6, 4, seed=1) > 0).double()
    assert torch.allclose(wm.Focal(gamma=0)(z, y), wm.CrossEntropy()(z, y), rtol=1e-12, atol=0)
    assert torch.allclose(wm.Focal(gamma=0)(z, multi), wm.BCE()(z, multi), rtol=1e-12, atol=0)
    assert torch.allclose(wm.Focal(gamma=0)(z[:, 0], multi[:, 0]), wm.BCE()(z[:, 0], multi[:, 0]), rtol=1e-12, atol=0)


def test_focal_of_two_classes_is_binary_focal_of_their_difference():
    z, y = random_values(8, 2), torch.tensor([0, 1] * 4)
    assert torch.allclose(wm.Focal()(z, y), wm.Focal()(z[:, 1] - z[:, 0], y), rtol=1e-12, atol=0)


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
