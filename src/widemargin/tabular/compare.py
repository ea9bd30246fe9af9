"""`compare`: cross-validate losses on the same folds of a table, test which differ, and give a verdict."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data.tabular.load import TableData, load_tables
from ..data.tabular.table import Table
from ..io.errors import InputError, format_value
from ..io.locks import lock_folder, write_text_atomic
from ..io.text import print_escaped
from .comparison import Comparison, build_comparison
from .config import DEFAULT_BASELINE_SECONDS, DEFAULT_TUNE_SECONDS, MLPConfig
from .metric_choice import choose_metric
from .plan import (
    ComparisonPlan,
    LossList,
    canonical_methods,
    describe_table,
    divergence_notes,
    drop_adacos_for_two_classes,
    plan_tuning,
    run_plan,
)
from .recommendation import recommend
from .results import Result, ResultStore
from .tune import check_seconds, check_tuning, check_whole_number

PAGE_FILE_NAME, VERDICT_FILE_NAME = "report.html", "verdict.json"


def compare(
    data: TableData | list[TableData] | Mapping[str, TableData],
    *,
    target: str | None = None,
    target_is_class: bool = False,
    decimal: str | None = None,
    losses: LossList | None = None,
    baselines: bool | None = None,
    baseline_seconds: float = DEFAULT_BASELINE_SECONDS,
    metric: str | None = None,
    cv_repeats: int | None = None,
    folds: int | None = None,
    stratify: bool | None = None,
    seed: int = 0,
    mlp_config: MLPConfig | Mapping[str, Any] | None = None,
    tune: float | bool | None = None,
    tune_trials: int | None = None,
    calibrate: bool = True,
    jobs: int | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    data_dir: str | Path | None = None,
    quiet: bool = False,
    command: str | None = None,
) -> Comparison:
    """Cross-validate losses on the same folds of one or several tables, and test which differ significantly.

    A mistake in the data or the settings raises an `InputError` with one line that says what to do.

    Args:
        data: CSV, TSV or Parquet file, its https address, or "-" for standard input; name of a UCI set such as "iris";
            pandas DataFrame; tuple `(X, y)`; scikit-learn Bunch; `Table`; a list of these, or a dict of them by name.
        target: column of classes of a file or DataFrame, by default the last one.
        target_is_class: the target's numbers are classes, however many there are.
        decimal: "," or ".", the decimal sign of columns that can be read both ways, such as one of only `1,234`.
        losses: parse strings or losses, or one text list such as "softmax, arcgrad(s=5)"; by default the paper's
            seven (without AdaCos where a table has two classes).
        baselines: scikit-learn's classifiers on the same folds: by default the majority class, logistic regression, a
            random forest, histogram gradient boosting and a network, the last four on the folds of the first repeat;
            True for these and an SVM on every fold, False for none.
        baseline_seconds: time for each baseline on each table. Folds are run in order while it lasts, three at the
            least; where one fold alone would take longer, the baseline is fitted to a stratified sample of the rows.
        metric: what decides ranks, tests and verdict: "accuracy", "balanced_accuracy", "macro_f1", "log_loss",
            "roc_auc" or "brier"; every table shows them all. By default accuracy, and balanced accuracy where one
            class of a table has 80 % of its rows or more.
        cv_repeats, folds: random partitions, and parts of each; by default ten of ten, with more than 2,000 rows fewer
            partitions, one from 20,000 on, and from 50,000 on of five parts.
        stratify: keep the shares of the classes in every part; by default where a class has fewer rows than folds.
        seed: random seed; the same seed gives the same folds and accuracies.
        mlp_config: the network and its training. By default both follow the size of each table by the rule of
            `MLPConfig.for_table`; a dict such as `{"lr": 0.01}` fixes some settings, an `MLPConfig` all of them.
        tune: seconds per table (True for 300) in which every loss gets a rate, a decay, an `s` and an `m` of its own,
            chosen on inner folds of each training part; every loss has equally many trials.
        tune_trials: the number of trials itself, which makes a tuned comparison reproducible.
        calibrate: scale the logits of every model by a temperature, fitted on inner folds or on the rows held out for
            early stopping, so that log loss, Brier score and calibration mean something for losses with a scale.
        jobs: processes, by default one per core; the numbers do not depend on it.
        out: folder for results.jsonl, report.html and verdict.json; what it holds already is not done again, so that
            a comparison that was stopped goes on. Losses that it holds with the same settings and that are not in
            `losses` are compared too. By default nothing is written.
        overwrite: start over instead of continuing with the results in `out`.
        data_dir: folder with the UCI sets (also the variable WIDEMARGIN_DATA).
        quiet: show no progress and print no notes (`Comparison.notes` has them).
        command: the command that repeats the comparison, shown on the page; by default this call.

    >>> import widemargin as wm
    >>> report = wm.compare("iris", losses=["softmax", "arcgrad(s=5)"], cv_repeats=1, folds=3, baselines=False, jobs=1)
    >>> [result.loss for result in report.results], len(report.results[0].folds)
    (['softmax', 'arcgrad(s=5)'], 3)
    >>> bool(report.table()["mean"].min() > 90), report.kind
    (True, 'no_evidence')
    """
    config = _check_mlp_config(mlp_config)
    seconds, trials = check_tuning(tune, tune_trials)
    if baselines not in (None, True, False):
        raise InputError(f"baselines must be True, False or None, got {format_value(baselines)}")
    if calibrate not in (True, False):
        raise InputError(f"calibrate must be True or False, got {format_value(calibrate)}")
    if stratify not in (None, True, False):
        raise InputError(f"stratify must be True, False or None, got {format_value(stratify)}")
    for name, folder in (("out", out), ("data_dir", data_dir)):
        if folder is not None and not isinstance(folder, str | os.PathLike):
            raise InputError(f"{name} must be the path of a folder, got {format_value(folder)}")
    call = _describe_call(data, locals()) if command is None else command
    methods = canonical_methods(losses, baselines)
    tables = load_tables(data, target, target_is_class=target_is_class, decimal=decimal, data_dir=data_dir)
    deciding, metric_notes = choose_metric(metric, tables)
    left_out: list[str] = []
    if losses is None:
        methods, left_out = drop_adacos_for_two_classes(methods, tables)
    plan = ComparisonPlan(
        tables,
        methods,
        None if cv_repeats is None else check_whole_number("cv_repeats", cv_repeats),
        None if folds is None else check_whole_number("folds", folds),
        None if stratify is None else bool(stratify),
        check_whole_number("seed", seed),
        config,
        (os.cpu_count() or 1) if jobs is None else check_whole_number("jobs", jobs),
        quick_baselines=not baselines,
        baseline_seconds=check_seconds("baseline_seconds", baseline_seconds),
        calibrate=bool(calibrate),
        metric=deciding,
    )
    notes = [*plan.notes(), *metric_notes, *left_out]
    if not quiet:
        _print_notes(notes)
    with nullcontext() if out is None else lock_folder(out):
        store = ResultStore(out, overwrite)
        if seconds is not None or trials is not None:
            plan, tuning_notes = plan_tuning(plan, store, seconds or DEFAULT_TUNE_SECONDS, trials)
            notes += tuning_notes
            if not quiet:
                _print_notes(tuning_notes)
        results, num_stored = run_plan(plan, store, quiet=quiet)
        extra = [
            result
            for result in plan.extra_stored_results(store)
            if deciding == "accuracy" or deciding in result.metrics
        ]
        late_notes = [*_extra_result_notes(extra, store), *divergence_notes([*results, *extra])]
        comparison = replace(
            build_comparison([*results, *extra], metric=deciding),
            notes=(*notes, *late_notes),
            data_notes=tuple(map(describe_table, tables)),
            command=call,
        )
        comparison = replace(comparison, recommendation=recommend(comparison, tables, store.folder))
        if store.folder is not None:
            comparison.to_html(store.folder / PAGE_FILE_NAME)
            write_text_atomic(store.folder / VERDICT_FILE_NAME, comparison.to_json())
    if not quiet:
        _print_notes(late_notes)
        if num_stored:
            there = f"{num_stored} of {len(results)} results were already stored"
            print_escaped(f"{there}; overwrite computes them again", to_stderr=True)
    return comparison


def default_folder(tables: Sequence[Table]) -> str:
    """The folder that the command writes to unless another is named.

    >>> default_folder(load_tables("iris"))
    'compare-iris'
    """
    return "compare-" + "-".join(table.name for table in tables[:3])


def _check_mlp_config(given: Any) -> MLPConfig | dict[str, Any]:
    """Settings of the models: all of them, or those that were given."""
    if given is None:
        return {}
    if isinstance(given, MLPConfig):
        return given
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise InputError(f"mlp_config must be an MLPConfig or a dict of its fields, got {format_value(given)}")
    values = dict(given)
    MLPConfig(**values)  # refuses mistakes before any table is read
    return values


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print_escaped(f"note: {note}", to_stderr=True)


def _extra_result_notes(extra: Sequence[Result], store: ResultStore) -> list[str]:
    """Which methods are compared because the folder holds them."""
    names = list(dict.fromkeys(result.loss for result in extra))
    if not names:
        return []
    return [f"compared with results that {store.path} holds already: {', '.join(names)}"]


def _describe_call(data: object, options: Mapping[str, object]) -> str:
    """The call that repeats the comparison, with the options that differ from their defaults."""
    defaults = {name: value for name, value in (compare.__kwdefaults__ or {}).items() if name != "command"}
    changed = [f"{name}={options[name]!r}" for name, value in defaults.items() if options[name] != value]
    shown = f"{str(data)!r}" if isinstance(data, str | Path) else "data"
    return f"wm.compare({', '.join([shown, *changed])})"
