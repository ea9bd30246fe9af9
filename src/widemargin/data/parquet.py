"""Parquet files as a grid, by pyarrow if it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import InputError, short
from .cells import shown
from .grid import Cells, Grid, checked_names

LARGEST_CELLS = 1 << 27


def grid(data: bytes, file: str) -> Grid:
    """The columns of a Parquet file; numbers stay numbers, all else becomes words."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError(
            f'{file}: Parquet needs pyarrow; pip install "widemargin[parquet]", or save the table as CSV'
        ) from None
    try:
        told = pq.ParquetFile(pa.BufferReader(data)).metadata
        if told.num_rows * max(1, told.num_columns) > LARGEST_CELLS:  # a column of one value packs to almost nothing
            raise InputError(f"{file}: {told.num_rows:,} rows of {told.num_columns} columns; take a sample of its rows")
        table = pq.read_table(pa.BufferReader(data))
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError):
        raise InputError(f"{file}: a damaged Parquet file; write or download it again") from None
    names = checked_names([str(name).strip() for name in table.column_names], file)
    if len(names) < 2:
        raise InputError(f"{file}: {len(names)} columns; features and a column of classes are needed")
    if table.num_rows == 0:
        raise InputError(f"{file}: columns but no rows")
    columns: list[Cells] = []
    notes: list[str] = []
    kept: list[str] = []
    for name, column in zip(names, table.columns, strict=True):
        try:
            cells = _cells(pa, column)
        except (pa.ArrowException, ValueError, OverflowError) as error:  # dates beyond the year 9999, words in no UTF-8
            why = short(" ".join(str(error).split()))
            raise InputError(f"{file}: column {shown(name)} cannot be read ({why}); leave it out or mend it") from None
        if cells is None:
            notes.append(f"left out {shown(name)} (it holds {shown(str(column.type))}, neither numbers nor words)")
        else:
            kept.append(name)
            columns.append(cells)
    if len(kept) < 2:
        raise InputError(f"{file}: no column to learn from: {'; '.join(notes)}")
    return Grid(file, kept, columns, list(range(1, table.num_rows + 1)), notes)


def _cells(pa: Any, column: Any) -> Cells | None:
    """A column as whole numbers, numbers or words; None for lists and other structures."""
    kind = column.type
    types = pa.types
    if types.is_dictionary(kind):
        return _cells(pa, column.cast(kind.value_type))
    if types.is_integer(kind) and not types.is_uint64(kind) and not column.null_count:
        return np.asarray(column.to_numpy(), dtype=np.int64)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    if types.is_null(kind):
        return np.full(len(column), np.nan)
    if types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return None
    return ["" if value is None else str(value).strip() for value in column.to_pylist()]
