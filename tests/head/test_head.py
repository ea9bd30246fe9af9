"""A head: saving and loading, bad input, refused calls, labels that do not count, learning."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import widemargin as wm
from head_batch import C, D, batch


def test_loading_under_another_margin_is_said():
    head = wm.Head(D, C, "arcface")
    with pytest.warns(UserWarning, match=r"trained with arcface\(s=64, m=0.5\), this head has cosface"):
        wm.Head(D, C, "cosface").load_state_dict(head.state_dict())


def test_meta_device_and_back():
    head = wm.Head(D, C, "adacos", device="meta")
    assert head.margin_state.steps.is_meta
    real = head.to_empty(device="cpu")
    real.load_state_dict(wm.Head(D, C, "adacos").state_dict())
    x, y = batch()
    assert torch.isfinite(real(x, y)).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wm.Head(D, 1, "arcface"), "classes=1 must be a whole number of at least 2"),
        (lambda: wm.Head(0, 5, "arcface"), "dim=0 must be a whole number of at least 1"),
        (lambda: wm.Head(D, C, "arcfase"), "unknown loss 'arcfase'; did you mean 'arcface'?"),
        (lambda: wm.Head(D, C, "arcface(q=1)"), r"unknown option of arcface 'q' \(known: gradient, m, s\)"),
        (lambda: wm.Head(D, C, "arcface(m=2)"), r"arcface: m=2 is outside its domain: 0 ≤ value ≤ 1.5708"),
        (lambda: wm.Head(D, C, "arcface(s=0)"), r"arcface: s=0 is outside its domain: value > 0"),
        (lambda: wm.Head(D, C, "arcface(m=warmup(0, 2, steps=5))"), r"arcface: m=2 is outside"),
        (lambda: wm.Head(D, C, "a_softmax(m=1.5)"), "is outside its domain: whole number, value ≥ 1"),
        (lambda: wm.Head(D, C, "arcface(m=learnable(0.2))"), "only a scale"),
        (lambda: wm.Head(D, C, "arcface(s=[1, 2, 3, 4, 5])"), "does not take one number per class"),
        (lambda: wm.Head(D, C, "arcface(m=[0.1, 0.2])"), "m has 2 numbers for 5 classes"),
        (lambda: wm.Head(D, C, "triplet"), "'triplet' is not a margin"),
        (lambda: wm.Head(D, C, "arcface", backend="dens"), "unknown backend 'dens'; did you mean 'dense'?"),
        (
            lambda: wm.Head(D, C, "arcface", label_smoothing=1.0),
            "label_smoothing=1.0 must be a number of at least 0 and below 1",
        ),
        (lambda: wm.Head(D, C, "arcface", class_weight=[1.0]), "class_weight must be 5 finite numbers"),
        (lambda: wm.Head(D, C, "arcface", class_names=["a"]), "class_names has 1 names for 5 classes"),
        (lambda: wm.Head(D, C, 3), "or a Margin, got int"),
        (lambda: wm.Head(D, C, "arcface", label_smoothing="0.1"), "label_smoothing='0.1' must be a number"),
        (lambda: wm.Head(D, C, "arcface", ignore_index="x"), "ignore_index='x' must be a whole number"),
        (lambda: wm.Head(D, C, "arcface", class_weight="balanced"), "class_weight must be 5 numbers, got 'balanced'"),
        (lambda: wm.margin_softmax(torch.zeros(1, 2), torch.tensor([0]), wm.ArcFace), "a Margin such as ArcFace"),
        (lambda: wm.margin_softmax(torch.ones(1, 2) * 9, torch.tensor([0]), "arcface"), "pass cosines, not logits"),
        (lambda: wm.attach("resnet18", "arcface", num_classes=3), "attach takes a model, got str"),
    ],
)
def test_a_head_that_cannot_be_made_says_why(make, message):
    with pytest.raises(wm.InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(2, 3), torch.tensor([0, 1]), r"embeddings must have shape \[N, 6\], got \[2, 3\]"),
        (torch.zeros(D), torch.tensor([0]), r"got \[6\]"),
        (torch.zeros(2, D, 1, 1), torch.tensor([0, 1]), r"got \[2, 6, 1, 1\]; use x.flatten\(1\)"),
        (torch.zeros(2, D, dtype=torch.int64), torch.tensor([0, 1]), "must be a float tensor"),
        (torch.zeros(2, D), torch.tensor([0]), r"labels must have shape \[2\], one per embedding, got \[1\]"),
        (torch.zeros(2, D), torch.tensor([0.0, 1.0]), "integer class numbers"),
        (torch.zeros(2, D), torch.tensor([0, 5]), "label 5 is out of range: 5 classes are numbered 0 to 4"),
        (torch.zeros(2, D), torch.tensor([0, -100]), "label -100 is out of range.*ignore_index"),
        (torch.tensor([[1.0] * D, [math.nan] * D]), torch.tensor([0, 1]), r"embedding\(s\) 1 hold NaN"),
        (torch.tensor([[math.inf] * D]), torch.tensor([0]), r"embedding\(s\) 0 hold NaN or infinite"),
    ],
)
@pytest.mark.parametrize("backend", ["dense", "stream"])
def test_a_wrong_batch_is_one_line(x, y, message, backend):
    head = wm.Head(D, C, "arcface", backend=backend)
    with pytest.raises(wm.InputError, match=message) as caught:
        head(x, y)
    assert "\n" not in str(caught.value)
    assert int(head.margin_state.steps) == 0  # nothing moved


@pytest.mark.parametrize("backend", ["dense", "stream"])
@pytest.mark.parametrize("spec", ["arcface", "adacos", "adaacos", "softmax"])
def test_empty_batch(backend, spec):
    head = wm.Head(D, C, spec, backend=backend)
    x = torch.zeros(0, D, requires_grad=True)
    loss = head(x, torch.zeros(0, dtype=torch.int64))
    loss.sum().backward()
    assert loss.shape == (0,)
    assert (head.weight.grad == 0).all()


def test_non_contiguous_embeddings():
    head = wm.Head(D, C, "arcgrad")
    x, y = batch()
    torch.testing.assert_close(head(x.detach().T.contiguous().T, y), head(x, y))


def test_a_loss_of_ones_own_needs_no_file():
    class Squared(wm.Margin):
        name = "squared"

        def psi(self, theta):
            return torch.cos(theta) - 0.1 * theta**2

    margin = __import__("dataclasses").dataclass(frozen=True, repr=False)(Squared)()
    x, y = batch()
    assert wm.Head(D, C, margin)(x, y).shape == (8,)


def test_training_with_every_backend_learns():
    centers = torch.randn(C, 16) * 2
    y = torch.arange(200) % C
    data = centers[y] + 0.3 * torch.randn(200, 16)
    for backend in ("dense", "stream"):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, D))
        head = wm.Head(D, C, "arcface(s=16, m=0.3)", backend=backend)
        optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.01)
        for _ in range(60):
            optimizer.zero_grad()
            head(body(data), y).mean().backward()
            optimizer.step()
        assert (head.logits(body(data)).argmax(1) == y).float().mean() > 0.98


def test_numbers_of_numpy_are_numbers():
    import numpy as np

    head = wm.Head(np.int64(D), np.int32(C), wm.CosFace(s=np.float32(8), m=np.full(C, 0.25)))
    x, y = batch()
    assert head.spec == wm.CosFace(s=8, m=[0.25] * C)
    torch.testing.assert_close(head(x, y, mix=(y, np.float64(0.5))), head(x, y))


OTHER = torch.zeros(8, dtype=torch.int64)


@pytest.mark.parametrize(
    "options",
    [
        {"mix": (OTHER,)},
        {"mix": 0.3},
        {"mix": (OTHER, 2.0)},
        {"mix": (OTHER + 99, 0.5)},
        {"mix": (OTHER, torch.ones(8, 1))},
        {"sample_weight": torch.ones(3)},
    ],
)
@pytest.mark.parametrize("objective", [False, True])
def test_a_refused_call_moves_nothing(options, objective):
    x, y = batch()
    model = wm.Objective("adaacos(s=8) + 0.1*center", D, C) if objective else wm.Head(D, C, "adaacos(s=8)")
    with torch.no_grad():
        (model.head if objective else model).init_from_means(x, y)  # so that a call would move the margin
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(wm.InputError):
        model(x, y, **options)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    model(x, y)
    changed = [key for key, value in model.state_dict().items() if not torch.equal(value, before[key])]
    assert any("state_m" in key for key in changed)


def test_logits_of_ignored_samples_have_no_margin():
    head = wm.Head(D, C, "cosface(s=8, m=0.3)", ignore_index=-1)
    x, y = batch()
    marked = y.clone()
    marked[3] = -1
    with_margin, plain = head.logits(x, marked), head.logits(x)
    torch.testing.assert_close(with_margin[3], plain[3])
    assert not torch.allclose(with_margin[2], plain[2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wm.ArcFace(margin=0.5), r"unknown option of arcface 'margin'.*known: gradient, m, s"),
        (lambda: wm.Triplet(minning="hard"), "did you mean 'mining'?"),
        (
            lambda: wm.Objective("arcface", D, C, label_smothing=0.1),
            "unknown option of Head 'label_smothing'; did you mean 'label_smoothing'?",
        ),
    ],
)
def test_an_unknown_option_names_the_nearest(make, message):
    with pytest.raises(wm.InputError, match=message):
        make()


def test_shapes_without_values_pass_through():
    head = wm.Head(D, C, "arcface", device="meta")
    loss = head(torch.empty(3, D, device="meta"), torch.empty(3, dtype=torch.int64, device="meta"))
    assert loss.is_meta
    assert loss.shape == (3,)


@pytest.mark.parametrize("backend", ["dense", "stream", "sampled", "sharded"])
@pytest.mark.parametrize("spec", ["softmax", "l_softmax(m=1)", "m_softmax(m=0)"])
@pytest.mark.parametrize("by_logits", [False, True])
def test_softmax_learns_from_zero_weights(backend, spec, by_logits):
    """The product is the logit, so that a weight without a direction still gets torch's own gradient."""
    if by_logits and backend != "dense":
        return
    head = wm.Head(D, C, spec, backend=backend, dtype=torch.float64)
    torch.nn.init.zeros_(head.weight)
    x, y = torch.randn(7, D, dtype=torch.float64), torch.arange(7) % C
    loss = F.cross_entropy(head.logits(x, y), y, reduction="sum") if by_logits else head(x, y).sum()
    loss.backward()
    plain = torch.zeros(C, D, dtype=torch.float64, requires_grad=True)
    F.cross_entropy(x @ plain.T, y, reduction="sum").backward()
    torch.testing.assert_close(head.weight.grad, plain.grad)
