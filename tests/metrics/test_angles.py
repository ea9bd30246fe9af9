"""WC-Intra, W-Inter and C-Inter against loops, over batches, from drawn pairs and over processes."""

from __future__ import annotations

import contextlib
import json
import math
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor

import widemargin as wm


def random_case(samples: int, classes: int, dim: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings near their class weights, labels and class weights, in double precision."""
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, dim, dtype=torch.float64, generator=random)
    y = torch.randint(classes, (samples,), generator=random)
    x = weight[y] + 0.8 * torch.randn(samples, dim, dtype=torch.float64, generator=random)
    return x * (0.5 + torch.rand(samples, 1, dtype=torch.float64, generator=random)), y, weight


# ---------------------------------------------------------------- references in plain Python


def angle(a: list[float], b: list[float]) -> float:
    cos = sum(u * v for u, v in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))
    return math.acos(max(-1.0, min(1.0, cos)))


def mean_angle_by_loops(rows: list[list[float]]) -> float:
    found = [angle(rows[i], rows[j]) for i in range(len(rows)) for j in range(len(rows)) if i != j]
    return sum(found) / len(found)


def centres_by_loops(x: Tensor, y: Tensor, classes: int) -> dict[int, list[float]]:
    """The mean embedding of every class that has one."""
    centres = {}
    for j in range(classes):
        members = [row for row, label in zip(x.tolist(), y.tolist(), strict=True) if label == j]
        if members:
            centres[j] = [sum(column) / len(members) for column in zip(*members, strict=True)]
    return centres


def assert_equals_loops(got: wm.Angles, x: Tensor, y: Tensor, weight: Tensor) -> None:
    rows = weight.tolist()
    centres = centres_by_loops(x, y, len(rows))
    intra = [angle(centre, rows[j]) for j, centre in centres.items()]
    assert got.wc_intra == pytest.approx(sum(intra) / len(intra), abs=1e-9)
    assert got.w_inter == pytest.approx(mean_angle_by_loops(rows), abs=1e-9)
    assert got.c_inter == pytest.approx(mean_angle_by_loops(list(centres.values())), abs=1e-9)
    assert got.empty_classes == [j for j in range(len(rows)) if j not in centres]


# ---------------------------------------------------------------- exact


@pytest.mark.parametrize(("samples", "classes", "dim"), [(12, 3, 2), (40, 7, 5), (60, 20, 3)])
def test_the_three_angles_are_their_definitions(samples, classes, dim):
    x, y, weight = random_case(samples, classes, dim)
    got = wm.angles(x, y, weight)
    assert_equals_loops(got, x, y, weight)
    assert not got.is_sampled
    assert (got.w_inter_error, got.c_inter_error) == (None, None)


def test_centres_are_means_of_raw_embeddings_and_not_of_directions():
    x = torch.tensor([[10.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    got = wm.angles(x, torch.tensor([0, 0, 1]), torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    assert got.wc_intra == pytest.approx(math.atan2(1, 10) / 2)


def test_classes_without_samples_are_named_and_left_out():
    x, y, weight = random_case(30, 8, 4)
    kept = (y != 2) & (y != 5)
    got = wm.angles(x[kept], y[kept], weight)
    assert {2, 5} <= set(got.empty_classes)
    assert_equals_loops(got, x[kept], y[kept], weight)


def test_without_any_sample_only_the_weights_have_angles():
    _, _, weight = random_case(5, 4, 3)
    got = wm.angles(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), weight)
    assert math.isnan(got.wc_intra)
    assert math.isnan(got.c_inter)
    assert got.w_inter == pytest.approx(mean_angle_by_loops(weight.tolist()))
    assert got.empty_classes == [0, 1, 2, 3]


def test_one_class_has_no_angle_between_classes():
    got = wm.angles(torch.tensor([[1.0, 1.0]]), torch.tensor([0]), torch.tensor([[1.0, 0.0]]))
    assert got.wc_intra == pytest.approx(math.pi / 4)
    assert math.isnan(got.w_inter)
    assert math.isnan(got.c_inter)
    assert got.empty_classes == []


def test_one_class_with_samples_has_no_angle_between_centres():
    _, _, weight = random_case(5, 4, 3)
    got = wm.angles(torch.ones(2, 3), torch.tensor([1, 1]), weight)
    assert math.isnan(got.c_inter)
    assert got.wc_intra == pytest.approx(angle([1.0] * 3, weight[1].tolist()))


@pytest.mark.parametrize("exact", [True, False])
def test_identical_weights_are_exactly_0_apart_and_opposite_ones_pi(exact):
    ray = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    same, opposite = ray * torch.tensor([[1.0], [0.37], [11.0]]), torch.cat([ray, -3.7 * ray])
    together = wm.angles(same, torch.arange(3), same, exact=exact)
    apart = wm.angles(opposite, torch.arange(2), opposite, exact=exact)
    assert (together.wc_intra, together.w_inter, together.c_inter, apart.wc_intra) == (0.0, 0.0, 0.0, 0.0)
    assert (apart.w_inter, apart.c_inter) == pytest.approx((math.pi, math.pi), rel=0, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dim", [2, 3, 64])
def test_identical_and_opposite_weights_in_any_direction(seed, dim):
    ray = random_case(1, 1, dim, seed)[2]
    same, opposite = ray * torch.tensor([[1.0], [0.37], [11.0]]), torch.cat([ray, -3.7 * ray])
    together = wm.angles(same, torch.arange(3), same)
    apart = wm.angles(opposite, torch.arange(2), opposite)
    assert together.wc_intra == pytest.approx(0.0, abs=1e-12)
    # Between all classes the angle is the arccos of a cosine, which is known to 1e-16: the angle to 2e-8.
    assert (together.w_inter, together.c_inter) == pytest.approx((0.0, 0.0), abs=5e-8)
    assert (apart.w_inter, apart.c_inter) == pytest.approx((math.pi, math.pi), rel=0, abs=5e-8)


def test_half_precision_embeddings_and_weights_are_measured_in_double():
    x, y, weight = random_case(40, 6, 4)
    x, weight = x.half(), weight.half()
    assert_equals_loops(wm.angles(x, y, weight), x.double(), y, weight.double())


# ---------------------------------------------------------------- batches


def test_a_meter_over_batches_is_one_shot():
    x, y, weight = random_case(50, 7, 5)
    meter = wm.AngleMeter(7, 5)
    for start in (0, 1, 20, 49):
        stop = {0: 1, 1: 20, 20: 49, 49: 50}[start]
        meter.update(x[start:stop], y[start:stop])
    meter.update(x[:0], y[:0])
    got, wanted = meter.compute(weight), wm.angles(x, y, weight)
    assert got[:3] == pytest.approx(wanted[:3], abs=1e-12)
    assert got.empty_classes == wanted.empty_classes


def test_merged_meters_are_one_meter():
    x, y, weight = random_case(50, 7, 5)
    first, second = wm.AngleMeter(7, 5), wm.AngleMeter(7, 5)
    first.update(x[:13], y[:13])
    second.update(x[13:], y[13:])
    first.merge(second)
    assert first.compute(weight)[:3] == pytest.approx(wm.angles(x, y, weight)[:3], abs=1e-12)
    assert int(second.counts.sum()) == 37, "merging must leave the other meter as it was"


# ---------------------------------------------------------------- drawn pairs


def test_drawn_pairs_estimate_the_exact_angles_within_their_error():
    x, y, weight = random_case(3000, 500, 6)
    exact, drawn = wm.angles(x, y, weight, exact=True), wm.angles(x, y, weight, exact=False)
    assert drawn.is_sampled
    assert not exact.is_sampled
    assert drawn.wc_intra == exact.wc_intra
    for name in ("w_inter", "c_inter"):
        error = getattr(drawn, f"{name}_error")
        assert 0 < error < 0.01
        assert abs(getattr(drawn, name) - getattr(exact, name)) < 4 * error


def test_drawn_pairs_never_pair_a_class_with_itself():
    got = wm.angles(torch.eye(3), torch.arange(3), torch.eye(3), exact=False)
    assert (got.w_inter, got.c_inter) == pytest.approx((math.pi / 2, math.pi / 2), abs=1e-12)


def test_drawn_pairs_are_the_same_every_time():
    x, y, weight = random_case(100, 30, 4)
    first = wm.angles(x, y, weight, exact=False)
    torch.manual_seed(123)
    assert wm.angles(x, y, weight, exact=False) == first


def test_an_estimate_says_so_even_where_all_angles_are_equal():
    weight = torch.ones(5, 4)
    assert wm.angles(weight, torch.arange(5), weight, exact=False).is_sampled


def test_a_hundred_thousand_classes_are_sampled_in_little_memory():
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(100_000, 16, generator=random)
    got = wm.angles(weight[:64], torch.arange(64), weight)
    assert got.is_sampled
    assert got.w_inter_error > 0
    assert got.c_inter_error is None, "64 centres need no drawing"
    assert got.w_inter == pytest.approx(math.pi / 2, abs=0.01)
    assert len(got.empty_classes) == 100_000 - 64


# ---------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("x", "y", "weight"),
    [
        (torch.zeros(2, 3), torch.tensor([0, 1]), torch.zeros(4)),
        (torch.zeros(2, 3), torch.tensor([0, 1]), torch.zeros(4, 3, dtype=torch.int64)),
        (torch.zeros(2, 3), torch.tensor([0, 1]), [[1.0, 0.0, 0.0]]),
        (torch.zeros(2, 5), torch.tensor([0, 1]), torch.zeros(4, 3)),
        (torch.zeros(2), torch.tensor([0, 1]), torch.zeros(4, 3)),
        (torch.zeros(2, 3, dtype=torch.int64), torch.tensor([0, 1]), torch.zeros(4, 3)),
        (torch.zeros(2, 3), torch.tensor([0, 1, 2]), torch.zeros(4, 3)),
        (torch.zeros(2, 3), torch.tensor([0, 4]), torch.zeros(4, 3)),
        (torch.zeros(2, 3), torch.tensor([0, -1]), torch.zeros(4, 3)),
        (torch.zeros(2, 3), torch.tensor([0.0, 1.0]), torch.zeros(4, 3)),
        (torch.full((2, 3), math.nan), torch.tensor([0, 1]), torch.zeros(4, 3)),
    ],
)
def test_wrong_shapes_and_labels_are_one_line_errors(x, y, weight):
    with pytest.raises(wm.InputError) as caught:
        wm.angles(x, y, weight)
    assert "\n" not in str(caught.value)


def test_a_meter_refuses_weights_of_another_shape():
    with pytest.raises(wm.InputError, match=r"\[4, 3\].*\[5, 3\]"):
        wm.AngleMeter(4, 3).compute(torch.zeros(5, 3))


@pytest.mark.parametrize("shape", [(1, 3), (2, 3), (4, 1), (4, 2)])
def test_a_meter_refuses_to_merge_one_of_another_shape(shape):
    with pytest.raises(wm.InputError):
        wm.AngleMeter(4, 3).merge(wm.AngleMeter(*shape))


# ---------------------------------------------------------------- several processes

SHARES = (slice(0, 31), slice(31, 40))


def run_rank(rank: int, folder: str) -> None:
    """What each process does: its unequal share of the samples, in batches."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=(Path(folder) / "meeting").as_uri(),
        rank=rank,
        world_size=len(SHARES),
        timeout=timedelta(seconds=30),
    )
    x, y, weight = random_case(40, 9, 4)
    x, y = x[SHARES[rank]], y[SHARES[rank]]
    meter = wm.AngleMeter(9, 4)
    for start in range(0, len(y), 11):
        meter.update(x[start : start + 11], y[start : start + 11])
    everyone, own = meter.compute(weight), meter.compute(weight, over_ranks=False)
    again = meter.compute(weight)
    (Path(folder) / f"{rank}.json").write_text(json.dumps([everyone, own, again]))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.distributed
