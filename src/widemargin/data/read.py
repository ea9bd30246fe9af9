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
from .columns import build_columns
from .grid import parse_grid
from .table import Table
from .table_memory import MemoryBudget
from .target import read_labels
from .text import PARQUET_MAGIC, decode_table_text, printable_path, read_table_bytes


def read_table(path: str | Path, target: str | None = None, *, target_is_class: bool = False) -> Table:
    """Read a table; `target` is the column of classes, by default the last one.

    A target of numbers that look like a quantity (a price, an age) is refused unless `target_is_class`.
    """
    place = Path(path).expanduser()
    data, stored = read_table_bytes(place, _known_set_names)
    memory = MemoryBudget(printable_path(path), stored)
    memory.reserve(len(data))
    file = memory.file
    notes: list[str] = []
    if data.startswith(PARQUET_MAGIC):
        cells = parquet.read_parquet_grid(data, memory)
    else:
        text, notes = decode_table_text(data, file)
        cells = parse_grid(text, memory)
    target_labels = read_labels(cells, target, target_is_class)
    features, more = build_columns(cells, target_labels.column_index, target_labels.kept_rows)
    notes = [*notes, *cells.notes, *target_labels.notes, *more]
    name = place.name.removesuffix(".gz")
    return Table(Path(name).stem or name, features, target_labels.y, target_labels.class_names, tuple(notes), file)


def _known_set_names() -> tuple[str, ...]:
    from .uci import uci_set_names

    return uci_set_names()
