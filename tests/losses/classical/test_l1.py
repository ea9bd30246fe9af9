"""L1 against its formula."""

from __future__ import annotations

from criterion_cases import (
    assert_regression_formula,
)


def test_values_are_the_formula():
    assert_regression_formula("l1")
