"""How much the columns and pages of a Parquet file unpack to, by what the file says of itself.

A reader makes room for what the header of a page says, whatever the sizes at the end of the file say; so both are
looked at before pyarrow reads anything. They are read here and not by pyarrow's own objects for them, which end the
whole process on some damaged files (26.0.1). Both are structures of Thrift's compact protocol:
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

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
    if len(data) < 12 or not data.endswith(_FOOTER_MAGIC) or length > len(data) - 12:
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
