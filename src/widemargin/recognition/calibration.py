"""Calibration: cosine thresholds by false accept rate (FAR), fitted once on identities that training never saw.

A FAR is the fraction of pairs of different identities whose cosine reaches the threshold. Thresholds are fitted at
quarter decades of the FAR, down to the last one that at least ten pairs support, and interpolated in between on the
logarithm of the FAR. The interval of a FAR is over identities (`metrics.intervals`): it says how far the rate would
move with other people of the same kind.

A search compares one probe with many vectors. With `num_comparisons` n the threshold is that of the pair rate
1 − (1 − far)^(1/n), so that `far` is the rate at which a stranger is accepted as anybody. Comparisons of one probe are
positively correlated, hence the true rate is at most that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..io.bounded import read_json
from ..io.errors import InputError, format_value, spell_option
from ..metrics import pair_counts
from ..metrics.intervals import MIN_EVENTS, MIN_IDENTITIES, jackknife_interval
from ..numerics.angles import unit_and_norm
from ..numerics.validation import check_embeddings_and_labels

CALIBRATION_FILE = "calibration.json"
FORMAT_VERSION = 1
_POINTS_PER_DECADE = 4
_MAX_FAR = 10 ** (-2 / _POINTS_PER_DECADE)
_MAX_POINTS = 64


@dataclass(frozen=True)
class ThresholdPoint:
    """The threshold of one FAR, and the 95 % interval over identities of the FAR at this threshold."""

    far: float
    cosine: float
    far_low: float | None = None
    far_high: float | None = None


@dataclass(frozen=True)
class CalibratedThreshold:
    """A threshold that was looked up, with the interval of its FAR and where it comes from."""

    cosine: float
    far: float
    """False accept rate of one comparison."""
    far_low: float | None
    far_high: float | None
    why: str
    """Its origin in a few words."""


@dataclass(frozen=True)
class Calibration:
    """Thresholds by FAR, largest FAR first, and the data they were fitted on."""

    points: tuple[ThresholdPoint, ...]
    num_identities: int
    num_images: int
    num_different_pairs: int
    source: str = ""
    """What the identities are, in a few words: "40 unseen classes of orl_faces"."""

    @classmethod
    def fit(cls, x: Tensor, y: Tensor, source: str = "") -> Calibration:
        """Fit on embeddings [N, D] of identities [N], by the cosines of all pairs of different identities."""
        check_embeddings_and_labels("calibration", x, y)
        unit = unit_and_norm(x.detach().float())[0].cpu().numpy()
        labels = np.unique(y.cpu().numpy(), return_inverse=True)[1].astype(np.int64)
        num_identities, sizes = int(labels.max()) + 1, np.bincount(labels)
        if num_identities < MIN_IDENTITIES:
            raise InputError(
                f"calibration needs at least {MIN_IDENTITIES} identities that were not in training; there are "
                f"{num_identities}"
            )
        same = int((sizes * (sizes - 1) // 2).sum())
        different = len(labels) * (len(labels) - 1) // 2 - same
        accepts = [int(far * different + 1e-9) for far in reversed(_supported_fars(different))]
        if same + different <= pair_counts.MAX_IN_MEMORY_PAIRS:
            pairs = pair_counts.all_pairs(unit, labels)
            scores = np.sort(pairs.scores[~pairs.same])[::-1]
            # Just above the first score that must not pass, so that ties never make a rate larger.
            thresholds = np.unique(np.nextafter(scores[accepts], 2.0))[::-1]
            tables = pair_counts.tables_from_pairs(pairs, thresholds, None, num_identities)
        else:
            passing = np.cumsum(pair_counts.streamed_counts(unit, labels)[1])
            bins = np.unique(np.searchsorted(passing, accepts, side="right") - 1)
            thresholds = pair_counts.bin_edges()[bins[bins >= 0]]
            tables = pair_counts.streamed_tables(unit, labels, thresholds, None)
        accepted = np.cumsum(tables.all_different)[:-1]
        rest = tables.all_different - tables.different
        rest_far = np.cumsum(rest, -1)[:, :-1] / rest.sum(-1, keepdims=True)
        points = []
        for column, cosine in enumerate(thresholds):
            if accepted[column] < MIN_EVENTS:  # tied scores
                continue
            far = float(accepted[column] / different)
            low, high = jackknife_interval(far, rest_far[:, column]) or (None, None)
            points.append(ThresholdPoint(far, float(cosine), low, high))
        if not points:
            raise InputError(
                "calibration: nearly all cosines of different identities are equal; the model has collapsed"
            )
        return cls(tuple(reversed(points)), num_identities, len(labels), different, source)

    @property
    def min_far(self) -> float:
        """The smallest FAR that the pairs support."""
        return self.points[-1].far

    def smallest_far(self, num_comparisons: int = 1) -> float:
        """Smallest rate that the pairs support at which an unknown person is accepted in that many comparisons."""
        return -math.expm1(num_comparisons * math.log1p(-self.min_far))

    def threshold(self, far: float, num_comparisons: int = 1) -> CalibratedThreshold:
        """Threshold at which an unknown person is accepted at the rate `far` in `num_comparisons` comparisons.

        Raises an InputError if the calibration has too few pairs for that rate.
        """
        if not 0.0 < far < 1.0:
            raise InputError(f"{spell_option('target_far')} must be between 0 and 1, got {far:g}")
        pair_far = -math.expm1(math.log1p(-far) / num_comparisons)
        if pair_far < self.min_far * (1 - 1e-9):
            of_one = "" if num_comparisons == 1 else f" ({pair_far:.2g} for each of {num_comparisons:,} comparisons)"
            raise InputError(
                f"a false accept rate of {far:g}{of_one} is not supported: the calibration has "
                f"{self.num_different_pairs:,} pairs of {self.num_identities:,} identities, enough for "
                f"{self.smallest_far(num_comparisons):.2g}; calibrate on more identities, or give "
                f"{spell_option('threshold')}"
            )
        logs = np.log([point.far for point in reversed(self.points)])
        at = math.log(min(pair_far, self.points[0].far))
        cosine = float(np.interp(at, logs, [point.cosine for point in reversed(self.points)]))
        nearest = min(self.points, key=lambda point: abs(math.log(point.far) - at))
        ratio = pair_far / nearest.far
        low, high = (None if end is None else min(1.0, end * ratio) for end in (nearest.far_low, nearest.far_high))
        passing = "strangers" if num_comparisons > 1 else "different pairs"
        why = f"{100 * far:.3g} % of {passing} pass, calibrated on {self.num_identities:,} identities"
        return CalibratedThreshold(cosine, pair_far, low, high, why)

    def false_accept_rate(self, cosine: float, num_comparisons: int = 1) -> tuple[float, bool]:
        """Rate at which an unknown person passes a threshold, and True if it is exact, else it is a bound."""
        cosines = [point.cosine for point in self.points]
        logs = [math.log(point.far) for point in self.points]
        is_known = cosines[0] <= cosine <= cosines[-1]
        pair_far = math.exp(float(np.interp(cosine, cosines, logs)))
        return -math.expm1(num_comparisons * math.log1p(-min(pair_far, 1 - 1e-12))), is_known

    def to_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return {"kind": "calibration", "format": FORMAT_VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, raw: Any, where: str) -> Calibration:
        """From the contents of a JSON file, which is checked; `where` names it in errors."""
        try:
            if raw["format"] != FORMAT_VERSION:
                raise InputError(
                    f"{where}: calibration format {format_value(raw['format'])} is not supported by this version"
                )
            points = tuple(_parse_point(point) for point in raw["points"][: _MAX_POINTS + 1])
            counts = [raw[name] for name in ("num_identities", "num_images", "num_different_pairs")]
            source = raw["source"]
            if not 1 <= len(points) <= _MAX_POINTS or not all(type(count) is int and count > 0 for count in counts):
                raise ValueError("counts")
            if not isinstance(source, str) or not _is_monotone(points):
                raise ValueError("points")
        except InputError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{where}: not a calibration ({error}); delete it and calibrate again") from None
        num_identities, num_images, num_different_pairs = counts
        return cls(points, num_identities, num_images, num_different_pairs, source)

    def describe(self) -> list[str]:
        """Lines for people: the data, and the threshold of each FAR with its interval."""
        head = f"{self.num_identities:,} identities, {self.num_images:,} images, {self.num_different_pairs:,} pairs"
        lines = [f"calibrated on {head}" + (f" ({self.source})" if self.source else "")]
        for point in self.points:
            ends = ""
            if point.far_low is not None and point.far_high is not None:
                ends = f" (95 % interval {100 * point.far_low:.2g} to {100 * point.far_high:.2g} %)"
            lines.append(f"FAR {100 * point.far:.3g} %{ends}: cosine {point.cosine:.4f}")
        return lines


def read_calibration(folder: Path) -> Calibration | None:
    """The calibration stored in a folder; None if there is none."""
    path = folder / CALIBRATION_FILE
    try:
        return Calibration.from_dict(read_json(path), str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def _supported_fars(num_pairs: int) -> list[float]:
    """Quarter decades from 0.316 down to the last that ten pairs support, largest first."""
    count = int(_POINTS_PER_DECADE * math.log10(_MAX_FAR * num_pairs / MIN_EVENTS) + 1e-9) + 1
    if num_pairs * _MAX_FAR < MIN_EVENTS:
        raise InputError(f"calibration needs at least {round(MIN_EVENTS / _MAX_FAR)} pairs of different identities")
    return [10 ** (-(2 + k) / _POINTS_PER_DECADE) for k in range(min(count, _MAX_POINTS))]


def _parse_point(raw: Any) -> ThresholdPoint:
    values = [raw["far"], raw["cosine"], raw["far_low"], raw["far_high"]]
    for value in values:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError("a threshold is not a number")
    point = ThresholdPoint(*values)
    if not (0.0 < point.far < 1.0 and -1.001 <= point.cosine <= 1.001):
        raise ValueError("a rate or a cosine is out of range")
    return point


def _is_monotone(points: Sequence[ThresholdPoint]) -> bool:
    """True if rates fall and thresholds rise from point to point."""
    return all(a.far > b.far and a.cosine <= b.cosine for a, b in pairwise(points))
