"""A claim of a paper with what the records say about it, and the tests by which records of seeds are judged.

A verdict needs all planned runs, or at least those that the claim is about; until then the claim is `OPEN`, with what
was found so far and what is missing. A difference between two losses is judged by Welch's interval over their seeds.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...io import bounded
from ...io.errors import InputError
from ...viz.svg import Chart

HOLDS, CONDITIONS, FAILS = "holds", "holds under conditions", "does not hold"
OPEN, UNTESTED = "not decided yet", "not tested here"
STATUSES = (HOLDS, CONDITIONS, FAILS, OPEN, UNTESTED)
ALPHA = 0.05
_MAX_NAMED = 6  # missing runs of a group that are named


@dataclass(frozen=True)
class Claim:
    """A claim of a source, and what the records say about it."""

    name: str
    source: str
    claim: str
    command: str
    cost: str
    status: str = UNTESTED
    finding: str = ""
    chart: Chart | None = None
    record: str = ""


Judge = Callable[[Claim, Path], Claim]


def read_record_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a record of runs, without repeated runs."""
    found: dict[str, dict[str, Any]] = {}
    for number, text in enumerate(bounded.read_lines(path), 1):
        try:
            line = json.loads(text)
            float(next(iter(line["test"].values())))
            found[str(line.get("run") or (line["command"], line["seed"]))] = line
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError):
            raise InputError(f"{path}, line {number}: not the record of a run") from None
    return list(found.values())


class Lead(NamedTuple):
    """Mean of one list of values minus that of another, with Welch's interval."""

    difference: float
    low: float
    high: float
    """95 % interval."""
    p: float

    def describe(self, unit: str, how: str) -> str:
        """The difference with its interval, and how that was computed."""
        interval = f"95 % interval {self.low:+.2f} to {self.high:+.2f}"
        return f"{self.difference:+.2f}{unit and ' '}{unit} ({interval}, {how})"


def measure_lead(first: Sequence[float], second: Sequence[float]) -> Lead | None:
    """The lead of the first over the second; None if either has fewer than two values.

    >>> lead = measure_lead([90.0, 91.0, 92.0], [80.0, 81.0, 82.0])
    >>> lead.describe("points", "Welch"), lead.p < 0.01
    ('+10.00 points (95 % interval +7.73 to +12.27, Welch)', True)
    >>> measure_lead([90.0], [80.0, 81.0]) is None
    True
    """
    if min(len(first), len(second)) < 2:
        return None
    from scipy.stats import t

    difference = statistics.fmean(first) - statistics.fmean(second)
    parts = [statistics.variance(values) / len(values) for values in (first, second)]
    error = math.sqrt(sum(parts))
    if error == 0.0:
        return Lead(difference, difference, difference, float(difference == 0.0))
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)
    )
    half = float(t.ppf(1 - ALPHA / 2, freedom)) * error
    return Lead(difference, difference - half, difference + half, 2 * float(t.sf(abs(difference) / error, freedom)))


def judge_lead(lead: Lead | None, printed: float) -> str:
    """A verdict on a printed lead: `HOLDS` if there is one and the printed size may be true, `CONDITIONS` if there is
    one that is smaller, `FAILS` if the printed size is excluded and no lead is shown.

    >>> judge_lead(Lead(5.0, 3.0, 7.0, 0.01), 6.0), judge_lead(Lead(1.0, 0.5, 1.5, 0.01), 6.0)
    ('holds', 'holds under conditions')
    >>> judge_lead(Lead(0.1, -1.0, 1.2, 0.8), 6.0), judge_lead(Lead(0.1, -9.0, 9.2, 0.8), 6.0), judge_lead(None, 6.0)
    ('does not hold', 'not decided yet', 'not decided yet')
    """
    if lead is None:
        return OPEN
    if lead.low > 0:
        return HOLDS if lead.high >= printed else CONDITIONS
    return FAILS if lead.high < printed else OPEN


def describe_missing(planned: Mapping[str, Iterable[Hashable]], done: Mapping[str, Iterable[Hashable]]) -> str:
    """A sentence on how many of the planned runs are done and which are missing, empty if none are.

    >>> planned = {"rate 0.1": ["softmax", "arcgrad"], "rate 0.01": ["softmax", "arcgrad"], "rate 1": ["softmax"]}
    >>> describe_missing(planned, {"rate 0.1": ["softmax", "arcgrad"], "rate 0.01": ["softmax"]})
    'So far 3 of 5 runs; missing: arcgrad of rate 0.01, all of rate 1.'
    """
    wanted = {group: list(items) for group, items in planned.items()}
    there = {group: set(done.get(group, ())) for group in wanted}
    absent = {group: [item for item in items if item not in there[group]] for group, items in wanted.items()}
    total, gaps = sum(map(len, wanted.values())), sum(map(len, absent.values()))
    if not gaps:
        return ""
    parts = [
        (f"{len(items)} runs" if len(items) > _MAX_NAMED else ", ".join(map(str, items))) + f" of {group}"
        for group, items in absent.items()
        if 0 < len(items) < len(wanted[group])
    ]
    whole = [group for group, items in absent.items() if items and len(items) == len(wanted[group])]
    parts += [f"all of {', '.join(whole)}"] if whole else []
    if gaps == total:
        return f"None of {total} runs are there."
    return f"So far {total - gaps} of {total} runs; missing: {', '.join(parts)}."


def group_values(
    lines: Iterable[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], Any], value: Callable[[Any], float]
) -> dict[Any, list[float]]:
    """Values of the lines by key, in the order of the seeds."""
    found: dict[Any, list[float]] = {}
    for line in sorted(lines, key=lambda line: int(line["seed"])):
        found.setdefault(key(line), []).append(value(line))
    return found
