"""L2 against its formula and the values of the slides."""

from __future__ import annotations

import pytest
import torch

import widemargin as wm
from criterion_cases import (
    assert_regression_formula,
    slope,
)


@pytest.mark.parametrize("spec", ["l2", "l2(half=False)"])
def test_values_are_the_formula(spec):
    assert_regression_formula(spec)


def test_default():
    assert wm.parse("l2") == wm.L2(half=True)


def test_the_slides_value_and_slope_of_a_prediction_of_0_1_for_a_target_of_1():
    prediction, target = torch.tensor([0.1]), torch.tensor([1.0])
    assert round(wm.L2(half=False)(prediction, target).item(), 2) == 0.81
    assert slope(wm.L2(half=False), [0.1], target) == pytest.approx([-1.8], rel=1e-6)
