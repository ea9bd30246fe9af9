"""The path of docs/start/open-sets.md, from folders of faces to embeddings elsewhere, at small size."""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import image_formats as formats
from widemargin.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "start" / "open-sets.md"
SMALLER = {"fast": "fast(widths=(8, 8, 8))", "64": "16", "20": "1", "32": "8"}


@pytest.mark.slow
def test_the_commands_of_the_page_run_and_the_model_travels(tmp_path, monkeypatch, capsys):
    section = PAGE.read_text().split("## Faces of people who were not trained on")[1].split("\n## ")[0]
    commands = re.findall("^widemargin (.*)$", section, re.MULTILINE)
    assert len(commands) == 9
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    formats.write_folder(here / "faces" / "train", [6] * 10)
    formats.write_folder(here / "faces" / "test", [8] * 10, first_label=10)
    formats.write_folder(elsewhere / "photos", [2, 3], first_label=20)
    formats.picture(20, 0).save(elsewhere / "a.png")
    formats.picture(20, 1).save(elsewhere / "b.png")
    monkeypatch.chdir(here)
    said = {}
    for command in commands:
        words = [SMALLER.get(word, word) for word in shlex.split(command, comments=True)]
        if words[0] == "embed":
            shutil.move(here / "model", elsewhere / "model")
            (tmp_path / "moved").mkdir()
            shutil.move(here / "faces", tmp_path / "moved" / "faces")
            assert main(["evaluate", "runs/faces", "--data-dir", str(tmp_path / "moved")]) == 0
            assert "recall@1" in capsys.readouterr().out
            shutil.rmtree(here)
            monkeypatch.chdir(elsewhere)
        code = main(words)
        said[words[0]] = capsys.readouterr()
        assert code == 0, (command, said[words[0]].err)
    with np.load("photos.npz") as found:
        assert found["embeddings"].shape == (5, 16)
        assert np.allclose(np.linalg.norm(found["embeddings"], axis=1), 1, atol=1e-5)
    assert re.search(r"cosine -?[01]\.\d+ .* threshold -?[01]\.\d+", said["verify"].out)
    assert len(said["predict"].out.splitlines()) == 5
    assert all("cosine" in line for line in said["predict"].out.splitlines())
    (elsewhere / "model" / "calibration.json").unlink()
    assert main(["verify", "model", "a.png", "b.png"]) == 2
    assert "threshold" in capsys.readouterr().err
