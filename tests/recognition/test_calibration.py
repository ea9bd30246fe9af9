"""Thresholds by false accept rate: exact on their own pairs, honest about what they support, safe to read."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from widemargin.io.errors import InputError
from widemargin.metrics import pair_counts
from widemargin.recognition.calibration import Calibration


def draw_identities(identities, images, spread=0.8, dim=16, seed=0):
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(identities).repeat_interleave(images)
    x = torch.randn(identities, dim, generator=draw)[y] + spread * torch.randn(len(y), dim, generator=draw)
    return x, y


def different_cosines(x, y):
    unit = torch.nn.functional.normalize(x.double())
    apart = (y[:, None] != y[None]).triu(1)
    return (unit @ unit.T)[apart].numpy()


@pytest.mark.parametrize(("identities", "images"), [(12, 4), (40, 10), (60, 1)])
def test_thresholds_have_their_rate_on_the_pairs_they_were_fitted_on(identities, images):
    x, y = draw_identities(identities, images)
    cosines = different_cosines(x, y)
    found = Calibration.fit(x, y)
    assert found.num_different_pairs == len(cosines)
    for point in found.points:
        passing = int((cosines >= point.cosine - 1e-6).sum())
        assert abs(point.far * len(cosines) - passing) < 1.5
        assert passing >= 10 or abs(passing - 10) <= 1
    assert len(cosines) * found.min_far < 10 * 10**0.25 + 1  # down to the last quarter decade with ten pairs


def test_many_pairs_are_counted_in_bins_with_the_same_thresholds(monkeypatch):
    x, y = draw_identities(30, 8)
    exact = Calibration.fit(x, y)
    monkeypatch.setattr(pair_counts, "MAX_IN_MEMORY_PAIRS", 10)
    binned = Calibration.fit(x, y)
    assert [p.cosine for p in binned.points] == pytest.approx([p.cosine for p in exact.points], abs=4e-6)
    assert [p.far for p in binned.points] == pytest.approx([p.far for p in exact.points], rel=1e-2)


def test_intervals_hold_the_true_rate_about_as_often_as_they_say():
    """The rate at a threshold on very many other identities lies in the interval in about 95 % of the draws."""
    far_x, far_y = draw_identities(600, 2, seed=999)
    truth = np.sort(different_cosines(far_x, far_y))
    inside = []
    for seed in range(40):
        found = Calibration.fit(*draw_identities(40, 4, seed=seed))
        point = min(found.points, key=lambda p: abs(p.far - 0.03))
        rate = 1 - np.searchsorted(truth, point.cosine) / len(truth)
        inside.append(point.far_low <= rate <= point.far_high)
    assert sum(inside) >= 34


def test_a_rate_without_enough_pairs_is_refused():
    found = Calibration.fit(*draw_identities(12, 4))
    with pytest.raises(InputError, match="not supported"):
        found.threshold(1e-6)
    with pytest.raises(InputError, match="comparisons"):
        found.threshold(0.05, num_comparisons=1000)
    with pytest.raises(InputError, match="between 0 and 1"):
        found.threshold(1.0)
    smallest = found.smallest_far(50)
    assert found.threshold(smallest * 1.001, 50).cosine == pytest.approx(found.points[-1].cosine, abs=0.02)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.02, 0.3), st.floats(1.05, 3))
def test_a_smaller_rate_has_a_higher_threshold(far, ratio):
    found = Calibration.fit(*draw_identities(20, 5))
    assert found.threshold(far / ratio).cosine >= found.threshold(far).cosine
    assert found.threshold(far, 3).cosine >= found.threshold(far).cosine


def test_the_rate_of_a_threshold_is_the_inverse():
    found = Calibration.fit(*draw_identities(40, 10))
    for count in (1, 7):
        rate, is_known = found.false_accept_rate(found.threshold(0.02, count).cosine, count)
        assert is_known
        assert rate == pytest.approx(0.02, rel=1e-6)


def test_too_few_identities_are_refused():
    with pytest.raises(InputError, match="at least 10 identities"):
        Calibration.fit(*draw_identities(9, 5))


def test_it_survives_a_file():
    found = Calibration.fit(*draw_identities(20, 5), source="twenty people")
    assert Calibration.from_dict(json.loads(json.dumps(found.to_dict())), "file") == found


@pytest.mark.parametrize(
    "change",
    [
        {"format": 9},
        {"points": []},
        {"points": [{"far": 0.1, "cosine": "high", "far_low": None, "far_high": None}]},
        {"points": [{"far": 2.0, "cosine": 0.5, "far_low": None, "far_high": None}]},
        {"points": [{"far": float("nan"), "cosine": 0.5, "far_low": None, "far_high": None}]},
        {"points": [{"far": far, "cosine": 0.5, "far_low": None, "far_high": None} for far in (0.01, 0.1)]},
        {"num_identities": -1},
        {"num_images": True},
        {"source": 3},
    ],
)
def test_a_damaged_file_is_one_line(change):
    raw = Calibration.fit(*draw_identities(20, 5)).to_dict() | change
    with pytest.raises(InputError, match="file: "):
        Calibration.from_dict(raw, "file")
    with pytest.raises(InputError, match="file: "):
        Calibration.from_dict([], "file")
