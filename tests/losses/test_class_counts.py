"""Margins and class weights from class counts, against other ways to compute them; losses that are given counts."""

import math
from decimal import Decimal, getcontext

import numpy as np
import pytest
import torch

import widemargin as wm
from widemargin.losses.class_counts import MARGIN_FORMS, check_class_counts, with_class_counts

TAIL = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]


def test_gld_margins_are_those_of_its_training_script():
    # GLD 2020, third place, train.py: the square root of 1 / √n, scaled to [0.05, 0.5].
    tmp = np.sqrt(1 / np.sqrt(np.array(TAIL)))
    expected = (tmp - tmp.min()) / (tmp.max() - tmp.min()) * 0.45 + 0.05
    np.testing.assert_allclose(wm.margins_from_counts(TAIL), expected, rtol=1e-13)
    assert wm.margins_from_counts(TAIL)[0] == 0.05
    assert wm.margins_from_counts(TAIL)[-1] == pytest.approx(0.5, abs=1e-15)
    wider = wm.margins_from_counts(TAIL, "gld", low=0.1, high=0.7, power=0.5)
    assert wider[0] == pytest.approx(0.1)
    assert wider[-1] == pytest.approx(0.7)
    share = (50**-0.5 - 83**-0.5) / (50**-0.5 - 5000**-0.5)
    assert wider[-2] == pytest.approx(0.7 - 0.6 * share, rel=1e-12)


def test_happywhale_margins():
    # n^−0.364 by logarithms: 1 → 0.271 + 0.05, 1000 → 0.271 e^(−0.364 ln 1000) + 0.05.
    found = wm.margins_from_counts([1, 1000], "happywhale")
    assert found == pytest.approx([0.321, 0.271 * math.exp(-0.364 * math.log(1000)) + 0.05], rel=1e-14)
    assert wm.margins_from_counts([16], "happywhale", a=1, power=0.25, b=0) == pytest.approx([0.5])


def test_ldam_margins_are_those_of_its_authors():
    # LDAM-DRW, losses.py: m = 1 / √√n, m · (max_m / max m).
    m_list = 1.0 / np.sqrt(np.sqrt(TAIL))
    np.testing.assert_allclose(wm.margins_from_counts(TAIL, "ldam"), m_list * (0.5 / np.max(m_list)), rtol=1e-13)
    assert wm.margins_from_counts([810, 10], "ldam", max_m=0.3) == pytest.approx([0.1, 0.3], rel=1e-14)


@pytest.mark.parametrize("form", MARGIN_FORMS)
@pytest.mark.parametrize("counts", [[7, 7, 7], [1], [10**12, 1], TAIL])
def test_rarer_classes_have_wider_margins_and_none_is_nan(form, counts):
    found = wm.margins_from_counts(counts, form)
    assert all(math.isfinite(m) for m in found)
    assert sorted(found, reverse=True) == [m for _, m in sorted(zip(counts, found, strict=True))]


@pytest.mark.parametrize(("form", "m"), [("gld", 0.5), ("ldam", 0.5), ("happywhale", 0.271 * 7**-0.364 + 0.05)])
def test_equal_counts_have_equal_margins(form, m):
    assert wm.margins_from_counts([7, 7, 7], form) == pytest.approx([m] * 3)


@pytest.mark.parametrize("make", [list, np.array, torch.tensor, tuple, lambda n: [float(k) for k in n], iter])
def test_counts_in_any_container(make):
    assert wm.margins_from_counts(make(TAIL)) == wm.margins_from_counts(TAIL)
    assert check_class_counts(make(TAIL)) == TAIL


@pytest.mark.parametrize("name", ["arcface", "cosface"])
def test_margins_are_a_loss_and_its_text(name):
    margins = wm.margins_from_counts(TAIL, "ldam")
    loss = wm.parse(f"{name}(s=30, m={margins})")
    assert loss.m.values == tuple(margins)
    assert wm.parse(repr(loss)) == loss
    head = wm.Head(4, 10, loss, dtype=torch.float64)
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.arange(20) % 10
    cos = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(head.weight).T
    theta = cos[torch.arange(20), y].acos()
    m = torch.tensor(margins, dtype=torch.float64)[y]
    target = theta.cos() - m if name == "cosface" else torch.cos(theta + m)
    z = 30 * cos.scatter(1, y[:, None], target[:, None])
    inside = theta + m < math.pi  # beyond, ArcFace continues on a line
    expected = torch.nn.functional.cross_entropy(z, y, reduction="none")
    torch.testing.assert_close(head(x, y)[inside], expected[inside])


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([3, 0, 5], "class counts: class 1 has 0 samples"),
        ([3, -2], "class 1 has -2 samples"),
        ([math.nan, 1], "class 0 has nan; it must be an integer"),
        ([1, 2, 2.5], "class 2 has 2.5; it must be an integer"),
        ([math.inf], "class 0 has inf; it must be an integer"),
        ([True, 2], "class 0 has True"),
        (["3"], "class 0 has '3'"),
        ([], "class counts are empty"),
        ("12", "one integer per class, got '12'"),
        (7, "one integer per class, got 7"),
        (torch.tensor(7), "one integer per class"),
    ],
)
def test_bad_counts_are_one_line(counts, message):
    for call in (wm.margins_from_counts, wm.class_weights_from_counts):
        with pytest.raises(wm.InputError, match=message) as error:
            call(counts)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("form", "numbers", "message"),
    [
        ("glt", {}, "unknown form of margins 'glt'; did you mean 'gld'?"),
        (["gld"], {}, "unknown form of margins"),
        ("ldam", {"low": 0.1}, "unknown number of form 'ldam' 'low'"),
        ("gld", {"low": 0.6}, "low=0.6 must not be above high=0.5"),
        ("gld", {"high": math.nan}, "high must be a finite number of at least 0, got nan"),
        ("happywhale", {"a": "1"}, "a must be a finite number of at least 0, got '1'"),
    ],
)
def test_bad_forms_are_one_line(form, numbers, message):
    with pytest.raises(wm.InputError, match=message):
        wm.margins_from_counts(TAIL, form, **numbers)


@pytest.mark.parametrize("beta", [0.9, 0.9999, 1 - 1e-9, 1 - 2**-53])
def test_class_weights_keep_their_digits(beta):
    counts = [1, 2, 50, 5000, 10**7]
    getcontext().prec = 80
    effective = [(1 - Decimal(beta) ** n) / (1 - Decimal(beta)) for n in counts]
    mean = sum(1 / e for e in effective) / len(counts)
    expected = [float(1 / e / mean) for e in effective]
    found = wm.class_weights_from_counts(counts, beta)
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    assert sum(found) / len(found) == pytest.approx(1.0, rel=1e-14)


def test_class_weights_at_both_ends():
    assert wm.class_weights_from_counts([5000, 50], beta=0) == [1.0, 1.0]
    found = wm.class_weights_from_counts([100, 50], beta=1 - 1e-12)  # as 1/n
    assert found == pytest.approx([2 / 3, 4 / 3], rel=1e-9)
    for beta in (1, -0.1, math.nan, "0.9", True):
        with pytest.raises(wm.InputError, match="beta must be at least 0 and below 1"):
            wm.class_weights_from_counts([1, 2], beta)


def test_a_loss_that_wants_no_counts_stays_as_it_is():
    for text in ("softmax", "arcgrad(s=10)", "softmax + 0.02*center(alpha=0.5)", "cross_entropy", "triplet"):
        spec = wm.parse(text)
        assert with_class_counts(spec, [0, 3]) == spec  # nor does it look at them
