"""`widemargin compare`: which loss serves this table?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..printable import say
from . import tabular

if TYPE_CHECKING:
    from ..compare import Plan
    from ..data.table import Table


def add(commands: Any) -> None:
    """The command and its options."""
    parser = commands.add_parser(
        "compare",
        help="compare losses on a table: which one serves my data?",
        description="Cross-validate losses on tables, ten times ten folds, and say honestly which differ.",
    )
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
    tabular.add_folds(parser)
    tabular.add_out(parser, "compare-NAME")
    tabular.add_data(parser)
    tabular.add_protocol(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Look at what was asked for, then compare, with nobody else in the folder."""
    from ..compare import Plan, check_plan, notes, spelled, without_adacos
    from ..errors import InputError
    from ..folder_lock import alone_in

    methods = spelled(options.losses, options.baselines)
    tables = [_table(data, options) for data in options.data or ["iris"]]
    names = [table.name for table in tables]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two tables are named {name}; rename one of the files")
    left_out: list[str] = []
    if options.losses is None:
        methods, left_out = without_adacos(methods, tables)
    plan = Plan(
        tables,
        methods,
        options.runs,
        options.folds,
        options.stratify,
        options.seed,
        tabular.protocol(options),
        options.jobs,
        quick_baselines=not options.baselines,
    )
    check_plan(plan)
    said = [*notes(plan), *left_out]
    for note in said:
        say(f"note: {note}", aside=True)
    folder = options.out or "compare-" + "-".join(names[:3])
    with alone_in(folder):
        _compared(plan, folder, said, options)


def _compared(plan: Plan, folder: str, said: list[str], options: argparse.Namespace) -> None:
    """Compare, print the table, write the page."""
    from ..compare import compare, diverged, kept, missing
    from ..report import page
    from ..report.compare_page import compare_page
    from ..report.comparison import as_json, comparison
    from ..report.terminal import print_comparison
    from ..results import Store
    from ..training.writing import write_whole

    store = Store(folder, options.overwrite)
    new = len(missing(plan, store))
    results = compare(plan, store)
    found = comparison(results)
    print_comparison(found)
    lost = diverged(results)
    for note in lost:
        say(f"note: {note}", aside=True)
    about = [_described(table) for table in plan.tables]
    warned = [page.paragraph(f"Note: {note}.", "note") for note in (*said, *lost)]
    names = [table.name for table in plan.tables]
    others = kept(plan, store)  # the page shows all there is, so that a smaller run does not shrink it
    if others:
        found = comparison([*results, *(store.results[name, method] for method in others for name in names)])
    path = store.folder / "report.html"
    write_whole(path, compare_page(found, about, tabular.typed(options), warned))
    write_whole(store.folder / "verdict.json", as_json(found))
    if new < len(results):
        there = f"{len(results) - new} of {len(results)} results were there already"
        say(f"{there}; --overwrite makes them anew", aside=True)
    say(f"wrote {path} and {store.path}")


def _table(data: str, options: argparse.Namespace) -> Table:
    from ..data.read import read_table
    from ..data.uci import load_set, set_names
    from ..errors import InputError

    if data in set_names() and not Path(data).is_file():  # a folder of that name may well be where results went
        if options.target is not None:
            raise InputError(f"--target is for files; the classes of {data} are known")
        return load_set(data, options.data_dir)
    return read_table(data, options.target, target_is_class=options.target_is_class)


def _described(table: Table) -> str:
    categories = sum(column.levels is not None for column in table.columns)
    return (
        f"{table.name}: {len(table)} rows, {len(table.columns)} columns"
        + (f" ({categories} of them categories)" if categories else "")
        + f", {len(table.classes)} classes, the largest with {100 * _largest(table):.1f} % of the rows"
        + (f"; source: {table.source}." if table.source else ".")
    )


def _largest(table: Table) -> float:
    counts: dict[int, int] = {}
    for label in table.y.tolist():
        counts[label] = counts.get(label, 0) + 1
    return max(counts.values()) / len(table)