def test_two_processes_with_unequal_shares_agree_with_one(tmp_path):
    # What counts is what the ranks wrote down: gloo's threads may abort a process that has ended its work.
    with contextlib.suppress(torch.multiprocessing.ProcessExitedException):
        torch.multiprocessing.spawn(run_rank, (str(tmp_path),), nprocs=len(SHARES))
    x, y, weight = random_case(40, 9, 4)
    wanted = wm.angles(x, y, weight)
    for rank, share in enumerate(SHARES):
        everyone, own, again = json.loads((tmp_path / f"{rank}.json").read_text())
        assert everyone[:3] == pytest.approx(list(wanted[:3]), abs=1e-12)
        assert everyone[3] == wanted.empty_classes
        assert again == everyone, "adding up over ranks must leave the meter as it was"
        alone = wm.angles(x[share], y[share], weight)
        assert own[:3] == pytest.approx(list(alone[:3]), abs=1e-12)
        assert own[3] == alone.empty_classes


# ---------------------------------------------------------------- sub-centres


@pytest.mark.parametrize("exact", [None, False])
def test_of_sub_centres_the_nearest_count(exact):
    x, y, _ = random_case(60, 5, 4)
    weight = torch.randn(5, 3, 4, dtype=torch.float64)
    got, rows, centres = wm.angles(x, y, weight, exact=exact), weight.tolist(), centres_by_loops(x, y, 5)
    intra = [min(angle(centre, row) for row in rows[j]) for j, centre in centres.items()]
    assert got.wc_intra == pytest.approx(sum(intra) / len(intra), abs=1e-9)
    pairs = [min(angle(a, b) for a in rows[i] for b in rows[j]) for i in range(5) for j in range(5) if i != j]
    error = 0.0 if got.w_inter_error is None else 5 * got.w_inter_error
    assert got.w_inter == pytest.approx(sum(pairs) / len(pairs), abs=1e-9 + error)
    assert (got.w_inter_error is None) == (exact is None)
    assert got.c_inter == pytest.approx(wm.angles(x, y, weight[:, 0], exact=exact).c_inter)


def test_one_sub_centre_is_a_class_weight_and_chunks_do_not_matter(monkeypatch):
    x, y, weight = random_case(60, 7, 4)
    assert wm.angles(x, y, weight.unsqueeze(1)) == wm.angles(x, y, weight)
    many = torch.randn(7, 3, 4, dtype=torch.float64)
    whole = wm.angles(x, y, many)
    monkeypatch.setattr("widemargin.metrics.angles._CHUNK_ELEMENTS", 1)
    assert wm.angles(x, y, many)[:3] == pytest.approx(whole[:3])
    with pytest.raises(wm.InputError, match=r"\[C, D\] or \[C, K, D\]"):
        wm.angles(x, y, many.unsqueeze(0))
