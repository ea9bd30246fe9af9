"""Open-set recipes: every method is trained once, peers train in our loop, Siamese networks learn from a CSV."""

import argparse
import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from widemargin.cli.main import main
from widemargin.data.images.augment import Augment
from widemargin.io.errors import InputError
from widemargin.recognition.evaluation import sampled_pairs
from widemargin.reproduce.parts import openset_claims, openset_families, openset_methods, openset_table
from widemargin.training.config import TrainConfig
from widemargin.training.siamese import ImagePairs, PairNetwork, SiameseConfig, pair_scores, train_siamese

TINY = {"model": "fast(widths=(8, 8, 8), bias=False)", "embedding_dim": 8, "epochs": 1}


def read_records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def tiny_faces(monkeypatch):
    monkeypatch.setattr(openset_methods, "FACES_CONFIG", replace(openset_methods.FACES_CONFIG, input_size=20, **TINY))


@pytest.mark.slow
def test_every_method_of_the_faces_is_trained_once(tiny_faces, data_dir, tmp_path, capsys):
    command = ["reproduce", "openset", "faces", "--seeds", "1", "--runs-dir", str(tmp_path / "runs")]
    command += ["--out", str(tmp_path / "out"), "--data-dir", str(data_dir)]
    assert main(command) == 0
    first = capsys.readouterr()
    assert "16 of 16 runs are finished" in first.out
    found = read_records(tmp_path / "out" / "records.jsonl")
    assert {line["loss"] for line in found} == {
        *openset_methods.OPENSET_LOSSES,
        *openset_methods.PEER_LOSSES,
        "l1(pixels)",
        "l1(histograms)",
    }
    for line in found:
        assert 0 <= line["test"]["recall1"] <= 100
        assert line["test"]["auc"] >= 40
        assert line["test"]["pair_accuracy"] >= 48
        assert str(tmp_path) not in json.dumps(line)
    learned = [line for line in found if not line["loss"].startswith("l1")]
    assert all(0 < line["angles"]["intra"] < 1.6 for line in learned)
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(name in page for name in ("arcgrad(s=16)", "pml:triplet", "L1 of pixels", "recall@1"))
    for line in found:
        low, high = line["intervals"]["auc"]
        assert low < line["test"]["auc"] < high
        assert line["evaluation"] == 2
    assert main(command) == 0
    again = capsys.readouterr()
    assert "run 1 of" not in again.err
    assert "evaluating" not in again.err
    assert read_records(tmp_path / "out" / "records.jsonl") == found
    old = _write_old_records(tmp_path / "runs")
    assert main([*command, "--list"]) == 0
    assert capsys.readouterr().out.count("outdated") == len(old) == 3
    before = {path: path.read_bytes() for path in (tmp_path / "runs").glob("*/metrics.jsonl")}
    assert main(command) == 0
    third = capsys.readouterr()
    assert "evaluating 3 of 3" in third.err
    assert "run 1 of" not in third.err  # nothing is trained again
    assert before == {path: path.read_bytes() for path in before}
    assert read_records(tmp_path / "out" / "records.jsonl") == found


def _write_old_records(runs):
    """Records of three runs as version 0.1.0 wrote them, one of each kind."""
    folders = [next(runs.glob(f"*-{name}*")) for name in ("softmax-", "pml_arcface", "l1_pixels")]
    for folder in folders:
        record = json.loads((folder / "record.json").read_text())
        record["test"]["auc"] = 12.0
        older = {name: value for name, value in record.items() if name not in ("intervals", "evaluation")}
        (folder / "record.json").write_text(json.dumps(older))
        (folder / openset_table.IDENTITIES_FILE).unlink()
    return folders


