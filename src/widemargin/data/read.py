"""Your own table: CSV, TSV or Parquet → `Table`, with one line for whatever cannot be learnt from.

Rules, each with a note when it changes something. Missing is an empty field, ?, NA, N/A, NaN, null, None or -.
A column is a number if all its values are, else a category. Left out: columns with no or one value, running numbers
and ids, free text; rows without a label; classes with a single row. Refused: infinite numbers, a stray word among
numbers, a number to be predicted as target, rows of another width than the header.
"""

from __future__ import annotations

from pathlib import Path

from . import parquet
from .columns import columns
from .grid import grid
from .table import Table
from .target import labels
from .text import PARQUET, decoded, named, read_bytes


def read_table(path: str | Path, target: str | None = None, *, target_is_class: bool = False) -> Table:
    """Read a table; `target` is the column of classes, by default the last one.

    A target of numbers that look like a quantity (a price, an age) is refused unless `target_is_class`.
    """
    place = Path(path).expanduser()
    data = read_bytes(place, _set_names)
    file = named(path)
    notes: list[str] = []
    if data.startswith(PARQUET):
        cells = parquet.grid(data, file)
    else:
        text, notes = decoded(data, file)
        cells = grid(text, file)
    found = labels(cells, target, target_is_class)
    features, more = columns(cells, found.place, found.keep)
    notes = [*notes, *cells.notes, *found.notes, *more]
    name = place.name.removesuffix(".gz")
    return Table(Path(name).stem or name, features, found.y, found.classes, tuple(notes), file)


def _set_names() -> tuple[str, ...]:
    from .uci import set_names

    return set_names()
