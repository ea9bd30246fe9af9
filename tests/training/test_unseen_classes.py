"""Classes that training never sees: P×K batches, splits by identity, losses that only embed, what mining reports."""

import json

import pytest
import torch

import widemargin as wm
from small_sets import write_small_cifar
from widemargin.cli.main import main
from widemargin.data.images.batches import make_sampler
from widemargin.data.images.identities import (
    check_disjoint_identities,
    concat_images,
    describe_singletons,
    split_identities,
)
from widemargin.data.images.sets import Images
from widemargin.recognition.evaluation import distinct_pairs, evaluate_embeddings, sampled_pairs
from widemargin.training.config import TrainConfig
from widemargin.training.epoch_statistics import MiningMeter
from widemargin.training.logging import open_reporter


def images(counts) -> Images:
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    x = torch.arange(len(y)).view(-1, 1, 1, 1).to(torch.uint8)
    return Images("counted", x, y, tuple(f"c{k}" for k in range(len(counts))))


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize(("counts", "batch", "per_class"), [([20] * 12, 16, 4), ([3, 9, 5, 40, 7, 8], 8, 2)])
def test_every_batch_has_so_many_classes_with_so_many_images(counts, batch, per_class):
    y = images(counts).y
    order = make_sampler(y, per_class, batch, 3)
    rows = order.epoch_indices(5)
    assert len(rows) == len(order) * batch
    assert len(rows.unique()) == len(rows)  # no image twice in an epoch
    for start in range(0, len(rows), batch):
        counted = torch.bincount(y[rows[start : start + batch]])
        assert set(counted.tolist()) <= {0, per_class}
    assert (rows == make_sampler(y, per_class, batch, 3).epoch_indices(5)).all()
    assert (rows != order.epoch_indices(6)).any()
    parts = [make_sampler(y, per_class, batch // 2, 3, rank, 2) for rank in range(2)]
    together = torch.cat([part.step_indices(part.epoch_indices(5), 5, 0, shuffle_batch=False)[0] for part in parts])
    assert (together == rows[:batch]).all()


@pytest.mark.parametrize(
    ("counts", "batch", "per_class", "words"),
    [([4] * 5, 8, 1, "must be at least 2"), ([4] * 5, 7, 2, "not a multiple of"), ([4, 4, 1, 1], 8, 2, "there are 2")],
)
def test_batches_that_cannot_be_are_one_line(counts, batch, per_class, words):
    with pytest.raises(wm.InputError, match=words):
        make_sampler(images(counts).y, per_class, batch, 0)


# ---------------------------------------------------------------- splits


def test_a_split_by_identity_shares_no_class_and_no_image():
    whole = images([3, 4, 5, 6, 2, 7])
    seen, unseen = split_identities(whole, 0.5, seed=1)
    check_disjoint_identities(seen, unseen)
    assert sorted(seen.class_names + unseen.class_names) == sorted(whole.class_names)
    assert len(seen) + len(unseen) == len(whole)
    for part in (seen, unseen):
        assert part.y.unique().tolist() == list(range(len(part.class_names)))
        for row in range(len(part)):  # every image kept its name
            assert whole.class_names[whole.y[int(part.x[row, 0, 0, 0])]] == part.class_names[part.y[row]]
    assert split_identities(whole, 0.5, seed=1)[1].class_names == unseen.class_names
    assert len(concat_images(seen, seen)) == 2 * len(seen)
    with pytest.raises(wm.InputError, match="both a training class and an unseen class"):
        check_disjoint_identities(seen, seen)


def test_identities_of_one_image_are_allowed_unless_all_are():
    with pytest.raises(wm.InputError, match="at least one class needs two"):
        split_identities(images([1] * 6), 0.5, 0)
    _, unseen = split_identities(images([1, 3, 1, 3, 1, 3]), 0.5, 1)
    counts = torch.bincount(unseen.y)
    assert counts.max() == 3
    assert describe_singletons(unseen).startswith(f"{(counts == 1).sum()} unseen class")
    assert describe_singletons(images([2, 3])) is None
    with pytest.raises(wm.InputError, match="too few"):
        split_identities(images([4] * 3), 0.5, 0)


def test_pairs_are_what_they_say():
    y = images([2, 5, 9, 3]).y
    first, second, same = sampled_pairs(y, 0, 500)
    assert same.sum() == 500
    assert ((y[first] == y[second]) == same).all()
    assert (first != second)[same].all()


@pytest.mark.parametrize("wanted", [7, 10_000])
def test_pairs_to_judge_on_are_drawn_once(wanted):
    y = images([2, 5, 1, 3]).y[torch.randperm(11, generator=torch.Generator().manual_seed(0))]
    first, second, same = distinct_pairs(y, 3, wanted)
    assert ((y[first] == y[second]) == same).all()
    assert len({frozenset(pair) for pair in zip(first.tolist(), second.tolist(), strict=True)}) == len(same)
    assert (int(same.sum()), int((~same).sum())) == ((7, 7) if wanted == 7 else (14, 41))
    assert (first != second).all()
    with pytest.raises(wm.InputError, match="two classes"):
        distinct_pairs(torch.arange(4), 0, 5)


def test_embeddings_that_are_apart_are_judged_so():
    y = torch.arange(8).repeat_interleave(10)
    good = evaluate_embeddings(torch.eye(8)[y] + 0.01 * torch.randn(80, 8), y)
    assert good["recall1"] == good["auc"] == good["pair_accuracy"] == good["five_way_one_shot"] == 100.0
    assert good["eer"] is None  # no pair is wrong: it is below what so many pairs can show
    noise = evaluate_embeddings(torch.randn(80, 8), y)
    assert 40 < noise["auc"] < 60
    assert good["tar"]["0.0001"] is None


# ---------------------------------------------------------------- training


@pytest.mark.parametrize("loss", ["triplet", "contrastive", "arcface(s=8) + 0.5*triplet(mining=semihard)", "arcgrad"])
def test_train_on_some_classes_and_be_judged_on_others(loss, tmp_path, monkeypatch, capsys):
    data = write_small_cifar("cifar10", tmp_path / "data", monkeypatch, train=200, test=100)
    words = ["--unseen-classes", "0.4", "--per-class", "5", "--batch-size", "20", "--epochs", "2", "--opt", "adamw"]
    words += ["--lr", "0.01", "--augment", "none", "--data-dir", str(data), "--out", str(tmp_path / "run"), "--quiet"]
    assert main(["train", "cifar10", "fast(widths=(8, 8, 8))", loss, *words]) == 0
    assert "unseen classes: recall@1" in capsys.readouterr().out
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert 0 <= record["test"]["recall1"] <= 100
    assert (
        len(
            json.loads((tmp_path / "run" / "checkpoints" / "last" / "state.json").read_text())["input_spec"][
                "class_names"
            ]
        )
        == 6
    )
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    if "triplet" in loss:
        assert line["mining"]["triplet/triplets"] >= line["mining"]["triplet/active"] > 0
        assert line["mining"]["spread"] > 0
    assert main(["evaluate", str(tmp_path / "run"), "--data-dir", str(data)]) == 0
    assert f"recall@1 {record['test']['recall1']:.2f} %" in capsys.readouterr().out


def test_a_loss_that_only_embeds_is_judged_by_neighbours_on_seen_classes_too(tmp_path, monkeypatch, capsys):
    data = write_small_cifar("cifar10", tmp_path / "data", monkeypatch, train=200, test=100)
    words = [
        "--per-class",
        "5",
        "--batch-size",
        "20",
        "--epochs",
        "1",
        "--val-fraction",
        "0.2",
        "--schedule",
        "plateau",
    ]
    words += ["--augment", "none", "--data-dir", str(data), "--out", str(tmp_path / "run")]
    assert main(["train", "cifar10", "fast(widths=(8, 8, 8))", "triplet(mining=hard)", *words]) == 0
    assert "test: recall@1" in capsys.readouterr().out


def test_a_collapse_is_said():
    mined = MiningMeter()
    mined.add({"triplet": {"triplets": torch.tensor(3), "active": torch.tensor(1)}}, torch.ones(8, 4))
    assert mined.means() == {
        "triplet/triplets": 3.0,
        "triplet/active": 1.0,
        "spread": pytest.approx(0.0),
        "collapsed": 1.0,
    }
    apart = MiningMeter()
    apart.add({"triplet": {"triplets": torch.tensor(3)}}, torch.eye(4))
    assert "collapsed" not in apart.means()
    assert MiningMeter().means() == {}


def test_a_collapse_is_told_to_people_once(capsys):
    line = {"loss": 1.0, "train_top1": 0.0, "images_per_second": 9.0, "mining": {"spread": 0.0, "collapsed": 1.0}}
    with open_reporter(TrainConfig(), 0, 3) as reporter:
        reporter.report_epoch({**line, "epoch": 1, "mining": {"spread": 0.5}})
        reporter.report_epoch({**line, "epoch": 2})
        reporter.report_epoch({**line, "epoch": 3})
    said = capsys.readouterr().err
    assert said.count("all embeddings have collapsed") == 1
    assert "epoch 2: all embeddings have collapsed" in said
