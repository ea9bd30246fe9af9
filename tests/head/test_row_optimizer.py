"""RowOptimizer: any optimizer of torch on the touched rows alone, as it would move them by itself."""

import pytest
import torch

import widemargin as wm

D, C = 8, 50


def batch(n=6):
    return torch.randn(n, D, dtype=torch.float64, requires_grad=True), torch.randint(C, (n,))


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
        (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    ],
)
def test_only_touched_rows_move_and_they_move_as_the_optimizer_would(make, options):
    x, y = batch()
    head = wm.Head(D, C, "arcface(s=8)", backend="sampled", sample_rate=0.2, dtype=torch.float64)
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


WORKING = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "Adam": {"lr": 0.01, "amsgrad": True},
    "AdamW": {"lr": 0.01},
    "Adagrad": {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.3},
    "RMSprop": {"lr": 0.01, "momentum": 0.9, "centered": True},
    "Adadelta": {},
    "Adamax": {"lr": 0.01},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "Rprop": {"lr": 0.01},
    "ASGD": {"lr": 0.01},
}
REFUSED = {
    "Adafactor": "not per row",
    "LBFGS": "cannot update rows",
    "SparseAdam": "cannot update rows",
    "Muon": "couples the updates",
}


def row_gradient(weight, rows, values):
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, weight.shape, check_invariants=True).coalesce()


def test_every_optimizer_of_torch_is_tried():
    known = {name for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    assert known - {"Optimizer"} <= {*WORKING, *REFUSED}


@pytest.mark.parametrize("name", WORKING)
def test_rows_move_as_under_a_dense_optimizer_of_these_rows(name):
    make, options, rows = getattr(torch.optim, name), WORKING[name], [1, 4, 6]
    start = torch.randn(8, 3)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start[rows].clone())
    optimizer, dense = wm.RowOptimizer(ours, make, **options), make([theirs], **options)
    for _ in range(5):
        gradient = torch.randn(3, 3)
        ours.grad, theirs.grad = row_gradient(ours, rows, gradient), gradient.clone()
        optimizer.step()
        dense.step()
    torch.testing.assert_close(ours[rows], theirs, rtol=0, atol=0)
    others = [row for row in range(8) if row not in rows]
    assert torch.equal(ours[others], start[others])


@pytest.mark.parametrize("name", WORKING)
def test_rows_that_change_from_step_to_step_go_on_from_a_state_dict(name):
    make, options = getattr(torch.optim, name), WORKING[name]
    one = torch.nn.Parameter(torch.randn(6, 3))
    other = torch.nn.Parameter(one.detach().clone())
    first, second = wm.RowOptimizer(one, make, **options), wm.RowOptimizer(other, make, **options)
    for rows in ([0], [0, 1, 2], [5, 3], [4, 0, 2, 5]):
        gradient = torch.randn(len(rows), 3)
        for weight, optimizer in ((one, first), (other, second)):
            weight.grad = row_gradient(weight, rows, gradient)
            optimizer.step()
        second = wm.RowOptimizer(other, make, **options)
        second.load_state_dict(first.state_dict())
    assert torch.equal(one, other)
    assert torch.isfinite(one).all()


def test_adagrad_on_drawn_rows_is_adagrad_with_gradients_of_zero_elsewhere():
    options = {"lr": 0.1, "lr_decay": 0.05, "initial_accumulator_value": 0.2}
    ours = torch.nn.Parameter(torch.randn(7, 4))
    theirs = torch.nn.Parameter(ours.detach().clone())
    optimizer, dense = wm.RowOptimizer(ours, torch.optim.Adagrad, **options), torch.optim.Adagrad([theirs], **options)
    for rows in ([1, 3], [3], [0, 1, 6], [2, 4, 5, 6], [1]):
        ours.grad = row_gradient(ours, rows, torch.randn(len(rows), 4))
        theirs.grad = ours.grad.to_dense()
        optimizer.step()
        dense.step()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    torch.testing.assert_close(optimizer.row_state["sum"], dense.state[theirs]["sum"], rtol=0, atol=0)


def test_rows_that_are_drawn_late_begin_as_all_others_did():
    """Rprop's first step is its rate, whenever a row has its first gradient."""
    weight = torch.nn.Parameter(torch.zeros(3, 2))
    optimizer = wm.RowOptimizer(weight, torch.optim.Rprop, lr=0.25)
    for rows in ([0], [1], [0, 2]):
        weight.grad = row_gradient(weight, rows, torch.ones(len(rows), 2))
        optimizer.step()
    assert weight[:, 0].tolist() == pytest.approx([-0.25 - 1.2 * 0.25, -0.25, -0.25])


@pytest.mark.parametrize("name", REFUSED)
def test_optimizers_that_cannot_move_rows_alone_are_one_line(name):
    with pytest.raises(wm.InputError, match=REFUSED[name]) as refused:
        wm.RowOptimizer(torch.nn.Parameter(torch.ones(4, 2)), getattr(torch.optim, name))
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_drawn_optimizer_is_taken_and_wrong_options_are_one_line():
    class Noisy(torch.optim.SGD):
        def step(self, closure=None):
            super().step()
            for group in self.param_groups:
                for weight in group["params"]:
                    weight.data += torch.randn_like(weight)

    weight = torch.nn.Parameter(torch.zeros(3, 2))
    state = torch.get_rng_state()
    optimizer = wm.RowOptimizer(weight, Noisy, lr=0.1)
    assert torch.equal(torch.get_rng_state(), state)  # the probe leaves the random state unchanged
    weight.grad = row_gradient(weight, [1], torch.ones(1, 2))
    optimizer.step()
    assert weight[[0, 2]].abs().sum() == 0
    with pytest.raises(wm.InputError, match=r"SGD.*unexpected keyword"):
        wm.RowOptimizer(weight, torch.optim.SGD, rate=0.1)
