"""Tuning: equally many trials for every loss, chosen within training parts, kept in folders and shown."""

import html
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_iris

import widemargin as wm
from small_tables import mixed_table
from widemargin.cli.main import main
from widemargin.data.tabular.load import load_table
from widemargin.losses.grammar import parse
from widemargin.losses.registry import list_losses
from widemargin.tabular import plan as plan_module
from widemargin.tabular.config import MLPConfig
from widemargin.tabular.crossval import cross_validate, partitions
from widemargin.tabular.tune import (
    DECAY_RANGE,
    LR_RANGE,
    SCALE_RANGE,
    TRIAL_COUNTS,
    choose_trials,
    draw_trials,
    tunable_values,
    tune_and_cross_validate,
)

CONFIG = MLPConfig(hidden=(16, 8), epochs=0, min_steps=60)
QUICK = {"folds": 3, "cv_repeats": 1, "baselines": False, "jobs": 1, "quiet": True}
QUICK |= {"mlp_config": {"min_steps": 40, "hidden": (16, 8)}}
MORE = ["arcface(s=20, m=0.1)", "arcgrad(s=5)", "m_softmax(m=0.5)", "softmax + 0.02*center", "cross_entropy"]


# ---------------------------------------------------------------- trials


@settings(max_examples=100, deadline=None)
@given(
    spec=st.sampled_from([*list_losses("margins"), *MORE]),
    count=st.integers(1, 70),
    seed=st.integers(0, 1000),
    lr=st.floats(1e-4, 1),
    decay=st.floats(0, 10),
)
def test_trials_of_every_loss_are_within_its_domain(spec, count, seed, lr, decay):
    config = replace(CONFIG, lr=lr, weight_decay=decay)
    trials = draw_trials(spec, config, count, seed)
    numbers = tunable_values(spec)
    assert len(trials) == count
    assert trials[0] == {"lr": lr, "weight_decay": decay, **{name: value for name, (value, _, _) in numbers.items()}}
    for trial in trials:
        assert trial.keys() == trials[0].keys()
        assert trial["lr"] / lr * (1 + 1e-9) >= 1 / LR_RANGE
        assert trial["lr"] / lr <= LR_RANGE * (1 + 1e-9)
        assert decay / DECAY_RANGE * (1 - 1e-9) <= trial["weight_decay"] <= decay * DECAY_RANGE * (1 + 1e-9)
        assert all(type(value) is float for value in trial.values())
        for name, (value, low, high) in numbers.items():
            assert low <= trial[name] <= high
            if name == "s":
                assert value / SCALE_RANGE * (1 - 1e-9) <= trial["s"] <= value * SCALE_RANGE * (1 + 1e-9)
        if numbers:
            replace(parse(spec), **{name: trial[name] for name in numbers})  # which checks the domain


def test_every_loss_has_the_same_rates_and_decays():
    drawn = {spec: draw_trials(spec, CONFIG, 8, seed=3) for spec in [*list_losses("margins"), *MORE]}
    pairs = {tuple((trial["lr"], trial["weight_decay"]) for trial in trials) for trials in drawn.values()}
    assert len(pairs) == 1
    assert len(set(*pairs)) == 8
    assert draw_trials("softmax", CONFIG, 8, seed=3) == drawn["softmax"]
    assert draw_trials("softmax", CONFIG, 8, seed=4) != drawn["softmax"]


def test_numbers_that_are_not_free_are_not_tuned():
    names = {spec: sorted(tunable_values(spec)) for spec in list_losses("margins")}
    assert names["arcface"] == names["cosface"] == ["m", "s"]
    assert names["arcgrad"] == ["s"]
    assert sorted(tunable_values("arcgrad(s=5, m=0.1)")) == ["m", "s"]
    assert names["softmax"] == names["adacos"] == []
    for spec in ("arcface(s=learnable(8), m=0.1)", "arcface(s=warmup(2, 8, steps=10), m=0.1)"):
        assert list(tunable_values(spec)) == ["m"]
    assert list(tunable_values("cosface(s=8, m=[0.1, 0.2, 0.3])")) == ["s"]
    assert tunable_values("cross_entropy") == {}


