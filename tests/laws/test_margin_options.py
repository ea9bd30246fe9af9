"""Label smoothing, weights, ignored labels, mixup and margins per class, for every margin against the textbook."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import textbook
import widemargin as wm
from later_cases import make_reference
from margin_cases import (
    ADAPTIVE,
    BACKENDS,
    EACH,
    LATER_ADAPTIVE,
    SMOOTHED,
    Logits,
    assert_matches,
    assert_same_loss,
    assert_state,
    head_result,
    later_loss,
    loss_reference,
    make_batch,
    make_head,
    plain_loss,
    simulate,
)
from widemargin.losses.registry import list_losses

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", SMOOTHED)
def test_label_smoothing(spelling, backend):
    for seed, regime in enumerate(("random", "trained", "opposed")):
        for label_smoothing in (0.05, 0.9):
            head = make_head(5, 7, spelling, backend, label_smoothing=label_smoothing).eval()
            x, y = make_batch(head, 12, regime, seed)
            assert_matches(head, x, y, loss_reference(spelling, 7, label_smoothing))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", EACH)
def test_weights_multiply_the_whole_smoothed_loss(spelling, backend):
    """A class weight takes the smoothing with it and nothing is divided by the sum of the weights."""
    class_weight = torch.tensor([0.5, 2.0, 0.0, 1.25, 3.0], dtype=torch.float64)
    smoothing = 0.1 if spelling in SMOOTHED else 0.0
    head = make_head(4, 5, spelling, backend, label_smoothing=smoothing, class_weight=class_weight).eval()
    x, y = make_batch(head, 20)
    sample_weight = torch.rand(20, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    smoothed = loss_reference(spelling, 5, smoothing)

    def reference(x, W, y, *learnt):
        return sample_weight * class_weight[y] * smoothed(x, W, y, *learnt)

    assert_matches(head, x, y, reference, sample_weight=sample_weight)


def test_class_weights_are_as_precise_as_the_head():
    class_weight = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    head = make_head(4, 3, "cosface(s=8, m=0.2)", class_weight=class_weight).eval()
    x, y = make_batch(head, 12)
    assert_matches(head, x, y, lambda x, W, y: class_weight[y] * textbook.loss(textbook.cosface(x, W, y, 8.0, 0.2), y))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", EACH)
def test_ignored_labels_count_for_nothing(spelling, backend):
    smoothing = 0.1 if spelling in SMOOTHED else 0.0
    for label in (-100, 3):
        head = make_head(4, 5, spelling, backend, ignore_index=label, label_smoothing=smoothing).eval()
        x, y = make_batch(head, 12)
        y[::3] = label
        kept = y != label
        one = loss_reference(spelling, 5, smoothing)

        def reference(x, W, y, *learnt, kept=kept, one=one):
            loss = torch.zeros(len(x), dtype=x.dtype)
            loss[kept] = one(x[kept], W, y[kept], *learnt)
            return loss

        assert_matches(head, x, y, reference)
        loss, (to_x, *_) = head_result(head, x, y, torch.ones(12, dtype=torch.float64))
        assert not loss[~kept].any()
        assert not to_x[~kept].any()


@pytest.mark.parametrize("spelling", ["adacos", "adaacos"])
def test_ignored_labels_do_not_move_adaptive_state(spelling):
    head = make_head(4, 6, spelling, ignore_index=-1)
    simulation = ADAPTIVE[spelling](6)
    for seed, regime in enumerate(("trained", "trained", "random")):
        x, y = make_batch(head, 15, regime, seed)
        y[:5] = -1
        simulation.observe(x[5:], head.weight.detach(), y[5:])
        got = head(x, y).detach()
        assert not got[:5].any()
        assert_same_loss(got[5:], textbook.loss(simulation.logits(x[5:], head.weight.detach(), y[5:]), y[5:]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", EACH)
def test_mixup(spelling, backend):
    smoothing = 0.05 if spelling in SMOOTHED else 0.0
    class_weight = torch.tensor([0.5, 2.0, 1.0, 1.25, 3.0], dtype=torch.float64)
    head = make_head(4, 5, spelling, backend, label_smoothing=smoothing, class_weight=class_weight).eval()
    x, y = make_batch(head, 12)
    y_b = y.flip(0)
    one = loss_reference(spelling, 5, smoothing)
    for lam in (0.3, torch.linspace(0, 1, 12, dtype=torch.float64)):

        def reference(x, W, y, *learnt, lam=lam):
            first, second = (class_weight[labels] * one(x, W, labels, *learnt) for labels in (y, y_b))
            return lam * first + (1 - lam) * second

        assert_matches(head, x, y, reference, mix=(y_b, lam))


@pytest.mark.parametrize("spelling", ADAPTIVE)
def test_mixup_updates_the_state_once_by_the_first_labels(spelling):
    head = make_head(4, 6, spelling)
    simulation = ADAPTIVE[spelling](6)
    W = head.weight.detach()
    for seed in range(3):
        x, y = make_batch(head, 11, "trained", seed)
        y_b = (y + 1) % 6
        simulation.observe(x, W, y)
        mixed = 0.6 * textbook.loss(simulation.logits(x, W, y), y)
        mixed = mixed + 0.4 * textbook.loss(simulation.logits(x, W, y_b), y_b)
        assert_same_loss(head(x, y, mix=(y_b, 0.6)).detach(), mixed)
    assert head.margin_state.steps == 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", LATER_ADAPTIVE)
def test_state_follows_first_labels_that_count(spelling, backend):
    """Ignored samples and second labels of a mixup do not move it; a batch that is ignored as a whole neither."""
    head = make_head(4, 6, spelling, backend, ignore_index=-1)
    simulation = simulate(spelling, 6)
    W = head.weight.detach()
    for seed, regime in enumerate(("trained", "trained", "random")):
        x, y = make_batch(head, 15, regime, seed)
        y_b = (y + 1) % 6
        y[:5] = -1
        simulation.observe(x[5:], W, y[5:])
        first = torch.zeros(15, dtype=torch.float64)
        first[5:] = simulation.loss(x[5:], W, y[5:], training=True)
        got = head(x, y, mix=(y_b, 0.6)).detach()
        assert_same_loss(got, 0.6 * first + 0.4 * simulation.loss(x, W, y_b, training=True))
        assert_state(head, simulation)
        assert not head(x, torch.full_like(y, -1)).detach().any()
        assert_state(head, simulation)


@pytest.mark.parametrize("side", ["first", "second"])
def test_mixup_with_ignored_labels(side):
    """λ head(x, y_a) + (1−λ) head(x, y_b), where an ignored label makes its own part 0."""
    head = make_head(4, 5, "normface", ignore_index=-1).eval()
    x, y = make_batch(head, 12)
    y_b = y.flip(0)
    (y if side == "first" else y_b)[:4] = -1
    wanted = 0.25 * head(x, y) + 0.75 * head(x, y_b)
    assert_same_loss(head(x, y, mix=(y_b, 0.25)).detach(), wanted.detach())


PER_CLASS = torch.tensor([0.0, 0.1, 0.25, 0.4, 0.55, 1.2], dtype=torch.float64)
PER_CLASS_CASES: dict[str, Logits] = {
    "m_softmax(m={m})": partial(textbook.m_softmax, m=PER_CLASS),
    "cosface(s=16, m={m})": partial(textbook.cosface, s=16.0, m=PER_CLASS),
    "arcface(s=16, m={m})": partial(textbook.arcface, s=16.0, m=PER_CLASS),
    "combined(s=16, m1=1.5, m2={m}, m3=0.1)": partial(textbook.combined, s=16.0, m1=1.5, m2=PER_CLASS, m3=0.1),
    "combined(s=16, m2=0.2, m3={m})": partial(textbook.combined, s=16.0, m1=1.0, m2=0.2, m3=PER_CLASS),
}


LATER_PER_CLASS_CASES = {
    "aam_softmax(s=16, m={m}, topk=2)": ("aam_softmax", {"s": 16.0, "topk": 2}),
    "arcgrad(s=7, m={m})": ("arcgrad", {"s": 7.0}),
    "soft_triple(m={m}, k=2)": ("soft_triple", {"k": 2}),
    "subcenter_arcface(s=16, m={m})": ("subcenter_arcface", {"s": 16.0}),
    "uniface(s=16, m={m}, b=2)": ("uniface", {"s": 16.0, "b": 2.0}),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", LATER_PER_CLASS_CASES)
def test_one_margin_per_class_of_later_losses(spelling, backend):
    name, options = LATER_PER_CLASS_CASES[spelling]
    reference = make_reference(name, 6, m=PER_CLASS, **options)
    smoothing = 0.0 if name == "uniface" else 0.1
    head = make_head(4, 6, spelling.format(m=PER_CLASS.tolist()), backend, label_smoothing=smoothing).eval()
    for seed, regime in enumerate(("random", "trained", "opposed")):
        x, y = make_batch(head, 20, regime, seed)
        assert_matches(head, x, y, later_loss(reference, smoothing))


def test_every_option_per_class_has_a_case():
    """Counts are compared in every test of the losses that have them."""
    cases = [*PER_CLASS_CASES, *LATER_PER_CLASS_CASES]
    for name in list_losses("margins"):
        for option, (rule, _) in type(wm.parse(name)).options().items():
            if rule.per_class and option != "counts" and (name, option) != ("ldam", "m"):
                assert any(case.startswith(f"{name}(") and f"{option}={{m}}" in case for case in cases), (name, option)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", PER_CLASS_CASES)
def test_one_margin_per_class(spelling, backend):
    head = make_head(4, 6, spelling.format(m=PER_CLASS.tolist()), backend, label_smoothing=0.1).eval()
    for seed, regime in enumerate(("random", "trained", "opposed")):
        x, y = make_batch(head, 20, regime, seed)
        assert_matches(head, x, y, plain_loss(PER_CLASS_CASES[spelling], 0.1))


def test_one_margin_per_class_as_a_tensor():
    x, y = make_batch(make_head(4, 6, "arcface"), 20)
    for margin, spelling in (
        (wm.MSoftmax(m=PER_CLASS), "m_softmax(m={m})"),
        (wm.CosFace(s=16, m=PER_CLASS), "cosface(s=16, m={m})"),
        (wm.ArcFace(s=16, m=PER_CLASS), "arcface(s=16, m={m})"),
        (wm.Combined(s=16, m1=1.5, m2=PER_CLASS, m3=0.1), "combined(s=16, m1=1.5, m2={m}, m3=0.1)"),
    ):
        assert_matches(make_head(4, 6, margin).eval(), x, y, plain_loss(PER_CLASS_CASES[spelling]))
