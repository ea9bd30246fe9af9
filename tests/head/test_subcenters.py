"""Several weights per class: outliers, dominant ones, class means, more classes, imported weights, moved rows."""

import copy
import math
import warnings

import pytest
import torch
from pytorch_metric_learning.losses import SoftTripleLoss, SubCenterArcFaceLoss
from torch import Tensor

import widemargin as wm
from head_batch import C, D, batch
from widemargin.head import subcenters

K = 3


def direction(*degrees: float) -> Tensor:
    """Unit vectors in the plane."""
    angle = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack((angle.cos(), angle.sin()), 1)


def plane_head(degrees: list[list[float]], **options) -> wm.Head:
    """A head in the plane whose sub-centres lie at these angles, with lengths that must not matter."""
    head = wm.Head(2, len(degrees), f"subcenter_arcface(k={len(degrees[0])})", dtype=torch.float64, **options)
    lengths = torch.linspace(0.5, 3.0, head.weight[..., 0].numel(), dtype=torch.float64).view(*head.weight.shape[:2], 1)
    with torch.no_grad():
        head.weight.copy_(torch.stack([direction(*of_class) for of_class in degrees]) * lengths)
    return head


# ---------------------------------------------------------------- the drop rule


def test_the_drop_rule_by_hand():
    head = plane_head([[0.0, 90.0], [180.0, 270.0], [45.0, 225.0]])
    x = 7.0 * direction(0, 10, 80, 74, 76, 130, 185, 275, 280, 350)
    y = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
    found = wm.subcenter_outliers(head, x, y)
    # Class 0: 0° and 10° are nearest to 0°, the other four to 90°, of which 0° and 10° are 90° and 80° away.
    # Class 1: one is nearest to 180°, three to 270°, of which 185° is 85° and 350° 80° away.
    assert found.counts.tolist() == [[2, 4], [1, 3], [0, 0]]
    assert found.dominant.tolist() == [1, 1, 0]
    assert found.is_outlier.tolist() == [True, True, False, False, False, False, True, False, False, True]
    assert found.is_outlier.dtype == torch.bool
    assert not wm.subcenter_outliers(head, x, y, max_angle=91).is_outlier.any()


def test_a_sample_nearest_to_another_sub_centre_is_kept_where_it_is_near_enough():
    head = plane_head([[0.0, 60.0], [180.0, 240.0]])
    found = wm.subcenter_outliers(head, direction(0, 5, 60, 76), torch.tensor([0, 0, 0, 0]))
    assert found.counts[0].tolist() == [2, 2]
    assert found.dominant[0] == 0  # of equals the first
    assert found.is_outlier.tolist() == [False, False, False, True]


@pytest.mark.parametrize("threshold", [75, 60])
def test_outliers_are_those_of_pytorch_metric_learning(threshold):
    torch.manual_seed(1)
    theirs = SubCenterArcFaceLoss(num_classes=C, embedding_size=4, sub_centers=K)
    ours = wm.Head(4, C, f"subcenter_arcface(k={K})")
    ours.load_class_weights(theirs.state_dict())
    x, y = torch.randn(400, 4), torch.randint(C, (400,))
    outliers, centers = theirs.get_outliers(x, y, threshold=threshold)
    found = wm.subcenter_outliers(ours, x, y, max_angle=threshold)
    assert sorted(outliers.tolist()) == found.is_outlier.nonzero().flatten().tolist()
    assert 40 < len(outliers) < 360
    dominant = ours.weight[torch.arange(C), found.dominant]
    assert torch.equal(dominant, centers.T)


def test_a_class_without_samples_has_a_dominant_sub_centre_that_is_always_the_same():
    head = wm.Head(D, 4, f"subcenter_arcface(k={K})")
    found = wm.subcenter_outliers(head, torch.randn(6, D), torch.tensor([1, 1, 1, 3, 3, 3]))
    assert found.dominant[[0, 2]].tolist() == [0, 0]
    assert found.counts.sum(1).tolist() == [0, 3, 0, 3]
    empty = wm.subcenter_outliers(head, torch.randn(0, D), torch.zeros(0, dtype=torch.int64))
    assert empty.is_outlier.shape == (0,)
    assert empty.dominant.tolist() == [0, 0, 0, 0]


def test_large_data_is_taken_in_blocks(monkeypatch):
    head, x, y = wm.Head(D, C, f"subcenter_arcface(k={K})"), torch.randn(1000, D), torch.randint(C, (1000,))
    whole = wm.subcenter_outliers(head, x, y)
    monkeypatch.setattr(subcenters, "_CHUNK_ELEMENTS", 7 * K * D)
    sizes = []
    monkeypatch.setattr(
        subcenters, "unit_and_norm", lambda v, plain=subcenters.unit_and_norm: (sizes.append(len(v)), plain(v))[1]
    )
    for one, other in zip(wm.subcenter_outliers(head, x, y), whole, strict=True):
        assert torch.equal(one, other)
    assert max(sizes[1:]) == 7  # the first is that of the weights