@given(st.floats(1e-3, 1e6), st.floats(1e-6, 1e6))
def test_as_many_trials_as_fit_into_the_budget(budget, each):
    count = choose_trials(budget, each)
    assert count in TRIAL_COUNTS
    assert count == 1 or count * each <= budget * (1 + 1e-9)
    larger = [more for more in TRIAL_COUNTS if more > count]
    assert not larger or larger[0] * each > budget * (1 - 1e-9)
    assert choose_trials(2 * budget, each) >= count


# ---------------------------------------------------------------- choosing


@pytest.mark.parametrize("val_fraction", [0.0, 0.2])
@pytest.mark.parametrize("loss", ["softmax", "arcface(s=20, m=0.1)"])
def test_one_trial_is_the_loss_as_it_is_given(loss, val_fraction):
    table, config = mixed_table(120), replace(CONFIG, val_fraction=val_fraction)
    split = partitions(table.y, 1, 3, 0)
    score, tuning = tune_and_cross_validate(table, loss, split, config, 0, trials=1)
    plain = cross_validate(table, loss, split, config, 0, calibrate=True)
    assert score.folds == plain.folds
    assert score.evaluation.temperatures == pytest.approx(plain.evaluation.temperatures, rel=0.02)
    assert tuning.trials == 1
    assert tuning.chosen == draw_trials(loss, config, 1, 0) * 3
    assert tuning.flatness == {"within_one_se": 1.0, "default_behind": 0.0, "median_behind": 0.0}


@pytest.mark.parametrize("val_fraction", [0.0, 0.2])
def test_what_is_chosen_depends_on_no_label_of_the_test_part(val_fraction):
    table, config = mixed_table(120), replace(CONFIG, val_fraction=val_fraction)
    (part, *_) = partitions(table.y, 1, 3, 0)
    found = []
    for shift in (0, 1):
        y = table.y.copy()
        y[part.test] = (y[part.test] + shift) % 3
        found.append(tune_and_cross_validate(replace(table, y=y), "arcface(s=60, m=0.5)", [part], config, 0, trials=5))
    (score, tuning), (changed_score, changed_tuning) = found
    assert tuning == changed_tuning
    assert score.evaluation.temperatures == changed_score.evaluation.temperatures
    assert score.folds != changed_score.folds


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "log_loss", "brier", "roc_auc"])
def test_a_rate_that_is_far_too_small_is_raised(metric):
    bunch = load_iris()
    table, config = load_table((bunch.data, bunch.target)), replace(CONFIG, lr=1e-3)
    split = partitions(table.y, 1, 2, 0)
    score, tuning = tune_and_cross_validate(table, "softmax", split, config, 0, trials=6, metric=metric)
    plain = cross_validate(table, "softmax", split, config, 0, calibrate=True)
    assert min(chosen["lr"] for chosen in tuning.chosen) > config.lr
    assert np.mean(score.folds) > np.mean(plain.folds) + 10
    assert tuning.flatness["default_behind"] > 0
    assert 0 < tuning.flatness["within_one_se"] < 1


def test_a_diverged_trial_is_not_chosen():
    table, config = mixed_table(90, gaps=False), replace(CONFIG, lr=1e18)
    split = partitions(table.y, 1, 2, 0)
    score, tuning = tune_and_cross_validate(table, "softmax", split, config, 0, trials=3)
    assert all(math.isfinite(value) for value in score.folds)
    assert all(math.isfinite(value) for value in tuning.flatness.values())


# ---------------------------------------------------------------- in a comparison


