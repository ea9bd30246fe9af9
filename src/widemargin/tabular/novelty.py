"""Open sets for tables: reject rows that are far from all training rows.

The score of a row is its Mahalanobis distance to the nearest class mean, computed on the inputs of the network (scaled,
missing values filled, categories as columns) with the covariance within the classes, shrunk towards a multiple of the
identity. There are no rows of unknown classes to calibrate on, so `target_far` is the rate of false alarms on known
classes: the share of held-out rows that the threshold rejects. Distances of held-out rows are cross-fitted: those of
each third of the rows are computed from means and covariance of the other two.

The cosine to the nearest class weight, used for images, does not work here: rows far from all training rows get
embeddings close to one of the class weights (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from ..io.errors import InputError, format_value, spell_option
from ..recognition.protocols import threshold_of_unknown_scores

FloatArray = NDArray[np.float64]

MAX_COVARIANCE_COLUMNS = 512
"""With more columns the covariance is taken as diagonal."""
MAX_FIT_ROWS, MAX_HELD_OUT = 1 << 16, 20_000
"""Largest numbers of rows for means and covariance, and of held-out distances kept; more are sampled."""
SHRINKAGE = 0.1
_FOLDS = 3
_CHUNK_VALUES = 1 << 22


@dataclass(frozen=True, eq=False)
class NoveltyDetector:
    """Class means, the inverse square root of the covariance within classes, and distances of held-out rows."""

    means: FloatArray
    """[C, P], multiplied by `whitening`."""
    whitening: FloatArray
    """[P, P], or [P] for a diagonal covariance."""
    held_out: FloatArray
    """Squared distances of held-out rows, the largest first."""

    @classmethod
    def learn(cls, inputs: FloatArray, groups: NDArray[np.int64], seed: int) -> Self:
        """Estimate all from inputs of the network [n, P] and their classes."""
        order = np.random.default_rng([seed, 10]).permutation(len(inputs))
        folds = np.array_split(order, min(_FOLDS, len(order)))
        held_out = []
        for fold in folds if len(folds) > 1 else []:
            rest = np.setdiff1d(order, fold)
            means, whitening = _class_gaussians(inputs[rest], groups[rest])
            held_out.append(_squared_distances(inputs[fold], means, whitening))
        distances = np.concatenate(held_out) if held_out else np.empty(0)
        return cls(*_class_gaussians(inputs, groups), np.sort(distances[:MAX_HELD_OUT])[::-1].copy())

    def distances(self, inputs: FloatArray) -> FloatArray:
        """Mahalanobis distances [n] to the nearest class mean."""
        found: FloatArray = np.sqrt(_squared_distances(inputs, self.means, self.whitening))
        return found

    def threshold(self, target_far: Any) -> float:
        """The distance that a fraction `target_far` of the held-out rows exceeds; refused if fewer than ten do."""
        if isinstance(target_far, bool) or not isinstance(target_far, int | float) or not 0 < target_far < 1:
            raise InputError(
                f"{spell_option('target_far')} must be a rate above 0 and below 1, got {format_value(target_far)}"
            )
        squared = threshold_of_unknown_scores(
            torch.from_numpy(self.held_out), float(target_far), "held-out rows", "take a higher rate, or fit more rows"
        )
        return float(np.sqrt(max(0.0, squared)))

    def to_arrays(self) -> dict[str, FloatArray]:
        """The arrays to store."""
        return {"means": self.means, "whitening": self.whitening, "held_out": self.held_out}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, FloatArray], num_classes: int, num_inputs: int) -> Self:
        """The inverse of `to_arrays`; a ValueError if the shapes do not match the model."""
        found = cls(arrays["means"], arrays["whitening"], arrays["held_out"])
        is_valid = (
            found.means.ndim == 2
            and found.means.shape[1] == num_inputs
            and 1 <= len(found.means) <= num_classes + 1
            and found.whitening.shape in ((num_inputs,), (num_inputs, num_inputs))
            and found.held_out.ndim == 1
            and not (np.diff(found.held_out) > 0).any()
        )
        if not is_valid:
            raise ValueError("means and covariance do not have the shapes of the model")
        return found


def _class_gaussians(x: FloatArray, groups: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """Whitened class means [C, P] and the inverse square root of the covariance around them."""
    _, codes, counts = np.unique(groups, return_inverse=True, return_counts=True)
    means = np.zeros((len(counts), x.shape[1]))
    np.add.at(means, codes, x)
    means /= counts[:, None]
    rest = x - means[codes]
    if x.shape[1] > MAX_COVARIANCE_COLUMNS:
        variance = (rest**2).mean(0)
        whitening = 1.0 / np.sqrt((1 - SHRINKAGE) * variance + SHRINKAGE * _mean_variance(variance))
        return means * whitening, whitening
    covariance = rest.T @ rest / len(x)
    sphere = _mean_variance(np.diag(covariance)) * np.eye(x.shape[1])
    values, vectors = np.linalg.eigh((1 - SHRINKAGE) * covariance + SHRINKAGE * sphere)
    whitening = vectors / np.sqrt(np.maximum(values, np.finfo(np.float64).tiny))
    return means @ whitening, whitening


def _mean_variance(variances: FloatArray) -> float:
    """The mean of the variances, 1 if all are 0."""
    return float(variances.mean()) or 1.0


def _squared_distances(x: FloatArray, means: FloatArray, whitening: FloatArray) -> FloatArray:
    found = np.empty(len(x))
    step = max(1, _CHUNK_VALUES // max(1, x.shape[1], len(means)))
    lengths = (means**2).sum(1)
    for start in range(0, len(x), step):
        chunk = x[start : start + step]
        z = chunk * whitening if whitening.ndim == 1 else chunk @ whitening
        squared = (z**2).sum(1, keepdims=True) - 2.0 * (z @ means.T) + lengths
        found[start : start + step] = squared.min(1)
    return np.maximum(found, 0.0)
