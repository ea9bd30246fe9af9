"""Partial FC: positives always there, sparse gradients, exact at a sample rate of 1."""

import pytest
import torch

import widemargin as wm
from widemargin.head.backends.sampled import sample_classes

D, C = 8, 50


def batch(n=6):
    return torch.randn(n, D, dtype=torch.float64, requires_grad=True), torch.randint(C, (n,))


def test_the_labels_are_always_drawn_and_the_sample_rate_is_kept():
    y = torch.tensor([3, 3, 49, 0])
    for rate in (0.02, 0.1, 0.5, 1.0):
        which = sample_classes(y, C, rate)
        assert {0, 3, 49} <= set(which.tolist())
        assert len(which) == len(which.unique()) == max(3, round(rate * C))
        assert (which[1:] > which[:-1]).all()
    often = torch.stack([torch.zeros(C).index_fill_(0, sample_classes(y, C, 0.3), 1.0) for _ in range(400)]).mean(0)
    others = torch.tensor([j for j in range(C) if j not in (0, 3, 49)])
    assert (often[others] - 12 / 47).abs().max() < 0.12  # every other class as likely as the next


def test_sample_rate_1_is_exact():
    x, y = batch()
    dense, all_of_them = (
        wm.Head(D, C, "arcface(s=8)", backend=backend, dtype=torch.float64) for backend in ("dense", "sampled")
    )
    all_of_them.load_state_dict(dense.state_dict())
    one, other = (torch.autograd.grad(head(x, y).sum(), (x, head.weight)) for head in (dense, all_of_them))
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("spec", ["arcface(s=8)", "arcgrad", "adacos", "softmax(bias=True)"])
def test_a_sampled_step_is_the_loss_over_the_drawn_classes(spec):
    x, y = batch()
    head = wm.Head(D, C, spec, backend="sampled", sample_rate=0.2, dtype=torch.float64)
    torch.manual_seed(5)
    loss = head(x, y)
    loss.sum().backward()
    gradient = head.weight.grad
    assert gradient.is_sparse
    rows = gradient.coalesce().indices()[0]
    torch.manual_seed(5)
    assert (rows == sample_classes(y, C, 0.2)).all()
    part = wm.Head(D, len(rows), head.margin, backend="dense", dtype=torch.float64)
    with torch.no_grad():
        part.weight.copy_(head.weight[rows])
    to_x, to_rows = torch.autograd.grad(part(x, torch.searchsorted(rows, y)).sum(), (x, part.weight))
    torch.testing.assert_close(x.grad, to_x)
    torch.testing.assert_close(gradient.coalesce().values(), to_rows)


def test_evaluation_looks_at_all_classes():
    x, y = batch()
    head = wm.Head(D, C, "arcface(s=8)", backend="sampled", sample_rate=0.1, dtype=torch.float64).eval()
    full = wm.Head(D, C, "arcface(s=8)", backend="dense", dtype=torch.float64).eval()
    full.load_state_dict(head.state_dict())
    torch.testing.assert_close(head(x, y), full(x, y))


@pytest.mark.parametrize("backend", ["sampled", "sharded"])
@pytest.mark.parametrize("spec", ["uniface(s=4)", "sphereface2(s=4)", "p2sgrad"])
def test_the_mean_over_draws_of_a_one_vs_all_loss_is_the_loss(spec, backend):
    """Where the batch has one class, which is always drawn; the classes of a larger batch count somewhat too much."""
    head = wm.Head(D, C, spec, backend=backend, sample_rate=0.1, dtype=torch.float64)
    x, y = torch.randn(3, D, dtype=torch.float64), torch.full((3,), 7)
    with torch.no_grad():
        drawn = torch.stack([head(x, y) for _ in range(800)])
        exact = head.eval()(x, y)
    assert ((drawn.mean(0) - exact).abs() < 5 * drawn.std(0) / 800**0.5).all()
    assert (drawn.std(0) > 1e-3 * exact.abs()).all()


@pytest.mark.parametrize("spec", ["aam_softmax(s=4, k=2, topk=9)", "soft_triple(k=3)", "subcenter_arcface(s=4)"])
def test_few_drawn_classes_of_sub_centres_and_penalties_are_finite(spec):
    """Fewer classes may be drawn than a penalty needs; the gradient has rows of whole classes."""
    head = wm.Head(D, C, spec, backend="sampled", sample_rate=0.05, dtype=torch.float64)
    x, y = torch.randn(3, D, dtype=torch.float64), torch.full((3,), 7)
    loss = head(x, y)
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    touched = head.weight.grad.to_dense().flatten(1).any(1)
    assert 1 <= touched.sum() <= 3
    assert touched[7]
