"""`evaluate --protocol`, `embed` and `verify` on a run that was really trained, on classes it has never seen."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from shades import draw
from widemargin.cli.main import main
from widemargin.io.errors import InputError
from widemargin.recognition.protocols import PROTOCOLS, read_pairs
from widemargin.recognition.settings import ProtocolSettings
from widemargin.training.run_inputs import preprocess_array
from widemargin.training.run_loading import load_run


@pytest.fixture(scope="module")
def shades(tmp_path_factory):
    """A folder of eight classes, each its own shade with noise, twelve images each."""
    return draw(tmp_path_factory.mktemp("shades"))


@pytest.fixture(scope="module")
def run(shades, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    words = ["train", str(shades), "fast(widths=(8, 8, 16))", "arcface(s=8, m=0.2) + 0.5*triplet", "--input-size", "16"]
    words += ["--unseen-classes", "0.5", "--per-class", "4", "--batch-size", "16", "--epochs", "8", "--opt", "adamw"]
    words += ["--lr", "0.01", "--augment", "none", "--seed", "2", "--out", str(out), "--quiet"]
    assert main(words) == 0
    return out


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        (
            "verification",
            [
                r"264 same and 864 different pairs of 4 identities",
                r"AUC [\d.]+ % \(no interval: 4 identities, 10 are needed",
                r"TAR at FAR 0.01: –: FAR 0.01 needs at least 10 false accepts: 1,000 different pairs; there are 864",
                "2 folds, disjoint in identities",
            ],
        ),
        ("retrieval", [r"48 queries: recall@1 [\d.]+ %", "MAP@R"]),
        ("knn", ["5 nearest neighbours"]),
        ("fewshot", [r"4 ways, 2 shots: [\d.]+ % over 50 episodes of 4 classes"]),
        ("openset", ["known and 24 unknown images: AUROC", "at 10 % false alarms: –: 10 % needs at least 10 false"]),
    ],
)
def test_protocols_print_and_write(run, protocol, words, capsys):
    more = ["--ways", "4", "--shots", "2", "--episodes", "50"] if protocol == "fewshot" else []
    assert main(["evaluate", str(run), "--protocol", protocol, *more]) == 0
    printed = capsys.readouterr().out
    for word in words:
        assert re.search(word, printed), printed
    facts = json.loads((run / f"evaluation-{protocol}.json").read_text())
    assert facts["checkpoint"] == "last"
    if protocol == "retrieval":
        assert facts["recall"]["1"] > 50  # shades are apart, seen or not; chance is 23
    if protocol == "verification":
        assert facts["auc"]["low"] is facts["auc"]["high"] is None
        assert set(facts["thresholds"]) == {"0.1"}
        assert set(facts["missing_reasons"]) >= {"tar 0.01", "tar 0.001", "tar 0.0001"}


def test_unseen_classes_are_what_is_judged(run):
    done = load_run(run)
    x, y = done.embed_test_images()
    assert len(x) == 48
    assert int(y.max()) == 3
    assert len(done.input_spec["class_names"]) == 4


def test_pairs_from_a_file(run, shades, tmp_path, capsys):
    rows = ["a,b,same"]
    for k in range(8):
        for n in range(3):
            rows.append(f"{shades}/shade{k}/{n}.png,{shades}/shade{k}/{n + 5}.png,1")
            rows.append(f"{shades}/shade{k}/{n}.png,{shades}/shade{(k + 4) % 8}/{n}.png,0")
    rows.append(f"{shades}/shade0/0.png,{shades}/shade0/0.png,1")
    (tmp_path / "pairs.csv").write_text("\n".join(rows))
    assert len(read_pairs(tmp_path / "pairs.csv")) == 49
    assert main(["evaluate", str(run), "--pairs", str(tmp_path / "pairs.csv")]) == 0
    said = capsys.readouterr().out
    assert "24 same and 12 different pairs of 8 identities" in said  # each different pair stands there both ways
    assert "12 repeated pairs count once" in said
    assert "1 pairs of an image with itself" in said
    assert "identities are the folders of the images" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\nx,y\n", "columns a, b and same"),
        ("a,b,same\n", "contains no pairs"),
        ("a,b,same\nx.png,x.png,perhaps\n", "line 2: same is 'perhaps'"),
        ("a,b,same\nno.png,x.png,1\n", "line 2: no such image"),
        ("a,b,same\nx.png,y.png,1\ny.png,x.png,0\n", "line 3: same is 0, which contradicts"),
        (b"\xff\xfe\x00", "not text in UTF-8"),
    ],
)
def test_a_bad_pairs_file_is_one_line(text, words, tmp_path):
    for name in ("x.png", "y.png"):
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    path = tmp_path / "pairs.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=words):
        read_pairs(path)


def test_embeddings_in_files(run, shades, tmp_path, capsys):
    pq = pytest.importorskip("pyarrow.parquet")
    for name in ("x.npz", "x.parquet"):
        assert (
            main(
                [
                    "embed",
                    str(run),
                    str(shades / "shade0"),
                    str(shades / "shade1" / "3.png"),
                    "--out",
                    str(tmp_path / name),
                ]
            )
            == 0
        )
        assert "13 embeddings of 16 dimensions" in capsys.readouterr().out
    with np.load(tmp_path / "x.npz", allow_pickle=False) as file:
        one, labels = file["embeddings"], file["labels"].tolist()
    table = pq.read_table(tmp_path / "x.parquet")
    other = np.stack(table["embedding"].to_numpy())
    np.testing.assert_array_equal(one, other)
    assert labels == table["label"].to_pylist() == ["shade0"] * 12 + ["shade1"]
    direct = load_run(run).embed([shades / "shade1" / "3.png"])
    np.testing.assert_allclose(one[-1], direct[0].numpy(), rtol=1e-5, atol=1e-6)
    assert {path.name for path in tmp_path.iterdir()} == {"x.npz", "x.parquet"}  # nothing half-written is left


@pytest.mark.parametrize(
    ("data", "out", "words"),
    [
        ("nothing.png", "x.npz", "no such image"),
        ("shade0", "x.csv", r".npz or .parquet"),
        ("empty", "x.npz", "no images"),
    ],
)
def test_what_cannot_be_embedded_is_one_line(run, shades, tmp_path, data, out, words, capsys):
    (tmp_path / "empty").mkdir()
    place = tmp_path / data if data == "empty" else shades / data
    assert main(["embed", str(run), str(place), "--out", str(tmp_path / out)]) == 2
    message = capsys.readouterr().err
    assert re.search(words, message)
    assert message.count("\n") == 1


def test_verify_two_images(run, shades, capsys):
    same = [str(shades / "shade2" / f"{n}.png") for n in (0, 7)]
    apart = [str(shades / "shade0" / "0.png"), str(shades / "shade7" / "0.png")]
    assert main(["verify", str(run), *same, "--target-far", "0.1"]) == 0
    assert capsys.readouterr().out.startswith("the same: cosine")
    assert main(["verify", str(run), *apart, "--threshold", "0.99"]) == 0
    assert capsys.readouterr().out.startswith("not the same: cosine")
    for words in (
        ["--target-far", "2"],
        ["--threshold", "3"],
        ["--target-far", "0.01"],
    ):  # 8 of 864: no rate
        assert main(["verify", str(run), *same, *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_set_by_name_is_embedded_as_the_run_sees_images(tmp_path, data_dir, capsys):
    words = [
        "train",
        "mnist",
        "fast(widths=(8, 8, 8))",
        "arcgrad",
        "--train-fraction",
        "0.005",
        "--epochs",
        "1",
        "--batch-size",
        "50",
    ]
    assert main([*words, "--opt", "adamw", "--data-dir", str(data_dir), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    done = load_run(tmp_path / "run")
    from widemargin.data.images.sets import load_images

    some = load_images("mnist", data_dir).test.take(torch.arange(7))
    inputs = done.load_inputs(str(data_dir))
    [(wanted, labels)] = list(inputs.eval_batches(inputs.test.take(torch.arange(7))))
    torch.testing.assert_close(preprocess_array(done, some.x), wanted)
    torch.testing.assert_close(done.embed(some, normalize=False), done.model.embed(wanted).detach())
    assert torch.equal(some.y, labels)
    capsys.readouterr()


def test_open_sets_keep_half_of_the_classes_apart():
    y = torch.arange(10).repeat_interleave(6)
    found = PROTOCOLS["openset"](torch.eye(10)[y] + 0.01 * torch.randn(60, 10), y, ProtocolSettings(), 0)
    assert found.metrics["known"] == 15
    assert found.metrics["unknown"] == 30
    assert found.metrics["rank1"] == 100.0
    assert found.metrics["auroc"] == pytest.approx(1.0)


def test_the_page_shows_pairs_and_neighbours_and_escapes_names(run, capsys):
    assert main(["evaluate", str(run), "--protocol", "verification"]) == 0
    page = (run / "evaluation-verification.html").read_text()
    assert page.count("<svg") == 3
    assert "Drawn where at least 10 pairs of each kind are accepted." in page
    assert page.count('class="near"') == 12
    assert "data:image/png;base64," in page
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")
    from widemargin.viz.embeddings import neighbour_row

    assert "<script>" not in neighbour_row(("data:", "<script>"), [("data:", '"><script>', 0.5)])
    capsys.readouterr()


def test_strangers_are_refused(run, shades, capsys):
    known, strange = (load_run(run).input_spec["class_names"][0], None)
    strange = next(f"shade{k}" for k in range(8) if f"shade{k}" not in load_run(run).input_spec["class_names"])
    images = [str(shades / name / "1.png") for name in (known, strange)]
    assert main(["predict", str(run), *images, "--reject-below", "-1"]) == 0
    assert "unknown" not in capsys.readouterr().out
    assert main(["predict", str(run), *images, "--reject-below", "1"]) == 0
    assert capsys.readouterr().out.count("unknown (cosine") == 2
    every = [str(path) for path in sorted(shades.glob("*/*.png"))]
    assert main(["predict", str(run), *every, "--target-far", "0.25"]) == 0
    lines = capsys.readouterr().out.splitlines()
    seen = load_run(run).input_spec["class_names"]
    passed = [line for line in lines if "unknown" not in line and not any(f"/{name}/" in line for name in seen)]
    assert len(passed) == 12  # a quarter of the 48 images of unseen classes
    for words in (
        ["--target-far", "0"],
        ["--target-far", "0.2"],
        ["--reject-below", "2"],
    ):  # 9 of 48: no rate
        assert main(["predict", str(run), images[0], *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
