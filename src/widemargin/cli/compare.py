"""`widemargin compare`: which loss serves this table?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..io.text import print_escaped
from ..tabular.config import (
    add_data_options,
    add_fold_options,
    add_mlp_options,
    add_output_options,
    command_line,
    mlp_config_from_options,
)

if TYPE_CHECKING:
    from ..data.tabular.table import Table
    from ..tabular.compare import ComparisonPlan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.description = "Cross-validate losses on tables, ten times ten folds, and say honestly which differ."
    parser.add_argument(
        "data", nargs="*", metavar="DATA", help="CSV, TSV or Parquet files or pipes, or names of sets (iris)"
    )
    parser.add_argument("--target", metavar="COLUMN", help="column with the classes (default: the last)")
    parser.add_argument(
        "--target-is-class", action="store_true", help="the target's numbers are classes, however many there are"
    )
    parser.add_argument(
        "--losses",
        help='a list such as "softmax, arcgrad(s=5)"; the paper\'s seven by default (two classes: no adacos)',
    )
    parser.add_argument(
        "--baselines",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="scikit-learn's classifiers on the same folds: all of them on every fold, or none "
        "(default: majority class, logistic regression and random forest, on a few)",
    )
    add_fold_options(parser)
    add_output_options(parser, "compare-NAME")
    add_data_options(parser)
    add_mlp_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Check the plan, then compare, with a lock on the folder."""
    from ..io.errors import InputError
    from ..io.locks import lock_folder
    from ..tabular.compare import (
        ComparisonPlan,
        canonical_methods,
        check_plan,
        collect_plan_notes,
        drop_adacos_for_two_classes,
    )

    methods = canonical_methods(options.losses, options.baselines)
    tables = [_load_table(data, options) for data in options.data or ["iris"]]
    names = [table.name for table in tables]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two tables are named {name}; rename one of the files")
    left_out: list[str] = []
    if options.losses is None:
        methods, left_out = drop_adacos_for_two_classes(methods, tables)
    plan = ComparisonPlan(
        tables,
        methods,
        options.cv_repeats,
        options.folds,
        options.stratify,
        options.seed,
        mlp_config_from_options(options),
        options.jobs,
        quick_baselines=not options.baselines,
    )
    check_plan(plan)
    plan_notes = [*collect_plan_notes(plan), *left_out]
    for note in plan_notes:
        print_escaped(f"note: {note}", to_stderr=True)
    folder = options.out or "compare-" + "-".join(names[:3])
    with lock_folder(folder):
        _compare_and_report(plan, folder, plan_notes, options)


def _compare_and_report(plan: ComparisonPlan, folder: str, plan_notes: list[str], options: argparse.Namespace) -> None:
    """Compare, print the table, write the page."""
    from ..io.locks import write_text_atomic
    from ..tabular.compare import compare, divergence_notes, extra_stored_methods, missing_results
    from ..tabular.comparison import build_comparison, comparison_to_json
    from ..tabular.results import ResultStore
    from ..viz import page
    from ..viz.comparison_page import comparison_page, print_comparison

    store = ResultStore(folder, options.overwrite)
    new = len(missing_results(plan, store))
    results = compare(plan, store)
    comparison = build_comparison(results)
    print_comparison(comparison)
    diverged_notes = divergence_notes(results)
    for note in diverged_notes:
        print_escaped(f"note: {note}", to_stderr=True)
    data_notes = [_describe_table(table) for table in plan.tables]
    warned = [page.paragraph(f"Note: {note}.", "note") for note in (*plan_notes, *diverged_notes)]
    names = [table.name for table in plan.tables]
    stored_methods = extra_stored_methods(
        plan, store
    )  # the page shows all there is, so that a smaller run does not shrink it
    if stored_methods:
        comparison = build_comparison(
            [*results, *(store.results[name, method] for method in stored_methods for name in names)]
        )
    path = store.folder / "report.html"
    write_text_atomic(path, comparison_page(comparison, data_notes, command_line(options), warned))
    write_text_atomic(store.folder / "verdict.json", comparison_to_json(comparison))
    if new < len(results):
        there = f"{len(results) - new} of {len(results)} results were there already"
        print_escaped(f"{there}; --overwrite makes them anew", to_stderr=True)
    print_escaped(f"wrote {path} and {store.path}")


def _load_table(data: str, options: argparse.Namespace) -> Table:
    from ..data.tabular.read import read_table
    from ..data.tabular.uci import load_uci_set, uci_set_names
    from ..io.errors import InputError

    if data in uci_set_names() and not Path(data).is_file():  # a folder of that name may well be where results went
        if options.target is not None:
            raise InputError(f"--target is for files; the classes of {data} are known")
        return load_uci_set(data, options.data_dir)
    return read_table(data, options.target, target_is_class=options.target_is_class)


def _describe_table(table: Table) -> str:
    categories = sum(column.levels is not None for column in table.columns)
    return (
        f"{table.name}: {len(table)} rows, {len(table.columns)} columns"
        + (f" ({categories} of them categories)" if categories else "")
        + f", {len(table.class_names)} classes, the largest with {100 * _majority_share(table):.1f} % of the rows"
        + (f"; source: {table.source}." if table.source else ".")
    )


def _majority_share(table: Table) -> float:
    counts: dict[int, int] = {}
    for label in table.y.tolist():
        counts[label] = counts.get(label, 0) + 1
    return max(counts.values()) / len(table)
