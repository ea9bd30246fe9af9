"""Parquet files as a grid, by pyarrow if it is installed: column by column, within the memory that a table may take.

What a file says of itself is looked at first: rows × columns, the sizes of its columns, and the size of every page, for
pages are unpacked as their own headers say. Words are read as codes of a dictionary, so that a word which stands in a
million rows is in memory once; columns of structures and bytes are not read at all. pyarrow starts no threads for this:
with torch in the same process, its threads sometimes end the process with an abort when Python exits.

A reader makes room for what the header of a page says, whatever the sizes at the end of the file say; so both are
looked at before pyarrow reads anything. They are read here and not by pyarrow's own objects for them, which end the
whole process on some damaged files (26.0.1). Both are structures of Thrift's compact protocol:
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from sys import getsizeof
from typing import Any, NamedTuple

import numpy as np

from ...io.errors import InputError, shorten
from .grid import Cells, Grid, resolve_column_names
from .table import MemoryBudget, check_cells, quote_cell
from .text import MAX_TABLE_BYTES

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_MAX_THRIFT_DEPTH = 16
_FOOTER_MAGIC = b"PAR1"

# Numbers of the fields that are looked at, by the structures of the format.
_ROW_GROUPS = 4  # of FileMetaData
_COLUMNS = 1  # of RowGroup
_META_DATA = 3  # of ColumnChunk
_CHUNK_UNPACKED, _CHUNK_PACKED, _DATA_OFFSET, _DICTIONARY_OFFSET = 6, 7, 9, 11  # of ColumnMetaData
_PAGE_UNPACKED, _PAGE_PACKED = 2, 3  # of PageHeader


class PageError(ValueError):
    """Bytes that are no part of a Parquet file."""


class ColumnChunk(NamedTuple):
    """One column of some rows: where its pages begin and end, and how many bytes they claim to have unpacked."""

    start: int
    end: int
    unpacked_bytes: int


def column_chunks(data: bytes) -> Iterator[ColumnChunk]:
    """The parts of all columns, as the end of the file lists them."""
    length = int.from_bytes(data[-8:-4], "little")
    if len(data) < 12 or data[-4:] != _FOOTER_MAGIC or length > len(data) - 12:
        raise PageError
    footer = _ThriftReader(data, len(data) - 8 - length, len(data) - 8)
    for field, kind in footer.iter_fields():
        if (field, kind) != (_ROW_GROUPS, _LIST):
            footer.skip(kind)
            continue
        for _ in footer.iter_list():
            yield from _row_group_chunks(footer)


def _row_group_chunks(footer: _ThriftReader) -> Iterator[ColumnChunk]:
    for field, kind in footer.iter_fields():
        if (field, kind) != (_COLUMNS, _LIST):
            footer.skip(kind)
            continue
        for _ in footer.iter_list():
            for inner, inner_kind in footer.iter_fields():
                if (inner, inner_kind) == (_META_DATA, _STRUCT):
                    yield _chunk(footer.read_integers())
                else:
                    footer.skip(inner_kind)


def _chunk(numbers: dict[int, int]) -> ColumnChunk:
    start, packed = numbers.get(_DATA_OFFSET, -1), numbers.get(_CHUNK_PACKED, -1)
    dictionary = numbers.get(_DICTIONARY_OFFSET, 0)
    start = dictionary if 0 < dictionary < start else start
    return ColumnChunk(start, start + packed, max(0, numbers.get(_CHUNK_UNPACKED, 0)))


def largest_page(data: bytes, start: int, end: int) -> int:
    """Bytes of the largest page, unpacked, of those that stand one after the other from `start` to `end`."""
    if not 0 <= start <= end <= len(data):
        raise PageError
    largest, position = 0, start
    while position < end:
        header = _ThriftReader(data, position, end)
        sizes = header.read_integers()
        unpacked, packed = sizes.get(_PAGE_UNPACKED, -1), sizes.get(_PAGE_PACKED, -1)
        if unpacked < 0 or packed < 0:
            raise PageError
        largest, position = max(largest, unpacked), header.position + packed
    return largest


class _ThriftReader:
    """Reads a structure value by value, from a place in the data to an end that it may not pass."""

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self.data, self.position, self.end = data, position, end

    def iter_fields(self) -> Iterator[tuple[int, int]]:
        """The number and kind of every field; whoever asks must read or skip its value before the next."""
        field = 0
        while kind_and_step := self._read_byte():
            step = kind_and_step >> 4
            field = field + step if step else self._read_zigzag()
            yield field, kind_and_step & 15

    def iter_list(self) -> Iterator[int]:
        """The kind of every item of a list, in the same way."""
        size_and_kind = self._read_byte()
        count = size_and_kind >> 4 if size_and_kind >> 4 < 15 else self._read_varint()
        for _ in range(count):
            yield size_and_kind & 15

    def read_integers(self) -> dict[int, int]:
        """The whole numbers among the fields; everything else is passed over."""
        found: dict[int, int] = {}
        for field, kind in self.iter_fields():
            if kind in (_I16, _I32, _I64):
                found[field] = self._read_zigzag()
            else:
                self.skip(kind)
        return found

    def skip(self, kind: int, depth: int = 0, in_collection: bool = False) -> None:
        """Pass over a value; truth values have bytes of their own inside lists only."""
        if depth > _MAX_THRIFT_DEPTH:
            raise PageError
        if kind in (_TRUE, _FALSE):
            self.position += in_collection
        elif kind == _BYTE:
            self.position += 1
        elif kind in (_I16, _I32, _I64):
            self._read_varint()
        elif kind == _DOUBLE:
            self.position += 8
        elif kind == _BINARY:
            length = self._read_varint()
            self.position += length
        elif kind in (_LIST, _SET):
            for item in self.iter_list():
                self.skip(item, depth + 1, in_collection=True)
        elif kind == _MAP:
            count = self._read_varint()
            kinds = self._read_byte() if count else 0
            for _ in range(count):
                self.skip(kinds >> 4, depth + 1, in_collection=True)
                self.skip(kinds & 15, depth + 1, in_collection=True)
        elif kind == _STRUCT:
            for _, inner in self.iter_fields():
                self.skip(inner, depth + 1)
        else:
            raise PageError
        if self.position > self.end:
            raise PageError

    def _read_byte(self) -> int:
        if self.position >= self.end:
            raise PageError
        self.position += 1
        return self.data[self.position - 1]

    def _read_varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._read_byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise PageError

    def _read_zigzag(self) -> int:
        value = self._read_varint()
        return (value >> 1) ^ -(value & 1)


# ---------------------------------------------------------------- columns, read by pyarrow

_ROWS_PER_BLOCK = 1 << 16
_NANOSECONDS_PER_DAY = 86400e9
_MAX_WORD_LENGTH = 131_072  # characters, as in CSV


def read_parquet_grid(data: bytes, memory: MemoryBudget) -> Grid:
    """The columns of a Parquet file; numbers stay numbers, all else becomes words."""
    file = memory.file
    pa, pq = import_pyarrow(file)
    with translate_parquet_errors(pa, file):
        source = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        metadata, schema = source.metadata, source.schema_arrow
        check_cells(metadata.num_rows, metadata.num_columns, file)
        names = resolve_column_names([str(name).strip() for name in schema.names], file)
        if len(names) < 2:
            raise InputError(f"{file}: {len(names)} columns; at least a feature and a column of classes are needed")
        if metadata.num_rows == 0:
            raise InputError(f"{file}: columns but no rows")
        usable = [is_readable_type(pa, field.type) for field in schema]
        _check_sizes(data, memory)
        memory.reserve_cells(metadata.num_rows, sum(usable))
        coded = [field.name for field in schema if is_text_type(pa, field.type)]
        source = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False, read_dictionary=coded)
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
        raise InputError(f"{file}: only {len(kept)} of its {len(names)} columns can be read: {'; '.join(notes)}")
    if len({len(column) for column in columns}) > 1:
        raise InputError(f"{file}: a damaged Parquet file; write or download it again")
    return Grid(file, kept, columns, range(1, len(columns[0]) + 1), notes)


def import_pyarrow(file: str) -> tuple[Any, Any]:
    """pyarrow and its reader of Parquet; an InputError where it is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError(
            f'{file}: Parquet needs pyarrow; pip install "widemargin[parquet]", or save the table as CSV'
        ) from None
    return pa, pq


