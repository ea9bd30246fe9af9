"""Losses on embeddings against plain loops, and objectives that add them to heads."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor

import widemargin as wm
from widemargin.losses.pairs._mining import MINERS, MiningConfig
from widemargin.losses.pairs._pairs import pair_masks

MININGS = ("all", "hard", "semihard", "distance", "pool")
EVERY_PAIRWISE = (
    "contrastive",
    "contrastive(form=hadsell)",
    "contrastive(m=1.5, normalize=False)",
    "contrastive(m=1.5, form=hadsell, normalize=False)",
    *(f"triplet(mining={mining})" for mining in MININGS),
    "triplet(alpha=2, mining=all, normalize=False)",
)


def batch(labels: list[int], dim: int = 4, seed: int = 0, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Random embeddings in double precision with the given labels."""
    random = torch.Generator().manual_seed(seed)
    return spread * torch.randn(len(labels), dim, dtype=torch.float64, generator=random), torch.tensor(labels)


def term_and_stats(spec: str, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, int]]:
    """Loss [N] of a lone term and what it reports."""
    objective = wm.Objective(spec, x.shape[1], 50)
    loss = objective(x, y)
    (part,) = objective.parts.values()
    return loss, {name: int(value) for name, value in part.stats.items()}


# ---------------------------------------------------------------- references in plain Python


def squared_distance(a: list[float], b: list[float], normalize: bool) -> float:
    if normalize:
        a, b = ([v / math.hypot(*p) for v in p] for p in (a, b))
    return sum((u - v) ** 2 for u, v in zip(a, b, strict=True))


def distances_of(x: Tensor, normalize: bool = True) -> list[list[float]]:
    rows = x.tolist()
    return [[squared_distance(a, b, normalize) for b in rows] for a in rows]


def contrastive_by_loops(x: Tensor, y: Tensor, m: float, form: str, normalize: bool) -> list[float]:
    distance, labels = distances_of(x, normalize), y.tolist()
    losses = []
    for i in range(len(labels)):
        costs = []
        for j in range(len(labels)):
            if i == j:
                continue
            if labels[i] == labels[j]:
                costs.append(distance[i][j])
            elif form == "squared":
                costs.append(max(0.0, m**2 - distance[i][j]))
            else:
                costs.append(max(0.0, m - math.sqrt(distance[i][j])) ** 2)
        losses.append(sum(costs) / len(costs) if costs else 0.0)
    return losses


def triplets_by_loops(distance: list[list[float]], labels: list[int], mining: str, alpha: float) -> list[list[tuple]]:
    """For each anchor its mined (positive, negative) pairs."""
    everyone = range(len(labels))
    mined = []
    for a in everyone:
        positives = [p for p in everyone if p != a and labels[p] == labels[a]]
        negatives = [n for n in everyone if labels[n] != labels[a]]
        found = list(product(positives, negatives))
        if mining == "hard" and found:
            found = [(max(positives, key=lambda p: distance[a][p]), min(negatives, key=lambda n: distance[a][n]))]
        if mining == "semihard":
            found = [(p, n) for p, n in found if distance[a][p] < distance[a][n] < distance[a][p] + alpha]
        mined.append(found)
    return mined


def mean_hinges(distance: list[list[float]], mined: list[list[tuple]], alpha: float) -> list[float]:
    losses = []
    for a, found in enumerate(mined):
        hinges = [max(0.0, distance[a][p] - distance[a][n] + alpha) for p, n in found]
        losses.append(sum(hinges) / len(hinges) if hinges else 0.0)
    return losses


def wen_update(centers: list[list[float]], x: Tensor, y: Tensor, alpha: float) -> list[list[float]]:
    """c_j − α Σ_{y_i=j}(c_j − x_i)/(1 + n_j), coordinate by coordinate."""
    rows, labels = x.tolist(), y.tolist()
    moved = []
    for j, center in enumerate(centers):
        members = [row for row, label in zip(rows, labels, strict=True) if label == j]
        step = [sum(c - row[k] for row in members) / (1 + len(members)) for k, c in enumerate(center)]
        moved.append([c - alpha * s for c, s in zip(center, step, strict=True)])
    return moved


# ---------------------------------------------------------------- contrastive


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("form", ["squared", "hadsell"])
@pytest.mark.parametrize("m", [0.7, 1.0, 1.9])
def test_contrastive_is_the_mean_over_each_anchors_pairs(form, normalize, m):
    x, y = batch([0, 1, 0, 2, 1, 0, 3], spread=0.6)
    loss = wm.Contrastive(m=m, form=form, normalize=normalize)(x, y)
    assert loss.tolist() == pytest.approx(contrastive_by_loops(x, y, m, form, normalize), abs=1e-12)


def test_contrastive_defaults_are_the_slides_hinge_on_unit_embeddings_with_m_1():
    x, y = batch([0, 1, 0, 1, 2])
    assert wm.Contrastive()(x, y).tolist() == pytest.approx(contrastive_by_loops(x, y, 1.0, "squared", True), abs=1e-12)


