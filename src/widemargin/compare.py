"""Compare losses on tables: partitions, training, baselines; results on disk as they come."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from .baselines import BASELINES, cross_validate_baseline
from .crossval import Score, check, cross_validate, partitions
from .data.table import Table
from .errors import InputError
from .pool import Told, run_all
from .progress import bar
from .results import Result, Store, fingerprint, result_of
from .stack.protocol import Protocol

# The methods of the paper's Table I, spelled out.
PAPER_LOSSES = (
    "softmax",
    "softmax + 0.02*center",
    "m_softmax(m=0.5)",
    "arcface(s=20, m=0.1)",
    "adacos",
    "arcgrad(s=30)",
    "arcgrad(s=5)",
)


# From this share of one class on, accuracy is worth a word of warning.
LOPSIDED = 0.8


@dataclass(frozen=True)
class Plan:
    """What is compared, and how."""

    tables: Sequence[Table]
    methods: Sequence[str]
    """Losses as parse strings, and names of baselines."""
    runs: int = 10
    folds: int = 10
    stratify: bool = False
    seed: int = 0
    protocol: Protocol = Protocol()
    jobs: int = 1

    def settings(self, table: Table, method: str) -> dict[str, Any]:
        """What a result depends on beside set, loss and seed."""
        common = {"runs": self.runs, "parts": self.folds, "stratify": self.stratify, "data": fingerprint(table)}
        return common if method in BASELINES else {**common, "protocol": asdict(self.protocol)}


def spelled(losses: str | None, baselines: bool = False) -> list[str]:
    """Methods in their canonical spelling, each once; the paper's seven by default."""
    from .catalogue import parse_list

    values = parse_list(", ".join(PAPER_LOSSES) if losses is None else losses)
    found = [repr(value) for value in values]
    return list(dict.fromkeys([*found, *(BASELINES if baselines else ())]))


def compare(plan: Plan, store: Store) -> list[Result]:
    """Every method on every table, with a progress bar; what the store holds already is not done again."""
    check_plan(plan)
    alone = replace(plan, tables=())  # a job carries its own table, and not all of them
    jobs = [(table, method, alone) for table, method in missing(plan, store)]
    total = len(plan.tables) * len(plan.methods)
    with (
        bar("cross-validation", total, total - len(jobs)) as told,
        closing(run_all(_work, jobs, plan.jobs, told)) as done,
    ):
        for result in done:
            store.add(result)
    return [store.results[table.name, method] for table in plan.tables for method in plan.methods]


def check_plan(plan: Plan) -> None:
    """All mistakes before the first minute of work, and before a result that is there is overwritten."""
    if plan.jobs < 1:
        raise InputError(f"jobs must be at least 1, got {plan.jobs}")
    for table in plan.tables:
        check(table, plan.runs, plan.folds, plan.seed, plan.protocol)


def missing(plan: Plan, store: Store) -> list[tuple[Table, str]]:
    """What the store does not hold yet."""
    return [
        (table, method)
        for table in plan.tables
        for method in plan.methods
        if store.matching((table.name, method), plan.seed, plan.settings(table, method)) is None
    ]


def notes(plan: Plan) -> list[str]:
    """What is worth knowing before the work begins; a loss that cannot choose between these classes raises."""
    import torch

    from .stack.objective import StackedObjective

    said: list[str] = [f"{table.name}: {note}" for table in plan.tables for note in table.notes]
    for table in plan.tables:
        said += _lopsided(table)
        start = torch.zeros(1, len(table.classes), plan.protocol.hidden[-1])
        for method in plan.methods:
            if method not in BASELINES:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    StackedObjective(method, start, plan.protocol.smoothing)
                said += [f"{table.name}: {warning.message}" for warning in caught]
    return list(dict.fromkeys(said))


def _lopsided(table: Table) -> list[str]:
    """A word where one class has so many rows that accuracy says little."""
    counts = np.bincount(table.y, minlength=len(table.classes))
    share, name = counts.max() / counts.sum(), table.classes[int(counts.argmax())]
    if share < LOPSIDED:
        return []
    always = f"always answering it would be right in {100 * share:.1f} %"
    return [f"{table.name}: most rows are of class {name!r}, and {always}; accuracy says little here"]


def kept(plan: Plan, store: Store) -> list[str]:
    """Methods beyond the plan's that the store holds on every table with the same settings."""
    found = []
    for method in dict.fromkeys(loss for _, loss in store.results):
        if method in plan.methods:
            continue
        try:
            wanted = [(t, store.matching((t.name, method), plan.seed, plan.settings(t, method))) for t in plan.tables]
        except InputError:
            continue
        if all(result is not None for _, result in wanted):
            found.append(method)
    return found


def diverged(results: Sequence[Result]) -> list[str]:
    """Which losses ended in no numbers at all on some fold, where the first class is then the answer."""
    return [
        f"{result.set}: {result.loss} diverged on some folds, and its accuracy means nothing; take a smaller --lr"
        for result in results
        if result.loss not in BASELINES and "w_inter" not in result.angles
    ]


def _work(table: Table, method: str, plan: Plan, told: Told) -> Result:
    split = partitions(table.y, plan.runs, plan.folds, plan.seed, plan.stratify)
    if method in BASELINES:
        score: Score = cross_validate_baseline(table, method, split, plan.seed, told)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said once by the command, not by every worker
            score = cross_validate(table, method, split, plan.protocol, plan.seed, told=told)
    settings = plan.settings(table, method)
    return result_of(table, method, score.folds, score.seconds, plan.seed, settings, angles=score.angles)
