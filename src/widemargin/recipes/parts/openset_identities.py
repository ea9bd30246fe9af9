"""What is kept of a run for intervals over identities, and which lines of a table these tell apart.

A figure of a line is its mean over splits. Two things make it uncertain: the identities that happened to be judged on,
and how a network happened to be trained. The first is the spread of the mean without each identity in turn, which
leaves every split where it was judged: splits overlap, so their identities are counted once. The second is the spread
over the splits, which holds some of the first as well; both are added, so that intervals are wide rather than narrow.

Three splits say little of their spread, and one of many pairs of lines has a small one by luck. So a pair has at least
the spread over splits that pairs have in the middle: their median, less that of χ² over its degrees of freedom.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ... import plain_json
from ...errors import InputError
from ...metrics.identity_intervals import (
    MIN_IDENTITIES,
    VarianceEstimate,
    difference_p_value,
    jackknife_variance,
    logit,
    logit_interval,
    sum_variances,
)
from ...stats import holm
from ...training.unseen import EVALUATION_VERSION, EmbeddingMetrics
from ...training.writing import write_text_atomic

IDENTITIES_FILE = "identities.json"
ALPHA = 0.05
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SplitScore:
    """A figure of one run, in percent, and the same without each of its identities."""

    value: float
    leave_one_out: Mapping[str, float]


@dataclass(frozen=True)
class MethodComparison:
    """Two lines: their difference with its 95 % interval, and the p-value after Holm's correction over all pairs."""

    method_a: str
    method_b: str
    difference: float
    half_width: float
    p: float

    @property
    def is_significant(self) -> bool:
        return self.p <= ALPHA


def save_evaluation(folder: Path, evaluation: EmbeddingMetrics, identity_names: Sequence[str]) -> None:
    """Write a judgement beside the run's record, and the record's figures anew."""
    path = folder / "record.json"
    record = plain_json.read_json(path)
    figures = {name: value for name, value in evaluation.values.items() if name != "angles"}
    angles = {**record.get("angles", {}), **evaluation.values.get("angles", {})}
    record |= {"test": figures, "angles": angles, "intervals": evaluation.intervals, "evaluation": EVALUATION_VERSION}
    without = {
        name: values.tolist() for name, values in evaluation.leave_one_out.items() if len(values) == len(identity_names)
    }
    facts = {"evaluation": EVALUATION_VERSION, "identities": list(identity_names), "without": without}
    write_text_atomic(folder / IDENTITIES_FILE, json.dumps(facts, ensure_ascii=False))
    write_text_atomic(path, json.dumps(record, indent=1))


def is_current(folder: Path) -> bool:
    """Whether a finished run's figures and identities are of this version."""
    try:
        return all(
            plain_json.read_json(folder / name).get("evaluation") == EVALUATION_VERSION
            for name in ("record.json", IDENTITIES_FILE)
        )
    except (OSError, ValueError, AttributeError):
        return False


def read_split_score(folder: Path, metric: str, value: float | None) -> SplitScore | None:
    """A figure of a run; None where it is refused or not known without each identity."""
    try:
        facts = plain_json.read_json(folder / IDENTITIES_FILE)
        values = facts["without"].get(metric)
        if value is None or values is None:
            return None
        return SplitScore(value, dict(zip(facts["identities"], map(float, values), strict=True)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(
            f"{folder / IDENTITIES_FILE}: not what a recipe writes; delete it to have the run judged again"
        ) from None


def _leave_one_out_means(splits: Sequence[SplitScore]) -> Floats:
    """The mean over splits without each identity that any of them has."""
    names = sorted({name for split in splits for name in split.leave_one_out})
    table = [[split.leave_one_out.get(name, split.value) for name in names] for split in splits]
    found: Floats = np.array(table).mean(0)
    return found


def pooled_interval(splits: Sequence[SplitScore]) -> tuple[float, float] | None:
    """95 % interval of the mean over splits, in percent; None for too few identities."""
    means = _leave_one_out_means(splits) / 100.0
    if len(means) < MIN_IDENTITIES:
        return None
    shares = [split.value / 100.0 for split in splits]
    parts = [jackknife_variance(logit(means)), *_split_spread(logit(shares))]
    ends = logit_interval(float(np.mean(shares)), sum_variances(parts))
    return None if ends is None else (100.0 * ends[0], 100.0 * ends[1])


def _split_spread(values: Floats) -> list[VarianceEstimate]:
    """The spread of a mean of values, of two or more."""
    count = len(values)
    return [VarianceEstimate(float(values.var(ddof=1)) / count, count - 1.0)] if count > 1 else []


def compare_methods(scores_by_method: Mapping[str, Mapping[int, SplitScore]]) -> list[MethodComparison]:
    """Every two lines on the splits that both have, by seed; none where fewer than two splits are shared."""
    from scipy.special import stdtrit

    gaps: dict[tuple[str, str], Floats] = {}
    of_identities: dict[tuple[str, str], VarianceEstimate] = {}
    for one, other in combinations(scores_by_method, 2):
        seeds = [seed for seed in scores_by_method[one] if seed in scores_by_method[other]]
        ours, theirs = ([scores_by_method[name][seed] for seed in seeds] for name in (one, other))
        if any(a.leave_one_out.keys() != b.leave_one_out.keys() for a, b in zip(ours, theirs, strict=True)):
            raise InputError(f"{one} and {other} were judged on other identities; delete the older of their runs")
        without = _leave_one_out_means(ours) - _leave_one_out_means(theirs) if len(seeds) > 1 else np.empty(0)
        if len(without) >= MIN_IDENTITIES:
            gaps[one, other] = np.array([a.value - b.value for a, b in zip(ours, theirs, strict=True)])
            of_identities[one, other] = jackknife_variance(without)
    if not gaps:
        return []
    found = []
    for pair, of_splits in zip(gaps, _apply_median_floor(list(gaps.values()), len(scores_by_method)), strict=True):
        total, difference = sum_variances([of_identities[pair], of_splits]), float(gaps[pair].mean())
        reach = float(stdtrit(total.degrees_of_freedom, 1 - ALPHA / 2)) * float(np.sqrt(total.variance))
        found.append(MethodComparison(*pair, difference, reach, difference_p_value(difference, total)))
    adjusted = holm([each.p for each in found])
    return [replace(each, p=float(p)) for each, p in zip(found, adjusted, strict=True)]


def _apply_median_floor(differences: Sequence[Floats], num_methods: int) -> list[VarianceEstimate]:
    """Spread of each mean of differences over splits: its own, or that of pairs in the middle if that is larger."""
    from scipy.special import gammaincinv

    own = [_split_spread(each)[0] for each in differences]
    # Per split, over the median of χ² / its degrees of freedom: a single pair's variance has that one.
    per_split = [
        each.variance
        * len(values)
        * each.degrees_of_freedom
        / (2 * float(gammaincinv(each.degrees_of_freedom / 2, 0.5)))
        for each, values in zip(own, differences, strict=True)
    ]
    usual = float(np.median(per_split))
    found = []
    for each, values in zip(own, differences, strict=True):
        pooled = VarianceEstimate(
            usual / len(values), max((num_methods - 1) * each.degrees_of_freedom / 2, each.degrees_of_freedom)
        )
        found.append(each if each.variance > pooled.variance else pooled)
    return found