def test_contrastive_of_singletons_has_negative_pairs_only():
    x, y = batch([0, 1, 2, 3])
    loss, stats = term_and_stats("contrastive(m=2)", x, y)
    assert loss.tolist() == pytest.approx(contrastive_by_loops(x, y, 2.0, "squared", True), abs=1e-12)
    assert (stats["positive_pairs"], stats["negative_pairs"]) == (0, 6)


def test_contrastive_reports_its_pairs_and_how_many_negatives_are_active():
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.8, 0.6], [-1.0, 0.0]])
    _, stats = term_and_stats("contrastive", x, torch.tensor([0, 0, 1, 2]))
    # Of the five negative pairs only those with (0.8, 0.6) and (1, 0) are nearer than 1.
    assert stats == {"positive_pairs": 1, "negative_pairs": 5, "active": 2}


@pytest.mark.parametrize("form", ["squared", "hadsell"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_contrastive_of_coinciding_points_costs_m_squared_and_has_a_finite_gradient(form, normalize, dtype):
    x = torch.tensor([[0.3, -1.2, 0.7]], dtype=dtype).repeat(4, 1).requires_grad_()
    loss = wm.Contrastive(form=form, normalize=normalize)(x, torch.tensor([0, 0, 1, 1]))
    loss.sum().backward()
    # Each anchor: one positive at distance 0 and two negatives at the full m² = 1.
    assert loss.tolist() == pytest.approx([2 / 3] * 4, abs=1e-6)
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("form", ["squared", "hadsell"])
@pytest.mark.parametrize("normalize", [True, False])
def test_contrastive_of_a_collapsed_batch_costs_m_squared_in_float32(form, normalize):
    for seed in range(8):
        x = batch([0], dim=64, seed=seed)[0].float().repeat(33, 1)
        loss = wm.Contrastive(form=form, normalize=normalize)(x, torch.arange(33))
        assert loss.tolist() == pytest.approx([1.0] * 33, abs=1e-5)


def test_contrastive_keeps_its_digits_far_from_the_origin():
    x, y = batch([0, 1, 0, 1])
    far = (x + 1e4).to(torch.float32)
    got = wm.Contrastive(normalize=False)(far, y)
    assert got.tolist() == pytest.approx(contrastive_by_loops(far.double(), y, 1.0, "squared", False), rel=1e-5)


# ---------------------------------------------------------------- triplet


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.5])
@pytest.mark.parametrize("mining", ["all", "hard", "semihard"])
def test_triplet_is_the_mean_over_each_anchors_mined_triplets(mining, alpha, normalize):
    x, y = batch([0, 1, 0, 2, 1, 0, 3, 1, 2], seed=3)
    distance = distances_of(x, normalize)
    mined = triplets_by_loops(distance, y.tolist(), mining, alpha)
    loss, stats = term_and_stats(f"triplet(alpha={alpha}, mining={mining}, normalize={normalize})", x, y)
    assert loss.tolist() == pytest.approx(mean_hinges(distance, mined, alpha), abs=1e-12)
    assert stats["triplets"] == sum(map(len, mined))
    assert stats["anchors_without"] == sum(not found for found in mined)


def test_triplet_defaults_are_semihard_with_alpha_0_2_on_unit_embeddings():
    x, y = batch([0, 0, 0, 1, 1, 1, 2, 2, 2], dim=3, seed=1)
    distance = distances_of(x)
    mined = triplets_by_loops(distance, y.tolist(), "semihard", 0.2)
    assert sum(map(len, mined)) > 3, "a batch without semi-hard triplets shows nothing"
    assert wm.Triplet()(x, y).tolist() == pytest.approx(mean_hinges(distance, mined, 0.2), abs=1e-12)


def test_triplet_counts_active_triplets():
    x, y = batch([0, 1, 0, 1, 0], seed=5)
    distance = distances_of(x)
    mined = triplets_by_loops(distance, y.tolist(), "all", 0.2)
    active = sum(distance[a][p] - distance[a][n] + 0.2 > 0 for a, found in enumerate(mined) for p, n in found)
    assert 0 < active < sum(map(len, mined))
    assert term_and_stats("triplet(mining=all)", x, y)[1]["active"] == active


@pytest.mark.parametrize("mining", MININGS)
@pytest.mark.parametrize("labels", [[2, 2, 2, 2], [0, 1, 2, 3]], ids=["one class", "no positives"])
def test_batches_without_a_triplet_cost_nothing_and_say_so(mining, labels):
    x, y = batch(labels)
    x.requires_grad_()
    loss, stats = term_and_stats(f"triplet(mining={mining})", x, y)
    loss.sum().backward()
    assert loss.tolist() == [0.0] * 4
    assert x.grad.tolist() == [[0.0] * 4] * 4
    assert stats == {"triplets": 0, "active": 0, "anchors_without": 4}


