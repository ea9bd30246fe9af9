"""The plan of a comparison, checked before training (tables, methods, folds and settings), and its execution."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..data.tabular.encode import check_width
from ..data.tabular.table import Table, join_names
from ..io.errors import InputError, format_value, spell_option
from ..io.progress import progress_bar
from ..io.worker_pool import ProgressCallback, run_all
from ..losses.base import Loss
from ..losses.grammar import Sum, parse_list
from ..losses.margin import Margin
from .baselines import (
    DEFAULT_BASELINES,
    cross_validate_baseline,
    has_time_for_another_fold,
    max_fit_rows,
    mlp_hidden,
)
from .batched_objective import check_stacked_loss
from .config import MLPConfig, default_repeats_and_folds
from .crossval import Partition, Score, check_cross_validation, cross_validate, partitions
from .results import BASELINES, MAJORITY, Result, ResultStore, make_result
from .tune import choose_trials, seconds_per_trial, tune_and_cross_validate

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
ADACOS = "adacos"

# Share of the largest class from which a note says that accuracy is not informative.
IMBALANCE_THRESHOLD = 0.8

LossList = str | Loss | Sum | Sequence[str | Loss | Sum]


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared, and how; mistakes raise an `InputError` before any training."""

    tables: Sequence[Table]
    methods: Sequence[str]
    """Losses as parse strings, and names of baselines."""
    cv_repeats: int | None = 10
    folds: int | None = 10
    """None: by the number of rows of each table, see `default_repeats_and_folds`."""
    stratify: bool | None = None
    """Keep the shares of the classes in every part; None: only if a class has fewer rows than there are folds."""
    seed: int = 0
    mlp_config: MLPConfig | Mapping[str, Any] = field(default_factory=dict)
    """All settings of the models, or those that do not follow the table (see `MLPConfig.for_table`)."""
    jobs: int = 1
    quick_baselines: bool = False
    """Run baselines on the folds of the first repeat only; the majority class on all of them."""
    baseline_seconds: float = math.inf
    """Seconds of each baseline on each table."""
    calibrate: bool = False
    """Scale the logits of every model by a temperature that is fitted within its training part."""
    metric: str = "accuracy"
    """Metric of the tuning."""
    trials: Mapping[str, int] = field(default_factory=dict)
    """By name of the table, how many trials of every loss are made to tune it; a table without is not tuned."""

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise InputError(f"{spell_option('jobs')} must be at least 1, got {self.jobs}")
        if not self.baseline_seconds > 0:
            raise InputError(f"{spell_option('baseline_seconds')} must be above 0, got {self.baseline_seconds:g}")
        for table in self.tables:
            check_cross_validation(table, *self.repeats_and_folds(table), self.seed, self.config_for(table))
        margins = self._margins()
        for table in self.tables:
            for margin in margins:
                margin.check_num_classes(len(table.class_names))

    def repeats_and_folds(self, table: Table) -> tuple[int, int]:
        """How often a table is split, and into how many parts."""
        repeats, folds = default_repeats_and_folds(len(table))
        return (
            repeats if self.cv_repeats is None else self.cv_repeats,
            folds if self.folds is None else self.folds,
        )

    def num_training_rows(self, table: Table) -> int:
        """Rows of a training part."""
        folds = self.repeats_and_folds(table)[1]
        return len(table) - len(table) // folds if folds > 1 else len(table)  # fewer are refused, with a message

    def config_for(self, table: Table) -> MLPConfig:
        """The settings of the models on a table."""
        if isinstance(self.mlp_config, MLPConfig):
            return self.mlp_config
        width, num_classes = check_width(table), len(table.class_names)
        return MLPConfig.for_table(self.num_training_rows(table), width, num_classes, **self.mlp_config)

    def split(self, table: Table) -> list[Partition]:
        """The folds of a table, repeat after repeat."""
        return partitions(table.y, *self.repeats_and_folds(table), self.seed, self.is_stratified(table))

    def _margins(self) -> list[Margin]:
        """The margins of all losses, each of which must be able to choose between classes."""
        config = self.mlp_config
        smoothing = config.label_smoothing if isinstance(config, MLPConfig) else config.get("label_smoothing", 0.0)
        sums = [check_stacked_loss(method, smoothing) for method in self.methods if method not in BASELINES]
        return [loss for total in sums for _, loss in total.parts if isinstance(loss, Margin)]

    def notes(self) -> list[str]:
        """Notes on the tables and settings, known before training."""
        said = [f"{table.name}: {note}" for table in self.tables for note in table.notes]
        margins = self._margins()
        for table in self.tables:
            said += _imbalance_notes(table)
            said += self._step_notes(table)
            said += self._stratify_notes(table)
            said += [
                f"{table.name}: {message}"
                for margin in margins
                for message in margin.class_count_warnings(len(table.class_names))
            ]
        return list(dict.fromkeys(said))

    def _step_notes(self, table: Table) -> list[str]:
        """A note if the given epochs have no effect, because the default of `min_steps` is larger."""
        config, num_rows = self.config_for(table), self.num_training_rows(table)
        steps, batch = config.steps_and_batch(num_rows)
        defaults = MLPConfig.for_table(num_rows, check_width(table), len(table.class_names))
        if config.epochs == defaults.epochs or config.min_steps != defaults.min_steps or steps > config.min_steps:
            return []
        passes = steps * batch / num_rows
        return [
            f"{table.name}: epochs={config.epochs:g} has no effect, min_steps={steps} asks for more "
            f"({passes:.3g} passes over the training rows); a smaller min_steps lets epochs decide"
        ]

    def is_stratified(self, table: Table) -> bool:
        """Whether the folds of a table keep the shares of its classes."""
        return table.smallest_class[1] < self.repeats_and_folds(table)[1] if self.stratify is None else self.stratify

    def _stratify_notes(self, table: Table) -> list[str]:
        """A note if the folds are stratified by default."""
        if self.stratify is not None or not self.is_stratified(table):
            return []
        name, count = table.smallest_class
        few = f"class {name!r} has {count} rows, fewer than the {self.repeats_and_folds(table)[1]} folds"
        return [
            f"{table.name}: the folds are stratified, because {few}; {spell_option('stratify', False)} turns it off"
        ]

    def max_folds(self, table: Table, method: str) -> int:
        """On how many folds a method is run at the most: the first so many, repeat after repeat."""
        repeats, folds = self.repeats_and_folds(table)
        return folds if self.quick_baselines and method in BASELINES and method != MAJORITY else repeats * folds

    def settings(self, table: Table, method: str) -> dict[str, Any]:
        """What a result depends on besides set, loss and seed; `first_folds` comes with the result."""
        repeats, folds = self.repeats_and_folds(table)
        found: dict[str, Any] = {"cv_repeats": repeats, "folds": folds}
        found |= {"stratify": self.is_stratified(table), "data": table.fingerprint}
        if method not in BASELINES:
            found |= {"mlp_config": asdict(self.config_for(table))}
            found |= {"calibrate": True} if self.calibrate else {}
            if table.name in self.trials:
                found["tuning"] = {"trials": self.trials[table.name], "metric": self.metric}
            return found
        num_rows = self.num_training_rows(table)
        fit_rows = max_fit_rows(table, method, self.baseline_seconds)
        if fit_rows is not None and fit_rows < num_rows:
            found["fit_rows"] = num_rows = fit_rows
        if method == "mlp" and mlp_hidden(num_rows) != mlp_hidden(0):
            found["hidden"] = list(mlp_hidden(num_rows))
        return found

    def _find_matching(self, store: ResultStore, table: Table, method: str) -> Result | None:
        """The result of the same settings that the store holds already, a baseline's on however many folds and rows."""
        there = store.results.get((table.name, method))
        settings = self.settings(table, method)
        if there is not None and method in BASELINES:
            for name in ("first_folds", "fit_rows", "hidden"):
                settings.pop(name, None)
                settings |= {name: there.settings[name]} if name in there.settings else {}
        return store.find_matching((table.name, method), self.seed, settings)

    def find_stored_result(self, store: ResultStore, table: Table, method: str) -> Result | None:
        """The result that the store holds already, of the same settings; None if there is none, or too small a one.

        Folds of a seed come in one order: a baseline that was run on more of them than are asked for now is taken as it
        is, and so is one that had no time for more. One on fewer folds or fitted to fewer rows is run again.
        """
        found = self._find_matching(store, table, method)
        if found is None or method not in BASELINES:
            return found
        wanted, there = self.settings(table, method), found.settings
        has_fewer_rows = there.get("fit_rows", math.inf) < wanted.get("fit_rows", math.inf)
        if has_fewer_rows or ("hidden" in wanted) != ("hidden" in there):
            return None
        has_time = has_time_for_another_fold(len(found.folds), found.seconds, self.baseline_seconds)
        return None if len(found.folds) < self.max_folds(table, method) and has_time else found

    def missing_results(self, store: ResultStore) -> list[tuple[Table, str]]:
        """What the store does not hold yet."""
        return [
            (table, method)
            for table in self.tables
            for method in self.methods
            if self.find_stored_result(store, table, method) is None
        ]

    def extra_stored_results(self, store: ResultStore) -> list[Result]:
        """Results of methods beyond the plan's that the store holds on every table with the same settings.

        Baselines are included only if the plan has some.
        """
        found: list[Result] = []
        none_wanted = not any(method in BASELINES for method in self.methods)
        for method in dict.fromkeys(loss for _, loss in store.results):
            if method in self.methods or (none_wanted and method in BASELINES):
                continue
            try:
                stored = [self._find_matching(store, table, method) for table in self.tables]
            except InputError:
                continue
            if all(result is not None for result in stored):
                found += [result for result in stored if result is not None]
        return found


