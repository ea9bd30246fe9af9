"""Parquet files as a grid, by pyarrow if it is installed: column by column, within the memory that a table may take.

What a file says of itself is looked at first: rows × columns, the sizes of its columns, and the size of every page, for
pages are unpacked as their own headers say. Words are read as codes of a dictionary, so that a word which stands in a
million rows is in memory once; columns of structures and bytes are not read at all. pyarrow starts no threads for this:
with torch in the same process, its threads sometimes end the process with an abort when Python exits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from sys import getsizeof
from typing import Any

import numpy as np

from ..errors import InputError, shorten
from .cells import quote_cell
from .grid import Cells, Grid, resolve_column_names
from .parquet_pages import column_chunks, largest_page
from .table_memory import MemoryBudget, check_cells
from .text import MAX_TABLE_BYTES

_ROWS_PER_BLOCK = 1 << 16
_MAX_WORD_LENGTH = 131_072  # characters, as in CSV


def read_parquet_grid(data: bytes, memory: MemoryBudget) -> Grid:
    """The columns of a Parquet file; numbers stay numbers, all else becomes words."""
    file = memory.file
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError(
            f'{file}: Parquet needs pyarrow; pip install "widemargin[parquet]", or save the table as CSV'
        ) from None
    try:
        source = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        metadata, schema = source.metadata, source.schema_arrow
        check_cells(metadata.num_rows, metadata.num_columns, file)
        names = resolve_column_names([str(name).strip() for name in schema.names], file)
        if len(names) < 2:
            raise InputError(f"{file}: {len(names)} columns; features and a column of classes are needed")
        if metadata.num_rows == 0:
            raise InputError(f"{file}: columns but no rows")
        usable = [_is_readable_type(pa, field.type) for field in schema]
        _check_sizes(data, memory)
        memory.reserve_cells(metadata.num_rows, sum(usable))
        coded = [field.name for field in schema if _is_text_type(pa, field.type)]
        source = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False, read_dictionary=coded)
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError):
        raise InputError(f"{file}: a damaged Parquet file; write or download it again") from None
    columns: list[Cells] = []
    notes: list[str] = []
    kept: list[str] = []
    for name, field, wanted in zip(names, schema, usable, strict=True):
        if not wanted:
            notes.append(
                f"left out {quote_cell(name)} (it holds {quote_cell(str(field.type))}, neither numbers nor words)"
            )
            continue
        kept.append(name)
        columns.append(_read_parquet_column(pa, source, field.name, name, memory))
    if len(kept) < 2:
        raise InputError(f"{file}: no column to learn from: {'; '.join(notes)}")
    if len({len(column) for column in columns}) > 1:
        raise InputError(f"{file}: a damaged Parquet file; write or download it again")
    return Grid(file, kept, columns, range(1, len(columns[0]) + 1), notes)


def _check_sizes(data: bytes, memory: MemoryBudget) -> None:
    """That neither the columns as a whole nor a single page unpack to more than a table may take."""
    total = largest = 0
    for chunk in column_chunks(data):
        total += chunk.unpacked_bytes
        largest = max(largest, largest_page(data, chunk.start, chunk.end))
    memory.reserve(max(total, largest))
    memory.reserve(-max(total, largest))  # pages are unpacked one after the other, and their cells are counted


def _read_parquet_column(pa: Any, source: Any, stored_name: str, name: str, memory: MemoryBudget) -> Cells:
    """One column as whole numbers, numbers or words."""
    try:
        column = source.read(columns=[stored_name], use_threads=False).column(stored_name)
        return _to_column_cells(pa, column, memory)
    except InputError:
        raise
    except (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError, LookupError) as error:
        # Pages that are damaged, dates beyond the year 9999, words in no UTF-8.
        why = shorten(" ".join(str(error).split()))
        raise InputError(
            f"{memory.file}: column {quote_cell(name)} cannot be read ({why}); leave it out or mend it"
        ) from None


def _is_text_type(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_readable_type(pa: Any, kind: Any) -> bool:
    """Whether a column holds numbers or words; lists, other structures and bytes are neither."""
    types = pa.types
    if types.is_dictionary(kind):
        return _is_readable_type(pa, kind.value_type)
    tests: tuple[Callable[[Any], bool], ...] = (types.is_nested, types.is_binary, types.is_large_binary)
    return not any(test(kind) for test in (*tests, types.is_fixed_size_binary, types.is_binary_view))


def _to_column_cells(pa: Any, column: Any, memory: MemoryBudget) -> Cells:
    """A column as whole numbers, numbers or words."""
    kind, types = column.type, pa.types
    if types.is_dictionary(kind):
        inner = kind.value_type
        if types.is_integer(inner) or types.is_floating(inner) or types.is_decimal(inner) or types.is_null(inner):
            return _to_column_cells(pa, column.cast(inner), memory)
    elif types.is_integer(kind) and not types.is_uint64(kind) and not column.null_count:
        return np.asarray(column.to_numpy(), dtype=np.int64)
    elif types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    elif types.is_null(kind):
        return np.full(len(column), np.nan)
    found: list[str] = []
    for words in _iter_word_blocks(pa, column, memory):
        found += words
    return found


def _iter_word_blocks(pa: Any, column: Any, memory: MemoryBudget) -> Iterator[list[str]]:
    """A column's words, some rows at a time; equal words of a part of the file are one object."""
    length = 0  # of all words one after the other, as a table in text has them
    for chunk in column.chunks:
        coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        words = ["" if value is None else str(value).strip() for value in coded.dictionary.to_pylist()]
        if words and len(max(words, key=len)) > _MAX_WORD_LENGTH:
            raise ValueError(f"a word of more than {_MAX_WORD_LENGTH:,} characters")
        memory.reserve(sum(map(getsizeof, words)))
        words.append("")  # where nothing stands
        codes = coded.indices.fill_null(len(words) - 1)
        length += int(np.array([len(word) for word in words])[codes.to_numpy()].sum())
        if length > MAX_TABLE_BYTES:
            raise ValueError(f"words of more than {MAX_TABLE_BYTES:,} characters")
        for start in range(0, len(codes), _ROWS_PER_BLOCK):
            yield [words[code] for code in codes.slice(start, _ROWS_PER_BLOCK).to_pylist()]