@contextmanager
def translate_parquet_errors(pa: Any, file: str) -> Iterator[None]:
    """Whatever pyarrow says of a damaged file, as one line."""
    try:
        yield
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError, LookupError):
        raise InputError(f"{file}: a damaged Parquet file; write or download it again") from None


def _check_sizes(data: bytes, memory: MemoryBudget) -> None:
    """Refuse a file whose columns together, or a single page, unpack to more than a table may take."""
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
        return to_column_cells(pa, column, memory)
    except InputError:
        raise
    except (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError, LookupError) as error:
        # Pages that are damaged, dates beyond the year 9999, words in no UTF-8.
        why = shorten(" ".join(str(error).split()))
        raise InputError(
            f"{memory.file}: column {quote_cell(name)} cannot be read ({why}); remove or repair it"
        ) from None


def is_text_type(pa: Any, kind: Any) -> bool:
    """Whether a column holds words."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_readable_type(pa: Any, kind: Any) -> bool:
    """Whether a column holds numbers or words; lists, other structures and bytes are neither."""
    types = pa.types
    if types.is_dictionary(kind):
        return is_readable_type(pa, kind.value_type)
    tests: tuple[Callable[[Any], bool], ...] = (types.is_nested, types.is_binary, types.is_large_binary)
    return not any(test(kind) for test in (*tests, types.is_fixed_size_binary, types.is_binary_view))


def to_column_cells(pa: Any, column: Any, memory: MemoryBudget) -> Cells:
    """A column as whole numbers, numbers or words."""
    kind, types = column.type, pa.types
    if types.is_dictionary(kind):
        inner = kind.value_type
        if types.is_integer(inner) or types.is_floating(inner) or types.is_decimal(inner) or types.is_null(inner):
            return to_column_cells(pa, column.cast(inner), memory)
    elif types.is_integer(kind) and not types.is_uint64(kind) and not column.null_count:
        return np.asarray(column.to_numpy(), dtype=np.int64)
    elif types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    elif types.is_null(kind):
        return np.full(len(column), np.nan)
    elif types.is_duration(kind):
        days = column.cast(pa.duration("ns"), safe=False).cast(pa.int64()).cast(pa.float64(), safe=False)
        return np.asarray(days.to_numpy(), dtype=np.float64) / _NANOSECONDS_PER_DAY
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
