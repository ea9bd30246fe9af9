"""Long-tailed training sets: each class keeps fewer images than the one before it, by an exponential profile.

Class c of C keeps `n_max · imbalance^(−c/(C−1))` images, rounded down, so that the first class has `imbalance` times as
many as the last one. Reference: Y. Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019;
CIFAR-10 with an imbalance of 100 is the 12,406 images of K. Cao et al. (LDAM, NeurIPS 2019).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...io.errors import InputError, spell_option
from .sets import SamplesT, ranks_within_class


def long_tailed_counts(counts: Sequence[int], imbalance: float, class_names: Sequence[str] = ()) -> list[int]:
    """How many images each class keeps of those it has.

    n_max is the largest number for which every class has as many images as the profile wants: that of a class, if all
    have equally many. A class that would keep none is an error.

    >>> long_tailed_counts([5000] * 10, 100)
    [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    """
    if not 1.0 <= imbalance < math.inf:
        raise InputError(f"{spell_option('imbalance')} must be a number of at least 1, got {imbalance!r}")
    names = [f"class {c}" for c in range(len(counts))] if not class_names else [repr(name) for name in class_names]
    if 0 in counts:
        raise InputError(
            f"{spell_option('imbalance', imbalance)}: there is no training image of {names[list(counts).index(0)]}"
        )
    last = max(1, len(counts) - 1)
    divisors = [imbalance ** (c / last) for c in range(len(counts))]
    largest = min(math.floor(n * divisor) for n, divisor in zip(counts, divisors, strict=True))
    wanted = [min(n, math.floor(largest / divisor)) for n, divisor in zip(counts, divisors, strict=True)]
    for c, n in enumerate(wanted):
        if n < 1:
            raise InputError(
                f"{spell_option('imbalance', imbalance)} leaves no training image of {names[c]}; use a smaller value"
            )
    return wanted


def long_tailed_subset(images: SamplesT, imbalance: float, seed: int, class_names: Sequence[str]) -> SamplesT:
    """A long-tailed part of the images, drawn at random from every class; of one seed larger imbalances lie within."""
    if images.y.ndim == 2:
        raise InputError(f"{spell_option('imbalance', imbalance)} needs one label per image; these images have several")
    rank, _ = ranks_within_class(images.y, seed)
    counts = torch.bincount(images.y, minlength=len(class_names)).tolist()
    wanted = torch.tensor(long_tailed_counts(counts, imbalance, class_names))
    return images.take(torch.nonzero(rank < wanted[images.y]).squeeze(1))