def plan_tuning(
    plan: ComparisonPlan, store: ResultStore, seconds: float, trials: int | None
) -> tuple[ComparisonPlan, list[str]]:
    """The plan with a number of trials for every table, the same for all its losses, and notes on them.

    Args:
        seconds: budget for the tuning of each table, on all the plan's processes together.
        trials: the number itself, instead of what the budget allows.

    A folder that holds tuned results of a table already decides, so that what is added to it had as many trials.
    """
    losses = [method for method in plan.methods if method not in BASELINES]
    found: dict[str, int] = {}
    notes = []
    for table in plan.tables:
        stored = [store.results[key].settings for key in store.results if key[0] == table.name]
        known = [entry["tuning"].get("trials") for entry in stored if isinstance(entry.get("tuning"), dict)]
        if known and trials is None and isinstance(known[0], int):
            found[table.name] = known[0]
            continue
        count = trials
        if count is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                each = seconds_per_trial(table, losses, plan.split(table), plan.config_for(table), plan.seed)
            count = choose_trials(seconds, each / min(plan.jobs, len(losses)))
            if count == 1:
                notes.append(
                    f"{table.name}: {seconds:g} s are not enough to tune (a second trial of every loss takes about "
                    f"{each / plan.jobs:.0f} s more); the losses are run as they are given. Take more seconds or fewer "
                    "folds, repeats or losses"
                )
                continue
            notes.append(f"{table.name}: tuned with {count} trials of every loss; tune_trials={count} repeats that")
        found[table.name] = count
    return replace(plan, trials=found), notes


