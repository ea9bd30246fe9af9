"""`python -m benchmarks coverage`: how often intervals over identities hold the truth, in small, and its record."""

import json
from pathlib import Path

import numpy as np

from benchmarks import coverage
from benchmarks.__main__ import main
from benchmarks.coverage import markdown, verdict

ROOT = Path(__file__).resolve().parents[2]


def test_intervals_hold_the_truth_as_often_as_they_say(tmp_path, capsys):
    """In small; `python -m benchmarks coverage` has the thousand trials of records/coverage.json."""
    path = tmp_path / "coverage.json"
    words = ["coverage", "--trials", "80", "--bootstrap-trials", "40", "--identities", "25"]
    words += ["--populations", "uneven", "--truth-pairs", "400000", "--json", str(path)]
    assert main(words) == 0
    assert "leaving out identities" in capsys.readouterr().out
    record = json.loads(path.read_text())
    coverage_by_kind = {cell["construction"]: cell["coverage_percent"] for cell in record["cells"]}
    for figure in coverage.METRIC_NAMES:
        assert coverage_by_kind[coverage.JACKKNIFE][figure] >= 88
        assert coverage_by_kind[coverage.PAIR_BOOTSTRAP][figure] <= 70  # what was printed before
    assert record["truth"]["uneven"]["errors"]["tar"] < 0.002
    path.write_text(json.dumps({**record, "mark": 1}))
    assert main(words) == 0  # continues from the complete file
    assert json.loads(path.read_text())["mark"] == 1
    assert "| uneven | 25 |" in markdown(record)
    assert main(["coverage", "--identities", "5"]) == 2
    assert "--identities must be from 10" in capsys.readouterr().err
    assert main(["coverage", "--populations", "famlies"]) == 2
    assert "families" in capsys.readouterr().err


def test_the_truth_of_a_population_is_what_other_draws_say():
    population = coverage.POPULATIONS["even"](np.random.default_rng([0, 0]))
    one, other = (coverage.estimate_truth(population, 200_000, seed) for seed in (0, 1))
    for figure in coverage.METRIC_NAMES:
        apart = abs(getattr(one, figure) - getattr(other, figure))
        assert apart < 4 * np.hypot(one.errors[figure], other.errors[figure])


def test_the_record_holds_what_the_docs_say():
    record = json.loads((ROOT / "records" / "coverage.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "intervals.md").read_text(encoding="utf-8").count(markdown(record)) == 1
    ours = [cell for cell in record["cells"] if cell["construction"] == coverage.JACKKNIFE]
    assert {(cell["identities"], cell["trials"]) for cell in ours} == {(20, 1000), (50, 1000), (200, 1000)}
    for cell in ours:
        for name in coverage.METRIC_NAMES:
            assert cell["coverage_percent"][name] >= coverage.MIN_COVERAGE_PERCENT
            # wide rather than narrow
            assert cell["coverage_percent"][name] <= coverage.MAX_COVERAGE_PERCENT or cell["identities"] == 20


def test_the_verdict_names_what_lies_outside():
    cell = {"population": "even", "identities": 20, "construction": coverage.JACKKNIFE, "trials": 9}
    cell |= {"refused": dict.fromkeys(coverage.METRIC_NAMES, 0), "width": dict.fromkeys(coverage.METRIC_NAMES, 0.1)}
    fine, off = {"auc": 95.0, "eer": 94.0, "tar": None}, {"auc": 95.0, "eer": 90.0, "tar": 96.0}
    assert verdict({"cells": [{**cell, "coverage_percent": fine}]}) == "all are inside"
    assert verdict({"cells": [{**cell, "coverage_percent": off}]}) == "outside: EER of 20 identities (even) 90.0"
