"""`wm.suggest` and `widemargin suggest`: candidates for any data, and rules that say what their records say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import widemargin as wm
from widemargin import advice
from widemargin.cli.main import main
from widemargin.training.config import TrainConfig

ROOT = Path(__file__).parents[1]


@settings(max_examples=80, deadline=None)
@given(
    st.integers(2, 10**7),
    st.floats(1, 1e5),
    st.floats(1, 1e4),
    st.booleans(),
    st.integers(1, 10**4).map(lambda n: 2 * n),
)
def test_two_or_three_candidates_that_can_be_trained(classes, images, imbalance, open_set, batch):
    found = wm.suggest(classes, images, imbalance=imbalance, open_set=open_set, batch_size=batch)
    assert 2 <= len(found) <= 3
    assert len({each.loss for each in found}) == len(found)
    for each in found:
        wm.parse(each.loss)
        TrainConfig(loss=each.loss, **each.settings)
        assert each.reason
        assert re.search(r"records/|arXiv|doi", each.source), each
        for path in re.findall(r"records/[\w.]+", f"{each.source} {each.reason}"):
            assert (ROOT / path.rstrip(".")).is_file(), path


def test_situations_differ():
    closed, tail = wm.suggest(10, 5000), wm.suggest(10, 1000, imbalance=100)
    faces, characters = wm.suggest(90_000, 50, open_set=True), wm.suggest(120, 20, open_set=True)
    assert len({closed[0].loss, tail[0].loss, faces[0].loss, characters[0].loss}) == 4
    small = wm.suggest(120, 20, open_set=True, batch_size=16)
    assert any(each.loss.startswith("xbm(") for each in small)
    assert not any(each.loss.startswith("xbm(") for each in characters)
    assert characters[0].settings == {"per_class": 4}
    assert "stream" in wm.suggest(10**6, 20, open_set=True)[0].reason
    assert not any("xbm" in each.loss or each.settings for each in wm.suggest(500, 1, open_set=True, batch_size=16))


def test_the_rule_of_long_tails_is_what_its_record_says():
    records = [json.loads(line) for line in (ROOT / "records/longtail.jsonl").read_text().splitlines()]

    def accuracy(loss: str, class_weight: str) -> float:
        own = [r for r in records if r["loss"].startswith(loss) and r["class_weight"] == class_weight]
        return fmean(r["test"]["balanced_accuracy"] for r in own)

    plain = {loss: accuracy(loss, "none") for loss in ("softmax", "ldam", "logit_adjusted", "arcface", "arcgrad")}
    assert max(plain, key=plain.__getitem__) == "logit_adjusted"
    assert accuracy("softmax", "effective") > plain["softmax"] + 5
    assert accuracy("ldam", "effective") > plain["softmax"] > plain["ldam"]


def test_the_rule_of_open_sets_is_what_its_record_says():
    suggested = wm.suggest(120, 20, open_set=True)
    (record,) = {each.source for each in suggested}
    rows = json.loads((ROOT / record).read_text())

    def is_better(metric: str, loss: str, other: str) -> bool:
        (row,) = (r for r in rows if r["metric"] == metric and {r["method_a"], r["method_b"]} == {loss, other})
        return row["is_significant"] and (row["difference"] > 0) == (row["method_a"] == loss)

    similarity, arcgrad, contrastive = (each.loss for each in suggested)
    for metric in ("recall1", "map_at_r"):
        assert is_better(metric, similarity, "softmax")
        assert is_better(metric, contrastive, "softmax")
    assert is_better("recall1", arcgrad, "softmax")
    (arcface,) = {r["method_a"] for r in rows if r["method_a"].startswith("arcface")}
    assert is_better("map_at_r", arcgrad, arcface)


def test_margins_of_class_weights_are_in_their_records():
    (arcface,) = (each for each in wm.suggest(500, 100, open_set=True) if each.loss.startswith("arcface"))
    assert "m=0.3" in arcface.loss
    settings = json.loads((ROOT / "records/openset_faces_settings.json").read_text())
    assert "m=0.3" in settings["chosen"]["arcface"]
    (cosface,) = (each for each in wm.suggest(500, 1, open_set=True) if each.loss.startswith("cosface"))
    losses = [json.loads(line)["loss"] for line in (ROOT / "records/openset_omniglot.jsonl").read_text().splitlines()]
    assert "m=0.2" in cosface.loss
    assert any(loss.startswith("cosface(") and "m=0.2" in loss for loss in losses)
    assert "m=0.1" in wm.suggest(500, 100)[-1].loss  # cited: Table III of the paper


def test_an_imbalance_that_is_not_used_is_said():
    reasons = [each.reason for each in wm.suggest(500, 100, open_set=True, imbalance=200)]
    assert all("imbalance" in reason for reason in reasons)
    assert not any("imbalance" in each.reason for each in wm.suggest(500, 100, open_set=True))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"num_classes": 1}, "num_classes=1 must be a whole number of at least 2"),
        ({"num_classes": 2.5}, "num_classes=2.5"),
        ({"num_classes": 10, "images_per_class": 0}, "images_per_class=0"),
        ({"num_classes": 10, "imbalance": 0.5}, "imbalance=0.5"),
        ({"num_classes": 10, "imbalance": float("nan")}, "imbalance=nan"),
        ({"num_classes": 10, "batch_size": "8"}, "batch_size"),
        ({"num_classes": 10, "open_set": "no"}, "True or False"),
    ],
)
def test_bad_numbers_are_one_line(given, match):
    with pytest.raises(wm.InputError, match=match):
        wm.suggest(**{"images_per_class": 5, **given})


def test_the_command_prints_what_the_function_returns(capsys):
    words = ["suggest", "--num-classes", "120", "--images-per-class", "20", "--open-set", "--batch-size", "32"]
    assert main(words) == 0
    text = capsys.readouterr().out
    found = wm.suggest(120, 20, open_set=True, batch_size=32)
    for each in found:
        assert f'"{each.loss}"{" --per-class 4" if each.settings else ""}\n' in text
        assert each.reason in text
        assert each.source in text
    assert main([*words, "--format", "json"]) == 0
    assert [advice.Suggestion(**row) for row in json.loads(capsys.readouterr().out)] == found
    assert main(["suggest", "--num-classes", "1", "--images-per-class", "20"]) == 2
    assert "num_classes=1" in capsys.readouterr().err
