"""margin_softmax on given cosines, against the textbook."""

from __future__ import annotations

import pytest

import textbook
import widemargin as wm
from margin_cases import (
    FIXED,
    assert_same_loss,
    cosines_and_lengths,
    make_batch,
    make_head,
    plain_loss,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
@pytest.mark.parametrize("spelling", FIXED)
def test_margin_softmax_on_given_cosines(spelling, label_smoothing):
    head = make_head(6, 9, spelling).eval()
    x, y = make_batch(head, 14)
    cos, x_length, both_lengths = cosines_and_lengths(head, x)
    radius = None
    if "softmax" in spelling and not spelling.startswith(("cosine", "am")):
        radius = both_lengths if spelling.startswith(("softmax", "m_", "l_")) else x_length
    elif spelling.startswith("sphereface"):
        radius = x_length
    got = wm.margin_softmax(cos, y, spelling, radius=radius, label_smoothing=label_smoothing)
    assert_same_loss(got, plain_loss(FIXED[spelling], label_smoothing)(x, head.weight.detach(), y))


@pytest.mark.parametrize("spelling", ["adacos", "adacos(floor=9)", "adaacos", "adaacos(s=6)"])
def test_margin_softmax_is_the_first_training_call(spelling):
    head = make_head(6, 9, spelling)
    x, y = make_batch(head, 15, "trained")
    simulation = {
        "adacos": textbook.AdaCos(9),
        "adacos(floor=9)": textbook.AdaCos(9, floor=9.0),
        "adaacos": textbook.AdaAcos(9),
        "adaacos(s=6)": textbook.AdaAcos(9, s=6.0),
    }[spelling]
    W = head.weight.detach()
    simulation.observe(x, W, y)
    got = wm.margin_softmax(textbook.cosines(x, W), y, spelling)
    assert_same_loss(got, textbook.loss(simulation.logits(x, W, y), y))
    assert_same_loss(head(x, y).detach(), got)


@pytest.mark.parametrize("step", [0, 1, 7, 100, 5000])
def test_margin_softmax_anneals_by_step(step):
    head = make_head(6, 9, "a_softmax")
    x, y = make_batch(head, 14)
    cos, radius, _ = cosines_and_lengths(head, x)
    got = wm.margin_softmax(cos, y, "a_softmax", radius=radius, step=step)
    assert_same_loss(got, plain_loss(lambda x, W, y: textbook.a_softmax(x, W, y, t=step))(x, head.weight.detach(), y))
