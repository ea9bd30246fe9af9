"""The metric that decides a comparison: which by default, what it decides, and what results hold of every metric."""

import json
import math

import numpy as np
import pytest
from sklearn import metrics as sk
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import widemargin as wm
from comparison_cases import ANGLES, FITTED, make_result, noisy_folds, print_and_render, with_baselines
from widemargin.cli.main import main
from widemargin.data.tabular.load import load_tables
from widemargin.io.errors import InputError
from widemargin.metrics.classification import METRICS, FoldEvaluator, softmax
from widemargin.tabular.baselines import cross_validate_baseline
from widemargin.tabular.comparison import build_comparison
from widemargin.tabular.config import MLPConfig
from widemargin.tabular.crossval import Partition, cross_validate, partitions
from widemargin.tabular.metric_choice import choose_metric
from widemargin.tabular.results import ResultStore, format_result_line, parse_result_line

QUICK = {"cv_repeats": 1, "folds": 3, "jobs": 1, "quiet": True, "mlp_config": MLPConfig(min_steps=30, epochs=1)}


def with_metrics(result, **metrics):
    """A result with fold by fold scores of further metrics, which `noisy_folds` gives the accuracy."""
    return type(result)(**{**vars(result), "metrics": {"accuracy": result.folds, **metrics}})


def losses_by(metric, means, scale=1.0, **other):
    return [
        with_metrics(
            make_result(loss, noisy_folds(90, 7 * k), **other),
            **{metric: (mean + scale * noisy_folds(0, 3 * k)).tolist()},
        )
        for k, (loss, mean) in enumerate(means.items())
    ]


def lopsided_table(share=0.9, rows=100, seed=0):
    draw = np.random.default_rng(seed)
    y = np.arange(rows) >= share * rows
    return draw.normal(size=(rows, 3)) + 2 * y[:, None], np.where(y, "rare", "usual")


# What decides by default


@pytest.mark.parametrize(("share", "metric"), [(0.5, "accuracy"), (0.79, "accuracy"), (0.8, "balanced_accuracy")])
def test_balanced_accuracy_decides_where_one_class_has_most_rows(share, metric):
    found, notes = choose_metric(None, load_tables(lopsided_table(share)))
    assert found == metric
    assert len(notes) == (metric != "accuracy")
    assert choose_metric("accuracy", load_tables(lopsided_table(share))) == ("accuracy", [])


def test_one_lopsided_table_is_enough_for_all():
    tables = load_tables({"even": lopsided_table(0.5), "odd": lopsided_table(0.95)})
    metric, (note,) = choose_metric(None, tables)
    assert metric == "balanced_accuracy"
    assert "odd" in note
    assert "95.0 %" in note


@pytest.mark.parametrize(("metric", "word"), [("ece", "log_loss or brier"), ("f1", "macro_f1"), (3, "accuracy")])
def test_a_metric_that_cannot_decide_is_one_line(metric, word, tmp_path, capsys):
    with pytest.raises(InputError, match=word) as caught:
        wm.compare("iris", metric=metric, **QUICK)
    assert "\n" not in str(caught.value)
    assert main(["compare", "iris", "--metric", str(metric), "--out", str(tmp_path)]) == 2
    assert word in capsys.readouterr().err


# What it decides


@pytest.mark.parametrize("metric", [name for name, kind in METRICS.items() if kind.is_ranking])
def test_every_metric_decides_ranks_best_and_verdict(metric):
    kind = METRICS[metric]
    base, gap, noise = (50, 10, 1.0) if kind.is_percent else (0.5, 0.2, 0.02)
    means = {"bad": base, "good": base + gap} if kind.higher_is_better else {"bad": base + gap, "good": base}
    rows = losses_by(metric, means, noise)
    if metric == "accuracy":
        rows = [make_result(loss, noisy_folds(mean, 5)) for loss, mean in means.items()]
    found = build_comparison(rows, metric=metric)
    (one,) = found.sets
    assert (found.metric, found.best, found.kind) == (metric, "good", "ahead")
    assert one.ranks == (2.0, 1.0)
    assert one.wins[1] > one.wins[0]
    assert one.not_worse == {"good"}
    assert one.adjusted_p["bad"] < 0.05
    low, high = one.intervals[1]
    assert low < means["good"] < high
    frame = found.table()
    assert frame["method"].tolist() == ["good", "bad"]
    assert frame["mean"].tolist() == pytest.approx([rows[k].mean_and_std(metric)[0] for k in (1, 0)])
    assert frame[metric].tolist() == frame["mean"].tolist()
    assert set(METRICS) <= set(frame.columns)
    known = json.loads(found.to_json())
    assert known["metric"] == metric
    assert known["sets"][0]["adjusted_p"] == one.adjusted_p
    if metric != "accuracy":
        assert kind.label in found.verdict
    assert "adjusted p" in found.verdict


