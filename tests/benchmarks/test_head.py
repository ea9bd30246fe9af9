"""`python -m benchmarks head`, its page and its costs; retrieval; the example with many classes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import head_runs, numerics
from benchmarks.__main__ import main
from benchmarks.head_page import heads_page
from benchmarks.head_timing import (
    EAGER_LOSSES,
    eager_head,
    measure_extra_memory,
    measure_sharded_head,
    metric_learning_heads,
    random_batch,
    time_over_limit,
    widemargin_head,
)
from widemargin.head import costs
from widemargin.losses.registry import list_losses


@pytest.fixture
def small_numerics(monkeypatch):
    """Gradient errors of few samples, dimensions and classes."""
    for constant, value in (("NUM_SAMPLES", 8), ("EMBEDDING_DIM", 16), ("NUM_CLASSES", 12)):
        monkeypatch.setattr(numerics, constant, value)


def test_the_command_measures_prints_and_writes(small_numerics, tmp_path, capsys):
    figures, page = tmp_path / "heads.json", tmp_path / "heads.html"
    words = ["--shapes", "8,16,50", "8,16,400", "--losses", "arcface", "arcgrad", "--rounds", "2", "--no-memory"]
    assert main(["head", *words, "--json", str(figures), "--page", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "400 classes" in printed
    assert "arcgrad, eager" in printed
    found = json.loads(figures.read_text())
    assert [row["shape"][2] for row in found["heads"]] == [50, 400]
    assert all(seconds > 0 for row in found["heads"] for seconds in row["seconds"].values())
    ours_error = next(row for row in found["errors"] if row["name"].startswith("arcface"))
    assert ours_error["initial"] < 2e-6
    assert page.read_text().count("<svg") >= 1


@pytest.mark.exhaustive
def test_separate_processes_are_compared_with_the_goals(tmp_path, capsys):
    path = tmp_path / "runs.json"
    words = ["head_runs", "--shapes", "256,512,10", "--rounds", "1", "--json", str(path)]
    assert main([*words, "--runs", "2"]) == 0
    rows = json.loads(path.read_text())
    assert {(row["loss"], row["over"]) for row in rows if "adacos" not in row["loss"]} == {
        ("arcface", "eager head"),
        ("arcface", "pytorch-metric-learning"),
        ("cosface", "eager head"),
        ("cosface", "pytorch-metric-learning"),
        ("arcgrad", "eager head"),
    }
    assert all(len(row["runs"]) == 2 and min(row["runs"]) > 0 for row in rows)
    assert "0.90" in capsys.readouterr().out
    assert main([*words, "--shapes", "3,4,5"]) == 2


def test_the_median_of_the_processes_is_compared_with_the_goal(capsys):
    shape = [256, 128, 1000]
    rows = [
        {"shape": shape, "threads": 2, "loss": loss, "over": "limit", "runs": runs}
        for loss, runs in (("arcface", [1.5, 1.9, 1.6]), ("arcgrad", [2.0, 1.8, 2.1]), ("adaface", [2.2, 2.1, 2.3]))
    ]
    assert [head_runs.goal_of(row) for row in rows] == [1.7, 1.9, 2.2]
    head_runs.print_rows(rows)
    lines = [line for line in capsys.readouterr().out.splitlines() if "reached" in line]
    assert ["not reached" in line for line in lines] == [False, True, False]
    assert "1.60 (1.50 – 1.90)" in lines[0]


@pytest.mark.slow
def test_every_margin_can_be_measured_beside_the_products_of_its_weights(tmp_path, monkeypatch, capsys):
    from benchmarks import head

    monkeypatch.setattr(head, "measure_gradient_errors", lambda losses, backends: [])
    figures, page = tmp_path / "heads.json", tmp_path / "heads.html"
    words = ["--shapes", "64,8,1000", "--losses", "all", "--rounds", "1", "--no-memory", "--no-peers"]
    assert main(["head", *words, "--json", str(figures), "--page", str(page)]) == 0
    (row,) = json.loads(figures.read_text())["heads"]
    assert {name.partition(", ")[0] for name in row["seconds"]} == {"limit", *list_losses("margins")}
    assert row["weights_per_class"] == {"soft_triple, auto": 10, "subcenter_arcface, auto": 3}
    row["seconds"] |= {
        "limit": 1.0,
        "limit, 3 weights per class": 4.0,
        "subcenter_arcface, auto": 6.0,
        "arcface, auto": 6,
    }
    assert time_over_limit(row, "subcenter_arcface, auto") == 1.5
    assert time_over_limit(row, "arcface, auto") == 6.0
    assert "limit, 10 weights per class" in capsys.readouterr().out


@pytest.mark.exhaustive  # a separate process
def test_memory_beyond_the_gradient_counts_the_gradient_of_all_subcenters():
    shape = (4, 64, 20_000)
    gradient = 3 * 64 * 20_000 * 4 / 2**20
    extra = measure_extra_memory("subcenter_arcface, stream", shape, 1)
    assert -2 < extra < gradient / 2  # a second gradient would be all of it, one that is not taken off too


@pytest.mark.parametrize("name", list_losses("margins"))
def test_gradient_errors_of_every_margin_can_be_measured(name, small_numerics, monkeypatch):
    monkeypatch.setattr(numerics, "TARGET_LOSSES", (1e-2,))
    for spec in numerics._spellings(name):
        found = numerics.measure_gradient_accuracy(numerics.widemargin_loss(spec))
        assert found.initial < 1e-5
        assert all(found.finite.values()), found


def test_the_counts_of_a_long_tail_reach_the_losses_that_want_them():
    weight = torch.randn(5, 4)
    for spec in ("ldam", "logit_adjusted"):
        function, _ = numerics.widemargin_loss(spec).make(weight)
        with_own, _ = numerics.widemargin_loss(f"{spec}(counts=[1000, 316, 100, 32, 10])").make(weight)
        x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 4, 0])
        assert torch.equal(function(x, y), with_own(x, y))


@pytest.mark.parametrize("loss", ["arcface", "cosface", "arcgrad", "adacos"])
def test_implementations_of_a_loss_have_the_same_loss_and_gradient(loss):
    x, y = random_batch(16, 8, 30)
    found = []
    for implementation in (
        widemargin_head(loss, "dense"),
        eager_head(loss),
        *(p for p in metric_learning_heads() if p.loss == loss),
    ):
        head = implementation.make(8, 30)
        weight = head.W if hasattr(head, "W") else head.weight
        torch.manual_seed(0)
        start = torch.randn(30, 8)
        with torch.no_grad():
            weight.copy_(start.T if hasattr(head, "W") else start)
        if loss == "adacos":
            head.eval()
            if implementation.library != "widemargin":
                continue  # theirs moves its scale at every call
        found.append((head(x, y), *torch.autograd.grad(head(x, y), x)))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert loss in EAGER_LOSSES


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells high-water marks")
def test_a_streamed_step_holds_little_beyond_its_gradient():
    """N×C alone would be 19.5 MiB, a normalised copy of the weights 39; a streamed block is 1 MiB."""
    assert measure_extra_memory("arcface, stream", (128, 256, 40_000), 1) < 16
    assert measure_extra_memory("arcface, eager", (128, 256, 40_000), 1) > 100


def test_the_costs_add_up_and_the_page_reads_it():
    one, eight = (costs.total_cost(costs.WIDEMARGIN_COSTS, 10**7, 512, 1024, world_size) for world_size in (1, 8))
    assert one > 2 * 4 * 10**7 * 512
    assert one / 8 < eight < one / 7
    row = {"shape": [256, 512, 10_000], "threads": 1, "seconds": {"limit": 1.0, "arcface, auto": 1.1}}
    page = heads_page({"torch": "0", "heads": [row], "errors": []})
    facts = json.loads(re.search(r'id="plan-facts">(.*?)</script>', page)[1])
    assert len(facts["parts"]["ours"]) == len(costs.WIDEMARGIN_COSTS)
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("shape", ["256,512", "a,b,c", "0,5,5", "4,4,1"])
def test_a_bad_shape_is_one_line(shape, capsys):
    assert main(["head", "--shapes", shape]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_the_example_learns():
    script = Path(__file__).resolve().parents[2] / "examples" / "million_classes.py"
    words = [sys.executable, str(script), "--num-classes", "2000", "--steps", "30"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    angles = [float(found) for found in re.findall(r"target angle\s+([\d.]+)°", done.stdout)]
    assert len(angles) == 7
    assert angles[-1] < angles[0] - 20


def test_retrieval_is_timed_against_matmul_and_topk(tmp_path, capsys):
    words = [
        "--queries",
        "40",
        "--gallery",
        "400",
        "--embedding-dim",
        "8",
        "--rounds",
        "1",
        "--json",
        str(tmp_path / "r.json"),
    ]
    assert main(["retrieval", *words]) == 0
    assert "ratio" in capsys.readouterr().out
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["seconds"]["matmul_topk"] > 0
    assert 0 < found["recall1"] <= 100
    assert main(["retrieval", "--queries", "0"]) == 2
    assert main(["retrieval", "--queries", "50", "--gallery", "40"]) == 2


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells high-water marks")
def test_a_head_over_two_processes_is_timed():
    found = measure_sharded_head((16, 8, 300), "arcface", 1)
    assert found["full_over_single_process"] > 0
    assert found["sampled_over_full"] > 0
    assert found["mebibytes"] < 64
