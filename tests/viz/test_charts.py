"""Charts: axes with round ticks, marks where their values are, one colour for a loss."""

import math
import re
from itertools import pairwise

import numpy as np
import pytest

from comparison_cases import PageReader
from widemargin.losses.registry import list_losses
from widemargin.viz import charts
from widemargin.viz.colours import loss_colour
from widemargin.viz.critical_difference import draw_critical_difference_diagram
from widemargin.viz.svg import axis_limits, tick_values


def test_intervals_have_their_values_and_a_baseline_far_below_does_not_squeeze_them():
    names, spans = ["a", "b", "majority", "forest"], [(94.0, 97.0), (95.0, 98.0), (20.0, 30.0), (90.0, 94.0)]
    means = [95.5, 96.5, 25.0, 92.0]
    drawn = charts.draw_intervals(names, means, spans, ["#111111"] * 4, "percent", "title", num_references=2)
    rows = {line.get_ydata()[0]: line for line in drawn.axes.lines}
    for row in (0, 1, 3):
        assert rows[row].get_xdata() == pytest.approx([spans[row][0], means[row], spans[row][1]])
    low, high = drawn.axes.get_xlim()
    assert 89 < low < 90
    assert 98 < high < 99
    assert (list(rows[2].get_xdata()), rows[2].get_marker()) == ([low], "<")  # an arrow for the majority class
    assert list(rows[1.5].get_ydata()) == [1.5, 1.5]  # the line above the baselines
    assert "25.00" in [text.get_text() for text in drawn.axes.texts]
    everything = charts.draw_intervals(names, means, spans, ["#111111"] * 4, "percent", "title")
    assert everything.axes.get_xlim()[0] < 20
    assert all(len(line.get_xdata()) == 3 for line in everything.axes.lines)


def test_where_less_is_better_a_baseline_far_above_is_an_arrow():
    spans = [(0.2, 0.4), (0.3, 0.5), (90.0, 91.0)]
    drawn = charts.draw_intervals(
        "abc", [0.3, 0.4, 90.5], spans, ["#111111"] * 3, "loss", "t", 1, decimals=4, higher_is_better=False
    )
    arrow = drawn.axes.lines[-1]
    assert (list(arrow.get_xdata()), arrow.get_marker()) == ([drawn.axes.get_xlim()[1]], ">")


def test_a_dot_plot_has_a_dot_for_every_row_and_name():
    values = [[90.0, 80.0], [95.0, 85.0], [70.0, 99.0]]
    drawn = charts.draw_dot_plot(["x", "y", "z"], ["a", "_b"], values, ["#112233", "#445566"])
    for k, line in enumerate(drawn.axes.lines):
        assert list(line.get_xdata()) == [row[k] for row in values]
        assert list(line.get_ydata()) == [0, 1, 2]
    assert [label.get_text() for label in drawn.axes.get_yticklabels()] == ["x", "y", "z"]
    assert [text.get_text().strip("\u200c") for text in drawn.figure.legends[0].get_texts()] == ["a", "_b"]
    tips = ["x, a: 90.00", "y, a: 95.00", "z, a: 70.00", "x, _b: 80.00", "y, _b: 85.00", "z, _b: 99.00"]
    assert read_tips(drawn) == tips


def test_values_that_are_not_finite_are_left_out():
    nan = math.nan
    drawn = charts.draw_intervals(
        ["a", "b", "c"], [90.0, nan, nan], [(89.0, 91.0), (nan, nan), (nan, nan)], ["#111111"] * 3, "u", "t", 1
    )
    points = [line.get_xydata().tolist() for line in drawn.axes.lines if line.get_linewidth() == 3]
    assert points == [[[89.0, 0.0], [90.0, 0.0], [91.0, 0.0]]]
    assert [text.get_text() for text in drawn.axes.texts] == ["90.00", "–", "–"]
    drawn = charts.draw_dot_plot(["x", "y"], ["a", "b"], [[nan, nan], [80.0, nan]], ["#112233", "#445566"])
    assert [line.get_xydata().tolist() for line in drawn.axes.lines] == [[[80.0, 1.0]], []]
    assert read_tips(drawn) == ["y, a: 80.00"]


def test_a_strip_plot_has_every_seed_the_mean_and_the_papers_value():
    drawn = charts.draw_strip_plot(["a", "b"], [[1.0, 2.0, 6.0], [4.0]], [0.0, None], ["#112233", "#445566"], "u", "t")
    points = [(line.get_marker(), *line.get_xydata().T.tolist()) for line in drawn.axes.lines]
    assert points == [
        ("o", [1.0, 2.0, 6.0], [0.0] * 3),
        ("|", [3.0], [0.0]),
        ("D", [0.0], [0.0]),
        ("o", [4.0], [1.0]),
        ("|", [4.0], [1.0]),
    ]


