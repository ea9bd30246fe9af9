"""Reading a large CSV file: `read_table` beside Python's csv, pandas and pyarrow, by turns in one run.

The others only split the text and guess types. `read_table` also finds the encoding, the separator and the header,
refuses ragged rows and stray quotes by the line of the file, decides what each column is and finds duplicate rows.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from widemargin.io.progress import progress_bar

CATEGORIES = ("red", "green", "blue", "violet")
CLASSES = ("a", "b", "c")


def write_table(path: Path, rows: int, columns: int, seed: int = 0) -> None:
    """A CSV file of classes and so many features: two thirds fractions, the rest whole numbers and words."""
    draw = np.random.default_rng(seed)
    cells: list[list[str]] = []
    for place in range(columns):
        if place < columns * 2 // 3:
            cells.append([f"{value:.6g}" for value in draw.normal(size=rows).tolist()])
        elif place < columns * 5 // 6:
            cells.append([str(value) for value in draw.integers(0, 1000, rows).tolist()])
        else:
            cells.append([CATEGORIES[code] for code in draw.integers(0, len(CATEGORIES), rows).tolist()])
    cells.append([CLASSES[code] for code in draw.integers(0, len(CLASSES), rows).tolist()])
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{place}" for place in range(columns)), "label"])
        writer.writerows(zip(*cells, strict=True))


def _read_with_csv(path: Path) -> int:
    with path.open(encoding="utf-8", newline="") as file:
        return sum(1 for _ in csv.reader(file, strict=True)) - 1


def _readers() -> dict[str, Callable[[Path], int]]:
    """What reads a file and returns its number of rows, by name."""
    import pandas as pd

    from widemargin.data.tabular.read import read_table

    found: dict[str, Callable[[Path], int]] = {
        "read_table": lambda path: len(read_table(path)),
        "csv": _read_with_csv,
        "pandas": lambda path: len(pd.read_csv(path)),
        "pandas, words": lambda path: len(pd.read_csv(path, dtype=object, na_filter=False)),
    }
    try:
        from pyarrow.csv import ReadOptions, read_csv
    except ImportError:
        return found
    options = ReadOptions(use_threads=False)  # one thread, as the others
    return {**found, "pyarrow": lambda path: int(read_csv(path, read_options=options).num_rows)}


def measure_reading(rows: int, columns: int, rounds: int) -> dict[str, Any]:
    """Seconds of each reader, the smallest of the rounds."""
    readers = _readers()
    spent: dict[str, list[float]] = {name: [] for name in readers}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        write_table(path, rows, columns)
        size = path.stat().st_size
        with progress_bar("reading", float(rounds * len(readers))) as on_progress:
            for _ in range(rounds):
                for name, read in readers.items():
                    begun = time.perf_counter()
                    found = read(path)
                    spent[name].append(time.perf_counter() - begun)
                    if found != rows:
                        raise RuntimeError(f"{name} has read {found} rows of {rows}")
                    on_progress(1.0)
    return {
        "rows": rows,
        "columns": columns,
        "bytes": size,
        "seconds": {name: min(values) for name, values in spent.items()},
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    for name, usual, meaning in (
        ("rows", 200_000, "rows"),
        ("columns", 30, "features"),
        ("rounds", 3, "rounds of each"),
    ):
        parser.add_argument(f"--{name}", type=int, default=usual, metavar="N", help=f"{meaning} (default {usual:,})")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    from widemargin.io.errors import InputError
    from widemargin.viz.terminal import check_writable

    for name, least in (("rows", 20), ("columns", 2), ("rounds", 1)):
        if getattr(options, name) < least:
            raise InputError(f"--{name} must be at least {least}, got {getattr(options, name)}")
    if options.json:
        check_writable(options.json)
    found = measure_reading(options.rows, options.columns, options.rounds)
    print(f"{found['rows']:,} rows × {found['columns']} features, {found['bytes'] / 1e6:.1f} MB of CSV")
    for name, seconds in found["seconds"].items():
        print(f"  {name:16} {seconds:6.2f} s  {seconds / found['seconds']['read_table']:5.2f} of read_table's")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