@pytest.mark.parametrize("mining", MININGS)
def test_an_anchor_alone_in_its_class_counts_0_beside_others(mining):
    x, y = batch([0, 0, 1], seed=2)
    loss, stats = term_and_stats(f"triplet(mining={mining}, alpha=8)", x, y)
    assert loss[2] == 0.0
    assert stats["anchors_without"] >= 1


@pytest.mark.parametrize("given", ["semihrad", "Semihard", "semi-hard"])
def test_a_mistyped_mining_is_an_input_error_that_names_the_nearest(given):
    with pytest.raises(wm.InputError, match="did you mean 'semihard'"):
        wm.Triplet(mining=given)


def test_distance_mining_needs_unit_embeddings():
    with pytest.raises(wm.InputError, match="unit embeddings"):
        wm.Triplet(mining="distance", normalize=False)


# ---------------------------------------------------------------- triplet: the two miners that draw


def drawn_triplets(mining: str, x: Tensor, y: Tensor, seed: int, alpha: float = 0.2, pool_size: int = 1000):
    """What a miner draws after a seed, as a list of (positive, negative) per anchor; pairs may repeat."""
    distance = torch.tensor(distances_of(x), dtype=x.dtype)
    torch.manual_seed(seed)
    anchors, positives, negatives = MINERS[mining](distance, *pair_masks(y), MiningConfig(alpha, pool_size, x.shape[1]))
    mined: list[list[tuple]] = [[] for _ in y]
    for a, p, chosen in zip(anchors.tolist(), positives.tolist(), negatives.tolist(), strict=True):
        mined[a].extend((p, n) for n, wanted in enumerate(chosen) if wanted)
    return mined


@pytest.mark.parametrize("mining", ["distance", "pool"])
def test_drawn_triplets_are_an_anchor_its_own_class_and_another(mining):
    x, y = batch([0, 1, 0, 2, 1, 0, 3, 1, 2], dim=3, seed=3)
    mined = drawn_triplets(mining, x, y, seed=0)
    assert sum(map(len, mined)) > 5
    for a, found in enumerate(mined):
        for p, n in found:
            assert p != a
            assert y[p] == y[a] != y[n]


def test_distance_mining_draws_one_negative_for_every_positive_pair():
    x, y = batch([0, 1, 0, 2, 1, 0, 3], dim=3, seed=3)
    for a, found in enumerate(drawn_triplets("distance", x, y, seed=1)):
        assert sorted(p for p, _ in found) == [p for p in range(len(y)) if p != a and y[p] == y[a]]


def test_distance_mining_leaves_out_negatives_beyond_1_4_where_nearer_ones_exist():
    def at(degrees: float) -> list[float]:
        return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees)), 0.0]

    x = torch.tensor([at(0), at(5), at(60), at(170), at(180)], dtype=torch.float64)
    y = torch.tensor([0, 0, 1, 1, 1])
    drawn = {n for seed in range(40) for _, n in drawn_triplets("distance", x, y, seed)[0]}
    assert drawn == {2}
    only_far = torch.tensor([0, 1, 2, 0, 3])
    assert drawn_triplets("distance", x[[0, 3, 4, 1, 3]], only_far, seed=0)[0] != []


def test_distance_mining_weighs_negatives_by_the_inverse_density_of_their_distance():
    dim, near, far = 6, 0.8, 1.1

    def at(chord: float, axis: int) -> list[float]:
        angle = 2 * math.asin(chord / 2)
        return [math.cos(angle), *(math.sin(angle) * (k == axis) for k in range(1, dim))]

    x = torch.tensor([at(0.0, 1), at(0.1, 3), at(near, 1), at(far, 2)], dtype=torch.float64)
    y = torch.tensor([0, 0, 1, 2])
    inverse = [1 / (d ** (dim - 2) * (1 - d**2 / 4) ** ((dim - 3) / 2)) for d in (near, far)]
    expected = inverse[0] / sum(inverse)
    draws = 1500
    hits = sum(drawn_triplets("distance", x, y, seed)[0] == [(1, 2)] for seed in range(draws))
    assert abs(hits / draws - expected) < 4 * math.sqrt(expected * (1 - expected) / draws)


def test_pool_keeps_only_semihard_triplets_and_finds_them_all_in_a_large_pool():
    x, y = batch([0, 0, 1, 1, 2, 2, 3], dim=3, seed=1)
    distance = distances_of(x)
    semihard = triplets_by_loops(distance, y.tolist(), "semihard", 0.5)
    assert sum(map(len, semihard)) > 3
    mined = drawn_triplets("pool", x, y, seed=0, alpha=0.5, pool_size=5000)
    assert [set(found) for found in mined] == [set(found) for found in semihard]


@pytest.mark.parametrize("pool_size", [1, 7])
def test_pool_draws_no_more_than_its_size(pool_size):
    x, y = batch([0, 0, 1, 1, 2, 2, 3], dim=3, seed=1)
    found = {sum(map(len, drawn_triplets("pool", x, y, seed, alpha=4.0, pool_size=pool_size))) for seed in range(30)}
    assert max(found) <= pool_size
    assert found != {0}


