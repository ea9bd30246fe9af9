"""Laws that every pair loss and every classical loss obeys; one added as a file is tested here too."""

import copy

import pytest
import torch

import widemargin as wm
from widemargin.losses.registry import list_losses

N, C, D = 9, 3, 5
every_pair_loss = pytest.mark.parametrize("name", list_losses("pairs"))
# Where negatives are drawn, the laws are those of all pairs; where a memory fills up, those of the loss inside.
WITHOUT_DRAWS = {"margin_pairs": "margin_pairs(mining=all)"}
every_criterion = pytest.mark.parametrize("name", list_losses("classical"))


def batch(dtype=torch.float64):
    draw = torch.Generator().manual_seed(4)
    return torch.randn(N, D, generator=draw, dtype=torch.float64).to(dtype).requires_grad_(), torch.arange(N) % C


def objective_of(name):
    torch.manual_seed(0)
    return wm.Objective(name, D, C).double()


@every_pair_loss
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_pair_loss_gives_one_finite_loss_per_sample(name, dtype):
    x, y = batch(dtype)
    loss = wm.Objective(name, D, C)(x, y)
    loss.sum().backward()
    assert loss.shape == (N,)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert x.grad.dtype == dtype
    assert torch.isfinite(loss).all()
    assert torch.isfinite(x.grad).all()
    assert (loss >= 0).all()


@every_pair_loss
def test_a_pair_loss_is_finite_where_points_coincide_or_vanish(name):
    for height in (0.0, 1.0, 1e18):
        x = torch.full((N, D), height, requires_grad=True)
        loss = wm.Objective(name, D, C)(x, torch.arange(N) % C)
        loss.sum().backward()
        assert torch.isfinite(loss).all()
        assert torch.isfinite(x.grad).all()


@every_pair_loss
def test_the_order_of_samples_changes_nothing(name):
    x, y = batch()
    # Where the first two of a class are a pair, the order within each class is kept.
    order = torch.randperm(N)
    if wm.parse(name).depends_on_order:
        order = order[torch.argsort(y[order], stable=True)].view(C, -1).sort(1).values[torch.randperm(C)].flatten()
    spec = WITHOUT_DRAWS.get(name, name)
    torch.testing.assert_close(objective_of(spec)(x[order], y[order]), objective_of(spec)(x, y)[order])


@every_pair_loss
def test_a_pair_loss_has_the_gradient_of_its_loss(name):
    x, y = batch()
    part = objective_of(WITHOUT_DRAWS.get(name, name)).eval()
    matches = torch.autograd.gradcheck(lambda v: part(v, y), (x,), atol=1e-6, raise_exception=False)
    assert matches == (not wm.parse(name).detached), "a loss with factors taken as constants declares `detached`"


@every_pair_loss
def test_autocast_changes_nothing(name):
    x, y = batch(torch.float32)
    found = []
    for enabled in (False, True):
        torch.manual_seed(0)  # proxies and draws
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            found.append(wm.Objective(name, D, C)(x, y))
    torch.testing.assert_close(*found, rtol=0, atol=0)


@every_pair_loss
def test_a_pair_loss_is_finite_without_positives_or_negatives_and_with_duplicates(name):
    for labels in (torch.arange(N), torch.zeros(N, dtype=torch.int64), torch.arange(N) // 2):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            x, _ = batch(dtype)
            x = x.detach().clone()
            x[1:3] = x[0]
            x[4] = -x[0]
            x.requires_grad_()
            objective = wm.Objective(name, D, N)
            for _ in range(2):  # the second time with a memory that holds the same samples
                loss = objective(x, labels)
                loss.sum().backward()
            assert torch.isfinite(loss).all()
            assert torch.isfinite(x.grad).all()


# Losses that are composed of the same operations as others are compiled by `-m exhaustive` only.
COMPILED_ELSEWHERE = ("nt_xent", "tuplet", "n_pair", "lifted", "angular", "circle_pairs", "smooth_ap")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.exhaustive if name in COMPILED_ELSEWHERE else pytest.mark.slow)
        for name in list_losses("pairs")
    ],
)
def test_a_pair_loss_compiles_into_one_graph(name):
    x, y = batch()
    torch.compiler.reset()
    spec = WITHOUT_DRAWS.get(name, name)
    objective, other = objective_of(spec), objective_of(spec)
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    for function in (objective, compiled):
        function(x, y)
    found = []
    for function in (objective, compiled):  # a memory has samples by now
        leaf = x.detach().clone().requires_grad_()
        loss = function(leaf, y)
        loss.sum().backward()
        found.append((loss.detach(), leaf.grad))
    for eager, graph in zip(*found, strict=True):
        torch.testing.assert_close(graph, eager)


@every_pair_loss
@pytest.mark.parametrize("shape", [(0, D), (1, D)])
def test_a_pair_loss_takes_batches_of_none_and_one(name, shape):
    x = torch.ones(shape, requires_grad=True)
    loss = wm.Objective(name, D, C)(x, torch.zeros(shape[0], dtype=torch.int64))
    loss.sum().backward()
    assert torch.isfinite(loss).all()


@every_pair_loss
def test_evaluation_moves_nothing(name):
    x, y = batch()
    part = objective_of(name).eval()
    before = copy.deepcopy(part.state_dict())
    part(x, y)
    for key, value in part.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize("name", [*list_losses("pairs"), *list_losses("classical")])
def test_repr_is_the_parse_string(name):
    value = wm.parse(name)
    assert wm.parse(repr(value)) == value == copy.deepcopy(value)
    assert hash(wm.parse(repr(value))) == hash(value)


def prediction_and_target(criterion, dtype=torch.float64):
    draw = torch.Generator().manual_seed(5)
    prediction = torch.randn(N, C, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()
    if criterion.target_type == "classes":
        return prediction, torch.arange(N) % C
    return prediction, torch.rand(N, C, generator=draw, dtype=torch.float64)


@every_criterion
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_criterion_gives_one_finite_loss_per_sample(name, dtype):
    criterion = wm.parse(name)
    prediction, target = prediction_and_target(criterion, dtype)
    loss = criterion(prediction, target)
    loss.sum().backward()
    assert loss.shape == (N,)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.isfinite(loss).all()
    assert torch.isfinite(prediction.grad).all()
    assert (loss >= 0).all()


@every_criterion
def test_a_criterion_has_the_gradient_of_its_loss(name):
    criterion = wm.parse(name)
    prediction, target = prediction_and_target(criterion)
    assert torch.autograd.gradcheck(lambda p: criterion(p, target), (prediction,))


@every_criterion
def test_a_criterion_trains_in_an_objective(name):
    torch.manual_seed(0)
    criterion = wm.parse(name)
    objective = wm.Objective(criterion, D, C)
    x, _ = batch(torch.float32)
    target = prediction_and_target(criterion)[1]
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
    first = objective(x.detach(), target).mean().item()
    for _ in range(30):
        optimizer.zero_grad()
        objective(x.detach(), target).mean().backward()
        optimizer.step()
    assert objective(x.detach(), target).mean().item() < first
