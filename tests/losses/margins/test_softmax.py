"""Softmax: inner products, with and without a bias."""

from __future__ import annotations

import pytest

import textbook
from margin_cases import (
    BACKENDS,
    REGIMES,
    SIZES,
    assert_is_textbook,
    assert_matches,
    make_batch,
    make_head,
    spellings_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spelling", spellings_of("softmax"))
def test_loss_and_gradients_are_the_textbooks(spelling, backend, regime):
    assert_is_textbook(spelling, backend, regime)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_softmax_with_bias(backend, regime):
    for seed, (samples, classes, dim) in enumerate(SIZES):
        head = make_head(dim, classes, "softmax(bias=True)", backend, seed).eval()
        x, y = make_batch(head, samples, regime, seed)
        assert_matches(head, x, y, lambda x, W, y, b: textbook.loss(textbook.softmax(x, W, y, b), y))


@pytest.mark.parametrize("backend", BACKENDS)
def test_label_smoothing_with_bias(backend):
    head = make_head(5, 7, "softmax(bias=True)", backend, label_smoothing=0.1).eval()
    x, y = make_batch(head, 12)
    assert_matches(head, x, y, lambda x, W, y, b: textbook.loss(textbook.softmax(x, W, y, b), y, 0.1))
