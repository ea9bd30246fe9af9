"""Cross-entropy against its formula."""

from __future__ import annotations

import pytest
import torch

import widemargin as wm
from criterion_cases import (
    cross_entropy_of,
    random_values,
)


def test_cross_entropy_is_minus_the_log_softmax_of_the_truth():
    z, y = random_values(6, 4), torch.tensor([0, 3, 1, 2, 2, 0])
    wanted = [cross_entropy_of(row, target) for row, target in zip(z.tolist(), y.tolist(), strict=True)]
    assert wm.CrossEntropy()(z, y).tolist() == pytest.approx(wanted, rel=1e-12)


def test_cross_entropy_takes_probabilities_of_classes():
    z, target = random_values(5, 4), torch.softmax(random_values(5, 4, seed=1), 1)
    wanted = [
        sum(t * cross_entropy_of(row, j) for j, t in enumerate(shares))
        for row, shares in zip(z.tolist(), target.tolist(), strict=True)
    ]
    assert wm.CrossEntropy()(z, target).tolist() == pytest.approx(wanted, rel=1e-12)


def test_cross_entropy_smoothing_gives_every_class_its_share():
    z, y = random_values(5, 4), torch.tensor([0, 3, 1, 2, 2])
    wanted = [
        0.9 * cross_entropy_of(row, target) + 0.1 * sum(cross_entropy_of(row, j) for j in range(4)) / 4
        for row, target in zip(z.tolist(), y.tolist(), strict=True)
    ]
    assert wm.CrossEntropy(label_smoothing=0.1)(z, y).tolist() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("target", [torch.zeros(3, 5), torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3)])
def test_cross_entropy_targets_of_another_shape_are_an_error(target):
    with pytest.raises(wm.InputError):
        wm.CrossEntropy()(torch.zeros(3, 4), target)


def test_cross_entropy_needs_logits_of_classes():
    with pytest.raises(wm.InputError):
        wm.CrossEntropy()(torch.zeros(3), torch.tensor([0.0, 1.0, 0.0]))
