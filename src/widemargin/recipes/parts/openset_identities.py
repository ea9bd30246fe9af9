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
    LEAST_IDENTITIES,
    Spread,
    difference_p,
    logit,
    logit_interval,
    spread,
    summed,
)
from ...stats import holm
from ...training.unseen import EVALUATION, Judgement
from ...training.writing import write_whole

FILE = "identities.json"
ALPHA = 0.05
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Split:
    """A figure of one run, in percent, and the same without each of its identities."""

    value: float
    without: Mapping[str, float]


@dataclass(frozen=True)
class Compared:
    """Two lines: their difference with its 95 % interval, and the p-value after Holm's correction over all pairs."""

    one: str
    other: str
    difference: float
    reach: float
    p: float

    @property
    def apart(self) -> bool:
        return self.p <= ALPHA


def keep(folder: Path, found: Judgement, names: Sequence[str]) -> None:
    """Write a judgement beside the run's record, and the record's figures anew."""
    path = folder / "record.json"
    record = plain_json.read(path)
    figures = {name: value for name, value in found.figures.items() if name != "angles"}
    angles = {**record.get("angles", {}), **found.figures.get("angles", {})}
    record |= {"test": figures, "angles": angles, "intervals": found.intervals, "evaluation": EVALUATION}
    without = {name: values.tolist() for name, values in found.without.items() if len(values) == len(names)}
    facts = {"evaluation": EVALUATION, "identities": list(names), "without": without}
    write_whole(folder / FILE, json.dumps(facts, ensure_ascii=False))
    write_whole(path, json.dumps(record, indent=1))


def is_current(folder: Path) -> bool:
    """Whether a finished run's figures and identities are of this version."""
    try:
        return all(plain_json.read(folder / name).get("evaluation") == EVALUATION for name in ("record.json", FILE))
    except (OSError, ValueError, AttributeError):
        return False


def split_of(folder: Path, figure: str, value: float | None) -> Split | None:
    """A figure of a run; None where it is refused or not known without each identity."""
    try:
        facts = plain_json.read(folder / FILE)
        values = facts["without"].get(figure)
        if value is None or values is None:
            return None
        return Split(value, dict(zip(facts["identities"], map(float, values), strict=True)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{folder / FILE}: not what a recipe writes; delete it to have the run judged again") from None


def _means(splits: Sequence[Split]) -> Floats:
    """The mean over splits without each identity that any of them has."""
    names = sorted({name for split in splits for name in split.without})
    table = [[split.without.get(name, split.value) for name in names] for split in splits]
    found: Floats = np.array(table).mean(0)
    return found


def pooled_interval(splits: Sequence[Split]) -> tuple[float, float] | None:
    """95 % interval of the mean over splits, in percent; None for too few identities."""
    means = _means(splits) / 100.0
    if len(means) < LEAST_IDENTITIES:
        return None
    shares = [split.value / 100.0 for split in splits]
    parts = [spread(logit(means)), *_over_splits(logit(shares))]
    ends = logit_interval(float(np.mean(shares)), summed(parts))
    return None if ends is None else (100.0 * ends[0], 100.0 * ends[1])


def _over_splits(values: Floats) -> list[Spread]:
    """The spread of a mean of values, of two or more."""
    count = len(values)
    return [Spread(float(values.var(ddof=1)) / count, count - 1.0)] if count > 1 else []


def compare_lines(lines: Mapping[str, Mapping[int, Split]]) -> list[Compared]:
    """Every two lines on the splits that both have, by seed; none where fewer than two splits are shared."""
    from scipy.special import stdtrit

    gaps: dict[tuple[str, str], Floats] = {}
    of_identities: dict[tuple[str, str], Spread] = {}
    for one, other in combinations(lines, 2):
        seeds = [seed for seed in lines[one] if seed in lines[other]]
        ours, theirs = ([lines[name][seed] for seed in seeds] for name in (one, other))
        if any(a.without.keys() != b.without.keys() for a, b in zip(ours, theirs, strict=True)):
            raise InputError(f"{one} and {other} were judged on other identities; delete the older of their runs")
        without = _means(ours) - _means(theirs) if len(seeds) > 1 else np.empty(0)
        if len(without) >= LEAST_IDENTITIES:
            gaps[one, other] = np.array([a.value - b.value for a, b in zip(ours, theirs, strict=True)])
            of_identities[one, other] = spread(without)
    if not gaps:
        return []
    found = []
    for pair, of_splits in zip(gaps, _at_least_the_usual(list(gaps.values()), len(lines)), strict=True):
        total, difference = summed([of_identities[pair], of_splits]), float(gaps[pair].mean())
        reach = float(stdtrit(total.freedom, 1 - ALPHA / 2)) * float(np.sqrt(total.variance))
        found.append(Compared(*pair, difference, reach, difference_p(difference, total)))
    adjusted = holm([each.p for each in found])
    return [replace(each, p=float(p)) for each, p in zip(found, adjusted, strict=True)]


def _at_least_the_usual(gaps: Sequence[Floats], lines: int) -> list[Spread]:
    """Spread of each mean of differences over splits: its own, or that of pairs in the middle if that is larger."""
    from scipy.special import gammaincinv

    own = [_over_splits(each)[0] for each in gaps]
    # Per split, over the median of χ² / its degrees of freedom: a single pair's variance has that one.
    per_split = [
        each.variance * len(values) * each.freedom / (2 * float(gammaincinv(each.freedom / 2, 0.5)))
        for each, values in zip(own, gaps, strict=True)
    ]
    usual = float(np.median(per_split))
    found = []
    for each, values in zip(own, gaps, strict=True):
        pooled = Spread(usual / len(values), max((lines - 1) * each.freedom / 2, each.freedom))
        found.append(each if each.variance > pooled.variance else pooled)
    return found
