"""Coverage of the 95 % intervals of verification, on populations with known true values.

A population has 100,000 identities. Each is a centre in 32 dimensions with its own spread; an image is the centre
plus noise of that spread. `families` has 5,000 groups of similar identities and unequal spreads, `uneven` has centres
along few axes and even more unequal spreads, `even` has neither. The true AUC, EER and TAR are computed from ten
million same and as many different pairs; their standard errors are in the record.

A trial draws identities and five to ten images of each, and computes `verification_metrics_of_embeddings` of all their
pairs. Some of the trials also compute two other intervals from the same pairs: percentiles of a bootstrap over
identities, in which a pair of two identities is weighted by the product of their counts, and percentiles of a bootstrap
over 6,000 pairs of each kind, treated as independent.

The record is printed as a table by `python -m benchmarks coverage`, and as Markdown by `scripts/coverage.py`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from widemargin.io import bounded
from widemargin.io.errors import InputError, unknown_name_error
from widemargin.metrics import pair_counts
from widemargin.metrics.roc import (
    auc,
    auc_per_curve,
    binned_roc,
    eer,
    eer_per_curve,
    far_and_tar,
    interpolate_tar,
    tar_at,
)
from widemargin.metrics.verification import VerificationMetrics, verification_metrics_of_embeddings

Floats = NDArray[np.float64]
Float32Array = NDArray[np.float32]
ProgressCallback = Callable[[float], None]

FAR = 0.01
METRIC_NAMES = ("auc", "eer", "tar")
JACKKNIFE, IDENTITY_BOOTSTRAP, PAIR_BOOTSTRAP = (
    "leaving out identities",
    "bootstrap over identities",
    "pairs as independent",
)
MIN_COVERAGE_PERCENT, MAX_COVERAGE_PERCENT = 93.0, 97.5
"""Target range of the coverage in percent."""
NUM_IDENTITIES = 100_000
POPULATION_DIM = 32
_TRUTH_PAIRS = 10_000_000
_BOOTSTRAP_DRAWS = 200
_IMAGES_PER_IDENTITY = (5, 10)
_PAIRS_PER_KIND = 6000


@dataclass(frozen=True, eq=False)
class Population:
    """Identities as centres [N, D] and spreads [N]."""

    centres: Float32Array
    spreads: Float32Array

    def draw_images(self, identity: NDArray[np.int64], rng: np.random.Generator) -> Float32Array:
        """Draw an image of each given identity, as a unit vector."""
        noise = rng.standard_normal((len(identity), POPULATION_DIM), dtype=np.float32)
        x = self.centres[identity] + self.spreads[identity][:, None] * noise
        images: Float32Array = x / np.linalg.norm(x, axis=1, keepdims=True)
        return images


def _families_population(rng: np.random.Generator) -> Population:
    family = rng.standard_normal((5000, POPULATION_DIM))[rng.integers(5000, size=NUM_IDENTITIES)]
    centres = 0.8 * family + 0.6 * rng.standard_normal((NUM_IDENTITIES, POPULATION_DIM))
    return _population(centres, 0.75 * np.exp(0.35 * rng.standard_normal(NUM_IDENTITIES)))


def _uneven_population(rng: np.random.Generator) -> Population:
    axes = np.linspace(2.0, 0.3, POPULATION_DIM)
    axes /= np.sqrt((axes**2).mean())
    centres = 0.4 + axes * rng.standard_normal((NUM_IDENTITIES, POPULATION_DIM))
    return _population(centres, 0.7 * np.exp(0.4 * rng.standard_normal(NUM_IDENTITIES)))


def _even_population(rng: np.random.Generator) -> Population:
    return _population(rng.standard_normal((NUM_IDENTITIES, POPULATION_DIM)), np.ones(NUM_IDENTITIES))


def _population(centres: Floats, spreads: Floats) -> Population:
    return Population(centres.astype(np.float32), spreads.astype(np.float32))


POPULATIONS: dict[str, Callable[[np.random.Generator], Population]] = {
    "families": _families_population,
    "uneven": _uneven_population,
    "even": _even_population,
}


@dataclass(frozen=True)
class Truth:
    """True values of a population, and their standard errors."""

    auc: float
    eer: float
    tar: float
    errors: dict[str, float]


def estimate_truth(population: Population, pairs: int, seed: int) -> Truth:
    """Estimate AUC, EER and TAR of a population from independent pairs of images, with scores in bins of 1.9e-6."""
    draw = np.random.default_rng([seed, 1])
    counts = np.zeros((2, pair_counts.NUM_BINS), dtype=np.int64)
    left = pairs
    while left > 0:
        size = min(left, 500_000)
        one = draw.integers(NUM_IDENTITIES, size=size)
        other = (one + draw.integers(1, NUM_IDENTITIES, size=size)) % NUM_IDENTITIES
        x = population.draw_images(one, draw)
        for kind, identity in enumerate((one, other)):
            scores = (x * population.draw_images(identity, draw)).sum(1)
            counts[kind] += np.bincount(pair_counts.bin_indices(scores), minlength=pair_counts.NUM_BINS)
        left -= size
    roc = binned_roc(counts[0], counts[1], pair_counts.bin_edges())
    estimates = {"auc": auc(roc), "eer": eer(roc), "tar": tar_at(roc, FAR)}
    return Truth(**estimates, errors=_standard_errors(roc.far, roc.tar, estimates, pairs))


def _standard_errors(far: Floats, tar: Floats, estimates: dict[str, float], pairs: int) -> dict[str, float]:
    """Standard errors: of AUC by DeLong, of the others by the slope of the curve at their point."""
    above, below = (tar[1:] + tar[:-1]) / 2, 1.0 - (far[1:] + far[:-1]) / 2  # placement values of the scores
    spread = sum(
        float((weight * (worth - estimates["auc"]) ** 2).sum())
        for weight, worth in ((np.diff(far), above), (np.diff(tar), below))
    )

    def slope(at: float) -> float:
        ends = at / 1.2, min(1.2 * at, 1.0)
        return float((np.interp(ends[1], far, tar) - np.interp(ends[0], far, tar)) / (ends[1] - ends[0]))

    e, t = estimates["eer"], estimates["tar"]
    steep, at_far = slope(e), slope(FAR)
    return {
        "auc": float(np.sqrt(spread / pairs)),
        "eer": float(np.sqrt((1 + steep**2) * e * (1 - e) / pairs) / (1 + steep)),
        "tar": float(np.sqrt((t * (1 - t) + at_far**2 * FAR * (1 - FAR)) / pairs)),
    }


@dataclass(frozen=True)
class Cell:
    """Trials of one population with a number of identities, by construction of the interval."""

    population: str
    identities: int
    construction: str
    trials: int
    coverage_percent: dict[str, float | None]
    """Percent of the intervals that contain the true value, by metric; None without intervals."""
    refused: dict[str, int]
    """Trials without an interval."""
    width: dict[str, float | None]
    """Median width."""


def run_trials(
    name: str,
    population: Population,
    truth: Truth,
    identities: int,
    trials: int,
    bootstrap_trials: int,
    seed: int,
    on_progress: ProgressCallback,
) -> list[Cell]:
    """Run all trials of a size; the first `bootstrap_trials` of them also with the other constructions."""
    ends: dict[str, list[dict[str, tuple[float, float] | None]]] = {}
    for trial in range(trials):
        draw = np.random.default_rng([seed, list(POPULATIONS).index(name), identities, trial])
        chosen = draw.choice(NUM_IDENTITIES, identities, replace=False)
        y = np.repeat(
            np.arange(identities), draw.integers(_IMAGES_PER_IDENTITY[0], _IMAGES_PER_IDENTITY[1] + 1, size=identities)
        )
        x = population.draw_images(chosen[y], draw)
        metrics = verification_metrics_of_embeddings(torch.from_numpy(x), torch.from_numpy(y), fars=(FAR,))
        ends.setdefault(JACKKNIFE, []).append(_reported_intervals(metrics))
        if trial < bootstrap_trials:
            pairs = pair_counts.all_pairs(x, y)
            ends.setdefault(IDENTITY_BOOTSTRAP, []).append(_bootstrap_identities(pairs, identities, metrics, draw))
            ends.setdefault(PAIR_BOOTSTRAP, []).append(_bootstrap_pairs(pairs, metrics, draw))
        on_progress(1.0)
    return [_make_cell(name, identities, kind, rows, truth) for kind, rows in ends.items()]


def _reported_intervals(verification: VerificationMetrics) -> dict[str, tuple[float, float] | None]:
    """Return the printed intervals."""
    figures = {"auc": verification.auc, "eer": verification.eer, "tar": verification.tar[FAR]}
    return {
        name: None if one is None or one.low is None or one.high is None else (one.low, one.high)
        for name, one in figures.items()
    }


def _make_cell(
    name: str, identities: int, kind: str, rows: Sequence[dict[str, tuple[float, float] | None]], truth: Truth
) -> Cell:
    coverage_percent: dict[str, float | None] = dict.fromkeys(METRIC_NAMES)
    width: dict[str, float | None] = dict.fromkeys(METRIC_NAMES)
    refused = {}
    for figure in METRIC_NAMES:
        intervals = [ends for row in rows if (ends := row[figure]) is not None]
        right = [low <= getattr(truth, figure) <= high for low, high in intervals]
        refused[figure] = len(rows) - len(intervals)
        if intervals:
            coverage_percent[figure] = 100.0 * float(np.mean(right))
            width[figure] = float(np.median([high - low for low, high in intervals]))
    return Cell(name, identities, kind, len(rows), coverage_percent, refused, width)


def _choose_thresholds(verification: VerificationMetrics) -> Floats:
    """Return some hundred scores, descending, dense where few different pairs score as high."""
    far = np.geomspace(verification.roc.far[verification.roc.far > 0][0], 1.0, 150)
    places = np.concatenate(
        (np.searchsorted(verification.roc.far, far), np.searchsorted(verification.roc.tar, np.linspace(0.01, 1, 100)))
    )
    cuts: Floats = verification.roc.thresholds[np.unique(np.clip(places, 1, len(verification.roc.far) - 1))]
    return cuts


def _percentiles(same: Floats, different: Floats) -> dict[str, tuple[float, float] | None]:
    """95 % percentile intervals of AUC, EER and TAR over bootstrap draws, given as counts by bin [draws, bins]."""
    far, tar = far_and_tar(np.cumsum(different, -1), np.cumsum(same, -1))
    values = {"auc": auc_per_curve(far, tar), "eer": eer_per_curve(far, tar), "tar": interpolate_tar(far, tar, FAR)}
    return {name: tuple(np.quantile(part, (0.025, 0.975)).tolist()) for name, part in values.items()}


def _bootstrap_identities(
    pairs: pair_counts.ScoredPairs, identities: int, verification: VerificationMetrics, rng: np.random.Generator
) -> dict[str, tuple[float, float] | None]:
    """Identities drawn with replacement: a pair is weighted by the count of its identity, or the product of both."""
    cuts = _choose_thresholds(verification)
    bins = len(cuts) + 1
    place = len(cuts) - np.searchsorted(cuts[::-1], pairs.scores, side="right")
    alike = pairs.same
    drawn = rng.multinomial(identities, np.full(identities, 1 / identities), size=_BOOTSTRAP_DRAWS).astype(np.float32)
    where = pairs.first[alike] * bins + place[alike]
    same = np.bincount(where, minlength=identities * bins).reshape(identities, bins).astype(np.float32)
    where = (pairs.first[~alike] * identities + pairs.second[~alike]) * bins + place[~alike]
    counts = np.bincount(where, minlength=identities**2 * bins).astype(np.float32).reshape(identities, -1)
    different = np.empty((_BOOTSTRAP_DRAWS, bins))
    for k, weight in enumerate(drawn):
        different[k] = weight @ (weight @ counts).reshape(identities, bins)
    return _percentiles((drawn @ same).astype(np.float64), different)


def _bootstrap_pairs(
    pairs: pair_counts.ScoredPairs, verification: VerificationMetrics, rng: np.random.Generator
) -> dict[str, tuple[float, float] | None]:
    """Pairs drawn with replacement, and resampled from those, as if they were independent."""
    cuts = _choose_thresholds(verification)
    samples = []
    for kind in (pairs.same, ~pairs.same):
        scores = rng.choice(pairs.scores[kind], _PAIRS_PER_KIND)
        place = len(cuts) - np.searchsorted(cuts[::-1], scores, side="right")
        share = np.bincount(place, minlength=len(cuts) + 1) / _PAIRS_PER_KIND
        samples.append(rng.multinomial(_PAIRS_PER_KIND, share, size=_BOOTSTRAP_DRAWS).astype(np.float64))
    return _percentiles(samples[0], samples[1])


@dataclass(frozen=True)
class CoverageSettings:
    """Settings of a measurement; a record is only continued with the same settings."""

    trials: int = 1000
    identities: tuple[int, ...] = (20, 50, 200)
    populations: tuple[str, ...] = tuple(POPULATIONS)
    bootstrap_trials: int = 200
    truth_pairs: int = _TRUTH_PAIRS
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("trials", 1), ("bootstrap_trials", 0), ("truth_pairs", 1000), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"--{name.replace('_', '-')} must be at least {least}, got {getattr(self, name)}")
        for count in self.identities:
            if not 10 <= count <= NUM_IDENTITIES:
                raise InputError(f"--identities must be from 10 to {NUM_IDENTITIES:,}, got {count}")
        for name in self.populations:
            if name not in POPULATIONS:
                raise unknown_name_error("population", name, POPULATIONS)


def measure_coverage(settings: CoverageSettings, path: Path | None, on_progress: ProgressCallback) -> dict[str, Any]:
    """Return the record; with a path it is written after every population and size, and existing results are kept."""
    record = _load_or_start_record(settings, path)
    for name in settings.populations:
        todo = [count for count in settings.identities if not _has_cell(record, name, count)]
        on_progress(settings.trials * (len(settings.identities) - len(todo)))
        if not todo:
            continue
        population = POPULATIONS[name](np.random.default_rng([settings.seed, 0]))
        truth = estimate_truth(population, settings.truth_pairs, settings.seed)
        record["truth"][name] = asdict(truth)
        for count in todo:
            cells = run_trials(
                name, population, truth, count, settings.trials, settings.bootstrap_trials, settings.seed, on_progress
            )
            record["cells"] += [asdict(cell) for cell in cells]
            if path is not None:
                path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record


def _load_or_start_record(settings: CoverageSettings, path: Path | None) -> dict[str, Any]:
    from widemargin.io.provenance import versions

    settings_json = json.loads(json.dumps(asdict(settings)))
    fresh = {"settings": settings_json, "far": FAR, "versions": versions(), "truth": {}, "cells": []}
    if path is None or not path.is_file():
        return fresh
    try:
        there: dict[str, Any] = bounded.read_json(path)
        same = there["settings"] == settings_json and {"truth", "cells"} <= there.keys()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        same = False
    return there if same else fresh


def _has_cell(record: dict[str, Any], name: str, identities: int) -> bool:
    return any(cell["population"] == name and cell["identities"] == identities for cell in record["cells"])


_TITLES = {"auc": "AUC", "eer": "EER", "tar": "TAR at FAR 0.01"}


def print_coverage(settings: CoverageSettings, json_path: str | None) -> None:
    """Measure missing results and print all."""
    from rich.table import Table

    from widemargin.io.progress import progress_bar
    from widemargin.viz.terminal import check_writable, console

    if json_path:
        check_writable(json_path)
    total = settings.trials * len(settings.identities) * len(settings.populations)
    with progress_bar("trials", total) as on_progress:
        record = measure_coverage(settings, Path(json_path) if json_path else None, on_progress)
    grid = Table(title="Coverage of 95 % intervals in percent", title_justify="left", title_style="bold")
    head, *lines = coverage_rows(record)
    for name in head:
        grid.add_column(name, justify="left" if name in head[:3] else "right")
    for line in lines:
        grid.add_row(*line)
    console(width=160).print(grid)
    print(f"target for {JACKKNIFE}: {MIN_COVERAGE_PERCENT:g} to {MAX_COVERAGE_PERCENT:g}; {verdict(record)}")


def verdict(record: Mapping[str, Any]) -> str:
    """State where the coverage of our intervals lies outside the target range."""
    outside = []
    for cell in record["cells"]:
        if cell["construction"] == JACKKNIFE:
            for name in METRIC_NAMES:
                percent = cell["coverage_percent"][name]
                if percent is not None and not MIN_COVERAGE_PERCENT <= percent <= MAX_COVERAGE_PERCENT:
                    where = f"{cell['identities']} identities ({cell['population']})"
                    outside.append(f"{_TITLES[name]} of {where} {percent:.1f}")
    return "all are inside" if not outside else "outside: " + ", ".join(outside)


def coverage_rows(record: Mapping[str, Any]) -> list[list[str]]:
    """Return the header, then a row for every population, number of identities and construction."""
    rows = [["population", "identities", "intervals", "trials", *_TITLES.values(), "median widths"]]
    for cell in record["cells"]:
        values = []
        for name in METRIC_NAMES:
            refused = cell["refused"][name]
            values.append(
                _format_number(cell["coverage_percent"][name], 1) + (f" ({refused} no interval)" if refused else "")
            )
        widths = ", ".join(_format_number(cell["width"][name], 3) for name in METRIC_NAMES)
        about = [cell["population"], str(cell["identities"]), cell["construction"], f"{cell['trials']:,}"]
        rows.append([*about, *values, widths])
    return rows


def _format_number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def markdown(record: Mapping[str, Any]) -> str:
    """The table for the docs."""
    head, *lines = coverage_rows(record)
    head_lines: Sequence[str] = ["| " + " | ".join(head) + " |", "|---|---:|---|---:|---:|---:|---:|---:|"]
    summary = f"Target for {JACKKNIFE}: {MIN_COVERAGE_PERCENT:g} to {MAX_COVERAGE_PERCENT:g} %; {verdict(record)}."
    truths = []
    for name, truth in record["truth"].items():
        values = ", ".join(
            f"{_TITLES[k]} {100 * truth[k]:.2f} ± {100 * truth['errors'][k]:.3f} %" for k in METRIC_NAMES
        )
        truths.append(f"- {name}: {values}")
    return "\n".join(
        [*head_lines, *("| " + " | ".join(line) + " |" for line in lines), "", summary, "", "True values:", "", *truths]
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--trials", type=int, default=1000, metavar="N", help="trials of each size (default 1,000)")
    parser.add_argument(
        "--identities", type=int, nargs="+", default=[20, 50, 200], metavar="N", help="sizes (default 20 50 200)"
    )
    parser.add_argument(
        "--populations", nargs="+", metavar="NAME", help="of families, uneven and even (default: all three)"
    )
    parser.add_argument(
        "--bootstrap-trials",
        type=int,
        default=200,
        metavar="N",
        help="trials that also compute the two bootstraps (default 200)",
    )
    parser.add_argument(
        "--truth-pairs", type=int, default=10_000_000, metavar="N", help="pairs for true values (default 10,000,000)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--json", metavar="FILE", help="write the results to a file, and continue from an existing one")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    settings = CoverageSettings(
        trials=options.trials,
        identities=tuple(options.identities),
        populations=tuple(options.populations or POPULATIONS),
        bootstrap_trials=options.bootstrap_trials,
        truth_pairs=options.truth_pairs,
        seed=options.seed,
    )
    print_coverage(settings, options.json)