def test_ignored_samples_count_for_nothing_and_are_no_outliers():
    head = plane_head([[0.0, 90.0], [180.0, 270.0]], ignore_index=-1)
    found = wm.subcenter_outliers(head, direction(0, 90, 90, 90), torch.tensor([0, -1, -1, -1]))
    assert found.dominant.tolist() == [0, 0]
    assert found.counts.sum() == 1
    assert not found.is_outlier.any()


def test_one_weight_per_class_and_half_precision():
    head = wm.Head(2, 2, "arcface", dtype=torch.bfloat16)
    with torch.no_grad():
        head.weight.copy_(direction(0, 180))
    found = wm.subcenter_outliers(head, direction(10, 80).half(), torch.tensor([0, 0], dtype=torch.uint8))
    assert found.is_outlier.tolist() == [False, True]
    assert found.dominant.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_angle": 200}, "max_angle=200 must be an angle from 0 to 180 degrees"),
        ({"max_angle": "75"}, "max_angle='75' must be an angle"),
        ({"y": torch.tensor([0, C])}, "label 5 is out of range"),
        ({"y": torch.tensor([0])}, r"labels must have shape \[2\]"),
        ({"x": torch.randn(2, D + 1)}, "embeddings must have shape"),
        ({"x": torch.full((2, D), math.nan)}, "hold NaN"),
    ],
)
def test_what_cannot_be_judged_is_one_line(options, match):
    head = wm.Head(D, C, "subcenter_arcface")
    given = {"x": torch.randn(2, D), "y": torch.tensor([0, 1]), **options}
    with pytest.raises(wm.InputError, match=match):
        wm.subcenter_outliers(head, given.pop("x"), given.pop("y"), **given)


# ---------------------------------------------------------------- one weight per class again


def test_the_head_of_the_dominant_sub_centres_is_arcface_with_these_weights():
    head = wm.Head(D, C, "subcenter_arcface(s=8, m=0.3)", class_names=list("abcde"), label_smoothing=0.1)
    x, y = batch(n=40)
    head(x, y)
    whole = head.weight.detach().clone()
    found = wm.subcenter_outliers(head, x, y)
    registered = []
    head.register_forward_hook(lambda *call: registered.append(1))
    head.keep_dominant(found.dominant)
    assert head.spec == wm.SubcenterArcFace(s=8, m=0.3, k=1)
    assert head.weight.shape == (C, D)
    assert (head.class_names, head.label_smoothing, int(head.margin_state.steps)) == (list("abcde"), 0.1, 1)
    for k in range(C):
        assert torch.equal(head.weight[k], whole[k, found.dominant[k]])
    plain = wm.Head(D, C, "arcface(s=8, m=0.3)", label_smoothing=0.1)
    plain.load_class_weights({"weight": head.weight.detach()})
    torch.testing.assert_close(head(x, y), plain(x, y))
    assert registered
    again = wm.Head(D, C, "subcenter_arcface(s=8, m=0.3, k=1)")
    again.load_state_dict(head.state_dict())


def test_an_objective_says_what_it_has_become():
    objective = wm.Objective("soft_triple(k=2) + 0.02*center", D, C, class_weight=[1.0, 2.0, 3.0, 4.0, 5.0])
    objective.keep_dominant(torch.tensor([0, 1, 1, 0, 1]))
    assert repr(objective.spec) == repr(wm.parse("soft_triple(k=1) + 0.02*center"))
    assert objective.head.margin_state.class_weight.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    objective(*batch()).sum().backward()
    assert objective.head.weight.grad.shape == (C, D)
    with pytest.raises(wm.InputError, match="no margin"):
        wm.Objective("triplet", D, C).keep_dominant(torch.zeros(C, dtype=torch.int64))


@pytest.mark.parametrize(
    ("spec", "dominant", "match"),
    [
        ("arcface", torch.zeros(C, dtype=torch.int64), "one weight per class"),
        ("subcenter_arcface(k=1)", torch.zeros(C, dtype=torch.int64), "one weight per class"),
        ("subcenter_arcface", torch.full((C,), 3), "from 0 to 2"),
        ("subcenter_arcface", torch.zeros(C), "must be integers"),
        ("subcenter_arcface", torch.zeros(C - 1, dtype=torch.int64), "must be integers"),
        ("subcenter_arcface", [0] * C, "must be integers"),
    ],
)
def test_what_cannot_be_kept_is_one_line(spec, dominant, match):
    with pytest.raises(wm.InputError, match=match):
        wm.Head(D, C, spec).keep_dominant(dominant)


