"""What a page shows beyond ranks: metrics, classes, confusions, calibration, tuning; colours; narrow screens."""

import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from comparison_cases import HOSTILE, check_page, make_result, noisy_folds
from widemargin.losses.registry import list_losses
from widemargin.metrics.classification import METRICS, FoldEvaluator, Reliability
from widemargin.tabular.comparison import build_comparison
from widemargin.tabular.plan import PAPER_LOSSES
from widemargin.viz import page, terminal
from widemargin.viz.charts import ReliabilityCurve, draw_reliability_diagram
from widemargin.viz.colours import BASELINE_COLOUR, loss_colours
from widemargin.viz.comparison_page import comparison_page
from widemargin.viz.comparison_terminal import print_comparison
from widemargin.viz.svg import Chart


def with_counts(result, num_classes=3, seed=0, scaled=False):
    """A result with what random predictions of its folds give."""
    draw = np.random.default_rng(seed)
    evaluator = FoldEvaluator(num_classes)
    for _ in result.folds:
        y = draw.integers(0, num_classes, 40)
        logits = 3 * np.eye(num_classes)[y] + draw.normal(0, 1.5, (40, num_classes))
        p, sharper = (np.exp(k * logits) / np.exp(k * logits).sum(1, keepdims=True) for k in (1, 3))
        evaluator.add(y, p, uncalibrated=sharper if scaled else None, temperature=3.0 if scaled else None)
    found = evaluator.evaluation()
    details = {**found.to_dict(), "class_names": [f"kind{k}{HOSTILE}" for k in range(num_classes)]}
    del details["metrics"]
    metrics = {**found.metrics, "accuracy": result.folds}
    return replace(result, metrics=metrics, details={**details, "rows": 100, "columns": 3})


def rows_with_counts(num_classes=3, scaled=False, name="made"):
    losses = [make_result(loss, noisy_folds(90 - 5 * k, k), name) for k, loss in enumerate(("softmax", "adacos"))]
    rows = [with_counts(row, num_classes, k, scaled) for k, row in enumerate(losses)]
    names = ("majority", "logistic_regression", "svm", "random_forest", "mlp")
    simple = [make_result(loss, noisy_folds(70 + k, k + 5), name, angles={}) for k, loss in enumerate(names)]
    return [*rows, *(with_counts(row, num_classes, k + 9) for k, row in enumerate(simple))]


def cells(read):
    return [data for tag, data in read.texts if tag in ("td", "th")]


def test_the_page_has_every_metric_classes_confusions_and_calibration():
    found = build_comparison(rows_with_counts(scaled=True))
    text = comparison_page(found)
    read = check_page(text)
    words = " ".join(data for _, data in read.texts)
    for word in ("Every metric", "Classes", "Confusions", "Calibration", "Adjusted p"):
        assert word in words
    shown = cells(read)
    first = found.sets[0].results[0]
    for name, metric in METRICS.items():
        assert f"{first.mean_and_std(name)[0]:.{metric.decimals}f}" in shown
    row = first.evaluation.per_class()[1]
    assert f"{row['f1']:.1f}" in shown
    assert f"kind1{HOSTILE}" in shown
    assert first.evaluation.temperatures == [3.0] * 20
    assert f"{first.evaluation.uncalibrated.ece:.3f}" in shown
    assert f"{first.evaluation.reliability.ece:.3f}" in shown
    pictures = [value for tag, name, value in read.attributes if tag == "svg" and name == "aria-label"]
    assert any("Reliability diagram" in value for value in pictures)
    assert sum("Confusion matrix" in value for value in pictures) == 2  # of a loss and of a baseline


def test_all_five_baselines_are_in_the_picture_of_the_intervals(monkeypatch):
    drawn = []
    monkeypatch.setattr(page, "figure", lambda picture, *_: drawn.append(picture) or "")
    found = build_comparison(rows_with_counts())
    comparison_page(found)
    axes = next(chart.axes for chart in drawn if isinstance(chart, Chart) and "95 % interval" in chart.title)
    assert [label.get_text() for label in axes.get_yticklabels()] == [result.loss for result in found.results]
    assert [text.get_text() for text in axes.texts] == [f"{result.mean:.2f}" for result in found.results]


def test_many_classes_have_a_list_of_confusions_and_few_rows():
    found = build_comparison(rows_with_counts(num_classes=70))
    read = check_page(comparison_page(found))
    words = " ".join(data for _, data in read.texts)
    assert "Most frequent confusions" in words
    assert "The 30 classes with the lowest F1 of 70" in words
    assert not any(name == "aria-label" and "Confusion matrix" in value for _, name, value in read.attributes)


def test_several_sets_have_their_details_folded_away():
    rows = [row for name in ("one", "two") for row in rows_with_counts(name=name)]
    read = check_page(comparison_page(build_comparison(rows)))
    words = " ".join(data for _, data in read.texts)
    assert "Average of the means of all sets" in words
    assert read.tags.count("details") == 3
    assert [data for tag, data in read.texts if tag == "h3"].count("Classes") == 2


def test_lines_of_older_versions_have_a_page_without_these_parts():
    found = build_comparison([make_result("softmax", noisy_folds(90)), make_result("adacos", noisy_folds(80, 1))])
    words = " ".join(data for _, data in check_page(comparison_page(found)).texts)
    for word in ("Every metric", "Classes", "Confusions", "Calibration", "tuning"):
        assert word not in words