def test_of_several_sets_the_lowest_log_loss_has_the_first_rank():
    rows = [
        with_metrics(make_result(loss, noisy_folds(90), name), log_loss=(mean + 0.01 * noisy_folds(0, s)).tolist())
        for s, name in enumerate(f"set{k}" for k in range(8))
        for loss, mean in {"a": 0.9, "b": 0.3, "c": 0.6}.items()
    ]
    found = build_comparison(rows, metric="log_loss")
    assert found.best == "b"
    assert found.across_datasets.mean_ranks == (3.0, 1.0, 2.0)
    assert found.across_datasets.averages[1] == pytest.approx(0.3, abs=0.01)
    assert found.across_datasets.wins == (0, 8, 0)
    assert "differ in log loss" in found.verdict


def test_folds_without_the_metric_are_left_out_and_none_at_all_is_one_line():
    rows = losses_by("roc_auc", {"a": 90, "b": 70})
    for row in rows:
        row.metrics["roc_auc"][3] = math.nan
    (one,) = build_comparison(rows, metric="roc_auc").sets
    assert one.best == "a"
    assert sum(one.wins) == 19
    for row in rows:
        row.metrics["roc_auc"][:] = [math.nan] * 20
    with pytest.raises(InputError, match="ROC AUC is defined in no fold"):
        build_comparison(rows, metric="roc_auc")


def test_a_line_of_an_older_version_knows_accuracy_only():
    rows = with_baselines(FITTED, 80, line=70)
    assert build_comparison(rows).best == "arcgrad(s=30)"
    with pytest.raises(InputError, match=r"has no log_loss.*overwrite"):
        build_comparison(rows, metric="log_loss")


def test_a_baseline_without_probabilities_has_no_log_loss(capsys):
    rows = losses_by("log_loss", {"softmax": 0.3, "adacos": 0.5}, 0.02)
    rows.append(with_metrics(make_result("svm", noisy_folds(80), angles={}), log_loss=[math.nan] * 20))
    found = build_comparison(rows, metric="log_loss")
    assert found.best == "softmax"
    assert all(map(math.isnan, found.sets[0].baseline_intervals[0]))
    out, read, _ = print_and_render(found, capsys)
    assert "less is better" in out
    assert "svm" in [data for tag, data in read.texts if tag == "td"]


# Whether losses fit a table, in another metric than accuracy


def with_log_loss(rows, means):
    noise = {row.loss: 0.01 * noisy_folds(0, k, len(row.folds)) for k, row in enumerate(rows)}
    return [with_metrics(row, log_loss=(means[row.loss] + noise[row.loss]).tolist()) for row in rows]


def test_a_baseline_that_is_ahead_in_log_loss_only_stops_that_statement():
    means = {"softmax": 0.6, "arcgrad(s=30)": 0.5, "majority": 1.6, "logistic_regression": 0.9, "random_forest": 0.2}
    rows = with_log_loss(with_baselines(FITTED, 80, line=70), means)
    assert build_comparison(rows).kind == "ahead"
    found = build_comparison(rows, metric="log_loss")
    assert found.kind == "baseline_ahead"
    assert "random_forest is ahead of every loss" in found.verdict
    assert "a log loss of 0.198" in found.verdict
    assert found.best is None


def test_underfitting_is_a_matter_of_accuracy_in_every_metric():
    means = {"softmax": 2.0, "arcgrad(s=30)": 1.9, "majority": 2.2, "logistic_regression": 2.0, "random_forest": 1.2}
    losses = {"softmax": (30, 31), "arcgrad(s=30)": (38, 40)}
    found = build_comparison(with_log_loss(with_baselines(losses, 54), means), metric="log_loss")
    assert found.kind == "underfit"
    assert "an accuracy of 53.6 %" in found.verdict


def test_a_log_loss_that_is_no_better_than_the_class_shares_is_chance():
    means = {"softmax": 1.7, "arcgrad(s=30)": 1.65, "majority": 1.6, "logistic_regression": 1.72, "random_forest": 2}
    losses = {"softmax": (75, 90), "arcgrad(s=30)": (78, 97)}
    found = build_comparison(with_log_loss(with_baselines(losses, 60, line=60), means), metric="log_loss")
    assert found.kind == "chance"
    assert "log loss 1.6" in found.verdict


def test_a_wide_table_at_chance_is_called_wide():
    rows = with_baselines({"softmax": (50.2, 99), "adacos": (44, 99)}, 49, majority=50)
    plain = build_comparison(rows)
    wide = build_comparison([type(row)(**{**vars(row), "details": {"rows": 60, "columns": 2000}}) for row in rows])
    assert plain.kind == wide.kind == "chance"
    assert "2000 columns and 60 rows" in wide.verdict
    assert "wide" not in plain.verdict
    assert wide.suggested_config.dropout == 0.5


# What results hold