# ---------------------------------------------------------------- class means


def test_sub_centres_turn_to_the_means_of_the_samples_they_are_nearest_to():
    head = wm.Head(D, C, f"subcenter_arcface(k={K})", dtype=torch.float64)
    x, y = batch(n=60, dtype=torch.float64)
    before = head.weight.detach().clone()
    y[y == 4] = 3  # a class without samples
    head.init_from_means(x, y)
    expected = before.clone()
    for c in range(C):
        unit, members = before[c] / before[c].norm(dim=1, keepdim=True), x.detach()[y == c]
        members = members / members.norm(dim=1, keepdim=True)
        nearest = (members @ unit.T).argmax(1)
        for k in range(K):
            if (nearest == k).any():
                mean = members[nearest == k].mean(0)
                expected[c, k] = mean / mean.norm() * before[c, k].norm()
    torch.testing.assert_close(head.weight.detach(), expected)
    assert torch.equal(head.weight[4], before[4])
    assert not torch.allclose(head.weight[0], before[0])


# ---------------------------------------------------------------- more classes


def test_extend_keeps_sub_centres_and_draws_new_ones():
    head = wm.Head(D, C, f"soft_triple(k={K})")
    x, y = batch()
    old, logits = head.weight.detach().clone(), head.logits(x).detach()
    head.extend(2)
    assert head.weight.shape == (C + 2, K, D)
    assert torch.equal(head.weight[:C], old)
    torch.testing.assert_close(head.logits(x)[:, :C], logits)
    assert len(torch.unique(head.weight[C:].flatten(0, 1), dim=0)) == 2 * K
    head(x, torch.full_like(y, C + 1)).sum().backward()


def test_extend_with_counts_follows_the_formula():
    head = wm.Head(D, 3, "ldam(s=10, max_m=0.4, counts=[16, 4, 100])")
    head.extend(2, counts=[5, 1])
    assert head.per_class_options() == ["counts"]
    assert head.spec == wm.parse("ldam(s=10, max_m=0.4, counts=[16, 4, 100, 5, 1])")
    expected = [0.4 * n**-0.25 for n in (16, 4, 100, 5, 1)]  # the rarest class has 1 sample now
    assert head.margin_state.per_class_m.tolist() == pytest.approx(expected)
    fresh = wm.Head(D, 5, head.spec)
    fresh.load_state_dict(head.state_dict())
    x, y = batch()
    torch.testing.assert_close(head(x, y), fresh(x, y))

    adjusted = wm.Head(D, 2, "logit_adjusted(counts=[30, 10])")
    adjusted.extend(2, counts=[5, 55])
    assert adjusted.margin_state.class_offset.tolist() == pytest.approx([math.log(n / 100) for n in (30, 10, 5, 55)])
    with pytest.raises(wm.InputError, match="counts is per class; give 1 numbers"):
        adjusted.extend(1)


@pytest.mark.parametrize(("spec", "start"), [("sphereface2(s=8)", None), ("uniface(s=8)", math.log(10 * C))])
def test_extend_keeps_a_learnt_number(spec, start):
    head = wm.Head(D, C, spec)
    assert start is None or head.margin_state.learnt_b.item() == pytest.approx(start)
    x, y = batch()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
    head(x, y).sum().backward()
    optimizer.step()
    learnt = head.margin_state.learnt_b.detach().clone()
    assert learnt != head.margin.b
    head.extend(3)
    assert torch.equal(head.margin_state.learnt_b, learnt)
    assert head.margin_state.learnt_b.requires_grad
    head(x, y).sum().backward()
    assert head.margin_state.learnt_b.grad.abs() > 0
    assert head.margin_values()["b"] == pytest.approx(float(learnt))
    assert float(copy.deepcopy(head).margin_state.learnt_b.detach()) == float(learnt)
    head.margin_state.learnt_b.requires_grad_(False)
    head.extend(1)
    assert not head.margin_state.learnt_b.requires_grad


# ---------------------------------------------------------------- other libraries' weights


