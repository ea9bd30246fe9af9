"""How often 95 % intervals of verification hold the truth: identities drawn from populations whose truth is known.

A population has 100,000 identities. Each is a centre in 32 dimensions with a spread of its own; an image is the centre
plus noise of that spread. `families` has 5,000 families of look-alikes and uneven spreads, `uneven` has centres that
crowd along few axes and spreads still more uneven, `even` has neither. The truth of AUC, EER and TAR is read off ten
million same and as many different pairs; its standard errors are in the record.

A trial draws identities and five to ten images of each, and has `verify_embeddings` judge all their pairs. In some of
the trials two other intervals are computed from the same pairs: percentiles of a bootstrap over identities, in which a
pair of two identities weighs the product of how often both were drawn, and percentiles of a bootstrap over 6,000 pairs
of each kind as if these were independent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import plain_json
from ..errors import InputError, unknown
from ..metrics import pair_tables
from ..metrics.roc import areas, auc, binned_roc, eer, equal_errors, shares, tar_at, tars_between
from ..metrics.verification import Verification, verify_embeddings

Floats = NDArray[np.float64]
Single = NDArray[np.float32]

FAR = 0.01
FIGURES = ("auc", "eer", "tar")
OURS, OVER_IDENTITIES, OVER_PAIRS = "leaving out identities", "bootstrap over identities", "pairs as independent"
LOW, HIGH = 93.0, 97.5
"""The share of intervals in percent that shall hold the truth."""
IDENTITIES = 100_000
DIM = 32
_TRUTH_PAIRS = 10_000_000
_DRAWS = 200
_IMAGES = (5, 10)
_OF_EACH = 6000


@dataclass(frozen=True, eq=False)
class Population:
    """Identities as centres [N, D] and spreads [N]."""

    centres: Single
    spreads: Single

    def images(self, identity: NDArray[np.int64], draw: np.random.Generator) -> Single:
        """An image of each identity that is named, as a unit vector."""
        noise = draw.standard_normal((len(identity), DIM), dtype=np.float32)
        x = self.centres[identity] + self.spreads[identity][:, None] * noise
        found: Single = x / np.linalg.norm(x, axis=1, keepdims=True)
        return found


def _families(draw: np.random.Generator) -> Population:
    family = draw.standard_normal((5000, DIM))[draw.integers(5000, size=IDENTITIES)]
    centres = 0.8 * family + 0.6 * draw.standard_normal((IDENTITIES, DIM))
    return _population(centres, 0.75 * np.exp(0.35 * draw.standard_normal(IDENTITIES)))


def _uneven(draw: np.random.Generator) -> Population:
    axes = np.linspace(2.0, 0.3, DIM)
    axes /= np.sqrt((axes**2).mean())
    centres = 0.4 + axes * draw.standard_normal((IDENTITIES, DIM))
    return _population(centres, 0.7 * np.exp(0.4 * draw.standard_normal(IDENTITIES)))


def _even(draw: np.random.Generator) -> Population:
    return _population(draw.standard_normal((IDENTITIES, DIM)), np.ones(IDENTITIES))


def _population(centres: Floats, spreads: Floats) -> Population:
    return Population(centres.astype(np.float32), spreads.astype(np.float32))


POPULATIONS: dict[str, Callable[[np.random.Generator], Population]] = {
    "families": _families,
    "uneven": _uneven,
    "even": _even,
}


@dataclass(frozen=True)
class Truth:
    """The figures of a population, and the standard errors of reading them off so many pairs."""

    auc: float
    eer: float
    tar: float
    errors: dict[str, float]


def truth_of(population: Population, pairs: int, seed: int) -> Truth:
    """From independent pairs of identities drawn anew, counted in bins of 1.9e-6."""
    draw = np.random.default_rng([seed, 1])
    counts = np.zeros((2, pair_tables.BINS), dtype=np.int64)
    left = pairs
    while left > 0:
        size = min(left, 500_000)
        one = draw.integers(IDENTITIES, size=size)
        other = (one + draw.integers(1, IDENTITIES, size=size)) % IDENTITIES
        x = population.images(one, draw)
        for kind, identity in enumerate((one, other)):
            scores = (x * population.images(identity, draw)).sum(1)
            counts[kind] += np.bincount(pair_tables.bin_of(scores), minlength=pair_tables.BINS)
        left -= size
    roc = binned_roc(counts[0], counts[1], pair_tables.bin_edges())
    found = {"auc": auc(roc), "eer": eer(roc), "tar": tar_at(roc, FAR)}
    return Truth(**found, errors=_errors(roc.far, roc.tar, found, pairs))


def _errors(far: Floats, tar: Floats, found: dict[str, float], pairs: int) -> dict[str, float]:
    """Standard errors: of AUC after DeLong, of the others by the slope of the curve at their point."""
    above, below = (tar[1:] + tar[:-1]) / 2, 1.0 - (far[1:] + far[:-1]) / 2  # what each score is worth
    spread = sum(
        float((weight * (worth - found["auc"]) ** 2).sum())
        for weight, worth in ((np.diff(far), above), (np.diff(tar), below))
    )

    def slope(at: float) -> float:
        ends = at / 1.2, min(1.2 * at, 1.0)
        return float((np.interp(ends[1], far, tar) - np.interp(ends[0], far, tar)) / (ends[1] - ends[0]))

    e, t = found["eer"], found["tar"]
    steep, at_far = slope(e), slope(FAR)
    return {
        "auc": float(np.sqrt(spread / pairs)),
        "eer": float(np.sqrt((1 + steep**2) * e * (1 - e) / pairs) / (1 + steep)),
        "tar": float(np.sqrt((t * (1 - t) + at_far**2 * FAR * (1 - FAR)) / pairs)),
    }


@dataclass(frozen=True)
class Cell:
    """Trials of one population with so many identities, by construction."""

    population: str
    identities: int
    construction: str
    trials: int
    held: dict[str, float | None]
    """Percent of the intervals given that hold the truth, by figure; None where none was given."""
    refused: dict[str, int]
    """Trials without an interval."""
    width: dict[str, float | None]
    """Median width."""


def cells_of(
    name: str, population: Population, truth: Truth, identities: int, trials: int, compared: int, seed: int, told: Told
) -> list[Cell]:
    """All trials with so many identities; the first `compared` of them with the other constructions as well."""
    ends: dict[str, list[dict[str, tuple[float, float] | None]]] = {}
    for trial in range(trials):
        draw = np.random.default_rng([seed, list(POPULATIONS).index(name), identities, trial])
        chosen = draw.choice(IDENTITIES, identities, replace=False)
        y = np.repeat(np.arange(identities), draw.integers(_IMAGES[0], _IMAGES[1] + 1, size=identities))
        x = population.images(chosen[y], draw)
        found = verify_embeddings(torch.from_numpy(x), torch.from_numpy(y), fars=(FAR,))
        ends.setdefault(OURS, []).append(_given(found))
        if trial < compared:
            pairs = pair_tables.all_pairs(x, y)
            ends.setdefault(OVER_IDENTITIES, []).append(_over_identities(pairs, identities, found, draw))
            ends.setdefault(OVER_PAIRS, []).append(_over_pairs(pairs, found, draw))
        told(1.0)
    return [_cell(name, identities, kind, rows, truth) for kind, rows in ends.items()]


Told = Callable[[float], None]


def _given(found: Verification) -> dict[str, tuple[float, float] | None]:
    """The intervals as they are printed."""
    figures = {"auc": found.auc, "eer": found.eer, "tar": found.tar[FAR]}
    return {
        name: None if one is None or one.low is None or one.high is None else (one.low, one.high)
        for name, one in figures.items()
    }


def _cell(
    name: str, identities: int, kind: str, rows: Sequence[dict[str, tuple[float, float] | None]], truth: Truth
) -> Cell:
    held: dict[str, float | None] = dict.fromkeys(FIGURES)
    width: dict[str, float | None] = dict.fromkeys(FIGURES)
    refused = {}
    for figure in FIGURES:
        given = [ends for row in rows if (ends := row[figure]) is not None]
        right = [low <= getattr(truth, figure) <= high for low, high in given]
        refused[figure] = len(rows) - len(given)
        if given:
            held[figure] = 100.0 * float(np.mean(right))
            width[figure] = float(np.median([high - low for low, high in given]))
    return Cell(name, identities, kind, len(rows), held, refused, width)


def _cuts(found: Verification) -> Floats:
    """Some hundred scores, falling, dense where few different pairs score so high."""
    far = np.geomspace(found.roc.far[found.roc.far > 0][0], 1.0, 150)
    places = np.concatenate(
        (np.searchsorted(found.roc.far, far), np.searchsorted(found.roc.tar, np.linspace(0.01, 1, 100)))
    )
    cuts: Floats = found.roc.thresholds[np.unique(np.clip(places, 1, len(found.roc.far) - 1))]
    return cuts


def _percentiles(same: Floats, different: Floats) -> dict[str, tuple[float, float] | None]:
    """Of the figures of drawn samples, given as counts by bin [draws, bins]."""
    far, tar = shares(np.cumsum(different, -1), np.cumsum(same, -1))
    values = {"auc": areas(far, tar), "eer": equal_errors(far, tar), "tar": tars_between(far, tar, FAR)}
    return {name: tuple(np.quantile(part, (0.025, 0.975)).tolist()) for name, part in values.items()}


def _over_identities(
    pairs: pair_tables.Pairs, identities: int, found: Verification, draw: np.random.Generator
) -> dict[str, tuple[float, float] | None]:
    """Identities drawn with replacement: a pair weighs as often as its identity, or the product of both."""
    cuts = _cuts(found)
    bins = len(cuts) + 1
    place = len(cuts) - np.searchsorted(cuts[::-1], pairs.scores, side="right")
    alike = pairs.same
    drawn = draw.multinomial(identities, np.full(identities, 1 / identities), size=_DRAWS).astype(np.float32)
    where = pairs.first[alike] * bins + place[alike]
    same = np.bincount(where, minlength=identities * bins).reshape(identities, bins).astype(np.float32)
    where = (pairs.first[~alike] * identities + pairs.second[~alike]) * bins + place[~alike]
    counts = np.bincount(where, minlength=identities**2 * bins).astype(np.float32).reshape(identities, -1)
    different = np.empty((_DRAWS, bins))
    for k, weight in enumerate(drawn):
        different[k] = weight @ (weight @ counts).reshape(identities, bins)
    return _percentiles((drawn @ same).astype(np.float64), different)


def _over_pairs(
    pairs: pair_tables.Pairs, found: Verification, draw: np.random.Generator
) -> dict[str, tuple[float, float] | None]:
    """Pairs drawn with replacement, and drawn again from those: what counts them as independent."""
    cuts = _cuts(found)
    drawn = []
    for kind in (pairs.same, ~pairs.same):
        scores = draw.choice(pairs.scores[kind], _OF_EACH)
        place = len(cuts) - np.searchsorted(cuts[::-1], scores, side="right")
        share = np.bincount(place, minlength=len(cuts) + 1) / _OF_EACH
        drawn.append(draw.multinomial(_OF_EACH, share, size=_DRAWS).astype(np.float64))
    return _percentiles(drawn[0], drawn[1])


@dataclass(frozen=True)
class Settings:
    """What a record must agree in to be gone on with."""

    trials: int = 1000
    identities: tuple[int, ...] = (20, 50, 200)
    populations: tuple[str, ...] = tuple(POPULATIONS)
    compared: int = 200
    truth_pairs: int = _TRUTH_PAIRS
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("trials", 1), ("compared", 0), ("truth_pairs", 1000), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"--{name.replace('_', '-')} must be at least {least}, got {getattr(self, name)}")
        for count in self.identities:
            if not 10 <= count <= IDENTITIES:
                raise InputError(f"--identities must be from 10 to {IDENTITIES:,}, got {count}")
        for name in self.populations:
            if name not in POPULATIONS:
                raise unknown("population", name, POPULATIONS)


def measure(settings: Settings, path: Path | None, told: Told) -> dict[str, Any]:
    """The record; with a path it is written after every population and size, and what it holds is not done again."""
    record = _begun(settings, path)
    for name in settings.populations:
        todo = [count for count in settings.identities if not _has(record, name, count)]
        told(settings.trials * (len(settings.identities) - len(todo)))
        if not todo:
            continue
        population = POPULATIONS[name](np.random.default_rng([settings.seed, 0]))
        truth = truth_of(population, settings.truth_pairs, settings.seed)
        record["truth"][name] = asdict(truth)
        for count in todo:
            found = cells_of(name, population, truth, count, settings.trials, settings.compared, settings.seed, told)
            record["cells"] += [asdict(cell) for cell in found]
            if path is not None:
                path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record


def _begun(settings: Settings, path: Path | None) -> dict[str, Any]:
    from ..results import versions

    told = json.loads(json.dumps(asdict(settings)))
    fresh = {"settings": told, "far": FAR, "versions": versions(), "truth": {}, "cells": []}
    if path is None or not path.is_file():
        return fresh
    try:
        there: dict[str, Any] = plain_json.read(path)
        same = there["settings"] == told and {"truth", "cells"} <= there.keys()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        same = False
    return there if same else fresh


def _has(record: dict[str, Any], name: str, identities: int) -> bool:
    return any(cell["population"] == name and cell["identities"] == identities for cell in record["cells"])
