"""Evaluation split over real processes: the metrics of one process, on every rank, whatever the number of images."""

import json
from pathlib import Path

import pytest

import evaluation_worker as worker
from colours import FAST, draw
from rank_processes import call_worker, read_ranks, run_ranks, train_on_ranks
from runs import lines
from stress.commands import start_ranks
from widemargin.cli.main import main
from widemargin.training import image_inputs as training_inputs


@pytest.fixture(scope="module")
def colours(tmp_path_factory) -> Path:
    """Three classes of four test images; the last but one is damaged behind its header."""
    folder = draw(tmp_path_factory.mktemp("data"))
    path = folder / "test" / "red" / "1.png"
    path.write_bytes(path.read_bytes()[:-30])
    return folder


@pytest.fixture(scope="module", params=[1, 2, 3], ids=lambda count: f"{count} ranks")
def ranks(request, shared_folder, colours) -> list[dict]:
    count = request.param
    folder = shared_folder(f"ranks-evaluation-{count}", lambda folder: run_ranks(worker, count, folder, str(colours)))
    return read_ranks(folder, count)


def exact(metrics: dict) -> dict:
    """What must not differ in any bit; angles are sums in another order."""
    return {name: value for name, value in metrics.items() if name != "angles"}


@pytest.mark.distributed
@pytest.mark.parametrize("case", worker.CASES, ids=str)
def test_every_rank_has_the_metrics_of_one_process(ranks, case, monkeypatch):
    monkeypatch.setattr(training_inputs, "eval_batch_size", lambda *_: worker.BATCH_SIZE)
    alone = json.loads(json.dumps(worker.metrics_of(*case, 0)))
    for rank in ranks:
        found = rank[f"{case}"]
        assert found.keys() == alone.keys()
        assert exact(found) == exact(alone)
        assert found.get("angles", {}) == pytest.approx(alone.get("angles", {}), rel=1e-12, nan_ok=True)


@pytest.mark.distributed
def test_no_image_is_seen_twice(ranks):
    seen = [rank["num_seen"] for rank in ranks]
    assert sum(seen) == 40
    assert max(seen) - min(seen) <= worker.BATCH_SIZE


@pytest.mark.distributed
def test_an_error_of_one_rank_is_raised_on_all(ranks):
    for rank in ranks:
        assert "1.png" in rank["damaged"]
        assert rank["damaged"] == ranks[0]["damaged"]
        assert rank["no_images"] == "there are no images to evaluate on"


@pytest.mark.distributed
@pytest.mark.parametrize("ema", ["0", "0.9"])
def test_two_processes_report_what_the_checkpoint_gives_alone(tmp_path, ema, monkeypatch):
    """Batch norm sees another half of a batch in each process, but the checkpoint holds rank 0's statistics."""
    folder, out = draw(tmp_path), tmp_path / "run"
    words = ["train", str(folder), *FAST, "--epochs", "2", "--val-fraction", "0.25", "--ema", ema, "--out", str(out)]
    train_on_ranks(words, tmp_path / "output", entry_point=worker.train)
    record = json.loads((out / "record.json").read_text())
    assert record["val"] == lines(out)[-1]["val"]["top1"]
    monkeypatch.setattr(training_inputs, "eval_batch_size", lambda *_: worker.BATCH_SIZE)
    assert main(["evaluate", str(out)]) == 0
    alone = json.loads((out / "evaluation.json").read_text())
    for name in ("top1", "top5", "top1_flip"):
        assert alone[name] == record["test"][name]
    assert alone["loss"] == pytest.approx(record["test"]["loss"], rel=1e-6)  # a trained model is channels last
    assert alone["confusion"] == record["confusion"]
    assert alone["angles"] == pytest.approx(record["angles"], rel=1e-6)


@pytest.mark.distributed
def test_a_rank_that_vanishes_in_an_evaluation_is_named(tmp_path):
    argv = [worker.__name__, str(tmp_path), "", "vanish"]
    survivor, other = start_ranks(argv, tmp_path / "output", entry_point=call_worker)
    survivor.wait(60)
    other.wait(10)
    assert (tmp_path / "0.json").exists(), survivor.read_output()[-2000:]
    message = json.loads((tmp_path / "0.json").read_text())
    assert "rank 1" in message
    assert "resume=True" in message
