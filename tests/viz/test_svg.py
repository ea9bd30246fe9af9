"""Charts as SVG: text that stays text, the page's colours, hover texts, no ids, the same bytes every time."""

import re
import subprocess
import sys
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest

from comparison_cases import PageReader
from widemargin.metrics.confusion import Confusion
from widemargin.metrics.roc import roc_curve
from widemargin.viz import charts, matrices, page, pair_charts
from widemargin.viz.svg import GRID, INK, SOFT, Chart, chart_style

HOSTILE = "_<b>$x_1$ & \x1b\x00\u202e\n学"


def make_charts():
    """A chart of every kind, with names that nobody should choose."""
    names, colours = [HOSTILE, "b"], ["#112233", "#445566"]
    draw = np.random.default_rng(0)
    same = np.arange(400) >= 200
    roc = roc_curve(np.clip(0.2 * draw.normal(size=400) + 0.5 * same, -1, 1), same)
    lines = [charts.Line(name, [(1, 2.0), (10, 3.0 + k)], colours[k], k == 1) for k, name in enumerate(names)]
    return {
        "intervals": charts.draw_intervals(names, [1, 2], [(0, 2), (1, 3)], colours, HOSTILE, HOSTILE, 1),
        "dots": charts.draw_dot_plot(names, names, [[1, 2], [3, 4]], colours, HOSTILE),
        "strip": charts.draw_strip_plot(names, [[1, 2], [3]], [1, None], colours, HOSTILE, HOSTILE),
        "bars": charts.draw_grouped_bars(names, names, [[1, 2], [3, 4]], colours, HOSTILE),
        "lines": charts.draw_line_chart(lines, HOSTILE, HOSTILE, HOSTILE),
        "log": charts.draw_log_lines(lines, HOSTILE, HOSTILE, HOSTILE),
        "epochs": charts.draw_epoch_curves(lines, HOSTILE, HOSTILE),
        "scatter": charts.draw_embedding_scatter(
            draw.normal(size=(40, 2)), np.arange(40) % 20, [f"{HOSTILE}{k}" for k in range(20)], colours, HOSTILE
        ),
        "heatmap": matrices.draw_heatmap(
            names, names, {(HOSTILE, "b"): 1.0, ("b", "b"): 2.0}, ("b", "b"), "#112233", HOSTILE
        ),
        "ridges": matrices.draw_ridgeline(names, [[1, 2, 3], [0, 0, 0]], "#112233", HOSTILE),
        "scores": pair_charts.draw_score_histogram(roc, [0.25], HOSTILE),
        "angles": pair_charts.draw_angle_histogram(180 * draw.random(400), same, HOSTILE),
        "roc": pair_charts.draw_roc_curve(roc, 200, 200, HOSTILE),
    }


@pytest.fixture(scope="module")
def drawn():
    return {name: (chart, chart.to_svg()) for name, chart in make_charts().items()}


def test_a_chart_is_safe_text_in_the_colours_of_its_page(drawn):
    for name, (chart, text) in drawn.items():
        root = ElementTree.fromstring(text)
        assert (root.get("role"), root.get("viewBox")) == ("img", f"0 0 {chart.width:g} {chart.height:g}"), name
        assert "width" not in root.attrib, name
        assert root.get("aria-label") == root[0].text.replace("\n", " "), name
        assert "\x1b" not in text, name
        assert not re.search(r"<b>|\sid=|href|url\(|<style|#0{6}|nan|font-family", text), name
        assert not any(colour in text for colour in (INK, SOFT, GRID)), name
        assert len(text) < 30_000, name
        words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert words, name
        own = [word for word in words if word and "$x_1$" in word]
        assert own or name in ("scores", "angles", "roc", "ridges"), name  # dollars are no formula
    page.html_page("t", "", [page.figure(chart) for chart, _ in drawn.values()])


def test_the_same_chart_has_the_same_bytes_whatever_the_users_settings(drawn):
    with mpl.rc_context({"axes.grid": False, "font.size": 40, "lines.linewidth": 9, "svg.fonttype": "path"}):
        before = dict(mpl.rcParams)
        again = {name: chart.to_svg() for name, chart in make_charts().items()}
        assert dict(mpl.rcParams) == before
    assert again == {name: text for name, (_, text) in drawn.items()}