@pytest.mark.parametrize("mining", ["distance", "pool"])
@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_drawn_triplets_are_averaged_per_anchor(mining, alpha):
    x, y = batch([0, 1, 0, 2, 1, 0, 3, 1, 2], dim=3, seed=3)
    mined = drawn_triplets(mining, x, y, seed=11, alpha=alpha)
    torch.manual_seed(11)
    loss, stats = term_and_stats(f"triplet(mining={mining}, alpha={alpha})", x, y)
    assert loss.tolist() == pytest.approx(mean_hinges(distances_of(x), mined, alpha), abs=1e-12)
    assert stats["triplets"] == sum(map(len, mined))
    assert stats["anchors_without"] == sum(not found for found in mined)


@pytest.mark.parametrize("mining", ["distance", "pool"])
def test_draws_follow_the_seed(mining):
    x, y = batch([0, 1, 0, 2, 1, 0, 3, 1, 2] * 2, dim=3, seed=3)
    term = wm.Triplet(mining=mining, alpha=1.0, pool_size=20)

    def drawn(seed: int) -> list[float]:
        torch.manual_seed(seed)
        return term(x, y).tolist()

    assert drawn(5) == drawn(5)
    assert len({tuple(drawn(seed)) for seed in range(6)}) > 1


# ---------------------------------------------------------------- center


def test_center_follows_wens_update_over_batches():
    objective = wm.Objective("center(alpha=0.3)", 3, 4)
    part = objective.parts["center"]
    centers = [[0.0] * 3 for _ in range(4)]
    for seed, labels in enumerate([[0, 1, 1, 3], [1, 1, 1], [0, 3]]):
        x, y = batch(labels, dim=3, seed=seed)
        loss = objective(x, y)
        wanted = [
            0.5 * sum((u - c) ** 2 for u, c in zip(row, centers[label], strict=True))
            for row, label in zip(x.tolist(), labels, strict=True)
        ]
        assert loss.tolist() == pytest.approx(wanted, rel=1e-6)
        centers = wen_update(centers, x, y, 0.3)
        for got, want in zip(part.centers.tolist(), centers, strict=True):
            assert got == pytest.approx(want, abs=1e-6)
    assert part.centers[2].tolist() == [0.0] * 3, "a class without samples must not move"


def test_center_moves_half_way_by_default():
    objective = wm.Objective("center", 1, 2)
    objective(torch.tensor([[4.0]]), torch.tensor([1]))
    assert objective.parts["center"].centers.tolist() == [[0.0], [1.0]]  # 0.5 · 4 / (1 + 1)


def test_center_is_frozen_in_evaluation():
    objective = wm.Objective("center", 3, 4)
    x, y = batch([0, 1, 1], dim=3)
    objective(x, y)
    before = objective.parts["center"].centers.clone()
    objective.eval()
    first, second = objective(x, y), objective(x, y)
    assert torch.equal(objective.parts["center"].centers, before)
    assert torch.equal(first, second)


def test_center_pulls_an_embedding_towards_its_centre():
    objective = wm.Objective("center", 3, 4).double()
    objective(*batch([0, 1, 2, 3], dim=3, seed=1))
    centers = objective.parts["center"].centers.clone()
    x, y = batch([2, 0, 2], dim=3)
    x.requires_grad_()
    objective(x, y).sum().backward()
    assert torch.allclose(x.grad, x.detach() - centers[y], rtol=0, atol=1e-14)


def test_learned_centres_get_a_gradient_and_no_update():
    objective = wm.Objective("center(learn=True)", 3, 4).double()
    part = objective.parts["center"]
    with torch.no_grad():
        part.centers.copy_(batch([0, 0, 0, 0], dim=3, seed=9)[0])
    before = part.centers.detach().clone()
    x, y = batch([2, 0, 2], dim=3)
    x.requires_grad_()
    objective(x, y).sum().backward()
    assert torch.equal(part.centers.detach(), before)
    wanted = torch.zeros(4, 3, dtype=torch.float64)
    for row, label in zip(x.detach(), y.tolist(), strict=True):
        wanted[label] += before[label] - row
    assert torch.allclose(part.centers.grad, wanted, rtol=0, atol=1e-14)
    assert torch.allclose(x.grad, x.detach() - before[y], rtol=0, atol=1e-14)
    assert any(p is part.centers for p in objective.parameters())


def test_learned_centres_stay_put_in_a_functional_call():
    objective = wm.Objective("center(learn=True)", 3, 4).double()
    x, y = batch([2, 0, 2], dim=3)
    centers = batch([0, 0, 0, 0], dim=3, seed=9)[0]
    before = centers.clone()
    torch.func.functional_call(objective, {"parts.center.centers": centers}, (x, y))
    assert torch.equal(centers, before)


