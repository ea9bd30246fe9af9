"""Table II: the fifteen data sets, their shapes against the paper's, source and licence.

Cost: a second. Expected: every shape as in the paper.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from ..tabular.config import add_data_options

    add_data_options(parser)


def run(options: argparse.Namespace) -> None:
    """Print the table."""
    from rich.table import Table as Grid

    from ..data.tabular.uci import TABLE1_SET_NAMES, UCI_SETS, load_uci_set
    from ..viz.terminal import console
    from .paper import paper_table2

    grid = Grid(title="Table II: data sets, ours = the paper's", title_justify="left", title_style="bold")
    for column in ("set", "the paper's name", "classes", "features", "rows", "agrees", "licence"):
        is_number = column in ("classes", "features", "rows")
        grid.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for name in TABLE1_SET_NAMES:
        table, entry = load_uci_set(name, options.data_dir), UCI_SETS[name]
        shape = (len(table.class_names), len(table.columns), len(table))
        same = shape == tuple(paper_table2()[name])
        grid.add_row(name, entry.paper_name, *map(str, shape), "yes" if same else "NO", entry.licence)
    console(width=160).print(grid)
