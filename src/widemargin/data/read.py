"""Your own table: CSV, TSV or Parquet → `Table`, with one line for whatever cannot be learnt from.

Rules, each with a note when it changes something. Missing is an empty field, ?, NA, N/A, NaN, null, None or -.
A column is a number if all its values are, else a category. Left out: columns with no or one value, running numbers
and ids, free text; rows without a label; classes with a single row. Refused: infinite numbers, a stray word among
numbers, a number to be predicted as target, rows of another width than the header, and tables that would fill the
memory (see `table_memory`). A file may also be a pipe, such as `<(zcat table.csv.gz)`, that sends something every 30
seconds.
"""

from __future__ import annotations

from pathlib import Path

from . import parquet
from .columns import columns
from .grid import grid
from .table import Table
from .table_memory import TableMemory
from .target import labels
from .text import PARQUET, decoded, named, read_bytes


def read_table(path: str | Path, target: str | None = None, *, target_is_class: bool = False) -> Table:
    """Read a table; `target` is the column of classes, by default the last one.

    A target of numbers that look like a quantity (a price, an age) is refused unless `target_is_class`.
    """
    place = Path(path).expanduser()
    data, stored = read_bytes(place, _set_names)
    memory = TableMemory(named(path), stored)
    memory.take(len(data))
    file = memory.file
    notes: list[str] = []
    if data.startswith(PARQUET):
        cells = parquet.grid(data, memory)
    else:
        text, notes = decoded(data, file)
        cells = grid(text, memory)
    found = labels(cells, target, target_is_class)
    features, more = columns(cells, found.place, found.keep)
    notes = [*notes, *cells.notes, *found.notes, *more]
    name = place.name.removesuffix(".gz")
    return Table(Path(name).stem or name, features, found.y, found.classes, tuple(notes), file)


def _set_names() -> tuple[str, ...]:
    from .uci import set_names

    return set_names()