@pytest.mark.parametrize("spec", ["center", "center(learn=True)"])
def test_a_state_dict_carries_the_centres(spec):
    trained = wm.Objective(spec, 3, 4)
    with torch.no_grad():
        trained.parts["center"].centers.normal_()
    fresh = wm.Objective(spec, 3, 4)
    fresh.load_state_dict(trained.state_dict())
    assert fresh.parts["center"].centers.abs().sum() > 0
    assert torch.equal(fresh.parts["center"].centers, trained.parts["center"].centers)


def test_a_bare_center_says_that_it_needs_an_objective():
    x, y = batch([0, 1])
    with pytest.raises(wm.InputError, match="Objective"):
        wm.Center()(x, y)


def test_center_checks_dimension_and_labels():
    objective = wm.Objective("center", 3, 4)
    with pytest.raises(wm.InputError, match=r"\[N, 3\]"):
        objective(torch.zeros(2, 5), torch.tensor([0, 1]))
    with pytest.raises(wm.InputError, match="label 4"):
        objective(torch.zeros(2, 3), torch.tensor([0, 4]))


def test_mixed_labels_see_the_centres_of_before_the_update():
    mixed, plain = wm.Objective("center", 3, 4), wm.Objective("center", 3, 4).eval()
    for objective in (mixed, plain):
        objective.parts["center"].centers.copy_(torch.arange(12.0).reshape(4, 3))
    x, y = batch([2, 0, 1], dim=3)
    y_b = torch.tensor([0, 2, 2])
    wanted = 0.3 * plain(x, y) + 0.7 * plain(x, y_b)
    assert torch.allclose(mixed(x, y, mix=(y_b, 0.3)), wanted)


def test_mixed_labels_move_the_centres_once_by_the_first_labels():
    mixed, plain = wm.Objective("center", 3, 4), wm.Objective("center", 3, 4)
    x, y = batch([2, 0, 1], dim=3)
    mixed(x, y, mix=(torch.tensor([3, 3, 3]), 0.3))
    plain(x, y)
    assert torch.equal(mixed.parts["center"].centers, plain.parts["center"].centers)


# ---------------------------------------------------------------- every term


@pytest.mark.parametrize("spec", EVERY_PAIRWISE)
def test_gradients_of_pairwise_terms_are_exact(spec):
    term = wm.parse(spec)
    x, y = batch([0, 1, 0, 1, 2], dim=3, seed=4, spread=0.5)

    def seeded(points: Tensor) -> Tensor:
        torch.manual_seed(0)
        return term(points, y)

    assert seeded(x).sum() > 0, "a loss of 0 shows nothing"
    assert term_and_stats(spec, x, y)[1]["active"] > 0
    assert torch.autograd.gradcheck(seeded, x.requires_grad_())


def test_gradients_of_center_are_exact():
    objective = wm.Objective("center(learn=True)", 3, 4).double().eval()
    x, y = batch([0, 1, 0, 3], dim=3)
    centers = batch([0, 0, 0, 0], dim=3, seed=8)[0].requires_grad_()

    def loss(points: Tensor, parameters: Tensor) -> Tensor:
        return torch.func.functional_call(objective, {"parts.center.centers": parameters}, (points, y))

    assert torch.autograd.gradcheck(loss, (x.requires_grad_(), centers))


