"""Verification of scored pairs: rates that enough pairs support, intervals, and refusals."""

import numpy as np
import pytest

from metric_cases import scored_pairs
from widemargin.io.errors import InputError
from widemargin.metrics.verification import has_enough_different_pairs, required_different_pairs, verification_metrics


def test_a_tar_that_the_pairs_cannot_support_is_refused():
    scores, same = scored_pairs(400)
    found = verification_metrics(scores, same)
    assert found.tar[0.1] is not None
    assert found.tar[1e-4] is None
    assert not has_enough_different_pairs(same, 1e-2)
    assert required_different_pairs(1e-3) == 10_000
    assert found.num_different == int((~same).sum())


def separate_identities(same):
    """Identities of pairs that share none: every pair has its own."""
    first = 2 * np.arange(len(same))
    return first, first + ~same


def test_intervals_cover_and_shrink():
    drawn = [scored_pairs(n, seed=n) for n in (200, 4000)]
    few, many = (verification_metrics(scores, same, identities=separate_identities(same)) for scores, same in drawn)
    truth = 0.8019  # P(N(1.2, 1) > N(0, 1)) = Φ(1.2/√2)
    for found in (few, many):
        assert found.auc.low < found.auc.value < found.auc.high
    assert many.auc.high - many.auc.low < 0.4 * (few.auc.high - few.auc.low)
    assert many.auc.low < truth < many.auc.high


@pytest.mark.parametrize(
    ("scores", "same", "words"),
    [
        ([1.0], [True, False], "one length"),
        ([1.0, np.nan], [True, False], "NaN"),
        ([1.0], [True], "both kinds"),
    ],
)
def test_bad_pairs_are_one_line(scores, same, words):
    with pytest.raises(InputError, match=words):
        verification_metrics(np.array(scores), np.array(same))
