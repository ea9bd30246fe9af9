"""A run handed over: the ONNX file through onnxruntime, the folder read again, and what is refused."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import widemargin as wm
from widemargin.cli.main import main
from widemargin.training.run_loading import load_run


@pytest.fixture(
    scope="module",
    params=[
        "arcgrad",
        "triplet",
        *(pytest.param(loss, marks=pytest.mark.exhaustive) for loss in ("softmax(bias=True)", "a_softmax")),
    ],
)
def run(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("data") / "Shades"
    noise = np.random.default_rng(0)
    for k in range(4):
        (root / f"shade{k}").mkdir(parents=True)
        for n in range(8):
            pixels = np.clip(60 * k + noise.normal(0, 12, (20, 20, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / f"shade{k}" / f"{n}.png")
    out = tmp_path_factory.mktemp("runs") / "run"
    words = ["train", str(root), "fast(widths=(8, 8, 8))", request.param, "--input-size", "16", "--epochs", "2"]
    words += ["--batch-size", "12", "--per-class", "3", "--opt", "adamw", "--lr", "0.01", "--augment", "none"]
    assert main([*words, "--out", str(out), "--quiet"]) == 0
    return out


def test_onnx_gives_what_pytorch_gives_for_any_batch(run, tmp_path, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    assert main(["export", str(run), "--onnx", str(tmp_path / "model.onnx")]) == 0
    assert "onnxruntime agrees with PyTorch to" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    done, facts = load_run(run), json.loads((tmp_path / "model.json").read_text())
    assert facts["input"]["shape"] == ["batch", 3, 16, 16]
    assert facts["class_names"] == [f"shade{k}" for k in range(4)]
    for count in (1, 3, 17):
        images = torch.randint(256, (count, 3, 16, 16), dtype=torch.uint8)
        with torch.no_grad():
            wanted = done.model.embed(done.eval_augment.transform_for_evaluation(images))
            got = session.run(None, {"images": images.numpy()})
            torch.testing.assert_close(torch.from_numpy(got[0]), wanted, rtol=1e-4, atol=1e-4)
            if done.model.objective.has_logits:
                logits = done.model.objective.logits(wanted)
                torch.testing.assert_close(torch.from_numpy(got[1]), logits, rtol=1e-3, atol=1e-3)
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "model.json"}


def test_a_folder_is_read_again_and_says_what_it_is(run, tmp_path, capsys):
    assert main(["export", str(run), "--hub", str(tmp_path / "hub"), "--licence", "CC-BY-4.0"]) == 0
    one, other = load_run(run), wm.load(tmp_path / "hub")
    x = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(one.model.embed(x), other.model.embed(x))
    assert wm.load(run).input_spec == other.input_spec == one.input_spec
    card = (tmp_path / "hub" / "README.md").read_text()
    assert "license: CC-BY-4.0" in card
    assert one.config.loss in card
    assert str(run.parent) not in (tmp_path / "hub" / "widemargin.json").read_text()  # no path of this machine
    capsys.readouterr()


def test_weights_alone(run, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    assert main(["export", str(run), "--safetensors", str(tmp_path / "w.safetensors")]) == 0
    found = safetensors.load_file(tmp_path / "w.safetensors")
    for name, value in load_run(run).model.state_dict().items():
        assert torch.equal(found[name], value)


def test_what_is_no_models_folder_is_one_line(run, tmp_path, capsys):
    assert main(["export", str(run)]) == 2
    assert "no output given" in capsys.readouterr().err
    with pytest.raises(wm.InputError, match=r"contains no run\.json"):
        wm.load(tmp_path)
    assert main(["export", str(run), "--hub", str(tmp_path / "hub")]) == 0
    facts = tmp_path / "hub" / "widemargin.json"
    good = facts.read_text()
    for text, words in (("{", "damaged"), ('{"format": 9}', "format 9"), ('{"format": 1}', "damaged")):
        facts.write_text(text)
        with pytest.raises(wm.InputError, match=words):
            wm.load(tmp_path / "hub")
    facts.write_text(good)
    weights = tmp_path / "hub" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    with pytest.raises(wm.InputError, match="damaged"):
        wm.load(tmp_path / "hub")
    import pickle

    weights.write_bytes(pickle.dumps({"weight": 1}))
    with pytest.raises(wm.InputError, match="damaged"):
        wm.load(tmp_path / "hub")


@pytest.mark.slow
def test_onnxruntime_leaves_nothing_at_home(run, tmp_path):
    """In a separate process, with a home folder that must stay empty."""
    pytest.importorskip("onnxruntime")
    if load_run(run).config.loss != "arcgrad":
        pytest.skip("one run is enough")
    home = tmp_path / "home"
    (home / "xdg").mkdir(parents=True)
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "xdg")}
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    words = [sys.executable, "-m", "widemargin", "export", str(run), "--onnx", str(tmp_path / "out" / "model.onnx")]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "onnxruntime agrees with PyTorch" in done.stdout
    assert [str(path) for path in home.rglob("*")] == [str(home / "xdg")]


def test_the_environment_is_as_it_was_after_an_export(monkeypatch):
    from widemargin.export.onnx import _isolate_onnxruntime

    monkeypatch.setenv("XDG_CACHE_HOME", "mine")
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    with _isolate_onnxruntime():
        place = os.environ["XDG_CACHE_HOME"]
        assert os.path.isdir(place)
        assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
    assert not os.path.exists(place)
    assert os.environ["XDG_CACHE_HOME"] == "mine"
    assert "ORT_DISABLE_TELEMETRY" not in os.environ