def run_plan(plan: ComparisonPlan, store: ResultStore, *, quiet: bool = False) -> tuple[list[Result], int]:
    """Every method on every table, with a progress bar; what the store holds already is not done again.

    Returns the results, table after table, and how many of them were already stored.
    """
    missing = plan.missing_results(store)
    plan_without_tables = replace(plan, tables=())  # a job carries its own table, and not all of them
    jobs = [(table, method, plan_without_tables) for table, method in missing]
    total = len(plan.tables) * len(plan.methods)
    with (
        progress_bar("cross-validation", total, total - len(jobs), hidden=quiet) as on_progress,
        closing(run_all(_run_job, jobs, plan.jobs, on_progress)) as done,
    ):
        for result in done:
            store.add(result)
    results = [store.results[table.name, method] for table in plan.tables for method in plan.methods]
    return results, total - len(jobs)


def _run_job(table: Table, method: str, plan: ComparisonPlan, on_progress: ProgressCallback) -> Result:
    split, settings = plan.split(table), plan.settings(table, method)
    if method in BASELINES:
        first, seconds = (
            split[: plan.max_folds(table, method)],
            math.inf if method == MAJORITY else plan.baseline_seconds,
        )
        score: Score = cross_validate_baseline(table, method, first, plan.seed, on_progress, seconds)
        settings |= {"first_folds": len(score.folds)} if len(score.folds) < len(split) else {}
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the notes of the plan have it once; every worker would repeat it
            config = plan.config_for(table)
            if table.name in plan.trials:
                score, tuning = tune_and_cross_validate(
                    table,
                    method,
                    split,
                    config,
                    plan.seed,
                    trials=plan.trials[table.name],
                    metric=plan.metric,
                    on_progress=on_progress,
                    calibrate=plan.calibrate,
                )
                settings["tuning"] |= tuning.to_dict()
            else:
                score = cross_validate(
                    table, method, split, config, plan.seed, on_progress=on_progress, calibrate=plan.calibrate
                )
    return make_result(
        table, method, score.folds, score.seconds, plan.seed, settings, score.angles, score.train, score.evaluation
    )