def read_lines(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_every_loss_has_as_many_trials_and_its_numbers_are_written_and_shown(tmp_path):
    report = wm.compare("iris", losses="softmax, arcface(s=20, m=0.1)", tune_trials=3, out=tmp_path, **QUICK)
    page = html.unescape((tmp_path / "report.html").read_text())
    assert "What tuning chose" in page
    for line, result in zip(read_lines(tmp_path), report.results, strict=True):
        tuning = line["settings"]["tuning"]
        assert tuning == result.settings["tuning"]
        assert (tuning["trials"], len(tuning["chosen"])) == (3, 3)
        tried = draw_trials(line["loss"], MLPConfig(**QUICK["mlp_config"]), 3, 0)
        for chosen in tuning["chosen"]:
            assert any(chosen == pytest.approx(trial, rel=1e-3) for trial in tried)
        rates = sorted(chosen["lr"] for chosen in tuning["chosen"])
        assert f"{rates[0]:.3g}" in page


def test_a_folder_keeps_its_number_of_trials(tmp_path, monkeypatch):
    wm.compare("iris", losses="softmax", tune_trials=2, out=tmp_path, **QUICK)
    monkeypatch.setattr(plan_module, "seconds_per_trial", lambda *given: pytest.fail("the folder knows"))
    wm.compare("iris", losses="softmax, arcgrad(s=5)", tune=1e6, out=tmp_path, **QUICK)
    assert [line["settings"]["tuning"]["trials"] for line in read_lines(tmp_path)] == [2, 2]
    assert [line["loss"] for line in read_lines(tmp_path)] == ["softmax", "arcgrad(s=5)"]


@pytest.mark.parametrize(("first", "then"), [({}, {"tune_trials": 2}), ({"tune_trials": 2}, {}),
                                             ({"tune_trials": 2}, {"tune_trials": 3})])  # fmt: skip
def test_a_result_of_another_number_of_trials_is_not_taken(first, then, tmp_path):
    wm.compare("iris", losses="softmax", out=tmp_path, **QUICK, **first)
    with pytest.raises(wm.InputError, match="with another tune_trials") as caught:
        wm.compare("iris", losses="softmax", out=tmp_path, **QUICK, **then)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_budget_is_turned_into_trials_and_one_that_is_too_small_is_said(monkeypatch):
    monkeypatch.setattr(plan_module, "seconds_per_trial", lambda *given: 10.0)
    report = wm.compare("iris", losses="softmax", tune=45, **QUICK)
    assert report.results[0].settings["tuning"]["trials"] == 4
    assert any("tune_trials=4" in note for note in report.notes)
    report = wm.compare("iris", losses="softmax", tune=15, **QUICK)
    assert "tuning" not in report.results[0].settings
    assert any("not enough to tune" in note for note in report.notes)


def test_a_real_budget_is_about_kept():
    report = wm.compare("iris", losses="softmax", tune=0.5, **QUICK)
    assert report.results[0].settings.get("tuning", {"trials": 1})["trials"] in TRIAL_COUNTS
    assert report.results[0].seconds < 20


def test_tuned_losses_are_not_calibrated_where_that_is_not_wanted():
    raw = wm.compare("iris", losses="arcgrad(s=5)", tune_trials=2, calibrate=False, **QUICK).results[0]
    scaled = wm.compare("iris", losses="arcgrad(s=5)", tune_trials=2, **QUICK).results[0]
    assert raw.evaluation.temperatures == []
    assert len(scaled.evaluation.temperatures) == 3
    assert raw.folds == scaled.folds


def test_the_command_tunes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["compare", "iris", "--losses", "softmax", "--folds", "3", "--cv-repeats", "1", "--no-baselines"]
    words += ["--jobs", "1", "--min-steps", "40", "--hidden", "16", "8", "--no-calibrate"]
    assert main([*words, "--tune-trials", "2", "--out", "tuned"]) == 0
    (line,) = read_lines(tmp_path / "tuned")
    assert line["settings"]["tuning"]["trials"] == 2
    assert "calibrate" not in line["settings"]
    for wrong in (["--tune", "0"], ["--tune-trials", "0"], ["--tune", "-1"]):
        capsys.readouterr()
        assert main([*words, *wrong, "--out", "other"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "other").exists()


def test_a_result_tuned_by_another_metric_is_not_taken(tmp_path):
    wm.compare("iris", losses="softmax", out=tmp_path, tune_trials=2, **QUICK)
    with pytest.raises(wm.InputError, match=r"tuned_metric.*accuracy.*log_loss"):
        wm.compare("iris", losses="softmax", out=tmp_path, tune_trials=2, metric="log_loss", **QUICK)