def test_a_siamese_run_that_kept_no_network_is_trained_again(data_dir, tmp_path, monkeypatch, capsys):
    base = replace(openset_methods.OMNIGLOT_CONFIG, data="orl_faces", input_size=20, **TINY)
    methods = openset_methods.list_methods(base, siamese=True)
    method = next(method for method in methods if "apart" in method.name)
    method = replace(method, config=replace(method.config, epochs=1))
    module = "widemargin.reproduce.parts.openset_methods"
    monkeypatch.setattr(f"{module}._PAIRS_PER_KIND", 400)
    monkeypatch.setattr(f"{module}._SIAMESE_EPISODES", 20)
    monkeypatch.setattr(
        f"{module}.sample_training_pairs",
        lambda images, seed: ImagePairs(images.x, *sampled_pairs(images.y, seed, 200)),
    )
    options = argparse.Namespace(
        runs_dir=str(tmp_path / "runs"), out=str(tmp_path / "out"), list=False, data_dir=str(data_dir)
    )
    assert openset_table.complete_openset_runs([method], range(1), options, "t") is not None
    folder = next((tmp_path / "runs").iterdir())
    first = json.loads((folder / "record.json").read_text())
    assert first["intervals"]["auc"][0] < first["test"]["auc"]
    identities = (folder / openset_table.IDENTITIES_FILE).read_text()
    assert len(json.loads(identities)["leave_one_out"]["auc"]) == 20
    (folder / openset_table.IDENTITIES_FILE).unlink()
    (folder / "network.safetensors").unlink()
    capsys.readouterr()
    assert openset_table.complete_openset_runs([method], range(1), options, "t") is not None
    assert "is trained again" in capsys.readouterr().err
    assert (folder / openset_table.IDENTITIES_FILE).read_text() == identities
    (folder / openset_table.IDENTITIES_FILE).write_text("[]")
    assert not openset_table.is_evaluation_current(folder)
    with pytest.raises(InputError, match="delete it"):
        openset_table.read_split_score(folder, "auc", 90.0)


def splits(effects, noise, seed, shift=0.0, seeds=3, training=0.0):
    """A figure on halves of the same identities, which overlap: each has its own effect, each run some noise."""
    draw, found = np.random.default_rng(seed), {}
    for k in range(seeds):
        part = np.random.default_rng(100 + k).choice(len(effects), len(effects) // 2, replace=False)
        values = 80 + shift + effects[part] + noise * draw.normal(size=len(part)) + training * draw.normal()
        without = {f"c{name}": (values.sum() - v) / (len(part) - 1) for name, v in zip(part, values, strict=True)}
        found[k] = openset_table.SplitScore(float(values.mean()), without)
    return found


def test_methods_are_told_apart_by_identities_they_share():
    effects = np.random.default_rng(0).normal(0, 8, 60)  # large, and the same for all methods
    lines = {"a": splits(effects, 1.0, 1), "b": splits(effects, 1.0, 2), "c": splits(effects, 1.0, 3, shift=4.0)}
    found = {(each.method_a, each.method_b): each for each in openset_table.compare_methods(lines)}
    assert not found["a", "b"].is_significant
    assert found["a", "c"].is_significant
    assert found["a", "c"].difference == pytest.approx(-4, abs=0.6)
    low, high = openset_table.pooled_interval(list(lines["a"].values()))
    assert high - low > 3 > found["a", "c"].half_width  # a method by itself is far less sure than a difference
    names = openset_table.significant_differences(list(found.values()), "auc")
    assert names["c"] == (["a", "b"], [])
    assert openset_table.significant_differences(list(found.values()), "eer")["c"] == ([], ["a", "b"])
    said = openset_table.verdict_sentences({"auc": list(found.values())})
    assert said == ["AUC: 2 of 3 pairs of methods differ significantly"]


@pytest.mark.parametrize("training", [0.0, 1.5])  # how far runs of one method differ; 3/√20 is what identities add
def test_equal_methods_are_told_apart_in_no_more_than_a_twentieth_of_cases(training):
    apart = 0
    for trial in range(200):
        effects = np.random.default_rng(trial).normal(0, 8, 40)
        runs = {name: splits(effects, 3.0, 1000 * trial + k, training=training) for k, name in enumerate("abcdef")}
        apart += any(each.is_significant for each in openset_table.compare_methods(runs))
    assert apart / 200 <= 0.05 + 2 * (0.05 * 0.95 / 200) ** 0.5


def test_one_split_tells_nothing_apart():
    effects = np.zeros(40)
    lines = {name: splits(effects, 1.0, k, shift=10.0 * k, seeds=1) for k, name in enumerate("ab")}
    assert openset_table.compare_methods(lines) == []
    ten = {0: openset_table.SplitScore(80.0, {f"c{k}": 80.0 + 0.1 * k for k in range(9)})}
    assert openset_table.pooled_interval(list(ten.values())) is None  # of nine identities


def test_pixels_under_l1_are_what_a_loop_says(data_dir):
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (30, 1, 12, 12), generator=draw, dtype=torch.uint8)
    y = torch.arange(30) // 5
    x[:, :, :6] = (40 * y).to(torch.uint8).view(-1, 1, 1, 1)
    found = openset_methods.evaluate_l1_features(x, y, 12, "pixels", 0)
    right = 0
    for i in range(30):
        gaps = [(int((x[i].int() - x[j].int()).abs().sum()), j) for j in range(30) if j != i]
        right += int(y[min(gaps)[1]] == y[i])
    assert found.values["recall1"] == pytest.approx(100 * right / 30)
    bins = openset_methods.pixel_histograms(torch.tensor([[0.0, 7.9, 8.0, 255.0]]))
    assert bins[0, 0] == 0.5
    assert bins[0, 1] == bins[0, 31] == 0.25


