"""Table I: fifteen UCI sets, seven methods, ten repeats of ten folds, with the paper's values.

Cost: under a minute on two cores (with --baselines about ten). Expected: the results in records/table1.jsonl; the
paper's average of ArcGrad (s=5) is 82.50. AdaCos is at chance on two-class sets, where log(C−1) = 0 makes its scale
and gradient 0; with a floor it learns.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .paper import ADACOS_WITH_FLOOR, TABLE1_LOSSES

if TYPE_CHECKING:
    from ..tabular.plan import ComparisonPlan


_BASELINES = ("logistic_regression", "svm", "random_forest", "mlp")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from ..tabular.config import (
        add_data_options,
        add_fold_options,
        add_mlp_options,
        add_output_options,
        add_tuning_options,
    )

    parser.add_argument("--baselines", action="store_true", help="add scikit-learn's classifiers on the same folds")
    add_fold_options(parser)
    add_output_options(parser, "table1")
    add_data_options(parser)
    add_mlp_options(parser)
    add_tuning_options(parser)


def run(options: argparse.Namespace) -> None:
    """Check the plan, then run it with the output folder locked."""
    from ..data.tabular.uci import TABLE1_SET_NAMES, load_uci_set
    from ..io.locks import lock_folder
    from ..tabular.config import mlp_values_from_options
    from ..tabular.plan import ComparisonPlan

    start_time = time.perf_counter()
    tables = [load_uci_set(name, options.data_dir) for name in TABLE1_SET_NAMES]
    config = mlp_values_from_options(options)
    how = (options.cv_repeats, options.folds, bool(options.stratify), options.seed, config, options.jobs)
    plan = ComparisonPlan(tables, list(TABLE1_LOSSES.values()), *how)
    with lock_folder(options.out or "table1"):
        _run_comparison(plan, options, start_time)


def _run_comparison(plan: ComparisonPlan, options: argparse.Namespace, start_time: float) -> None:
    """Train, print our results next to the paper's, write the page."""
    from ..io.text import print_escaped
    from ..io.worker_pool import peak_memory
    from ..tabular.comparison import build_comparison
    from ..tabular.config import DEFAULT_TUNE_SECONDS, command_line
    from ..tabular.plan import plan_tuning, run_plan
    from ..tabular.results import ResultStore
    from ..viz.comparison_page import comparison_page
    from ..viz.comparison_terminal import print_comparison
    from .parts import table1_comparison

    store = ResultStore(options.out or "table1", options.overwrite)
    before = len(store.results)
    binary = [table for table in plan.tables if len(table.class_names) == 2]
    if options.tune is not None or options.tune_trials is not None:
        plan, notes = plan_tuning(plan, store, options.tune or DEFAULT_TUNE_SECONDS, options.tune_trials)
        for note in notes:
            print_escaped(f"note: {note}", to_stderr=True)
    results, _ = run_plan(plan, store)
    floored, _ = run_plan(replace(plan, tables=binary, methods=[ADACOS_WITH_FLOOR]), store)
    seconds, memory = time.perf_counter() - start_time, peak_memory(options.jobs)
    comparison = build_comparison(results, check_fit=False)  # the paper's ranks cover all fifteen sets
    print_comparison(comparison)
    table1_comparison.print_paper_comparison(comparison)
    table1_comparison.print_floor(results, floored)
    sections = [
        table1_comparison.paper_comparison_section(comparison),
        table1_comparison.floor_section(results, floored),
    ]
    if options.baselines:
        baselines, _ = run_plan(replace(plan, methods=_BASELINES), store)
        table1_comparison.print_baselines(results, baselines)
        comparison = build_comparison([*results, *baselines], check_fit=False)
    about = [
        f"Fifteen sets of the UCI repository, cleaned to the shapes of the paper's Table II; {__doc__.splitlines()[0]}"
    ]
    path = Path(options.out or "table1") / "report.html"
    title = "Table I of the ArcGrad paper, reproduced"
    path.write_text(comparison_page(comparison, about, command_line(options), sections, title), encoding="utf-8")
    existing = f", {before} results existed already" if before else ""
    peak = "" if memory is None else f", at most {memory:.0f} MiB"
    print(f"{seconds:.1f} s for the losses{existing}{peak}; wrote {path} and {store.path}")
