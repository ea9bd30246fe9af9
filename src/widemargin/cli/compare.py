"""`widemargin compare`: compare losses on tables by cross-validation."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..io.text import print_escaped
from ..tabular.config import (
    DEFAULT_BASELINE_SECONDS,
    add_data_options,
    add_fold_options,
    add_mlp_options,
    add_output_options,
    add_table_options,
    add_tuning_options,
    command_line,
    mlp_values_from_options,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.description = "Compare losses on tables by repeated cross-validation, with significance tests."
    parser.add_argument(
        "data",
        nargs="*",
        metavar="DATA",
        help="CSV, TSV or Parquet files, pipes or https URLs, - for standard input, or names of sets (iris)",
    )
    parser.add_argument("--list", action="store_true", help="print the known sets and exit")
    add_table_options(parser)
    parser.add_argument(
        "--losses",
        help='a list such as "softmax, arcgrad(s=5)"; the paper\'s seven by default (two classes: no adacos)',
    )
    parser.add_argument(
        "--baselines",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="scikit-learn's classifiers on the same folds: all of them on every fold, or none "
        "(default: all but the SVM, on the folds of the first repeat)",
    )
    parser.add_argument(
        "--baseline-seconds",
        type=float,
        default=DEFAULT_BASELINE_SECONDS,
        metavar="SECONDS",
        help="time for each baseline on each table; it limits the folds (at least three are run) and rows "
        f"(default {DEFAULT_BASELINE_SECONDS:g}; inf for no limit)",
    )
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="metric for ranks and tests: accuracy, balanced_accuracy, macro_f1, log_loss, roc_auc or brier "
        "(default: accuracy; balanced_accuracy if one class has 80 % of the rows)",
    )
    add_fold_options(parser, follow_rows=True)
    add_tuning_options(parser)
    parser.add_argument(
        "--calibrate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="calibrate the probabilities of every model by a temperature fitted on training rows (default: yes)",
    )
    add_output_options(parser, "compare-NAME")
    add_data_options(parser)
    add_mlp_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Compare, and print the table."""
    if options.list:
        _print_known_sets(options.data_dir)
        return
    from ..data.tabular.load import load_tables
    from ..tabular.compare import PAGE_FILE_NAME, compare, default_folder
    from ..tabular.results import RESULTS_FILE_NAME
    from ..viz.comparison_terminal import print_comparison

    tables = load_tables(
        options.data or "iris",
        options.target,
        target_is_class=options.target_is_class,
        decimal=options.decimal,
        data_dir=options.data_dir,
    )
    folder = Path(options.out or default_folder(tables))
    comparison = compare(
        tables,
        losses=options.losses,
        baselines=options.baselines,
        baseline_seconds=options.baseline_seconds,
        metric=options.metric,
        cv_repeats=options.cv_repeats,
        folds=options.folds,
        stratify=options.stratify,
        seed=options.seed,
        mlp_config=mlp_values_from_options(options),
        tune=options.tune,
        tune_trials=options.tune_trials,
        calibrate=options.calibrate,
        jobs=options.jobs,
        out=folder,
        overwrite=options.overwrite,
        command=command_line(options),
    )
    print_comparison(comparison)
    print_escaped(f"wrote {folder / PAGE_FILE_NAME} and {folder / RESULTS_FILE_NAME}")


def _print_known_sets(data_dir: str | None) -> None:
    from ..data.tabular.uci import list_uci_sets

    sets = list_uci_sets(data_dir)
    width = max(len(entry.name) for entry in sets)
    print(f"{'name':{width}}  {'rows':>6}  {'columns':>7}  {'classes':>7}  data")
    for entry in sets:
        place = "here" if entry.is_present else "downloaded when used"
        print(f"{entry.name:{width}}  {entry.rows:>6}  {entry.columns:>7}  {entry.classes:>7}  {place}")