def test_a_file_of_its_own_has_a_style_for_light_and_dark(drawn):
    text = drawn["lines"][0].to_svg(standalone=True)
    assert "prefers-color-scheme:dark" in text
    defined = set(re.findall(r"(--\w+):", text))
    assert set(re.findall(r"var\((--\w+)", text)) <= defined


def test_marks_have_their_hover_texts_and_places():
    with chart_style():
        chart = Chart(200, 100, "t")
        axes = chart.add_axes(50, 20, 150, 80)
        axes.set(xlim=(0, 10), ylim=(0, 6))
        (dots,) = axes.plot([0, 5, 10], [0, 3, 6], "o", ms=6, color="#112233")
        (line,) = axes.plot([0, 10], [6, 0], "--s", color="#445566")
        chart.add_tip(dots, "first", "second", "third")
        chart.add_tip(line, "whole <line>")
    svg = "{http://www.w3.org/2000/svg}"
    root = ElementTree.fromstring(chart.to_svg())
    found = {e[0].text: (e.get("cx"), e.get("cy"), e.get("r")) for e in root.iter(f"{svg}circle")}
    assert found == {"first": ("50", "80", "3"), "second": ("100", "50", "3"), "third": ("150", "20", "3")}
    group = next(e for e in root.iter(f"{svg}g") if len(e) and e[0].text == "whole <line>")
    assert next(e.get("d") for e in group.iter(f"{svg}path")) == "M50 20 150 80"


def test_ridges_and_heat_maps_hold_their_numbers():
    counts = [[1, 3, 0], [2, 2, 4]]
    axes = matrices.draw_ridgeline(["1", "2"], counts, "#112233", "t").axes
    for row, ridge in enumerate(axes.patches):
        x, y = ridge.get_xy()[:-1].T
        assert x.tolist() == [0, 30, 90, 150, 180]
        heights = row - y[1:-1]
        assert heights / heights.max() == pytest.approx(np.array(counts[row]) / max(counts[row]))
    values = {("r", "c"): 1.0, ("r", "d"): 3.0, ("s", "d"): 2.0}
    axes = matrices.draw_heatmap(["r", "s"], ["c", "d"], values, ("r", "d"), "#112233", "t").axes
    cells = {(round(bar.get_x() + 0.48), round(bar.get_y() + 0.44)): bar for bar in axes.patches}
    assert {place: bar.get_facecolor()[3] for place, bar in cells.items()} == pytest.approx(
        {(0, 0): 0.08, (1, 0): 0.7, (1, 1): 0.39}
    )
    assert [place for place, bar in cells.items() if bar.get_linewidth() == 3] == [(1, 0)]


def test_histograms_of_pairs_are_shares_of_their_kind():
    degrees, same = np.array([10.0, 11.0, 100.0, 170.0]), np.array([True, True, True, False])
    for polygon, total in zip(pair_charts.draw_angle_histogram(degrees, same, "t").axes.patches, (1, 1), strict=True):
        x, y = polygon.get_xy()[:-1].T
        assert y.sum() == pytest.approx(total)
        assert (np.diff(x) > 0).all()
    first = pair_charts.draw_angle_histogram(degrees, same, "t").axes.patches[0].get_xy()
    assert first[first[:, 1].argmax()] == pytest.approx([10.125, 2 / 3])


def test_a_confusion_matrix_has_a_hover_text_for_every_count():
    text = matrices.draw_confusion_matrix(Confusion.from_json([[3, 1], [0, 2]]), ["<a>", "b"], "t")
    tips = [data for tag, data in PageReader(text).texts if tag == "title"][1:]
    assert tips == ["<a> right: 3", "<a> taken for b: 1", "b right: 2"]


def test_drawing_imports_no_pyplot_and_the_charts_no_matplotlib():
    code = (
        "import sys; from widemargin.viz import charts, pair_charts, matrices, embeddings, run_page\n"
        "assert 'matplotlib' not in sys.modules\n"
        "charts.draw_line_chart([charts.Line('a', [(1, 2), (2, 3)], '#111111')], 'x', 'y', 't').to_svg()\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
