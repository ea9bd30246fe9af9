"""Partial FC: positives always there, sparse gradients, any optimizer on the touched rows alone, exact at rate 1."""

import pytest
import torch

import widemargin as wm
from widemargin.others.sampled import drawn

D, C = 8, 50


def batch(n=6):
    return torch.randn(n, D, dtype=torch.float64, requires_grad=True), torch.randint(C, (n,))


def test_the_labels_are_always_drawn_and_the_rate_is_kept():
    y = torch.tensor([3, 3, 49, 0])
    for rate in (0.02, 0.1, 0.5, 1.0):
        which = drawn(y, C, rate)
        assert {0, 3, 49} <= set(which.tolist())
        assert len(which) == len(which.unique()) == max(3, round(rate * C))
        assert (which[1:] > which[:-1]).all()
    often = torch.stack([torch.zeros(C).index_fill_(0, drawn(y, C, 0.3), 1.0) for _ in range(400)]).mean(0)
    others = torch.tensor([j for j in range(C) if j not in (0, 3, 49)])
    assert (often[others] - 12 / 47).abs().max() < 0.12  # every other class as likely as the next


def test_rate_1_is_exact():
    x, y = batch()
    dense, all_of_them = (
        wm.Head(D, C, "arcface(s=8)", road=road, dtype=torch.float64) for road in ("dense", "sampled")
    )
    all_of_them.load_state_dict(dense.state_dict())
    one, other = (torch.autograd.grad(head(x, y).sum(), (x, head.weight)) for head in (dense, all_of_them))
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("spec", ["arcface(s=8)", "arcgrad", "adacos", "softmax(bias=True)"])
def test_a_sampled_step_is_the_loss_over_the_drawn_classes(spec):
    x, y = batch()
    head = wm.Head(D, C, spec, road="sampled", rate=0.2, dtype=torch.float64)
    torch.manual_seed(5)
    loss = head(x, y)
    loss.sum().backward()
    gradient = head.weight.grad
    assert gradient.is_sparse
    rows = gradient.coalesce().indices()[0]
    torch.manual_seed(5)
    assert (rows == drawn(y, C, 0.2)).all()
    part = wm.Head(D, len(rows), head.margin, road="dense", dtype=torch.float64)
    with torch.no_grad():
        part.weight.copy_(head.weight[rows])
    to_x, to_rows = torch.autograd.grad(part(x, torch.searchsorted(rows, y)).sum(), (x, part.weight))
    torch.testing.assert_close(x.grad, to_x)
    torch.testing.assert_close(gradient.coalesce().values(), to_rows)


def test_evaluation_looks_at_all_classes():
    x, y = batch()
    head = wm.Head(D, C, "arcface(s=8)", road="sampled", rate=0.1, dtype=torch.float64).eval()
    full = wm.Head(D, C, "arcface(s=8)", road="dense", dtype=torch.float64).eval()
    full.load_state_dict(head.state_dict())
    torch.testing.assert_close(head(x, y), full(x, y))


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
        (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    ],
)
def test_only_touched_rows_move_and_they_move_as_the_optimizer_would(make, options):
    x, y = batch()
    head = wm.Head(D, C, "arcface(s=8)", road="sampled", rate=0.2, dtype=torch.float64)
    rows_only = wm.RowOptimizer(head.weight, make, **options)
    untouched = torch.ones(C, dtype=torch.bool)
    start = head.weight.detach().clone()
    for step in range(5):
        rows_only.zero_grad()
        head(x, y).sum().backward()
        untouched[head.weight.grad.coalesce().indices()[0]] = False
        before = head.weight.detach().clone()
        rows_only.step()
        still = torch.ones(C, dtype=torch.bool)
        still[head.weight.grad.coalesce().indices()[0]] = False
        assert (head.weight.detach()[still] == before[still]).all(), step
    assert (head.weight.detach()[untouched] == start[untouched]).all()
    assert untouched.any()

    one, other = (torch.nn.Parameter(start.clone()) for _ in range(2))  # all rows every step: the optimizer itself
    ours, theirs = wm.RowOptimizer(one, make, **options), make([other], **options)
    for _ in range(4):
        gradient = torch.randn(C, D, dtype=torch.float64)
        one.grad, other.grad = gradient.to_sparse(1), gradient.clone()
        ours.step(), theirs.step()
    torch.testing.assert_close(one, other)


def test_a_row_optimizer_goes_on_from_its_state():
    make, options = torch.optim.AdamW, {"lr": 0.01}
    one, other = (torch.nn.Parameter(torch.ones(C, D)) for _ in range(2))
    first, second = (wm.RowOptimizer(p, make, **options) for p in (one, other))
    gradients = [torch.randn(C, D).to_sparse(1) for _ in range(4)]
    for gradient in gradients[:2]:
        one.grad = gradient
        first.step()
    other.data.copy_(one.data)
    first.param_groups[0]["lr"] = 0.02
    second.load_state_dict(first.state_dict())
    for gradient in gradients[2:]:
        one.grad, other.grad = gradient, gradient.clone()
        first.step(), second.step()
    torch.testing.assert_close(one, other)
    with pytest.raises(wm.InputError, match="the weights are"):
        wm.RowOptimizer(torch.nn.Parameter(torch.ones(3, D)), make).load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": 0.5}, 'belongs to road="sampled"'),
        ({"road": "sampled", "rate": 0.0}, "above 0 and at most 1"),
        ({"road": "sampled", "rate": True}, "above 0 and at most 1"),
        ({"road": "sampled", "rate": 0.5, "smoothing": 0.1}, "cannot go with a rate below 1"),
        ({"road": "stream", "group": object()}, "must be a process group"),
        ({"road": "streem"}, "did you mean 'stream'"),
    ],
)
def test_what_a_road_cannot_do_is_one_line(options, words):
    with pytest.raises(wm.InputError, match=words):
        wm.Head(D, C, "arcface", **options)
