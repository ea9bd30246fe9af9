"""From a folder of images to a name: train, calibrate, gallery, identify, outliers, as a user types them."""

import csv
import glob
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import widemargin as wm
from widemargin.cli.main import main


def draw(identity, number):
    """A pattern of its own for every identity, with some noise."""
    pattern = np.random.default_rng(identity).integers(0, 256, (4, 4, 3)).repeat(4, 0).repeat(4, 1)
    noise = np.random.default_rng([identity, number]).integers(-12, 13, (16, 16, 3))
    return Image.fromarray(np.clip(pattern + noise, 0, 255).astype(np.uint8))


def fill(folder, identities, numbers):
    for identity in identities:
        (folder / f"p{identity}").mkdir(parents=True)
        for number in numbers:
            draw(identity, number).save(folder / f"p{identity}" / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on 24 identities, half of them unseen."""
    root = tmp_path_factory.mktemp("recognition")
    fill(root / "train", range(24), range(8))
    words = [
        "--epochs",
        "3",
        "--batch-size",
        "32",
        "--unseen-classes",
        "0.5",
        "--input-size",
        "16",
        "--augment",
        "none",
    ]
    run = root / "run"
    command = ["train", str(root / "train"), "fast(widths=(8,16,16))", "arcface(s=16, m=0.2)"]
    assert main([*command, *words, "--out", str(run)]) == 0
    assert main(["calibrate", str(run)]) == 0
    return root


def test_a_calibration_belongs_to_its_weights_and_travels_with_an_export(trained, tmp_path, capsys):
    run = wm.load(trained / "run")
    assert run.calibration is not None
    assert run.calibration.num_identities == 12
    assert main(["export", str(trained / "run"), "--hub", str(tmp_path / "hub")]) == 0
    exported = wm.load(tmp_path / "hub")
    assert exported.fingerprint == run.fingerprint
    assert exported.calibration == run.calibration
    assert exported.embedding_dim == run.embedding_dim
    images = sorted((trained / "train" / "p0").iterdir())[:2]
    found = exported.verify(*images, target_far=0.1)
    assert found.threshold == run.calibration.threshold(0.1).cosine
    raw = json.loads((tmp_path / "hub" / "calibration.json").read_text()) | {"fingerprint": "another"}
    (tmp_path / "hub" / "calibration.json").write_text(json.dumps(raw))
    assert wm.load(tmp_path / "hub").calibration is None
    with pytest.raises(wm.InputError, match="training classes"):
        run.calibrate(trained / "train")
    capsys.readouterr()


def test_the_whole_path_from_photos_to_a_name(trained, tmp_path, capsys):
    photos, gallery = fill(tmp_path / "photos", range(100, 106), range(3)), tmp_path / "g"
    assert main(["gallery", "create", str(gallery), "--model", str(trained / "run"), str(photos)]) == 0
    assert "18 images of 6 identities" in capsys.readouterr().out
    probes = tmp_path / "probes"
    probes.mkdir()
    draw(103, 50).save(probes / "known.png")
    out = tmp_path / "found.csv"
    assert main(["identify", str(gallery), str(probes), "--threshold", "0.5", "--top", "2", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "known.png: p103" in said
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["rank"] for row in rows] == ["1", "2"]
    assert rows[0]["candidate"] == rows[0]["identity"] == "p103"
    assert rows[0]["nearest_image"].startswith(str(photos / "p103"))
    with Image.open(rows[0]["picture"]) as picture:
        assert picture.size == (16, 16)
    as_json = tmp_path / "found.json"
    words = ["--threshold", "0.5", "--top", "2", "--out", str(as_json)]
    assert main(["identify", str(gallery), str(probes), *words]) == 0
    assert [{name: str(value) for name, value in row.items()} for row in json.loads(as_json.read_text())] == rows
    python = wm.load(gallery).identify([probes / "known.png"], top=2, threshold=0.5)[0]
    assert [match.cosine for match in python.matches] == pytest.approx([float(row["cosine"]) for row in rows], abs=1e-6)
    assert main(["identify", str(gallery), str(probes), "--threshold", "1.0"]) == 0
    assert "known.png: unknown" in capsys.readouterr().out
    more = [str(path) for path in sorted(fill(tmp_path / "more", [200], range(2)).rglob("*.png"))]
    assert main(["gallery", "add", str(gallery), *more, "--identity", "new one"]) == 0
    assert main(["gallery", "remove", str(gallery), "p101"]) == 0
    capsys.readouterr()
    assert main(["gallery", "list", str(gallery)]) == 0
    said = capsys.readouterr().out
    assert "new one: 2 images" in said
    assert "p101" not in said
    page = tmp_path / "check.html"
    assert main(["gallery", "check", str(gallery), "--out", str(page)]) == 0
    assert page.read_text().count("data:image/jpeg") == 17
    assert not list(gallery.glob("*.new"))


def test_planted_wrong_labels_come_first(trained, tmp_path, capsys):
    photos = fill(tmp_path / "photos", range(300, 308), range(5))
    draw(300, 77).save(photos / "p301" / "wrong.png")
    gallery = tmp_path / "g"
    assert main(["gallery", "create", str(gallery), "--model", str(trained / "run"), str(photos)]) == 0
    capsys.readouterr()
    assert main(["gallery", "check", str(gallery), "--top", "1"]) == 0
    said = capsys.readouterr().out
    assert "wrong.png: labelled p301, nearest other p300" in said
    out = tmp_path / "scores.csv"
    assert (
        main(["outliers", str(trained / "run"), "--csv", str(out), "--top", "3", "--out", str(tmp_path / "o.html")])
        == 0
    )
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == 12 * 8
    assert all(Path(row["source"]).is_file() and Path(row["source"]).parent.name == row["label"] for row in rows)
    gaps = [float(row["gap"]) for row in rows]
    assert gaps == sorted(gaps, reverse=True)
    assert (tmp_path / "o.html").read_text().count("data:image/jpeg") == 3


def test_the_commands_of_the_docs_run_one_after_the_other(trained, tmp_path, monkeypatch, capsys):
    """From `calibrate` on; the training before is run by tests/docs, and `serve` by tests/serve."""
    page = Path(__file__).resolve().parents[2] / "docs" / "start" / "gallery.md"
    block = page.read_text().partition("```bash\n")[2].partition("```")[0]
    fill(tmp_path / "photos", range(400, 404), range(3))
    fill(tmp_path / "more_photos", range(404, 406), range(3))
    (tmp_path / "new").mkdir()
    for path, number in ((tmp_path / "new" / "one.jpg", 7), (tmp_path / "ann.jpg", 8), (tmp_path / "ann2.jpg", 9)):
        draw(401, number).save(path)
    monkeypatch.chdir(tmp_path)
    actions = []
    for line in block.splitlines():
        words = shlex.split(line.replace("runs/NAME", str(trained / "run")), comments=True)[1:]
        words = [name for word in words for name in (sorted(glob.glob(word)) if "*" in word else [word])]
        if words[0] == "train":
            continue
        assert main(words) == 0, line
        actions.append(words[1] if words[0] == "gallery" else words[0])
    assert actions == ["calibrate", "create", "identify", "add", "add", "remove", "list", "check"]
    said = capsys.readouterr().out
    assert "new/one.jpg: " in said
    assert "removed 2 images of ann" in said
    assert (tmp_path / "check.html").is_file()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["identify", "nowhere", "x.png"], "nowhere"),
        (["gallery", "create", "g", "--model", "nowhere", "photos"], "nowhere"),
        (["gallery", "list", "nowhere"], "nowhere"),
        (["gallery", "add", "nowhere", "a.png", "b.png"], "--identity"),
        (["calibrate", "nowhere"], "nowhere"),
        (["outliers", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_one_line(words, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
