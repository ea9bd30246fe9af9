"""Charts: axes with round ticks, marks where their values are, one colour for a loss."""

import math
import re
from itertools import pairwise

import numpy as np
import pytest

from comparison_cases import PageReader
from widemargin.losses.registry import list_losses
from widemargin.viz import charts
from widemargin.viz.charts import loss_colour


def test_a_baseline_far_below_does_not_squeeze_the_picture():
    names, spans = ["a", "b", "majority", "forest"], [(94.0, 97.0), (95.0, 98.0), (20.0, 30.0), (90.0, 94.0)]
    means = [95.5, 96.5, 25.0, 92.0]
    drawn = charts.draw_intervals(names, means, spans, ["#111111"] * 4, "percent", "title", num_references=2)
    ticks = [float(data) for tag, data in PageReader(drawn).texts if re.fullmatch(r"\d+", data)]
    assert min(ticks) >= 89
    assert drawn.count("<polygon") == 1  # an arrow for the majority class
    assert drawn.count("<circle") == 3
    assert "25.00" in drawn
    everything = charts.draw_intervals(names, means, spans, ["#111111"] * 4, "percent", "title")
    assert "<polygon" not in everything


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (92.3, 97.8), (-3, 3), (0, 100), (1e-7, 3e-7), (33.3, 33.4), (99.99, 100.01), (1, 1e6)]
)
def test_ticks_are_round_even_and_inside(low, high):
    found = charts.tick_values(low, high)
    assert 3 <= len(found) <= 9
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
    steps = np.diff(found)
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-6)
    leading = steps[0] / 10 ** math.floor(math.log10(steps[0] * (1 + 1e-9)))
    assert min(abs(leading - nice) for nice in (1, 2, 5)) < 1e-6


def test_the_reach_of_an_axis():
    low, high = charts.axis_limits([90.0, 100.0, 95.0], 0.1)
    assert (low, high) == (89.0, 101.0)
    for same in ([5.0], [5.0, 5.0], [5.0, 5.0 + 1e-9]):
        low, high = charts.axis_limits(same, 0.1)
        assert low < 4.5
        assert high > 5.5


def test_a_bar_joins_the_members_of_a_group_and_nobody_else():
    picture = charts.draw_critical_difference_diagram(
        ["a", "b", "c", "d"], [1.0, 1.5, 3.0, 4.0], [(0, 1), (2, 3)], "rank", "t", (1.2, "cd")
    )
    places = {}
    for x, label in re.findall(r'points="([\d.]+),[^"]*"/><text[^>]*>([^<]*)</text>', picture):
        places[label.split()[0] if label[0] in "abcd" else label.split()[-1]] = float(x)
    bars = [tuple(map(float, ends)) for ends in re.findall(r'class="bar" x1="([\d.]+)" x2="([\d.]+)"', picture)]
    covered = [{name for name, x in places.items() if low <= x <= high} for low, high in bars]
    assert covered == [{"a", "b"}, {"c", "d"}]
    assert places["a"] < places["b"] < places["c"] < places["d"]
    turned = charts.draw_critical_difference_diagram(["a", "b"], [80.0, 90.0], [], "accuracy", "t", best_left=False)
    places = [float(x) for x in re.findall(r'points="([\d.]+),', turned)]
    assert places == sorted(places)  # the best, which is b, is drawn first and to the left


def test_dots_stand_where_their_values_are():
    picture = charts.draw_intervals(
        ["a", "b", "c"], [90, 95, 92], [(88, 92), (94, 96), (91, 93)], ["#111"] * 3, "percent", "t"
    )
    spots = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', picture)]
    ends = [(float(a), float(b)) for a, b in re.findall(r'<line x1="([\d.]+)" x2="([\d.]+)" y1="[\d.]+" y2', picture)]
    assert spots[0] < spots[2] < spots[1]
    for spot, (low, high) in zip(spots, ends, strict=True):
        assert spot == pytest.approx((low + high) / 2, abs=0.1)
    assert (spots[1] - spots[0]) / (spots[2] - spots[0]) == pytest.approx(5 / 2, abs=0.02)


def test_a_loss_has_one_colour_whatever_its_options():
    for name in list_losses("margins"):
        assert loss_colour(name) == loss_colour(f"{name}(s=5)") == loss_colour(f"{name}(s=30, m=[0.1, 0.2])")
        assert re.fullmatch("#[0-9A-F]{6}", loss_colour(name), re.IGNORECASE)
        assert loss_colour(f"{name}(s=5) + 0.1*center(alpha=0.5)") == loss_colour("softmax + 0.02*center(alpha=0.5)")
    margins = [loss_colour(name) for name in list_losses("margins")]
    assert len(set(margins)) == len(margins)
    assert loss_colour("random_forest") == loss_colour("random_forest")
    assert all(a != b for a, b in pairwise(map(loss_colour, ("softmax", "m_softmax", "l_softmax", "a_softmax"))))