@pytest.mark.parametrize("spec", [*EVERY_PAIRWISE, "center", "center(learn=True)"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_embeddings_give_a_float32_loss_of_their_values(spec, dtype):
    x, y = batch([0, 1, 0, 1, 2, 2], dim=3, seed=4, spread=3.0)
    half = x.to(dtype).requires_grad_()
    torch.manual_seed(0)
    loss = wm.Objective(spec, 3, 3)(half, y)
    torch.manual_seed(0)
    wanted = wm.Objective(spec, 3, 3)(half.detach().double(), y)
    loss.sum().backward()
    assert loss.dtype == torch.float32
    assert loss.tolist() == pytest.approx(wanted.tolist(), rel=1e-5, abs=1e-5)
    assert half.grad.dtype == dtype
    assert half.grad.isfinite().all()


@pytest.mark.parametrize("spec", EVERY_PAIRWISE)
def test_autocast_changes_nothing(spec):
    x, y = batch([0, 1, 0, 1, 2, 2], dim=3, seed=4, spread=0.5)
    x, term = x.float(), wm.parse(spec)
    torch.manual_seed(0)
    wanted = term(x, y)
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(0)
        got = term(x, y)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("spec", [*EVERY_PAIRWISE, "center"])
@pytest.mark.parametrize("samples", [0, 1])
def test_batches_of_none_and_of_one(spec, samples):
    x = torch.ones(samples, 3, requires_grad=True)
    loss = wm.Objective(spec, 3, 4)(x, torch.zeros(samples, dtype=torch.int64))
    loss.sum().backward()
    assert loss.shape == (samples,)
    assert loss.tolist() == ([1.5] if spec == "center" else [0.0]) * samples
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("spec", EVERY_PAIRWISE)
def test_wrong_inputs_of_pairwise_terms_are_one_line_errors(spec):
    term = wm.parse(spec)
    for x, y, match in (
        (torch.zeros(3), torch.tensor([0, 1, 2]), r"float tensor \[N, D\], got \[3\]"),
        (torch.zeros(3, 2, dtype=torch.int64), torch.tensor([0, 1, 2]), "int64"),
        (torch.zeros(3, 2), torch.tensor([0, 1]), r"shape \[3\]"),
        (torch.zeros(3, 2), torch.tensor([0.0, 1.0, 1.0]), "whole class numbers"),
        (torch.zeros(3, 2), torch.tensor([0, -1, 1]), "label -1"),
        (torch.tensor([[1.0, math.nan], [0.0, 1.0]]), torch.tensor([0, 1]), "NaN"),
    ):
        with pytest.raises(wm.InputError, match=match) as caught:
            term(x, y)
        assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- objectives: sums


def test_an_objective_is_the_weighted_sum_of_its_parts():
    x, y = batch([0, 1, 0, 4], dim=8)
    objective = wm.Objective("arcface + 0.02*center", 8, 5).double().eval()
    objective.parts["center"].centers.copy_(batch([0] * 5, dim=8, seed=7)[0])
    head = wm.Head(8, 5, "arcface", dtype=torch.float64).eval()
    with torch.no_grad():
        head.weight.copy_(objective.head.weight)
    pulled = [0.5 * sum((x[i] - objective.parts["center"].centers[y[i]]) ** 2) for i in range(4)]
    assert torch.allclose(objective(x, y), head(x, y) + 0.02 * torch.stack(pulled), rtol=1e-12, atol=0)


def test_parts_and_last_are_known_by_name():
    x, y = batch([0, 1, 0, 4], dim=8)
    objective = wm.Objective("arcface + 0.5*triplet(mining=all) + 0.02*center", 8, 5)
    total = objective(x.requires_grad_(), y)
    assert list(objective.parts) == ["arcface", "triplet", "center"]
    assert list(objective.last_losses) == ["arcface", "triplet", "center"]
    assert not any(loss.requires_grad for loss in objective.last_losses.values())
    added = (
        objective.last_losses["arcface"]
        + 0.5 * objective.last_losses["triplet"]
        + 0.02 * objective.last_losses["center"]
    )
    assert torch.allclose(total, added)


def test_parts_of_one_name_are_numbered():
    objective = wm.Objective("triplet(mining=all) + 0.5*triplet(mining=hard) + triplet(mining=pool)", 8, 5)
    assert list(objective.parts) == ["triplet", "triplet_2", "triplet_3"]
    x, y = batch([0, 1, 0, 4], dim=8)
    objective(x, y)
    assert list(objective.last_losses) == ["triplet", "triplet_2", "triplet_3"]


def test_two_heads_of_one_kind_have_their_own_weights():
    x, y = batch([0, 1, 0, 4], dim=8)
    objective = wm.Objective("arcface(s=8) + 3*arcface(s=16)", 8, 5).double()
    first, second = objective.parts["arcface"], objective.parts["arcface_2"]
    assert not torch.equal(first.weight, second.weight)
    assert objective.head is first
    assert torch.allclose(objective(x, y), first(x, y) + 3 * second(x, y))


def test_an_objective_takes_a_value_or_a_sum_as_well():
    x, y = batch([0, 1, 0])
    wanted = wm.Contrastive(m=0.8)(x, y)
    assert torch.equal(wm.Objective(wm.Contrastive(m=0.8), 4, 2)(x, y), wanted)
    assert torch.allclose(wm.Objective(wm.parse("2*contrastive(m=0.8)"), 4, 2)(x, y), 2 * wanted)


@pytest.mark.parametrize(
    "text",
    [
        "arcface(s=64, m=0.5) + 0.02*center(alpha=0.5)",
        "softmax + 0.02*center(alpha=0.5, learn=True)",
        "0.5*contrastive(m=1, form=hadsell, normalize=False)",
        "triplet(alpha=0.2, mining=pool, pool_size=50)",
        "normface(s=30) + 0.1*triplet(alpha=0.3, mining=hard) + 1e-07*center(alpha=1)",
        "l2(half=False) + huber(delta=2) + l1",
        "bce(probabilities=True)",
        "focal(gamma=0.5) + cross_entropy(smoothing=0.1)",
    ],
)
def test_parse_strings_come_back_as_they_were_written(text):
    value = wm.parse(text)
    assert repr(value) == text
    assert wm.parse(repr(value)) == value
    spec = wm.Objective(text, 4, 3).spec
    assert wm.parse(repr(spec)) == value


# ---------------------------------------------------------------- objectives: weights, mixing, leaving out


def test_sample_weight_multiplies_the_whole_loss():
    x, y = batch([0, 1, 0, 4], dim=8)
    objective = wm.Objective("cosface + 0.5*contrastive", 8, 5).eval()
    weight = torch.tensor([0.0, 1.0, 2.5, 0.1])
    plain = objective(x, y)
    assert torch.allclose(objective(x, y, sample_weight=weight), plain * weight)


def test_a_sample_weight_of_another_shape_is_an_error():
    x, y = batch([0, 1, 0, 4], dim=8)
    objective = wm.Objective("cosface + 0.5*contrastive", 8, 5)
    with pytest.raises(wm.InputError, match="sample_weight"):
        objective(x, y, sample_weight=torch.ones(4, 1))


@pytest.mark.parametrize("lam", [0.3, torch.tensor([0.0, 0.3, 1.0, 0.5])], ids=["one lam", "lam per sample"])
def test_mix_is_the_mixture_of_both_losses(lam):
    x, y = batch([0, 1, 0, 4], dim=8)
    y_b = torch.tensor([1, 1, 2, 0])
    objective = wm.Objective("arcface + 0.5*triplet(mining=all) + 0.1*center", 8, 5).double().eval()
    objective.parts["center"].centers.copy_(batch([0] * 5, dim=8, seed=7)[0])
    wanted = lam * objective(x, y) + (1 - lam) * objective(x, y_b)
    assert torch.allclose(objective(x, y, mix=(y_b, lam)), wanted, rtol=1e-6)


def test_mix_is_one_training_call():
    x, y = batch([0, 1, 0, 4], dim=8)
    objective = wm.Objective("arcface + center", 8, 5)
    objective(x, y, mix=(y.flip(0), 0.4))
    assert int(objective.head.margin_state.steps) == 1


@pytest.mark.parametrize("terms", ["center", "contrastive", "triplet(mining=all)", "triplet(mining=hard)"])
def test_ignored_samples_cost_nothing_and_do_not_exist_for_terms(terms):
    x, y = batch([0, 1, -1, 0, 4, -1], dim=8)
    x.requires_grad_()
    kept = torch.tensor([0, 1, 3, 4])
    objective = wm.Objective(f"arcface + 0.5*{terms}", 8, 5, ignore_index=-1).double()
    alone = wm.Objective(terms, 8, 5).double()
    loss = objective(x, y)
    loss.sum().backward()
    (name,) = alone.parts
    assert loss[[2, 5]].tolist() == [0.0, 0.0]
    assert x.grad[[2, 5]].abs().sum() == 0
    assert torch.allclose(objective.last[name][kept], alone(x.detach()[kept], y[kept]))
    for mine, theirs in zip(objective.parts[name].buffers(), alone.parts[name].buffers(), strict=True):
        assert torch.equal(mine, theirs), "ignored samples must not move the centres"


@pytest.mark.parametrize("terms", ["center", "contrastive", *(f"triplet(mining={mining})" for mining in MININGS)])
def test_a_batch_of_ignored_samples_only_costs_0(terms):
    objective = wm.Objective(f"arcface + {terms}", 8, 5, ignore_index=-1)
    loss = objective(torch.randn(3, 8, requires_grad=True), torch.tensor([-1, -1, -1]))
    loss.sum().backward()
    assert loss.tolist() == [0.0] * 3


def test_mixing_with_ignored_samples_counts_each_label_for_itself():
    x, y = batch([0, -1, 2, -1], dim=8)
    y_b = torch.tensor([1, 3, -1, -1])
    objective = wm.Objective("arcface + 0.1*center", 8, 5, ignore_index=-1).double().eval()
    wanted = 0.3 * objective(x, y) + 0.7 * objective(x, y_b)
    assert (wanted[:3] > 0).all()
    assert torch.allclose(objective(x, y, mix=(y_b, 0.3)), wanted)


def test_options_of_heads_are_refused_where_there_is_no_head():
    with pytest.raises(wm.InputError, match="ignore_index"):
        wm.Objective("triplet", 8, 5, ignore_index=-1)


# ---------------------------------------------------------------- objectives: logits, parameters


def test_logits_are_those_of_the_first_part_with_class_weights():
    x, y = batch([0, 1, 0, 4], dim=8)
    objective = wm.Objective("0.5*triplet + arcface + softmax", 8, 5).double()
    head = objective.parts["arcface"]
    assert torch.equal(objective.logits(x), head.logits(x))
    assert torch.equal(objective.logits(x, y), head.logits(x, y))
    assert not torch.equal(objective.logits(x, y), objective.logits(x))
    regression = wm.Objective("l2", 8, 2).double()
    linear = regression.parts["l2"].linear
    assert torch.allclose(regression.logits(x), x @ linear.weight.T + linear.bias)


def test_an_objective_without_class_weights_has_no_logits():
    with pytest.raises(wm.InputError, match="no logits"):
        wm.Objective("triplet + center", 8, 5).logits(torch.zeros(2, 8))


def decay_of(objective: wm.Objective, weight_decay: float) -> dict[int, float]:
    """The weight decay of every parameter by its id; each must be in exactly one group."""
    groups = objective.parameter_groups(weight_decay)
    found = [(id(p), group["weight_decay"]) for group in groups for p in group["params"]]
    assert sorted(i for i, _ in found) == sorted(id(p) for p in objective.parameters())
    return dict(found)


@pytest.mark.parametrize(
    ("spec", "decays"),
    [
        ("arcface", False),
        ("arcgrad", False),
        ("cosface + 0.1*center", False),
        ("normface", False),
        ("modified_softmax", False),
        ("a_softmax", False),
        ("softmax", True),
        ("m_softmax", True),
        ("l_softmax", True),
    ],
)
def test_only_class_weights_whose_length_matters_are_decayed(spec, decays):
    objective = wm.Objective(spec, 8, 5)
    assert decay_of(objective, 5e-4)[id(objective.head.weight)] == (5e-4 if decays else 0.0)


def test_biases_are_never_decayed_and_linear_weights_are():
    objective = wm.Objective("softmax(bias=True) + 0.1*cross_entropy + arcface + center(learn=True)", 8, 5)
    decay = decay_of(objective, 0.1)
    linear = objective.parts["cross_entropy"].linear
    assert decay[id(objective.parts["softmax"].weight)] == decay[id(linear.weight)] == 0.1
    assert decay[id(objective.parts["softmax"].bias)] == decay[id(linear.bias)] == 0.0
    assert decay[id(objective.parts["arcface"].weight)] == 0.0


def test_parameter_groups_work_in_an_optimizer():
    objective = wm.Objective("arcface + 0.1*softmax", 8, 5)
    before = [p.detach().clone() for p in objective.parameters()]
    optimizer = torch.optim.SGD(objective.parameter_groups(0.1), lr=0.1)
    objective(torch.randn(6, 8), torch.arange(6) % 5).mean().backward()
    optimizer.step()
    assert all(not torch.equal(p, old) for p, old in zip(objective.parameters(), before, strict=True))


# ---------------------------------------------------------------- objectives of classical losses


def log_sigmoid(z: float) -> float:
    return -math.log1p(math.exp(-z)) if z > 0 else z - math.log1p(math.exp(z))


@pytest.mark.parametrize("spec", ["bce", "focal(gamma=1.5)"])
def test_multi_label_objectives_take_a_target_per_class(spec):
    x, _ = batch([0] * 4, dim=8)
    target = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]], dtype=torch.float64)
    objective = wm.Objective(spec, 8, 3).double()
    loss = objective(x, target)
    gamma = 1.5 if spec.startswith("focal") else 0.0
    for i in range(4):
        leads = [z if t else -z for z, t in zip(objective.logits(x)[i].tolist(), target[i].tolist(), strict=True)]
        wanted = [-((1 - math.exp(log_sigmoid(lead))) ** gamma) * log_sigmoid(lead) for lead in leads]
        assert loss[i].item() == pytest.approx(sum(wanted) / 3, rel=1e-9)
    loss.mean().backward()
    assert all(p.grad.abs().sum() > 0 for p in objective.parameters())