def test_every_metric_of_a_cross_validation_is_that_of_its_predictions():
    (table,) = load_tables("iris")
    split = partitions(table.y, 1, 3, 0)
    score = cross_validate(table, "softmax", split, MLPConfig(min_steps=30, epochs=1))
    assert score.folds == score.evaluation.metrics["accuracy"]
    assert set(score.evaluation.metrics) == set(METRICS)
    assert all(len(folds) == 3 and np.isfinite(folds).all() for folds in score.evaluation.metrics.values())
    assert score.evaluation.support == (50, 50, 50)
    right = sum(score.evaluation.hits)
    assert right == round(sum(a / 100 * len(part.test) for a, part in zip(score.folds, split, strict=True)))
    assert sum(score.evaluation.reliability.counts) == 150


def test_a_baseline_has_scikit_learns_probabilities():
    (table,) = load_tables("iris")
    split = partitions(table.y, 1, 3, 0)
    found = cross_validate_baseline(table, "logistic_regression", split, 0).evaluation
    x = np.stack([column.values for column in table.columns], 1)
    for k, part in enumerate(split):
        scaler = StandardScaler().fit(x[part.training])
        model = LogisticRegression(max_iter=1000).fit(scaler.transform(x[part.training]), table.y[part.training])
        p = model.predict_proba(scaler.transform(x[part.test]))
        assert found.metrics["log_loss"][k] == pytest.approx(sk.log_loss(table.y[part.test], p), rel=1e-3)
    svm = cross_validate_baseline(table, "svm", split, 0).evaluation
    assert svm.reliability is None
    assert np.isnan(svm.metrics["roc_auc"]).all()
    shares = cross_validate_baseline(table, "majority", split, 0).evaluation
    assert shares.metrics["log_loss"] == pytest.approx([math.log(3)] * 3)


def test_a_class_that_a_training_part_lacks_has_probability_zero():
    x, y = np.random.default_rng(0).normal(size=(30, 2)), np.array([0] * 14 + [1] * 14 + [2] * 2)
    (table,) = load_tables((x + y[:, None], y))
    split = [Partition(np.arange(4, 28), np.array([0, 1, 2, 3, 28, 29]))]
    found = cross_validate_baseline(table, "logistic_regression", split, 0).evaluation
    assert found.support == (4, 0, 2)
    assert (found.predicted[2], found.hits[2]) == (0, 0)
    assert -2 / 6 * math.log(np.finfo(np.float64).eps) < found.metrics["log_loss"][0] < math.inf


def test_metrics_and_details_are_written_and_read(tmp_path):
    report = wm.compare("iris", losses="softmax, arcgrad(s=5)", baselines=True, out=tmp_path, **QUICK)
    again = ResultStore(tmp_path).results
    for result in report.results:
        read = again[result.key]
        assert format_result_line(read) == format_result_line(result)
        assert read.details["class_names"] == ["setosa", "versicolor", "virginica"]
        assert (read.details["rows"], read.details["columns"]) == (150, 4)
        assert read.evaluation.support == (50, 50, 50)
        assert read.scores("macro_f1") == result.metrics["macro_f1"]
    assert "NaN" not in (tmp_path / "results.jsonl").read_text()
    assert json.loads((tmp_path / "verdict.json").read_text())["metric"] == "accuracy"
    later = wm.compare("iris", losses="softmax, arcgrad(s=5)", baselines=True, out=tmp_path, metric="brier", **QUICK)
    assert later.metric == "brier"
    assert [r.folds for r in later.results] == [r.folds for r in report.results]  # nothing was trained anew
    assert json.loads((tmp_path / "verdict.json").read_text())["metric"] == "brier"


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": {"log_loss": [0.1]}},
        {"metrics": {"log_loss": ["a", "b"]}},
        {"metrics": {"log_loss": 5}},
        {"details": {"support": [1, 1]}},
        {"details": {"class_names": [1]}},
        {"details": {"rows": "many"}},
    ],
)
def test_a_line_with_broken_metrics_is_refused(change):
    line = json.loads(format_result_line(make_result("softmax", [90.0, 80.0], num_folds=2)))
    assert parse_result_line(json.dumps(line)).folds == [90.0, 80.0]
    with pytest.raises(ValueError):  # noqa: PT011
        parse_result_line(json.dumps({**line, **change}))


def test_a_diverged_model_knows_nothing():
    evaluator = FoldEvaluator(2)
    evaluator.add([0, 1], softmax(np.full((2, 2), np.nan)), [0, 0])
    assert evaluator.evaluation().metrics["log_loss"] == pytest.approx([math.log(2)])


def test_lopsided_tables_are_compared_by_balanced_accuracy_from_end_to_end():
    report = wm.compare(lopsided_table(), losses="softmax, arcgrad(s=5)", stratify=True, **QUICK)
    assert report.metric == "balanced_accuracy"
    assert any("balanced accuracy" in note for note in report.notes)
    assert "balanced accuracy" in repr(report)
    frame = report.table().set_index("method")
    assert frame.loc["majority", "mean"] == 50.0
    assert frame.loc["majority", "accuracy"] == pytest.approx(90.0, abs=1.0)
    assert ANGLES.keys() <= set(frame.columns)
