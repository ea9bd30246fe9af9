"""Claims on images, judged from records that are finished, begun or of one seed: generated lines of planned runs."""

import argparse
import json
import statistics
from itertools import product
from pathlib import Path

import pytest

from widemargin.cli.main import main
from widemargin.io.errors import InputError
from widemargin.reproduce import figure3, findings, headline_losses, rates, scale
from widemargin.reproduce.parts import claim as claims
from widemargin.reproduce.parts import findings_claims
from widemargin.reproduce.parts.image_tables import ColumnSpec, column_configs, top1
from widemargin.reproduce.parts.openset_claims import CLAIM_DATASETS
from widemargin.reproduce.parts.runs import EXTRA_LOSSES, IMAGE_LOSSES, make_image_config, run_folder
from widemargin.training.config import format_with_options

ALL_LOSSES = {**IMAGE_LOSSES, **EXTRA_LOSSES}


def line_of(config, accuracy, **more):
    """A line of `records.jsonl` as a finished run has it."""
    test = {"top1": accuracy, "top1_flip": accuracy + 0.5, "recall1": accuracy}
    return {
        "run": run_folder(config, Path()).name,
        "data": config.data,
        "loss": config.loss,
        "model": format_with_options(config.model, config.model_options),
        "seed": config.seed,
        "epochs": config.epochs,
        "test": test,
        "angles": {"wc_intra": 1.0, "w_inter": 1.5, "c_inter": 1.5},
        "lr": config.lr,
        "augment": config.augment,
        "train_fraction": config.train_fraction,
        "command": "a command",
        **more,
    }


