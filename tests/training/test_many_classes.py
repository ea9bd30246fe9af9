"""Runs on thousands of classes: what a record holds grows with the number of classes, not with its square."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import balanced_accuracy_score

from stress.fuzzing import load_corpus_files
from widemargin.cli.main import main
from widemargin.data.images.folder import load_folder
from widemargin.data.images.sets import Images, ImageSet
from widemargin.metrics.confusion import MAX_MATRIX_CLASSES, Confusion
from widemargin.training.config import TrainConfig
from widemargin.training.evaluate import format_metrics
from widemargin.training.train import train
from widemargin.viz.matrices import most_common_confusions


def noise_image_set(classes: int, each: int = 1) -> ImageSet:
    """Noise of 9 × 9 pixels, `each` to train on and one to test, which tells nothing: most answers are wrong."""
    draws = torch.Generator().manual_seed(0)
    names = tuple(f"class {k}" for k in range(classes))

    def part(count: int) -> Images:
        x = torch.randint(256, (classes * count, 1, 9, 9), generator=draws, dtype=torch.uint8)
        return Images("made", x, torch.arange(classes).repeat_interleave(count), names)

    return ImageSet("made", part(each), part(1), (0.5,), (0.3,))


def make_config(classes: int) -> TrainConfig:
    sizes = {"model": "fast(widths=(4, 8, 16), bias=False)", "batch_size": 150, "epochs": 1}
    return TrainConfig(data="mnist", loss="arcgrad(s=10)", augment="none", opt="sgd", lr=0.05, **sizes)


def test_a_record_grows_with_the_classes_not_with_their_square(tmp_path, monkeypatch, capsys):
    sizes = []
    for classes in (1000, 3000):
        data = noise_image_set(classes)
        monkeypatch.setattr("widemargin.data.images.sets.load_images", lambda name, folder, data=data: data)
        folder = tmp_path / str(classes)
        record = train(make_config(classes), folder, quiet=True).record
        sizes.append((folder / "record.json").stat().st_size)
        kept = Confusion.from_json(json.loads((folder / "record.json").read_text())["confusion"])
        assert kept.num_classes == classes
        assert sum(kept.correct) == round(record["test"]["top1"] * classes / 100)
        assert sum(kept.correct) + sum(kept.mistake_counts) == sum(kept.images) == classes
    assert sizes[1] < 3.3 * sizes[0]
    assert sizes[1] < 50 * 3000
    assert main(["evaluate", str(folder)]) == 0
    assert (folder / "evaluation.json").stat().st_size < 100 * 3000
    page = tmp_path / "report.html"
    assert main(["report", str(folder), "--out", str(page)]) == 0
    capsys.readouterr()
    assert "taken for" in page.read_text()
    true, said, times, _ = most_common_confusions(kept, data.train.class_names)[0]
    assert f"<td>{true}</td>" in page.read_text()
    assert f"<td>{said}</td>" in page.read_text()
    assert times == max(kept.mistake_counts)


@given(
    st.integers(2, 150).flatmap(
        lambda c: st.tuples(st.just(c), st.lists(st.tuples(st.integers(0, c - 1), st.integers(0, c - 1)), max_size=60))
    )
)
def test_a_confusion_is_the_matrix_and_comes_back(case):
    classes, pairs = case
    labels, answers = (torch.tensor([pair[k] for pair in pairs], dtype=torch.int64) for k in (0, 1))
    matrix = [[0] * classes for _ in range(classes)]
    for i, j in pairs:
        matrix[i][j] += 1
    found = Confusion.from_predictions(labels, answers, classes)
    assert found.matrix() == matrix
    assert found.num_omitted_mistakes == 0
    written = json.loads(json.dumps(found.to_json()))
    assert isinstance(written, list) == (classes <= MAX_MATRIX_CLASSES)
    assert Confusion.from_json(written) == found
    assert Confusion.from_json(matrix) == found  # as version 0.1.0 wrote it, whatever the number of classes
    assert list(found.mistake_counts) == sorted(found.mistake_counts, reverse=True)


def test_of_very_many_mistakes_the_most_frequent_are_kept():
    classes = 20_000
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat(3)
    answers = torch.randint(classes, (3 * classes,), generator=draws)
    labels, answers = torch.cat((labels, torch.full((5,), 7))), torch.cat((answers, torch.full((5,), 11)))
    found = Confusion.from_predictions(labels, answers, classes)
    assert len(found.mistake_counts) == classes
    assert found.mistakes()[0] == (7, 11, 5)
    assert found.num_omitted_mistakes == int((labels != answers).sum()) - sum(found.mistake_counts) > 0
    assert len(json.dumps(found.to_json())) < 40 * classes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("7", "square of counts"),
        ('{"images": [1], "right": [1]}', "nor counts with mistakes"),
        ('{"images": [1], "right": [1], "mistakes": {"true": [0], "answer": [], "times": []}}', "different lengths"),
        ('{"images": [1], "right": [1, 2], "mistakes": {"true": [], "answer": [], "times": []}}', "different lengths"),
        ('{"images": [1], "right": [1], "mistakes": {"true": [0], "answer": [1], "times": [1]}}', "above its 1"),
        ('{"images": [-1], "right": [1], "mistakes": {"true": [], "answer": [], "times": []}}', "other than counts"),
        ('{"images": [1.5], "right": [1], "mistakes": {"true": [], "answer": [], "times": []}}', "other than counts"),
    ],
)
def test_a_record_whose_confusion_was_edited_is_one_line(text, said, tmp_path, capsys):
    for file in ("run.json", "metrics.jsonl"):
        (tmp_path / file).write_bytes(load_corpus_files("run")[file])
    (tmp_path / "record.json").write_text(f'{{"confusion": {text}}}')
    assert main(["report", str(tmp_path), "--no-images", "--out", str(tmp_path / "report.html")]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "record.json" in message
    assert said in message


def test_names_of_another_number_of_classes_are_not_used(tmp_path):
    """A record and a checkpoint that do not belong together make a page all the same."""
    from widemargin.viz.run_page import RunSummary, runs_page

    record = {"confusion": Confusion.from_json([[3, 1, 0], [0, 2, 0], [1, 0, 4]])}
    for classes in ((), ("a", "b", "c"), ("a", "b")):
        text = runs_page([RunSummary("run", TrainConfig(), [], record, classes)], {}, "widemargin report")
        assert ("<td>a</td><td>b</td>" in text) == (len(classes) == 3)
        assert ("<td>0</td><td>1</td>" in text) == (len(classes) != 3)


def test_accuracy_by_class():
    """Its mean is scikit-learn's balanced accuracy; classes without images are left out of it."""
    labels, answers = torch.tensor([0] * 6 + [1] * 3 + [3]), torch.tensor([0, 0, 0, 1, 1, 3, 1, 1, 0, 3])
    found = Confusion.from_predictions(labels, answers, 4)
    assert found.class_accuracy == [50.0, pytest.approx(200 / 3), None, 100.0]
    assert found.balanced_accuracy == pytest.approx(100 * balanced_accuracy_score(labels, answers))
    assert math.isnan(Confusion((0, 0), (0, 0)).balanced_accuracy)
    metrics = {"top1": 60.0, "top5": 100.0, "balanced_accuracy": found.balanced_accuracy}
    assert format_metrics(metrics) == "top-1 60.00 %, top-5 100.00 %, balanced 72.22 %"
    assert format_metrics({**metrics, "balanced_accuracy": 60.0}) == "top-1 60.00 %, top-5 100.00 %"


