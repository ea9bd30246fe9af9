"""Temperatures of a cross-validation: fitted within training parts, and what they do to probabilities."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.datasets import load_breast_cancer

import widemargin as wm
from small_tables import mixed_table
from widemargin.data.tabular.encode import encode
from widemargin.data.tabular.load import load_table
from widemargin.tabular.config import MLPConfig
from widemargin.tabular.crossval import INNER_FOLDS, cross_validate, inner_partitions, partitions
from widemargin.tabular.model_stacks import StackedModels, TrainingJob, part_logits

CONFIG = MLPConfig(hidden=(16, 8), epochs=0, min_steps=60)
ways_to_calibrate = pytest.mark.parametrize("val_fraction", [0.0, 0.2])


@ways_to_calibrate
def test_a_scale_that_ruins_the_log_loss_is_mended_and_accuracy_stays(val_fraction):
    bunch = load_breast_cancer()
    table = load_table((bunch.data, bunch.target))
    split, config = partitions(table.y, 1, 5, 0), replace(CONFIG, min_steps=150, val_fraction=val_fraction)
    plain, calibrated = (
        cross_validate(table, "arcface(s=64, m=0.5)", split, config, calibrate=wanted) for wanted in (False, True)
    )
    assert calibrated.folds == plain.folds
    before, after = (np.mean(score.evaluation.metrics["log_loss"]) for score in (plain, calibrated))
    assert after < 0.5 * before
    assert plain.evaluation.temperatures == []
    assert plain.evaluation.uncalibrated is None
    assert len(calibrated.evaluation.temperatures) == 5
    assert calibrated.evaluation.uncalibrated == plain.evaluation.reliability
    assert calibrated.evaluation.reliability.ece < plain.evaluation.reliability.ece


def log_loss_with_one_uniform_row(logits, y, temperature):
    """Of all rows, and of one more, whose logits are those of every row in turn and whose label is any class."""
    log_p = log_softmax(logits / temperature, axis=1)
    return -log_p[np.arange(len(y)), y].sum() - log_p.mean()


def test_a_temperature_minimises_the_log_loss_of_inner_folds():
    table = mixed_table(90)
    split = partitions(table.y, 1, 2, 0)
    found = cross_validate(table, "arcgrad(s=5)", split, CONFIG, 3, torch.float64, calibrate=True)
    inner = inner_partitions(split, table.y, 3)
    models = StackedModels(encode(table), table, "arcgrad(s=5)", CONFIG, 3, torch.float64)
    for fold, temperature in enumerate(found.evaluation.temperatures):
        logits, labels = [], []
        for j, part in enumerate(inner[fold * INNER_FOLDS : (fold + 1) * INNER_FOLDS]):  # one model after the other
            (trained,) = models.train([TrainingJob(part.training, (3, fold, 7 + j))])
            logits += part_logits(trained.trainer, [part.test])
            labels.append(table.y[part.test])
        z, y = np.concatenate(logits), np.concatenate(labels)
        best = minimize_scalar(lambda t, z=z, y=y: log_loss_with_one_uniform_row(z, y, np.exp(t)), bracket=(-1, 1))
        assert temperature == pytest.approx(np.exp(best.x), rel=1e-5)
        assert log_loss_with_one_uniform_row(z, y, temperature) <= best.fun * (1 + 1e-9)


@ways_to_calibrate
def test_a_temperature_depends_on_no_label_of_a_test_row(val_fraction):
    table = mixed_table(120)
    (part, *_) = partitions(table.y, 1, 3, 0)
    config = replace(CONFIG, val_fraction=val_fraction)
    scores = []
    for shift in (0, 1):
        y = table.y.copy()
        y[part.test] = (y[part.test] + shift) % 3
        scores.append(cross_validate(replace(table, y=y), "arcface(s=30, m=0.2)", [part], config, calibrate=True))
    assert scores[0].evaluation.temperatures == scores[1].evaluation.temperatures
    assert scores[0].folds[0] > scores[1].folds[0] + 20  # the labels did change


@pytest.mark.parametrize("folds", [2, 3, 5])
def test_inner_folds_are_stratified_parts_of_each_training_part(folds):
    y = np.random.default_rng(0).choice(3, size=101, p=[0.7, 0.2, 0.1])
    split = partitions(y, 2, 4, 0)
    inner = inner_partitions(split, y, 5, folds)
    assert len(inner) == folds * len(split)
    for k, outer in enumerate(split):
        own = inner[k * folds : (k + 1) * folds]
        np.testing.assert_array_equal(np.sort(np.concatenate([part.test for part in own])), outer.training)
        for part in own:
            assert not np.intersect1d(part.training, part.test).size
            np.testing.assert_array_equal(np.union1d(part.training, part.test), outer.training)
            shares = np.bincount(y[outer.training], minlength=3) / folds
            assert (np.abs(np.bincount(y[part.test], minlength=3) - shares) <= 1).all()
    assert len(inner_partitions(split, y, 5)) == INNER_FOLDS * len(split)


def test_compare_calibrates_unless_told_otherwise(tmp_path):
    kept = {}
    for wanted in (True, False):
        report = wm.compare(
            "iris", losses="arcface(s=64, m=0.5)", folds=3, cv_repeats=1, baselines=False, jobs=1, quiet=True,
            mlp_config={"min_steps": 60}, calibrate=wanted, out=tmp_path / str(wanted),
        )  # fmt: skip
        kept[wanted] = report.results[0]
    assert kept[True].folds == kept[False].folds
    assert np.mean(kept[True].metrics["log_loss"]) < np.mean(kept[False].metrics["log_loss"])
    with pytest.raises(wm.InputError, match="with another calibrate"):
        wm.compare(
            "iris", losses="arcface(s=64, m=0.5)", folds=3, cv_repeats=1, baselines=False, jobs=1, quiet=True,
            mlp_config={"min_steps": 60}, calibrate=False, out=tmp_path / "True",
        )  # fmt: skip
