"""Binary cross-entropy against its formula and the values of the slides."""

from __future__ import annotations

import math

import pytest
import torch

import widemargin as wm
from criterion_cases import (
    assert_binary_formula,
    random_values,
    slope,
)


def test_values_are_the_formula():
    assert_binary_formula("bce")


def test_predictions_may_be_probabilities():
    p, target = torch.sigmoid(random_values(20)), torch.sigmoid(random_values(20, seed=1))
    wanted = [-t * math.log(q) - (1 - t) * math.log(1 - q) for q, t in zip(p.tolist(), target.tolist(), strict=True)]
    assert wm.BCE(probabilities=True)(p, target).tolist() == pytest.approx(wanted, rel=1e-12)
    logits = torch.log(p / (1 - p))
    assert wm.BCE()(logits, target).tolist() == pytest.approx(wanted, rel=1e-9)


def test_the_slides_value_and_slope_of_a_prediction_of_0_1_for_a_target_of_1():
    prediction, target = torch.tensor([0.1]), torch.tensor([1.0])
    assert round(wm.BCE(probabilities=True)(prediction, target).item(), 2) == 2.30
    assert slope(wm.BCE(probabilities=True), [0.1], target) == pytest.approx([-10.0], rel=1e-6)