def test_multi_class_criteria_take_class_numbers():
    x, y = batch([0, 2, 1, 2], dim=8)
    objective = wm.Objective("cross_entropy + focal(gamma=0)", 8, 3).double()
    z = [objective.parts[name].logits(x) for name in ("cross_entropy", "focal")]
    wanted = [sum(torch.logsumexp(part[i], 0) - part[i, y[i]] for part in z) for i in range(4)]
    assert torch.allclose(objective(x, y), torch.stack(wanted))


@pytest.mark.parametrize("spec", ["arcface", "center", "cross_entropy"])
def test_embeddings_of_another_length_and_labels_in_a_list_are_input_errors(spec):
    objective = wm.Objective(spec, 8, 3)
    with pytest.raises(wm.InputError, match=r"\[N, 8\]"):
        objective(torch.zeros(2, 5), torch.tensor([0, 1]))
    with pytest.raises(wm.InputError):
        objective(torch.zeros(2, 8), [0, 1])


@pytest.mark.parametrize("spec", [3, None, torch.nn.Linear(2, 2)], ids=["number", "None", "module"])
def test_an_objective_of_something_else_is_an_input_error(spec):
    with pytest.raises(wm.InputError):
        wm.Objective(spec, 8, 3)


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_a_regression_objective_predicts_one_value(shape):
    x, _ = batch([0] * 5, dim=8)
    y = torch.linspace(-1, 1, 5, dtype=torch.float64)
    objective = wm.Objective("l2", 8, 1).double()
    loss = objective(x, y.reshape(shape))
    assert loss.shape == (5,)
    assert torch.allclose(loss, 0.5 * (y - objective.logits(x).squeeze(1)) ** 2)


def test_a_regression_objective_learns_a_line():
    x, _ = batch([0] * 64, dim=3)
    x = x.float()
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.3
    objective = wm.Objective("l2", 3, 1)
    optimizer = torch.optim.LBFGS(objective.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = objective(x, y).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    linear = objective.parts["l2"].linear
    assert [*linear.weight[0].tolist(), linear.bias.item()] == pytest.approx([1.0, -2.0, 0.5, 0.3], abs=1e-3)