def judge(tmp_path, file, lines, name):
    (tmp_path / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
    claim = {each.name: each for each in findings_claims.judge_claims(tmp_path)}[name]
    findings.render_page([claim])  # with its picture
    findings.render_markdown([claim])
    return claim


def rate_lines(accuracy, **given):
    options = {"rates": list(rates.RATES), "epochs": [10], "methods": None, "full": False, "seeds": 1, **given}
    configs = rates.rate_configs(argparse.Namespace(**options))
    angles = {"target_angles": [[10.0, 80.0 - 5 * k, 90.0] for k in range(10)]}
    return [
        line_of(config, accuracy(loss, condition.lr, config.seed), **angles)
        for (loss, condition), own in configs.items()
        for config in own
    ]


def lead_at_the_printed_rate(loss, lr, seed):
    return 80.0 + 0.1 * seed + (15.0 if lr < 0.1 or "arcgrad" in loss else 0.0) + 0.05 * len(loss) * seed


def test_rates_so_far_name_what_is_missing_and_give_no_verdict(tmp_path):
    lines = rate_lines(lead_at_the_printed_rate)
    assert len(lines) == 30
    claim = judge(tmp_path, "rates.jsonl", lines[:9], "rates")
    assert claim.status == claims.OPEN
    assert claim.finding.startswith("So far 9 of 30 runs; missing: ")
    assert "all of rate 0.01, rate 0.003, rate 0.001" in claim.finding
    assert "+15.00 points, from 1 seed and so no test" in claim.finding
    assert claim.chart is not None  # three losses have two rates
    assert judge(tmp_path, "rates.jsonl", lines[:1], "rates").chart is None
    assert judge(tmp_path, "rates.jsonl", lines, "rates").status == claims.OPEN  # one seed each


def test_a_lead_at_the_printed_rate_alone_holds_under_conditions(tmp_path):
    lines = [
        *rate_lines(lead_at_the_printed_rate),
        *rate_lines(lead_at_the_printed_rate, rates=[0.1, 0.03], seeds=3),
        *rate_lines(lead_at_the_printed_rate, rates=[0.1], epochs=[20, 40], methods=["soft", "arcgrad"]),
        *rate_lines(lead_at_the_printed_rate, full=True),
    ]
    claim = judge(tmp_path, "rates.jsonl", lines, "rates")
    assert claim.status == claims.CONDITIONS
    assert "So far" not in claim.finding
    assert "softmax's best rate" in claim.finding
    for words in ("After 20 epochs at 0.1: softmax 80.00", "After 40 epochs", "The whole ResNet-18 at 0.1"):
        assert words in claim.finding
    everywhere = rate_lines(lambda loss, lr, seed: 70 + 16 * ("arcgrad" in loss) + seed, seeds=3)
    assert judge(tmp_path, "rates.jsonl", everywhere, "rates").status == claims.HOLDS
    nowhere = rate_lines(lambda loss, lr, seed: 70 + 0.1 * seed, seeds=3)
    assert judge(tmp_path, "rates.jsonl", nowhere, "rates").status == claims.FAILS


def test_angles_of_the_own_class_are_judged_by_their_medians(tmp_path):
    lines = rate_lines(lead_at_the_printed_rate, rates=[0.1], seeds=3)
    for line in lines:
        start = 60.0 if "arcgrad" in line["loss"] else 80.0
        line["target_angles"] = [[1.0, start - 3 * k + line["seed"], 90.0] for k in range(10)]
    assert judge(tmp_path, "rates.jsonl", lines, "figure4").status == claims.HOLDS
    one_seed = [line for line in lines if line["seed"] == 0]
    claim = judge(tmp_path, "rates.jsonl", one_seed, "figure4")
    assert (claim.status, "No test" in claim.finding) == (claims.OPEN, True)


def test_a_table_of_seeds_has_a_verdict_when_it_is_complete(tmp_path):
    def accuracy(loss, seed):
        return 85.0 + 0.1 * seed + 1.8 * ("arcgrad" in loss)

    lines = [
        line_of(make_image_config("cpu", "cifar10", loss, seed, augment="none"), accuracy(loss, seed))
        for seed, loss in product(range(3), ALL_LOSSES.values())
    ]
    assert judge(tmp_path, "table4_none.jsonl", lines, "table4_none").status == claims.HOLDS
    begun = judge(tmp_path, "table4_none.jsonl", lines[:-1], "table4_none")
    assert begun.status == claims.OPEN
    assert begun.finding.startswith("So far 23 of 24 runs; missing: cosface(s=20, m=0.1) of seed 2.")
    other = [line | {"augment": "paper"} for line in lines]
    assert judge(tmp_path, "table4_none.jsonl", other, "table4_none").status == claims.UNTESTED


def test_the_hour_by_loss_and_its_three_seeds(tmp_path):
    lines = [
        line_of(config, 94.5 + 0.05 * config.seed + (0.4 if "arcgrad" in loss else 0.0))
        for loss, own in headline_losses.headline_configs().items()
        for config in own
    ]
    claim = judge(tmp_path, "headline_losses.jsonl", lines, "headline_losses")
    assert claim.status == claims.HOLDS
    assert "Holm" in claim.finding
    # Attempts of one seed give no verdict; three seeds do.
    attempts = [lines[0] | {"run": "attempt"}]
    assert judge(tmp_path, "headline.jsonl", attempts, "headline").status == claims.HOLDS
    begun = judge(tmp_path, "headline_losses.jsonl", lines[:4], "headline_losses")
    assert begun.status == claims.OPEN
    assert begun.finding.startswith("So far 4 of 9 runs; missing: ")
    (tmp_path / "headline_losses.jsonl").unlink()
    assert judge(tmp_path, "headline.jsonl", attempts, "headline").status == claims.OPEN


def test_fewer_images_by_seed(tmp_path):
    options = argparse.Namespace(size="cpu", settings="printed", seeds=3, usual_seeds=(5, 2))
    lines = []
    for fraction, method in product(figure3.TRAIN_FRACTIONS, figure3.FIGURE3_METHODS):
        spec = ColumnSpec("", {"data": "cifar10", "augment": "paper", "epochs": 10, "train_fraction": fraction}, top1)
        for config in column_configs(options, spec, IMAGE_LOSSES[method]):
            fall = (15.0 if method == "arcgrad" else 18.0) * (1.0 - fraction)
            lines.append(line_of(config, 89.0 - fall + 0.1 * config.seed * fraction))
    assert judge(tmp_path, "figure3_cpu.jsonl", lines, "figure3").status == claims.HOLDS
    one_seed = judge(tmp_path, "figure3_cpu.jsonl", [li for li in lines if li["seed"] == 0], "figure3")
    assert one_seed.status == claims.OPEN
    assert "So far 16 of 48 runs; missing: all of seed 1, seed 2." in one_seed.finding
    begun = judge(tmp_path, "figure3_cpu.jsonl", [li for li in lines if li["seed"] == 0][:3], "figure3")
    assert (begun.status, begun.chart) == (claims.OPEN, None)


def test_scales_on_images_so_far(tmp_path):
    rows = [["a", loss, s, None, 90.0] for loss in ("arcgrad", "normface") for s in (1.0, 10.0)]
    table = {"columns": ["set", "loss", "s", "m", "accuracy"], "rows": rows}
    (tmp_path / "scale_uci.json").write_text(json.dumps(table))
    for which in scale.IMAGES:
        file = f"scale_{which}.jsonl"
        lines = [line_of(config, 80.0 + setting.s / 10) for setting, config in scale.image_configs(which, 0).items()]
        begun = judge(tmp_path, file, lines[:4], "one_number")
        assert "So far 4 of 16 runs; missing: " in begun.finding
        assert "arcgrad(s=3) 80.3, normface(s=3) 80.3" in begun.finding
        assert "the rest of" in begun.finding
        finished = judge(tmp_path, file, lines, "one_number")
        assert "So far" not in finished.finding
        assert "arcgrad 1 of 4" in finished.finding
        assert finished.status == claims.CONDITIONS
        (tmp_path / file).unlink()


def test_scales_on_images_continue_from_records(tmp_path, capsys):
    lines = [line_of(config, 80.0) for config in scale.image_configs("cifar10", 0).values()]
    given = tmp_path / "given.jsonl"
    given.write_text("".join(json.dumps(line) + "\n" for line in lines[:4]))
    words = ["reproduce", "scale", "cifar10", "--records", str(given), "--list"]
    assert main([*words, "--runs-dir", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    assert "4 of 16 settings" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.html").exists()
    assert main(["reproduce", "scale", "uci", "--records", str(given), "--out", str(tmp_path)]) == 2


def test_records_of_other_runs_are_kept(tmp_path, capsys):
    grid = rate_lines(lead_at_the_printed_rate)
    given = tmp_path / "given.jsonl"
    given.write_text("".join(json.dumps(line) + "\n" for line in grid))
    folders = ["--runs-dir", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--list"]
    words = ["reproduce", "rates", "--rates", "0.1", "--seeds", "2", "--records", str(given), *folders]
    assert main(words) == 0
    assert "6 finished runs added" in capsys.readouterr().out
    kept = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    assert sorted(line["run"] for line in kept) == sorted(line["run"] for line in grid)
    assert all(line["target_angles"] for line in kept)


def test_adaacos_against_a_tuned_arcface(tmp_path):
    lines = []
    for dataset in CLAIM_DATASETS:
        for method in (*dataset.arcface_grid().values(), *dataset.untuned_methods()):
            for seed in range(10):
                is_best = method.name == "arcface(s=16, m=0.3)"
                accuracy = 90.0 + 0.01 * seed + (0.1 if method.name == "adaacos" else 0.0) - 0.02 * (seed % 2)
                val = 80.0 + seed + 5.0 * is_best
                lines.append(line_of(method.config_for_seed(seed), accuracy + 0.05 * is_best * seed % 2, val=val))
    claim = judge(tmp_path, "openset_adaacos.jsonl", lines, "adaacos")
    assert claim.status == claims.HOLDS
    assert claim.finding.count("arcface(s=16, m=0.3), tuned on held-out images") == 2
    begun = judge(tmp_path, "openset_adaacos.jsonl", [li for li in lines if li["seed"] < 3], "adaacos")
    assert begun.status == claims.OPEN
    assert begun.finding.startswith("So far 114 of 380 runs; missing: all of seed 3,")


def test_the_lead_is_that_of_welch():
    from scipy.stats import ttest_ind

    first, second = [90.0, 91.5, 92.0], [89.0, 89.2]
    lead = claims.measure_lead(first, second)
    reference = ttest_ind(first, second, equal_var=False)
    interval = reference.confidence_interval(0.95)
    assert lead.p == pytest.approx(reference.pvalue)
    assert (lead.low, lead.high) == pytest.approx((interval.low, interval.high))
    assert lead.difference == pytest.approx(statistics.fmean(first) - statistics.fmean(second))
    assert claims.measure_lead([1.0, 1.0], [1.0, 1.0]).p == 1.0


def test_a_line_that_is_no_run_is_named(tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"test": {}}\n')
    with pytest.raises(InputError, match="line 1: not the record of a run"):
        claims.read_record_lines(tmp_path / "bad.jsonl")
