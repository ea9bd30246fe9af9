"""Recipes on depth, scale, gap and self-chosen scales, and the page of findings that is computed from their records."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import widemargin as wm
from small_sets import write_small_cifar
from widemargin.cli.main import main
from widemargin.data.tabular.uci import load_uci_set
from widemargin.io.errors import InputError
from widemargin.reproduce import depth, findings, gap
from widemargin.reproduce.parts import auto_scale_page, claim, depth_map, findings_claims, gap_page, scale_page
from widemargin.reproduce.parts.auto_scales import Eq19Scale, MaxGradientScale, candidates
from widemargin.reproduce.parts.cells import CellStore, read_record_rows, write_record
from widemargin.reproduce.parts.depth_models import draw_layer
from widemargin.reproduce.parts.scale_grids import fold_accuracies, grid_settings
from widemargin.tabular.config import MLPConfig
from widemargin.tabular.crossval import cross_validate, partitions

ROOT = Path(__file__).parents[2]


# ---------------------------------------------------------------- cells on disk


def test_a_line_that_was_cut_off_counts_as_missing(tmp_path):
    store = CellStore(tmp_path, ("loss", "s"))
    store.add([{"loss": "arcgrad", "s": 1.0, "accuracy": 90.0}, {"loss": "arcgrad", "s": 2.0, "accuracy": 91.0}])
    text = store.path.read_text()
    store.path.write_text(text[:-5])
    again = CellStore(tmp_path, ("loss", "s"))
    assert again.has_all([{"loss": "arcgrad", "s": 1.0}])
    assert not again.has_all([{"loss": "arcgrad", "s": 2.0}])


def test_cells_of_another_recipe_are_refused_and_records_come_back(tmp_path):
    (tmp_path / "cells.jsonl").write_text('{"other": 1}\n')
    with pytest.raises(InputError, match="line 1"):
        CellStore(tmp_path, ("loss",))
    rows = [{"loss": "arcgrad", "accuracy": 1.5, "commit": "abc"}]
    write_record(tmp_path / "record.json", "a command", [0], rows)
    assert read_record_rows(tmp_path / "record.json") == [{"loss": "arcgrad", "accuracy": 1.5}]
    assert json.loads((tmp_path / "record.json").read_text())["commits"] == ["abc"]


# ---------------------------------------------------------------- depth


def test_initialisations_have_their_variance():
    rng = np.random.default_rng(0)
    deviations = {init: draw_layer(init, 400, 400, rng)[0].std().item() * 20 for init in ("torch", "lecun", "he")}
    assert deviations == pytest.approx({"torch": 3**-0.5, "lecun": 1.0, "he": 2**0.5}, rel=0.02)


@pytest.mark.slow
def test_the_depth_map_goes_on_where_it_stopped(data_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(depth, "STEPS_AND_BATCH", ((60, 16),))
    monkeypatch.setattr(depth, "EMBEDDINGS", ("linear",))
    command = ["reproduce", "depth", "--quick", "--data-dir", str(data_dir), "--out", str(tmp_path / "depth")]
    assert main(command) == 0
    rows = read_record_rows(tmp_path / "depth" / "record.json")
    assert len(rows) == 2 * 2 * 2 * 9  # losses, depths, optimizers, initialisations × rates
    shallow = [row["accuracy"] for row in rows if row["layers"] == 3 and row["lr"] == 0.1]
    assert max(shallow) > 90
    monkeypatch.setattr(depth, "train_stack", lambda *_: pytest.fail("a finished cell was trained again"))
    assert main(command) == 0
    assert "in which a loss learns" in capsys.readouterr().out


def test_regions_compare_only_settings_that_all_losses_have():
    base = {"width": 8, "embedding": "relu", "opt": "sgd", "steps": 1, "batch": 1, "init": "he", "layers": 10}
    rows = [
        {**base, "lr": lr, "loss": loss, "accuracy": accuracy}
        for lr, loss, accuracy in (
            (1.0, "softmax", 33.3),
            (1.0, "arcgrad(s=5)", 95.0),
            (2.0, "softmax", 90.0),
        )
    ]
    assert [each.num_settings for each in depth_map.regions(rows)] == [1, 1]
    pair = depth_map.compare_regions(rows, "arcgrad(s=5)", "softmax", 10)
    assert (pair.only_first, pair.only_second, pair.p) == (1, 0, 1.0)


# ---------------------------------------------------------------- scale and gap


def test_settings_in_one_stack_are_what_cross_validation_gives(data_dir):
    table = load_uci_set("iris_uci", str(data_dir))
    split = partitions(table.y, 1, 3, 0)
    config = MLPConfig(min_steps=40, epochs=1.0)
    together = fold_accuracies(table, "arcface", split, config, 0, grid_settings(["arcface"], (5.0, 30.0), (0.1,)))
    alone = cross_validate(table, "arcface(s=30, m=0.1)", split, config).folds
    assert together.shape == (2, 3)
    assert together[1] == pytest.approx(alone, abs=2.1)  # another order of sums may turn a single row of fifty


def test_the_plateau_counts_settings_within_a_point():
    rows = [
        {"set": name, "loss": "arcgrad", "s": s, "m": None, "accuracy": value}
        for name in "ab"
        for s, value in ((1.0, 70.0), (5.0, 80.0), (30.0, 79.2))
    ]
    (found,) = scale_page.plateaus(rows)
    assert (found.num_within, found.num_settings, found.low_scale, found.high_scale) == (2, 3, 5.0, 30.0)


def test_wrong_labels_are_as_many_as_asked_and_never_the_right_class():
    clean, noisy = (gap.load_gap_table("gaussian_10", noise, None) for noise in (0.0, 0.2))
    assert np.mean(clean.y != noisy.y) == pytest.approx(0.2, abs=0.06)
    assert set(np.unique(noisy.y)) <= set(range(10))


def test_the_slope_of_an_inverse_proportion_is_minus_one():
    cell = {"set": "x", "noise": 0.0, "network": "network", "classes": 3}
    rows = [{**cell, "s": s, "gap": [2.0 / s, 2.0 / s], "predicted": 2.0 / s} for s in (1.0, 4.0, 16.0)]
    (found,) = gap_page.slopes(rows)
    assert (found.slope, found.is_falling, found.num_met) == (pytest.approx(-1.0), True, 3)


def test_the_gap_recipe_measures_both_parts(data_dir, tmp_path):
    out = tmp_path / "gap"
    command = ["reproduce", "gap", "--sets", "iris", "--steps", "20", "--data-dir", str(data_dir), "--out", str(out)]
    assert main(command) == 0
    rows = read_record_rows(out / "record.json")
    assert len(rows) == 2 * 2 * len(gap.SCALES)
    assert all(len(row["gap"]) == len(row["test_gap"]) == gap.NUM_SEEDS for row in rows)
    assert rows[0]["predicted"] == pytest.approx(math.radians(83.8), abs=1e-3)


# ---------------------------------------------------------------- scales that choose themselves


def test_max_gradient_is_the_best_of_a_fine_grid():
    torch.manual_seed(0)
    head = wm.Head(8, 5, MaxGradientScale())
    x, y = torch.randn(64, 8), torch.randint(5, (64,))
    for _ in range(100):  # the running mean comes to rest at what this batch suggests
        head(x, y)
    theta = torch.arccos(torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(head.weight.detach()).T)
    scales = torch.logspace(0, math.log10(60), 400)
    gradients = [s * (1 - torch.softmax(-s * theta, 1)[torch.arange(64), y]).mean() for s in scales]
    best = float(scales[int(torch.stack(gradients).argmax())])
    assert float(head.margin_state.state_s) == pytest.approx(best, rel=0.2)


def test_eq19_follows_the_median_gap():
    head = wm.Head(6, 6, Eq19Scale())
    with torch.no_grad():
        head.weight.copy_(torch.eye(6))
    for _ in range(150):
        head(torch.eye(6), torch.arange(6))  # every gap is a right angle
    assert float(head.margin_state.state_s) == pytest.approx(wm.suggest_scale(6, math.pi / 2), rel=2e-3)


def test_a_learnt_scale_pays_for_its_size():
    margin = candidates(10)["learnt"]
    head = wm.Head(4, 3, margin)
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    plain = wm.Head(4, 3, "arcgrad(s=10)")
    plain.load_state_dict({"weight": head.weight.detach()}, strict=False)
    assert (head(x, y) - plain(x, y)).detach().numpy() == pytest.approx(np.full(6, 0.1), abs=1e-4)


def test_a_candidate_that_is_worse_everywhere_is_not_as_good():
    methods = auto_scale_page.METHODS
    rng = np.random.default_rng(0)
    rows = []
    for name in "abcde":
        folds = (90 + rng.standard_normal(20)).round(2).tolist()
        for method in methods:
            shift = -5.0 if method == "decay" else 0.0
            row = {"set": name, "method": method, "test_share": 0.1, "test_rows": 15, "scales": []}
            rows.append({**row, "folds": [value + shift for value in folds]})
    found = {each.method: each for each in auto_scale_page.differences(rows)}
    assert found["decay"].worse_on == tuple("abcde")
    assert not found["decay"].is_as_good
    assert found["eq19"].is_as_good


# ---------------------------------------------------------------- images, at a tiny size


def test_rates_trains_what_is_missing_and_lists_the_rest(tmp_path, capsys, monkeypatch):
    data = tmp_path / "data"
    write_small_cifar("cifar10", data, monkeypatch)
    folders = ["--data-dir", str(data), "--out", str(tmp_path / "out"), "--runs-dir", str(tmp_path / "runs")]
    command = ["reproduce", "rates", "--rates", "0.01", "--epochs", "1", "--methods", "arcgrad", *folders]
    assert main([*command, "--list"]) == 0
    assert "0 of 1 runs are finished" in capsys.readouterr().out
    assert main(command) == 0
    assert "1 of 1 runs are finished" in capsys.readouterr().out
    (line,) = (tmp_path / "out" / "records.jsonl").read_text().splitlines()
    assert json.loads(line)["model"] == "resnet18(width=0.25)"
    assert main(["reproduce", "headline_losses", *folders, "--list"]) == 0
    assert "0 of 9 runs are finished" in capsys.readouterr().out


# ---------------------------------------------------------------- the page


def test_the_docs_page_is_what_the_records_give():
    claims = findings_claims.judge_claims(ROOT / "records")
    assert findings.render_markdown(claims) == (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert {each.status for each in claims} <= set(claim.STATUSES)


def test_without_records_nothing_is_claimed(tmp_path, capsys):
    out = tmp_path / "page"
    assert main(["reproduce", "findings", "--records", str(tmp_path), "--out", str(out)]) == 0
    assert f"{len(findings_claims.CLAIMS)} not tested here" in capsys.readouterr().out
    assert (out / "report.html").exists()
    assert main(["reproduce", "findings", "--records", str(tmp_path / "none")]) == 2


def test_one_seed_and_a_lead_by_chance_are_no_verdict():
    claims = {each.name: each for each in findings_claims.judge_claims(ROOT / "records")}
    lines = [json.loads(line) for line in (ROOT / "records" / "figure3_cpu.jsonl").read_text().splitlines()]
    assert len({line["seed"] for line in lines}) == 1
    assert claims["figure3"].status == claim.OPEN
    assert "may be chance" in claims["table1"].finding
