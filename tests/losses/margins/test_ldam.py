"""LDAM: rarer classes have larger margins."""

from __future__ import annotations

import pytest

import widemargin as wm
from margin_cases import make_head

pytestmark = pytest.mark.usefixtures("one_thread")


def test_margins_by_hand():
    margin = make_head(4, 3, "ldam(max_m=0.4, counts=[16, 1, 81])").margin
    assert margin.m.values == pytest.approx((0.2, 0.4, 0.4 / 3))


def test_a_count_of_zero_names_its_class():
    with pytest.raises(wm.InputError, match=r"counts\[1\]=0 is outside its domain"):
        wm.parse("ldam(counts=[4, 0, 2])")


def test_counts_for_another_number_of_classes_are_refused():
    with pytest.raises(wm.InputError, match="counts has 2 numbers for 3 classes"):
        wm.Head(4, 3, "ldam(counts=[4, 2])")


def test_without_counts_it_is_cosface_and_says_so():
    with pytest.warns(UserWarning, match="without counts"):
        head = wm.Head(4, 3, "ldam")
    assert head.margin.m == 0.5
