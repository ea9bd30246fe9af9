"""Holm's correction for several tests at once.

S. Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian Journal of Statistics 6, 1979.
It needs nothing of the tests' dependence and rejects all that Bonferroni's correction rejects.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .scores import FloatArray, to_finite_array


def holm(p: ArrayLike) -> FloatArray:
    """Adjusted p-values in the given order: with `p ≤ alpha` of these, some false claim has a chance of ≤ alpha.

    The i-th smallest of m is `max_{j ≤ i} min(1, (m − j + 1) p_j)`.

    >>> holm([0.01, 0.04, 0.03]).round(3).tolist()
    [0.03, 0.06, 0.06]
    """
    values = to_finite_array("p", p, 1)
    if not ((values >= 0) & (values <= 1)).all():
        raise InputError("p must be a list of p-values from 0 to 1")
    order = np.argsort(values, kind="stable")
    stepped = np.minimum(values[order] * np.arange(len(values), 0, -1), 1.0)
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(stepped)
    return adjusted