@pytest.mark.parametrize("metric", ["log_loss", "brier", "roc_auc", "macro_f1", "balanced_accuracy"])
def test_a_page_in_another_metric(metric, capsys):
    found = build_comparison(rows_with_counts(), metric=metric)
    read = check_page(comparison_page(found))
    label = METRICS[metric].label
    headings = [data for tag, data in read.texts if tag == "h2"]
    assert f"{label[0].upper()}{label[1:]} on made" in headings
    print_comparison(found)
    assert label in capsys.readouterr().out
    assert label in repr(found)
    assert label in found._repr_html_()


def test_what_tuning_chose_is_a_median_and_a_range():
    tuning = {
        "trials": 20,
        "inner": "5 folds",
        "chosen": [{"lr": lr, "s": 5.0, "odd": "x", "no": math.nan} for lr in (0.01, 0.02, 0.04)],
        "flatness": {"within_one_se": 0.625, "default_behind": 0.4},
    }
    rows = [make_result("softmax", noisy_folds(90), tuning=tuning), make_result("adacos", noisy_folds(80, 1))]
    rows += [make_result("arcgrad(s=5)", noisy_folds(85, 2), tuning={"chosen": [HOSTILE], "flatness": 3})]
    read = check_page(comparison_page(build_comparison(rows)))
    shown = cells(read)
    for text in ("20", "5 folds", "0.02 (0.01 – 0.04)", "5"):
        assert text in shown
    assert "odd" not in shown
    assert any("62 % of the trials" in data and "first trial 0.4" in data for _, data in read.texts)


# Colours


def luminance(colour):
    values = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(colour, ground):
    high, low = sorted((luminance(colour), luminance(ground)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(
    "losses",
    [PAPER_LOSSES, tuple(list_losses("margins")), tuple(f"arcgrad(s={k})" for k in range(1, 13)), ("a<b", "c")],
    ids=["paper", "margins", "one loss", "unknown"],
)
def test_every_loss_has_a_colour_of_its_own_on_both_grounds(losses):
    found = loss_colours(losses, ["svm", "mlp"])
    assert set(found) == {*losses, "svm", "mlp"}
    assert len({*found.values(), BASELINE_COLOUR}) == len(found) + 1
    assert found == loss_colours(losses[::-1], ["svm", "mlp"])
    assert {loss: found[loss] for loss in losses} == loss_colours(losses)
    for colour in found.values():
        assert contrast(colour, "#ffffff") > 2.5
        assert contrast(colour, "#15181d") > 2.5


def test_a_loss_keeps_its_usual_colour_whatever_it_is_compared_with():
    alone = loss_colours(["arcface(s=20, m=0.1)"])
    assert loss_colours(PAPER_LOSSES)["arcface(s=20, m=0.1)"] == alone["arcface(s=20, m=0.1)"]


def test_a_page_draws_two_settings_of_a_loss_in_two_colours():
    rows = [make_result("arcgrad(s=5)", noisy_folds(90)), make_result("arcgrad(s=30)", noisy_folds(88, 1))]
    text = comparison_page(build_comparison(rows))
    for colour in loss_colours(["arcgrad(s=5)", "arcgrad(s=30)"]).values():
        assert colour.lower() in text.lower()


# The reliability diagram


def test_dots_lie_at_confidence_and_accuracy():
    bins = Reliability((5, 100, 300), (0.5, 0.6, 0.9), (1.0, 0.2, 0.9))
    drawn = draw_reliability_diagram([ReliabilityCurve("<a>", bins, "#123456")], "t")
    diagonal, line, *dots = drawn.axes.lines
    assert diagonal.get_xydata().tolist() == [[0, 0], [100, 100]]
    assert line.get_xydata() == pytest.approx(np.array([[60, 20], [90, 90]]))  # five rows say nothing
    assert [dot.get_xydata().tolist() for dot in dots] == [[point] for point in line.get_xydata().tolist()]
    assert dots[1].get_markersize() > dots[0].get_markersize()
    assert [text.get_text() for text in drawn.figure.legends[0].get_texts()] == [f"<a>: ECE {bins.ece:.3f}"]
    text = drawn.to_svg()
    assert "<a>" not in text
    assert "&lt;a&gt;: 300 rows, confidence 90.0 %, accuracy 90.0 %" in text


# Narrow screens


@pytest.mark.parametrize("width", [40, 62, 80, 200])
@pytest.mark.parametrize("sets", [1, 4])
def test_tables_fold_into_blocks_and_lose_nothing(width, sets, monkeypatch, capsys):
    names = [f"set{k}" for k in range(sets)]
    found = build_comparison([row for name in names for row in rows_with_counts(name=name)])
    monkeypatch.setattr(terminal, "console", lambda _=120: Console(width=width))
    monkeypatch.setattr("widemargin.viz.comparison_terminal.console", lambda _=120: Console(width=width))
    print_comparison(found)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    for result in found.results:
        mean, std = result.mean_and_std("accuracy")
        assert f"{mean:.2f}±{std:.2f}" in out
    assert "…" not in out
    if sets == 1:
        assert f"{found.results[0].mean_and_std('brier')[0]:.4f}" in out
