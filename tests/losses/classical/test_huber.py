"""Huber against its formula."""

from __future__ import annotations

import pytest

import widemargin as wm
from criterion_cases import (
    assert_regression_formula,
)


@pytest.mark.parametrize("spec", ["huber", "huber(delta=0.3)"])
def test_values_are_the_formula(spec):
    assert_regression_formula(spec)


def test_default():
    assert wm.parse("huber") == wm.Huber(delta=1.0)