def test_a_page_has_the_accuracy_of_each_class_or_the_lowest():
    from widemargin.viz.run_page import RunSummary, runs_page

    record = {"confusion": Confusion((4, 2, 0), (3, 2, 0)), "test": {"top1": 83.3, "balanced_accuracy": 87.5}}
    text = runs_page([RunSummary("run", TrainConfig(), [], record, ("a", "b", "c"))], {}, "widemargin report")
    assert "accuracy of each class (on average 87.50 %)" in text
    assert "<td>a</td><td>4</td><td>75.0 %</td>" in text
    assert "<td>b</td><td>2</td><td>100.0 %</td>" in text
    assert "balanced" in text
    many = Confusion(tuple([10] * 40), tuple(k % 10 for k in range(40)))
    text = runs_page([RunSummary("run", TrainConfig(), [], {"confusion": many}, ())], {}, "widemargin report")
    assert "the 30 lowest" in text
    assert "<td>9</td><td>10</td>" not in text  # 90 %, which thirty classes are below


@pytest.mark.exhaustive
def test_training_on_a_hundred_thousand_classes_ends_with_a_record(tmp_path, capsys):
    """A folder per class, files and all: 100,000 images of 81 pixels, and 5,000 to test on."""
    classes, root = 100_000, tmp_path / "images"
    data = noise_image_set(classes)
    for part, images, count in (("train", data.train, classes), ("test", data.test, 5000)):
        for k, pixels in enumerate(images.x[:count, 0].numpy()):
            place = root / part / f"{k:06d}"
            place.mkdir(parents=True)
            Image.fromarray(pixels).save(place / "0.pgm")
    assert len(load_folder(root).class_names) == classes
    words = ["train", str(root), "fast(widths=(4, 8, 16), bias=False)", "arcgrad(s=10)", "--epochs", "1"]
    words += ["--batch-size", "500", "--input-size", "9", "--augment", "none", "--out", str(tmp_path / "run")]
    assert main([*words, "--quiet"]) == 0
    kept = json.loads((tmp_path / "run" / "record.json").read_text())
    assert Confusion.from_json(kept["confusion"]).num_classes == classes
    assert (tmp_path / "run" / "record.json").stat().st_size < 50 * classes
    for command in (["evaluate", str(tmp_path / "run")], ["report", str(tmp_path / "run")]):
        assert main(command) == 0
    capsys.readouterr()