def test_the_interval_is_students():
    assert openset_table.interval_half_width([1.0]) is None
    assert openset_table.interval_half_width([1.0, 2.0, 3.0]) == pytest.approx(4.302653 / 3**0.5, rel=1e-5)
    assert openset_table.format_mean_interval([], 2) == "–"


def test_verdicts_pair_seeds_and_need_several():
    ours, theirs = {0: 90.0, 1: 91.0, 2: 92.0}, {0: 80.0, 1: 81.5, 2: 81.0, 7: 0.0}
    assert openset_table.describe_paired_difference(ours, theirs).startswith("better than (+10.17 ± ")
    assert openset_table.describe_paired_difference(theirs, ours).startswith("worse than (-10.17 ± ")
    same = openset_table.describe_paired_difference(ours, {0: 80.0, 1: 99.0, 2: 90.0})
    assert same.startswith("not significantly different from")
    assert openset_table.describe_paired_difference({0: 1.0}, {0: 2.0}) == ""


@pytest.mark.slow
def test_the_claim_chooses_on_held_out_images(data_dir, tmp_path, monkeypatch, capsys):
    base = replace(openset_methods.FACES_CONFIG, input_size=20, val_fraction=0.2, **TINY)
    dataset = openset_claims.ClaimDataset(
        "faces", base, "recall1", "recall@1 in percent", (6.0, 16.0), ("adaacos", "adacos")
    )
    monkeypatch.setattr(openset_claims, "CLAIM_DATASETS", (dataset,))
    command = ["reproduce", "openset", "adaacos", "--seeds", "2", "--runs-dir", str(tmp_path / "runs")]
    assert main([*command, "--out", str(tmp_path / "out"), "--data-dir", str(data_dir)]) == 0
    said = capsys.readouterr().out
    assert "arcface tuned on held-out images" in said
    assert "adaacos is " in said
    assert "AdaCos (" in said
    found = read_records(tmp_path / "out" / "records.jsonl")
    assert len(found) == 2 * (2 * 3 + 2)
    means = {}
    for line in found:
        if line["loss"].startswith("arcface"):
            means.setdefault(line["loss"], []).append(line["val"])
    best = max(means, key=lambda loss: sum(means[loss]))
    s, m = best.removeprefix("arcface(").removesuffix(")").split(", ")
    assert f"held-out images: {s}, {m}" in said


