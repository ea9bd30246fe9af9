"""`widemargin report`: a run or several as a page, as Markdown, as a picture; unfinished ones and hostile names too."""

import json
import shutil
from html import escape

import pytest

from colours import FAST, draw
from widemargin.cli.main import main
from widemargin.metrics.confusion import Confusion
from widemargin.viz.charts import Line, draw_epoch_curves
from widemargin.viz.matrices import draw_confusion_matrix, most_common_confusions


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two short runs on coloured pictures, one of them with an adaptive loss; a class has a hostile name."""
    place = tmp_path_factory.mktemp("runs")
    images = draw(place / "data")
    first = sorted(path for path in (images / "train").iterdir() if path.is_dir())[0].name
    for part in ("train", "test"):
        if (images / part / first).is_dir():
            (images / part / first).rename(images / part / "<b>red & co")
    common = [*FAST, "--epochs", "2", "--val-fraction", "0.2"]
    assert main(["train", str(images), *common, "--out", str(place / "one")]) == 0
    words = [word if not word.startswith(("arc", "soft", "norm")) else "adacos" for word in common]
    assert main(["train", str(images), *words, "--out", str(place / "two")]) == 0
    return place


def test_a_run_is_a_page(runs, capsys):
    assert main(["report", str(runs / "one")]) == 0
    assert "report.html" in capsys.readouterr().out
    page = (runs / "one" / "report.html").read_text()
    for part in ("Loss", "Accuracy", "Angles to the own class", "What is taken for what", "Embeddings", "Settings"):
        assert f"<h2>{part}</h2>" in page
    assert "held out" in page
    assert "widemargin train" in page
    assert "<b>red" not in page
    assert "&lt;b&gt;red &amp; co" in page
    command = escape(json.loads((runs / "one" / "record.json").read_text())["command"])
    assert str(runs) not in page.replace(command, "").replace(f"widemargin report {runs / 'one'}", "")


def test_several_runs_stand_side_by_side(runs, tmp_path):
    out = tmp_path / "both.html"
    assert main(["report", str(runs), "--out", str(out), "--no-images"]) == 0
    page = out.read_text()
    assert "2 runs compared" in page
    assert "The number s" in page  # AdaCos moves its scale
    assert page.count("mistakes, settings</summary>") == 2
    assert page.count('aria-label="Angles to the own class by epoch') == 2


def test_a_run_judged_by_pairs_shows_its_curve(runs, tmp_path):
    """Pair losses alone name no class: what they are good for is telling pairs apart."""
    images, out = runs / "data" / "Colours", tmp_path / "run"
    words = [*FAST, "--epochs", "1", "--per-class", "4"]
    words[1] = "contrastive"
    assert main(["train", str(images), *words, "--out", str(out)]) == 0
    assert main(["report", str(out)]) == 0
    page = (out / "report.html").read_text()
    assert "<h2>Same or different</h2>" in page
    assert "TAR over FAR" in page


def test_records_of_before_and_of_now_stand_side_by_side(runs, tmp_path, capsys):
    """Older records have an EER of 0 and no intervals; now a figure that few pairs support is null."""
    older = {"images": 200, "recall1": 94.5, "auc": 94.77, "eer": 0.0, "tar": {"0.001": 12.0}}
    newer = {"images": 200, "paired_images": 200, "recall1": 94.5, "auc": 94.77, "eer": None, "tar": {"0.001": None}}
    ends = {"recall1": [90.0, 97.25], "auc": [88.875, 96.9], "eer": None}
    for name, more in (("older", {"test": older}), ("newer", {"test": newer, "intervals": ends, "evaluation": 2})):
        shutil.copytree(runs / "one", tmp_path / name)
        path = tmp_path / name / "record.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **more, "confusion": None}))
    out = tmp_path / "both.md"
    assert main(["report", str(tmp_path / "older"), str(tmp_path / "newer"), "--out", str(out)]) == 0
    rows = {line.split(" | ")[0].lstrip("| "): line for line in out.read_text().splitlines() if line.startswith("| ")}
    assert "| 94.50 % | 94.77 % | 0.00 % |" in rows["older"]
    assert "| 94.50 % (90.00 to 97.25) | 94.77 % (88.88 to 96.90) | – |" in rows["newer"]
    path = tmp_path / "newer" / "record.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "intervals": {"auc": [1.0]}}))
    capsys.readouterr()
    main(["report", str(tmp_path / "newer"), "--out", str(out)])
    assert "intervals.auc is not a pair of numbers" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["md", "png", "pdf"])
def test_papers_get_their_formats(runs, tmp_path, kind):
    out = tmp_path / f"runs.{kind}"
    assert main(["report", str(runs / "one"), str(runs / "two"), "--out", str(out)]) == 0
    head = out.read_bytes()[:8]
    assert head.startswith({"md": b"# 2 runs", "png": b"\x89PNG", "pdf": b"%PDF"}[kind])


def test_an_unfinished_run_says_how_far_it_is(runs, tmp_path):
    shutil.copytree(runs / "one", tmp_path / "cut")
    (tmp_path / "cut" / "record.json").unlink()
    shutil.rmtree(tmp_path / "cut" / "checkpoints")
    assert main(["report", str(tmp_path / "cut"), "--out", str(tmp_path / "cut.html")]) == 0
    page = (tmp_path / "cut.html").read_text()
    assert "unfinished, epoch 2 of 2" in page
    assert "No pictures" in page
    assert "widemargin train --resume cut</pre>" in page


def test_a_damaged_log_is_reported(runs, tmp_path, capsys):
    shutil.copytree(runs / "one", tmp_path / "cut")
    log = tmp_path / "cut" / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:50])
    assert main(["report", str(tmp_path / "cut"), "--out", str(tmp_path / "cut.html")]) == 0
    assert "cut: metrics.jsonl holds 0 of 2 epochs" in capsys.readouterr().err
    page = (tmp_path / "cut.html").read_text()
    assert "metrics.jsonl holds 0 of 2 epochs" in page
    assert "<h2>Embeddings</h2>" in page  # the checkpoint is whole
    assert main(["report", str(tmp_path / "cut"), "--out", str(tmp_path / "cut.png")]) == 2
    assert "shows finished epochs" in capsys.readouterr().err


def test_one_damaged_run_does_not_hide_the_others(runs, tmp_path, capsys):
    for name in ("run 2", "run 10"):
        shutil.copytree(runs / "one", tmp_path / name)
    (tmp_path / "run 1").mkdir()
    (tmp_path / "run 1" / "run.json").write_text("{")
    out = tmp_path / "all.md"
    assert main(["report", str(tmp_path), "--out", str(out)]) == 0
    assert "left out: " in capsys.readouterr().err
    text = out.read_text()
    assert text.startswith("# 2 runs compared")
    assert text.index("| run 2 | arcgrad") < text.index(
        "| run 10 | arcgrad"
    )  # a chosen name says no loss, a column does
    assert main(["report", str(tmp_path / "run 1"), "--out", str(out)]) == 2
    assert main(["report", str(tmp_path / "run 2"), "--data-dir", str(tmp_path / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_what_is_no_run_is_one_line(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "neither a run (a folder with run.json)" in capsys.readouterr().err
    for words in (["--out", "x.png", "--format", "md"], ["--out", "x.svg"], ["--out", "x", "--format", "pdf"]):
        assert main(["report", str(tmp_path), *words]) == 2


def test_curves_over_epochs_have_their_points_and_fill_their_picture():
    points = [(1, 1e-4), (2, 3e-4), (3, 0.0)]
    drawn = draw_epoch_curves(
        [Line("rate", points, "#123456"), Line("held out", points[:2], "#654321", True)], "u", "t"
    )
    assert [line.get_xydata().tolist() for line in drawn.axes.lines[:2]] == [
        [list(p) for p in points[:n]] for n in (3, 2)
    ]
    low, high = drawn.axes.get_ylim()
    assert (low, high) == pytest.approx((-1.5e-5, 3.15e-4))
    assert [text.get_text() for text in drawn.axes.texts] == ["rate 0", "held out 0.0003"]


def test_pictures_escape_and_hold_single_points():
    drawn = draw_epoch_curves([Line("<x>", [(1, 2.0)], "#123456")], "a < b", "t")
    line = drawn.axes.lines[0]
    assert (line.get_xydata().tolist(), line.get_marker()) == ([[1, 2.0]], "o")
    assert "<x>" not in drawn.to_svg()
    assert "&lt;x&gt;" in drawn.to_svg()
    assert draw_confusion_matrix(Confusion.from_json([[3, 1], [0, 2]]), ["<a>", "b"], "t").count("<rect") == 3
    assert most_common_confusions(Confusion.from_json([[3, 1], [2, 2]]), ["a", "b"]) == [
        ("b", "a", 2, 50.0),
        ("a", "b", 1, 25.0),
    ]