def test_sub_centres_of_pytorch_metric_learning_give_its_loss():
    theirs = SubCenterArcFaceLoss(
        num_classes=C, embedding_size=D, margin=math.degrees(0.3), scale=8, sub_centers=K
    ).double()
    ours = wm.Head(D, C, f"subcenter_arcface(s=8, m=0.3, k={K})", dtype=torch.float64)
    ours.load_class_weights(theirs.state_dict())
    x, y = batch(n=40, dtype=torch.float64)
    torch.testing.assert_close(ours(x, y).mean(), theirs(x, y), rtol=1e-6, atol=1e-7)

    theirs = SoftTripleLoss(num_classes=C, embedding_size=D, centers_per_class=K).double()
    ours = wm.Head(D, C, f"soft_triple(k={K}, tau=0)", dtype=torch.float64)
    ours.load_class_weights(theirs.state_dict())
    torch.testing.assert_close(ours(x, y).mean(), theirs(x, y))


def test_rows_side_by_side_and_our_own_heads(tmp_path):
    rows = torch.randn(C * K, D)  # as insightface and wespeaker keep them
    head = wm.Head(D, C, f"subcenter_arcface(k={K})")
    head.load_class_weights({"weight": rows})
    assert torch.equal(head.weight[2, 1], rows[2 * K + 1])
    torch.save(head.state_dict(), tmp_path / "head.pt")
    again = wm.Head(D, C, f"aam_softmax(k={K})")
    again.load_class_weights(tmp_path / "head.pt")
    assert torch.equal(again.weight, head.weight)


@pytest.mark.parametrize(
    ("spec", "shape", "match"),
    [
        ("subcenter_arcface", (C, D), "5 classes of dimension 6, this head 5 with 3 sub-centres each of 6"),
        ("arcface", (C * K, D), "15 classes of dimension 6, this head 5 of 6"),
        ("arcface", (C, K, D), "5 × 3 classes of dimension 6, this head 5 of 6"),
        ("subcenter_arcface(k=5)", (C, K, D), "5 × 3 classes of dimension 6, this head 5 with 5 sub-centres"),
    ],
)
def test_weights_of_another_number_of_sub_centres_are_refused(spec, shape, match):
    head = wm.Head(D, C, spec)
    before = head.weight.detach().clone()
    with pytest.raises(wm.InputError, match=match):
        head.load_class_weights({"weight": torch.randn(shape)})
    assert torch.equal(head.weight, before)


# ---------------------------------------------------------------- moved rows


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_a_row_optimizer_moves_classes_with_all_their_sub_centres(make):
    x, y = torch.randn(6, D, dtype=torch.float64), torch.randint(50, (6,))
    head = wm.Head(D, 50, "subcenter_arcface(s=8)", backend="sampled", sample_rate=0.2, dtype=torch.float64)
    optimizer = wm.RowOptimizer(head.weight, make, lr=0.1)
    other = torch.nn.Parameter(head.weight.detach().clone())  # dense: all rows, with a gradient of 0 where none is
    reference = make([other], lr=0.1)
    head(x, y).sum().backward()
    gradient = head.weight.grad.coalesce()
    assert gradient.sparse_dim() == 1
    assert gradient.values().shape == (len(gradient.indices()[0]), K, D)
    before = head.weight.detach().clone()
    optimizer.step()
    other.grad = gradient.to_dense()
    reference.step()
    drawn = torch.zeros(50, dtype=torch.bool)
    drawn[gradient.indices()[0]] = True
    assert 0 < drawn.sum() < 50
    torch.testing.assert_close(head.weight[drawn], other[drawn])
    assert torch.equal(head.weight[~drawn], before[~drawn])
    state = optimizer.state_dict()
    assert all(value.shape == head.weight.shape for value in state["memory"].values())
    wm.RowOptimizer(head.weight, make, lr=0.1).load_state_dict(state)


def test_an_optimizer_that_moves_rows_together_is_refused_for_sub_centres_too():
    head = wm.Head(D, C, "subcenter_arcface", backend="sampled")
    with pytest.raises(wm.InputError, match="Adafactor keeps"):
        wm.RowOptimizer(head.weight, torch.optim.Adafactor)
    with pytest.raises(wm.InputError, match="takes one matrix"):
        wm.RowOptimizer(torch.ones(3), torch.optim.SGD)


# ---------------------------------------------------------------- life


@pytest.mark.parametrize("spec", ["subcenter_arcface(s=8)", "aam_softmax(s=8, k=3)", "soft_triple(s=8, k=2)"])
def test_a_state_dict_says_how_many_sub_centres_there_are(spec):
    head = wm.Head(D, C, spec)
    again = wm.Head(D, C, spec)
    again.load_state_dict(head.state_dict())
    x, y = batch()
    assert torch.equal(head(x, y), again(x, y))
    plain = wm.Head(D, C, "arcface")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # another margin
        with pytest.raises(RuntimeError, match="size mismatch for weight"):
            plain.load_state_dict(head.state_dict())
