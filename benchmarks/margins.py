"""Margins for the benchmarks: any loss of the registry, with class counts if it needs them."""

from __future__ import annotations

import torch

from widemargin.losses.grammar import parse_margin
from widemargin.losses.margin import Margin, SampleStatistics

LARGEST_CLASS, IMBALANCE = 1000, 100


def long_tail_counts(num_classes: int) -> list[int]:
    """Samples of each class, decreasing exponentially from 1,000 to 10.

    >>> long_tail_counts(5)
    [1000, 316, 100, 32, 10]
    """
    return [round(LARGEST_CLASS * IMBALANCE ** (-k / max(num_classes - 1, 1))) for k in range(num_classes)]


def benchmark_margin(spec: str, num_classes: int) -> Margin:
    """Return the margin of a spec; one that needs class counts and has none gets those of a long tail."""
    return parse_margin(spec).with_class_counts(long_tail_counts(num_classes))


def weights_per_class(spec: str) -> int:
    """Rows of the class weights per class.

    >>> weights_per_class("arcface"), weights_per_class("subcenter_arcface")
    (1, 3)
    """
    subcenters = parse_margin(spec).subcenters
    return 1 if subcenters is None else subcenters.count


def draws_numbers(margin: Margin) -> bool:
    """True if a margin draws random numbers for its samples in training, so that calls differ.

    >>> [draws_numbers(parse_margin(spec).for_num_classes(9)) for spec in ("arcface", "adaface", "elasticface")]
    [False, False, True]
    """
    angles, norms = torch.ones(2), torch.ones(2)
    samples = SampleStatistics(lambda: angles, lambda: norms, lambda count: torch.zeros(2, count), training=True)
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        margin.for_samples(samples)
        return not torch.equal(before, torch.get_rng_state())
