"""Runs with several weights per class, or one-vs-all losses: everything that reads class weights or logits."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import widemargin as wm
from colours import draw
from runs import assert_same
from widemargin.models.attach import MarginModel
from widemargin.training.divergence import describe_divergence
from widemargin.training.epoch_statistics import NUM_BINS, AngleHistogram
from widemargin.training.report import inspect_run
from widemargin.training.train import train

SPECS = ("subcenter_arcface(s=10, m=0.2)", "soft_triple(k=2)", "sphereface2", "p2sgrad")


def cosines(x, weight):
    """Cosines to the nearest sub-centre of each class [N, C], by numpy."""
    x, weight = x.detach().double().numpy(), weight.detach().double().numpy()
    weight = weight if weight.ndim == 3 else weight[:, None]
    x, weight = (v / np.linalg.norm(v, axis=-1, keepdims=True) for v in (x, weight))
    return np.einsum("nd,ckd->nck", x, weight).max(2)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("data"))


def config_of(images, loss, **changes):
    return wm.TrainConfig(
        data=str(images),
        model="fast(widths=(8, 8, 8))",
        loss=loss,
        input_size=16,
        batch_size=12,
        augment="none",
        opt="adamw",
        lr=0.01,
        epochs=2,
        **changes,
    )


@pytest.fixture(scope="module", params=SPECS)
def run(request, images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(config_of(images, request.param, embedding_dim=3), folder, quiet=True)
    return wm.load(folder)


# ---------------------------------------------------------------- runs


def test_a_run_is_evaluated_predicts_and_rejects(run):
    found = run.evaluate()
    assert 0 <= found.metrics["top1"] <= 100
    assert all(math.isfinite(value) for value in found.metrics["angles"].values())
    x, y = run.embed_test_images()
    head = run.model.objective.head
    cos = cosines(x, head.weight)
    np.testing.assert_allclose(run.nearest_class_cosine(x), cos.max(1), atol=1e-5)
    centres = torch.stack([x[y == k].mean(0) for k in range(len(run.class_names))])
    own = np.arccos(np.diag(cosines(centres, head.weight)))
    assert found.metrics["angles"]["wc_intra"] == pytest.approx(own.mean(), abs=1e-4)
    predictions = run.predict(torch.randint(256, (5, 3, 16, 16), dtype=torch.uint8), reject_below=-1.0)
    for prediction in predictions:
        assert sum(probability for _, probability in prediction) == pytest.approx(1.0)
        assert all(0 < probability < 1 for _, probability in prediction)


def test_a_report_shows_every_sub_centre(run, tmp_path):
    weights = inspect_run(run).weights
    head = run.model.objective.head
    assert weights.shape == head.weight.shape
    page = wm.report(run, tmp_path / "page.html").path.read_text(encoding="utf-8")
    rays = page.partition("Embeddings on the sphere")[2].partition("</svg>")[0].count("<line ")
    assert rays == head.weight[..., 0].numel()
    per_class = f"the {weights.shape[1]} sub-centres of each class" if weights.ndim == 3 else "the class weights"
    assert f"rays are {per_class}." in page


def test_a_hub_folder_keeps_them(run, tmp_path):
    run.export(hub=tmp_path / "hub")
    again = wm.load(tmp_path / "hub")
    pixels = torch.randint(256, (3, 3, 16, 16), dtype=torch.uint8)
    assert [dict(one) for one in again.predict(pixels)] == [dict(one) for one in run.predict(pixels)]
    assert torch.equal(again.model.objective.head.weight, run.model.objective.head.weight)


@pytest.mark.slow
def test_an_onnx_file_folds_them(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    run.export(onnx=tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    pixels = torch.randint(256, (4, 3, 16, 16), dtype=torch.uint8)
    embedding, logits = session.run(None, {"images": pixels.numpy()})
    torch.testing.assert_close(torch.from_numpy(embedding), run.embed(pixels, normalize=False), rtol=1e-4, atol=1e-4)
    assert logits.shape == (4, 3)
    expected = [max(prediction, key=lambda pair: pair[1])[0] for prediction in run.predict(pixels)]
    assert [run.class_names[k] for k in logits.argmax(1)] == expected


@pytest.mark.parametrize("loss", ["subcenter_arcface(s=10, m=0.2)", "sphereface2"])
def test_a_resumed_run_is_the_uninterrupted_one(loss, images, tmp_path):
    config = replace(config_of(images, loss), epochs=3)
    train(config, tmp_path / "whole", quiet=True, stop_after=2)
    train(config, tmp_path / "parts", quiet=True, stop_after=1)
    train(config, tmp_path / "parts", quiet=True, stop_after=1, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_learning_rate_is_found(images):
    found = wm.find_lr(config_of(images, "soft_triple(k=3)"), steps=40)
    assert np.isfinite(found.losses).all()
    assert 1e-6 < found.suggestion < 1


# ---------------------------------------------------------------- what a step looks at


@pytest.mark.parametrize("spec", ["subcenter_arcface(k=3)", "arcface"])
def test_angles_are_counted_to_the_nearest_sub_centre(spec):
    head, x, y = wm.Head(4, 5, spec), torch.randn(30, 4), torch.randint(5, (30,))
    histogram = AngleHistogram(torch.device("cpu"))
    histogram.add(head, x, y)
    theta = np.arccos(cosines(x, head.weight))
    own = theta[np.arange(30), y]
    bins = [np.histogram(angle, NUM_BINS, (0, math.pi))[0] for angle in (own, theta)]
    assert histogram.target.tolist() == bins[0].tolist()
    assert histogram.non_target.tolist() == (bins[1] - bins[0]).tolist()
    assert float(histogram.max_target_angle) == pytest.approx(own.max(), abs=1e-5)


def test_a_diverged_run_says_the_angle_to_the_nearest_own_sub_centre():
    model = MarginModel(nn.Identity(), wm.Objective("subcenter_arcface(k=3)", 4, 5))
    x, y = torch.randn(30, 4), torch.randint(5, (30,))
    model.objective(x, y)
    largest = np.degrees(np.arccos(cosines(x, model.head.weight)[np.arange(30), y].min()))
    message = describe_divergence(model, x, y, 7, math.inf, False, "")
    assert f"largest angle to the own class {largest:.0f}°" in message


def test_an_attached_head_with_sub_centres_learns_and_grows():
    body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 10))
    model = wm.attach(body, "aam_softmax(s=8, k=3) + 0.1*center", num_classes=3, at="2")
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    optimizer = torch.optim.SGD(model.parameter_groups(weight_decay=0.1), lr=0.2)
    losses = []
    for _ in range(20):
        losses.append(model(x, y).mean())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]
    model.extend(2)
    assert model.head.weight.shape == (5, 3, 8)
    assert model(x).shape == (12, 5)


# ---------------------------------------------------------------- wrong labels


def test_outliers_of_noisy_digits_are_mostly_wrong_labels_and_training_goes_on_without_them():
    digits = load_digits()
    x, true = torch.tensor(digits.data / 16, dtype=torch.float32), torch.from_numpy(digits.target)
    x, true, test_x, test_y = x[:1400], true[:1400], x[1400:], true[1400:]
    torch.manual_seed(0)
    is_wrong = torch.rand(len(true)) < 0.2
    y = torch.where(is_wrong, (true + torch.randint(1, 10, true.shape)) % 10, true)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    objective = wm.Objective("subcenter_arcface(s=16, m=0.5, k=3)", 16, 10)

    def fit(rows, steps):
        optimizer = torch.optim.AdamW([*net.parameters(), *objective.parameters()], lr=3e-3)
        for _ in range(steps):
            some = rows[torch.randint(len(rows), (128,))]
            optimizer.zero_grad()
            objective(net(x[some]), y[some]).mean().backward()
            optimizer.step()

    fit(torch.arange(len(y)), 100)
    found = wm.subcenter_outliers(objective.head, net(x).detach(), y)
    hits = (found.is_outlier & is_wrong).sum().item()
    # Bounds that seeds 0 to 4 all meet: precision 0.98 to 1.00 (a fifth by chance), recall 0.58 to 0.75.
    assert hits / found.is_outlier.sum().item() > 0.9
    assert hits / is_wrong.sum().item() > 0.5
    objective.keep_dominant(found.dominant)
    assert objective.head.weight.shape == (10, 16)
    fit((~found.is_outlier).nonzero().squeeze(1), 60)
    assert (objective.logits(net(test_x)).argmax(1) == test_y).float().mean() > 0.88