# ---------------------------------------------------------------- methods


def canonical_methods(losses: LossList | None, baselines: bool | None = False) -> list[str]:
    """Methods in their canonical spelling, each once; the paper's seven by default.

    Args:
        losses: a text list such as "softmax, arcgrad(s=5)", a loss, or a sequence of these; None for the paper's.
        baselines: True adds all of them, None all but the SVM.

    >>> canonical_methods(["softmax", "arcface(m=0.5)"])
    ['softmax', 'arcface(s=64, m=0.5)']
    """
    given: Sequence[Any] = PAPER_LOSSES if losses is None else losses if isinstance(losses, list | tuple) else [losses]
    if not given:
        raise InputError('losses is empty; give a list such as ["softmax", "arcgrad(s=5)"]')
    found: list[str] = []
    for loss in given:
        if not isinstance(loss, str | Loss | Sum):
            raise InputError(f"losses must be strings such as 'arcgrad(s=5)' or losses, got {format_value(loss)}")
        found += [repr(value) for value in parse_list(loss)] if isinstance(loss, str) else [repr(loss)]
    more = DEFAULT_BASELINES if baselines is None else BASELINES if baselines else ()
    return list(dict.fromkeys([*found, *more]))


def drop_adacos_for_two_classes(methods: Sequence[str], tables: Sequence[Table]) -> tuple[list[str], list[str]]:
    """The default methods without AdaCos where a table has two classes, and a note that says so.

    Its scale is then √2 log(C − 1) = 0 and it learns nothing; ranks over several tables need the same methods on
    all of them, so that one such table is enough.
    """
    two = [table.name for table in tables if len(table.class_names) == 2]
    if not two or ADACOS not in methods:
        return list(methods), []
    where = f"{two[0]} has two classes" if len(two) == 1 else f"{join_names(two, max_names=3)} have two classes"
    include = 'losses="softmax, arcgrad(s=5), adacos(floor=2)" includes it with a floor'
    note = f"{ADACOS} is left out, because {where} and it learns nothing from two; {include}"
    return [method for method in methods if method != ADACOS], [note]


# ---------------------------------------------------------------- notes


def _imbalance_notes(table: Table) -> list[str]:
    """A note if one class has so many rows that accuracy is not informative."""
    name, share = table.largest_class
    if share < IMBALANCE_THRESHOLD:
        return []
    always = f"always predicting it would be right in {100 * share:.1f} %"
    return [f"{table.name}: most rows are of class {name!r}, and {always}; accuracy is not informative here"]


def divergence_notes(results: Sequence[Result]) -> list[str]:
    """A note for each loss that ended in NaN or infinity on a fold, where the first class is predicted."""
    return [
        f"{result.set}: {result.loss} diverged on some folds, where its accuracy is meaningless; use a smaller lr"
        for result in results
        if result.has_diverged
    ]


def describe_table(table: Table) -> str:
    """A sentence on a table: its size, its columns and classes, where it is from."""
    categories = sum(column.levels is not None for column in table.columns)
    return (
        f"{table.name}: {len(table)} rows, {len(table.columns)} columns"
        + (f" ({categories} of them categories)" if categories else "")
        + f", {len(table.class_names)} classes, the largest with {100 * table.largest_class[1]:.1f} % of the rows"
        + (f"; source: {table.source}." if table.source else ".")
    )