def test_bars_are_as_long_as_their_values():
    values = [[0.5, 1.0], [2.0, math.nan]]
    drawn = charts.draw_grouped_bars(["a", "b"], ["first", "second"], values, ["#112233", "#445566"], "t")
    for j, axes in enumerate(drawn.figure.axes):
        assert axes.get_xlim() == (0, 2.0)
        widths = [bar.get_width() for bar in axes.patches]
        assert widths == [row[j] if math.isfinite(row[j]) else 0.0 for row in values]
    assert [text.get_text() for text in axes.texts] == ["1.00", "–"]


def test_lines_have_their_points_and_names_that_do_not_overlap():
    ends = {"a": 20.0, "b": 20.1, "c": 5.0}
    lines = [charts.Line(name, [(1, 10.0), (2, end)], "#112233") for name, end in ends.items()]
    for drawn in (charts.draw_line_chart(lines, "x", "y", "t"), charts.draw_log_lines(lines, "x", "y", "t")):
        points = [line.get_xydata().tolist() for line in drawn.axes.lines[:3]]
        assert sorted(points) == sorted([list(point) for point in line.points] for line in lines)
        heights = {text.get_text(): text.get_position()[1] for text in drawn.axes.texts}
        assert heights["b"] - heights["a"] == pytest.approx(17.0)
        assert heights["a"] > heights["c"]
        drawn.to_svg()
        for line, leader in zip("cab", drawn.axes.lines[3:], strict=True):  # from the lowest to the highest
            x, y = drawn.axes.transData.transform((2, ends[line]))
            assert leader.get_xydata()[0] == pytest.approx([x + 4, y])
            assert leader.get_xydata()[1][1] == heights[line]


def read_tips(chart):
    return [data for tag, data in PageReader(chart.to_svg()).texts if tag == "title"][1:]


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (92.3, 97.8), (-3, 3), (0, 100), (1e-7, 3e-7), (33.3, 33.4), (99.99, 100.01), (1, 1e6)]
)
def test_ticks_are_round_even_and_inside(low, high):
    found = tick_values(low, high)
    assert 3 <= len(found) <= 9
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
    steps = np.diff(found)
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-6)
    leading = steps[0] / 10 ** math.floor(math.log10(steps[0] * (1 + 1e-9)))
    assert min(abs(leading - nice) for nice in (1, 2, 5)) < 1e-6


def test_the_reach_of_an_axis():
    low, high = axis_limits([90.0, 100.0, 95.0], 0.1)
    assert (low, high) == (89.0, 101.0)
    for same in ([5.0], [5.0, 5.0], [5.0, 5.0 + 1e-9]):
        low, high = axis_limits(same, 0.1)
        assert low < 4.5
        assert high > 5.5


def test_a_bar_joins_the_members_of_a_group_and_nobody_else():
    picture = draw_critical_difference_diagram(
        ["a", "b", "c", "d"], [1.0, 1.5, 3.0, 4.0], [(0, 1), (2, 3)], "rank", "t", (1.2, "cd")
    )
    places = {}
    for x, label in re.findall(r'points="([\d.]+),[^"]*"/><text[^>]*>([^<]*)</text>', picture):
        places[label.split()[0] if label[0] in "abcd" else label.split()[-1]] = float(x)
    bars = [tuple(map(float, ends)) for ends in re.findall(r'class="bar" x1="([\d.]+)" x2="([\d.]+)"', picture)]
    covered = [{name for name, x in places.items() if low <= x <= high} for low, high in bars]
    assert covered == [{"a", "b"}, {"c", "d"}]
    assert places["a"] < places["b"] < places["c"] < places["d"]
    turned = draw_critical_difference_diagram(["a", "b"], [80.0, 90.0], [], "accuracy", "t", best_left=False)
    places = [float(x) for x in re.findall(r'points="([\d.]+),', turned)]
    assert places == sorted(places)  # the best, which is b, is drawn first and to the left


def test_a_loss_has_one_colour_whatever_its_options():
    for name in list_losses("margins"):
        assert loss_colour(name) == loss_colour(f"{name}(s=5)") == loss_colour(f"{name}(s=30, m=[0.1, 0.2])")
        assert re.fullmatch("#[0-9A-F]{6}", loss_colour(name), re.IGNORECASE)
        assert loss_colour(f"{name}(s=5) + 0.1*center(alpha=0.5)") == loss_colour("softmax + 0.02*center(alpha=0.5)")
    margins = [loss_colour(name) for name in list_losses("margins")]
    assert len(set(margins)) == len(margins)
    assert loss_colour("random_forest") == loss_colour("random_forest")
    assert all(a != b for a, b in pairwise(map(loss_colour, ("softmax", "m_softmax", "l_softmax", "a_softmax"))))
