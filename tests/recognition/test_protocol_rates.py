"""What protocols print: all distinct pairs, intervals as wide as other identities make them, no rate of few events."""

import re

import numpy as np
import pytest
import torch

from widemargin.metrics.verification import roc_curve
from widemargin.recognition.evaluation import evaluate_embeddings
from widemargin.recognition.protocols import PROTOCOLS
from widemargin.recognition.settings import ProtocolSettings
from widemargin.viz import pair_charts as pictures


def draw_identities(identities, images, seed=0, dim=16):
    """Embeddings of identities whose spreads differ much, and their labels."""
    draw = np.random.default_rng(seed)
    y = np.repeat(np.arange(identities), images)
    spreads = 0.8 * np.exp(0.5 * draw.standard_normal(identities))
    x = draw.standard_normal((identities, dim))[y] + spreads[y, None] * draw.standard_normal((len(y), dim))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def bootstrap_width(x, y, draws=200):
    """Width of the AUC's 95 % interval over identities drawn again, copies of one identity never a different pair."""
    draw = np.random.default_rng(0)
    names = y.unique().numpy()
    found = []
    for _ in range(draws):
        taken = draw.choice(names, len(names))
        rows = torch.cat([(y == int(k)).nonzero().squeeze(1) for k in taken])
        label, copy = y[rows], torch.repeat_interleave(torch.arange(len(taken)), len(y) // len(names))
        unit = torch.nn.functional.normalize(x[rows])
        i, j = torch.triu_indices(len(rows), len(rows), 1)
        kept = (copy[i] == copy[j]) | (label[i] != label[j])
        roc = roc_curve((unit @ unit.T)[i, j][kept].double().numpy(), (copy[i] == copy[j])[kept].numpy())
        found.append(float(np.trapezoid(roc.tar, roc.far)))
    return np.diff(np.quantile(found, (0.025, 0.975)))[0]


def test_every_distinct_pair_is_counted_and_none_twice():
    x, y = draw_identities(20, 6)
    facts = PROTOCOLS["verification"](x, y, ProtocolSettings(), 0).metrics
    assert (facts["same"], facts["different"]) == (20 * 15, 190 * 36)


def test_the_interval_is_as_wide_as_other_identities_make_it():
    x, y = draw_identities(20, 8)
    auc = PROTOCOLS["verification"](x, y, ProtocolSettings(), 0).metrics["auc"]
    assert auc["high"] - auc["low"] > 0.8 * bootstrap_width(x, y)


def test_no_tar_rests_on_a_few_pairs_drawn_again_and_again():
    x, y = draw_identities(12, 6)  # 2,376 different pairs, however many are drawn
    judged = PROTOCOLS["verification"](x, y, ProtocolSettings(sampled_pairs=200_000), 0)
    assert judged.metrics["tar"]["0.0001"] is judged.metrics["tar"]["0.001"] is None
    assert judged.metrics["different"] == 2376
    assert "0.0001" not in judged.metrics["thresholds"]


def test_drawn_pairs_are_as_often_right_as_all_pairs():
    """Folds leave out most different pairs; the same ones, which are left, must not decide the accuracy."""
    x, y = draw_identities(60, 12)
    everything, drawn = (
        PROTOCOLS["verification"](x, y, ProtocolSettings(sampled_pairs=count), 0).metrics for count in (None, 3000)
    )
    assert abs(drawn["accuracy"] - everything["accuracy"]) < 2.0
    assert abs(drawn["accuracy"] - 100 * (1 - drawn["eer"]["value"])) < 3.0


def test_no_interval_of_a_handful_of_identities():
    x, y = draw_identities(4, 30)
    auc = PROTOCOLS["verification"](x, y, ProtocolSettings(), 0).metrics["auc"]
    assert auc["low"] is auc["high"] is None
    assert PROTOCOLS["fewshot"](x, y, ProtocolSettings(ways=3, episodes=30), 0).metrics["error"] is None


def test_one_of_a_hundred_unknown_images_is_no_rate_of_one_percent():
    x, y = draw_identities(20, 10)
    judged = PROTOCOLS["openset"](x, y, ProtocolSettings(), 0)
    assert judged.metrics["unknown"] == 100
    assert judged.metrics["dir"]["0.01"] is None
    assert judged.metrics["dir"]["0.1"] is not None


@pytest.mark.parametrize("protocol", ["retrieval", "knn", "fewshot"])
def test_rates_of_queries_have_intervals_over_identities(protocol):
    x, y = draw_identities(30, 6)
    judged = PROTOCOLS[protocol](x, y, ProtocolSettings(episodes=100), 0)
    assert re.search(r"\d % \([\d.]+ to [\d.]+\)", judged.lines[0]), judged.lines


def test_both_curves_end_where_ten_pairs_support_them():
    draw = np.random.default_rng(0)
    same = np.arange(3000) >= 2000
    roc = roc_curve(np.clip(0.2 * draw.normal(size=3000) + 0.5 * same, -1, 1), same)
    for drawn, scale, least in (
        (pictures.draw_roc_curve(roc, 1000, 2000, "t"), 100.0, 0.0),
        (pictures.draw_det_curve(roc, 1000, 2000, "t"), 1.0, 10 / 1000),
    ):
        far, rate = drawn.axes.lines[0].get_data()
        assert min(far) >= 10 / 2000
        assert min(rate) / scale >= least
        tar = np.array([max(roc.tar[roc.far == one]) for one in far])
        assert rate / scale == pytest.approx(tar if scale == 100.0 else 1.0 - tar)


def test_a_run_is_judged_by_all_pairs_with_intervals():
    x, y = draw_identities(30, 6)
    found = evaluate_embeddings(x, y)
    for figure in ("auc", "eer", "recall1", "pair_accuracy"):
        low, high = found["intervals"][figure]
        assert low < found[figure] < high
    assert found["tar"]["0.0001"] is None