@pytest.mark.slow
def test_six_digits_are_drawn_on_a_sphere(data_dir, tmp_path, monkeypatch, capsys):
    small = replace(
        openset_claims.SPHERE_CONFIG, model="fast(widths=(8, 8, 8), bias=False)", epochs=1, train_fraction=0.01
    )
    monkeypatch.setattr(openset_claims, "SPHERE_CONFIG", small)
    monkeypatch.setattr(openset_claims, "SPHERE_LOSSES", openset_claims.SPHERE_LOSSES[-2:])
    command = ["reproduce", "openset", "sphere", "--runs-dir", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert main([*command, "--data-dir", str(data_dir)]) == 0
    assert capsys.readouterr().out.count("pairs of one digit") == 2
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count('class="ball"') == 2
    assert len(read_records(tmp_path / "out" / "records.jsonl")) == 2


# ---------------------------------------------------------------- Siamese networks


def stripes(folder, count, seed):
    """Pictures of a few kinds of stripes, and a CSV of pairs of them."""
    draw = np.random.default_rng(seed)
    folder.mkdir()
    kinds = draw.integers(2, size=count)
    for k, kind in enumerate(kinds):
        wave = np.sin(np.arange(16) * 0.9 + draw.uniform(0, 6.3))
        picture = np.tile(wave, (16, 1)) if kind % 2 else np.tile(wave, (16, 1)).T
        noisy = 127 + 90 * picture + draw.normal(0, 20, (16, 16))
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{k}.png")
    with (folder / "pairs.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["a", "b", "same"])
        for _ in range(4 * count):
            a, b = draw.integers(count, size=2)
            if draw.random() < 0.5:
                b = draw.choice(np.flatnonzero(kinds == kinds[a]))
            table.writerow([f"{a}.png", f"{b}.png", int(kinds[a] == kinds[b])])
    return folder / "pairs.csv"


def test_both_architectures_learn_from_a_csv(tmp_path, capsys):
    train_pairs, test_pairs = stripes(tmp_path / "one", 150, 0), stripes(tmp_path / "two", 60, 1)
    command = ["reproduce", "siamese", str(train_pairs), "--test-pairs", str(test_pairs)]
    command += ["--input-size", "16", "--epochs", "10"]
    command += ["--model", "fast(widths=(8, 16, 16))", "--batch-size", "30", "--lr", "0.01"]
    assert main([*command, "--out", str(tmp_path / "scores.csv")]) == 0
    said = capsys.readouterr().out
    for merge in ("input", "embedding"):
        line = next(line for line in said.splitlines() if line.startswith(f"merge={merge}"))
        assert float(line.partition("AUC ")[2].partition(" ")[0]) > 85
    with (tmp_path / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 240
    assert {"score_input", "score_embedding"} <= set(rows[0])


def test_pairs_are_kept_back_where_none_are_given(tmp_path, capsys):
    pairs = stripes(tmp_path / "one", 60, 0)
    command = ["reproduce", "siamese", str(pairs), "--input-size", "16", "--epochs", "1", "--merge", "embedding"]
    assert main([*command, "--model", "fast(widths=(8, 8, 8))", "--batch-size", "20"]) == 0
    assert "48 pairs" in capsys.readouterr().out


@pytest.mark.parametrize("merge", ["input", "embedding"])
def test_the_order_of_a_pair_does_not_matter(merge):
    torch.manual_seed(0)
    network = PairNetwork(SiameseConfig(merge, "fast(widths=(8, 8, 8))"), 1, 12).eval()
    a, b = torch.randn(2, 5, 1, 12, 12)
    torch.testing.assert_close(network.logits(a, b), network.logits(b, a))


def test_a_siamese_run_is_the_same_twice():
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (20, 1, 12, 12), generator=draw, dtype=torch.uint8)
    first, second = torch.randint(20, (2, 60), generator=draw)
    pairs = ImagePairs(x, first, second, torch.arange(60) % 2 == 0)
    settings = SiameseConfig("embedding", "fast(widths=(8, 8, 8))", epochs=1, batch_size=20)
    augment = Augment(pad=1)
    one, two = (pair_scores(train_siamese(settings, pairs, augment), pairs, augment) for _ in range(2))
    assert np.array_equal(one, two)


def test_what_a_siamese_network_cannot_learn_from_is_one_line(tmp_path, capsys):
    x = torch.zeros(4, 1, 12, 12, dtype=torch.uint8)
    rows = torch.zeros(30, dtype=torch.int64)
    one_kind = ImagePairs(x, rows, rows, torch.ones(30, dtype=torch.bool))
    with pytest.raises(InputError, match="all pairs are of the same kind"):
        train_siamese(SiameseConfig(batch_size=10), one_kind, Augment())
    with pytest.raises(InputError, match="30 pairs are fewer than a batch of 100"):
        train_siamese(SiameseConfig(), one_kind, Augment())
    with pytest.raises(InputError, match="merge"):
        SiameseConfig("middle")
    pairs = stripes(tmp_path / "one", 20, 0)
    (tmp_path / "one" / "3.png").write_bytes(b"not a picture")
    assert main(["reproduce", "siamese", str(pairs)]) == 2
    assert "3.png: cannot be read as an image" in capsys.readouterr().err


def test_a_length_of_the_embeddings_can_be_asked_for():
    from widemargin.training.model import build_margin_model

    input_spec = {"class_names": ["a", "b", "c"], "channels": 1, "size": 12}
    run = TrainConfig(model="fast(widths=(8, 8, 8))", loss="arcface", embedding_dim=3)
    assert build_margin_model(run, input_spec).embed(torch.randn(4, 1, 12, 12)).shape == (4, 3)
    assert build_margin_model(replace(run, neck=True), input_spec).embed(torch.randn(4, 1, 12, 12)).shape == (4, 3)
    with pytest.raises(InputError, match="dim must be a whole number"):
        replace(run, embedding_dim=-1)


def test_families_are_twelve_and_every_other_loss_is_among_the_others():
    from widemargin.losses.grammar import parse
    from widemargin.losses.registry import list_losses

    assert len(openset_families.FAMILIES) == 12
    for family, candidates in openset_families.FAMILIES.items():
        assert all(parse(each).name == family for each in candidates)
        assert len({parse(each) for each in candidates}) == len(candidates)
    others = [parse(each).name for each in openset_families.other_losses()]
    both = {*openset_families.FAMILIES, *others, "center"}
    assert both == {*list_losses("margins"), *list_losses("pairs")}
    assert len(others) == len(set(others))


def test_the_best_candidate_of_each_family_is_chosen(capsys):
    scores = {each: 50.0 + k for k, each in enumerate(openset_families.FAMILIES["arcgrad"])}
    scores |= {"supcon(tau=0.1)": 60.0, "supcon(tau=0.07)": 61.0}
    chosen = openset_families.best_candidates(scores)
    assert chosen["arcgrad"] == "arcgrad(s=16)"
    assert chosen["supcon"] == "supcon(tau=0.07)"
    assert chosen["softmax"] == "softmax"
    assert "triplet" not in chosen
    assert "triplet: all candidates diverged" in capsys.readouterr().err


def test_settings_of_an_earlier_call_are_read(tmp_path, capsys):
    for which in ("omniglot", "faces"):
        path = Path(__file__).parents[2] / "records" / f"openset_{which}_settings.json"
        chosen = openset_families.read_settings(path)
        assert list(chosen) == list(openset_families.FAMILIES)
        assert chosen == openset_families.best_candidates(json.loads(path.read_text())["scores"])
    path = tmp_path / "settings.json"
    command = ["reproduce", "openset", "faces", "--settings", str(path)]
    for content in ("", "[]", '{"chosen": {}}', '{"chosen": 3}', '{"chosen": {"softmax": "arcface"}}'):
        path.write_text(content)
        assert main([*command, "--loss-set", "families", "--list"]) == 2
        assert "settings.json" in capsys.readouterr().err
    assert main([*command, "--loss-set", "others", "--list"]) == 2
    assert "--settings" in capsys.readouterr().err


@pytest.mark.slow
def test_settings_are_chosen_on_classes_that_are_not_reported(tiny_faces, data_dir, tmp_path, capsys, monkeypatch):
    families = {"softmax": ("softmax",), "supcon": ("supcon(tau=0.1)", "supcon(tau=5)")}
    monkeypatch.setattr(openset_families, "FAMILIES", families)
    command = ["reproduce", "openset", "faces", "--loss-set", "families", "--seeds", "1"]
    command += ["--runs-dir", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--data-dir", str(data_dir)]
    assert main([*command, "--list"]) == 0
    assert capsys.readouterr().out.count("missing") == 2
    assert main(command) == 0
    first = capsys.readouterr()
    assert "2 of 2 runs are finished" in first.out
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert set(settings["scores"]) == set(families["supcon"])
    best = max(settings["scores"], key=settings["scores"].__getitem__)
    assert settings["chosen"] == {"softmax": "softmax", "supcon": best}
    assert {line["loss"] for line in read_records(tmp_path / "out" / "records.jsonl")} == {"softmax", best}
    kept = sorted((tmp_path / "runs").glob(f"*/{openset_families.HELD_OUT_FILE}"))
    assert [json.loads(path.read_text())["classes"] for path in kept] == [10, 10]  # of 40: 20 reported, 10 trained on
    assert main(command) == 0
    assert "run 1 of" not in capsys.readouterr().err
    kept[0].write_text("{}")
    assert main(command) == 2
    assert "delete it" in capsys.readouterr().err
    assert main(["reproduce", "openset", "sphere", "--loss-set", "others"]) == 2
