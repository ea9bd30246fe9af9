"""How large the pages of a Parquet file are once they are unpacked, by the headers that stand before each of them.

A reader makes room for what such a header says, whatever the sizes at the end of the file say; so they are looked at
before pyarrow reads anything. They are structures of Thrift's compact protocol:
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_UNPACKED, _PACKED = 2, 3  # fields of a page header: sizes of the page without and with compression
_DEEPEST = 16


class PageError(ValueError):
    """Bytes that are no page of a Parquet file."""


def largest_page(data: bytes, start: int, end: int) -> int:
    """Bytes of the largest page, unpacked, of those that stand one after the other from `start` to `end`."""
    if not 0 <= start <= end <= len(data):
        raise PageError
    largest, place = 0, start
    while place < end:
        header = _Header(data, place)
        sizes = header.numbers()
        unpacked, packed = sizes.get(_UNPACKED, -1), sizes.get(_PACKED, -1)
        if unpacked < 0 or packed < 0:
            raise PageError
        largest, place = max(largest, unpacked), header.place + packed
    return largest


class _Header:
    """Reads one structure from a place in the data."""

    def __init__(self, data: bytes, place: int) -> None:
        self.data, self.place = data, place

    def numbers(self) -> dict[int, int]:
        """The whole numbers among the fields; everything else is passed over."""
        found: dict[int, int] = {}
        field = 0
        while kind_and_step := self._byte():
            kind, step = kind_and_step & 15, kind_and_step >> 4
            field = field + step if step else self._zigzag()
            if kind in (_I16, _I32, _I64):
                found[field] = self._zigzag()
            else:
                self._skip(kind, 0)
        return found

    def _byte(self) -> int:
        if self.place >= len(self.data):
            raise PageError
        self.place += 1
        return self.data[self.place - 1]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise PageError

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, kind: int, depth: int, inside: bool = False) -> None:
        """Pass over a value; truth values have bytes of their own inside lists only."""
        if depth > _DEEPEST:
            raise PageError
        if kind in (_TRUE, _FALSE):
            self.place += inside
        elif kind == _BYTE:
            self.place += 1
        elif kind in (_I16, _I32, _I64):
            self._varint()
        elif kind == _DOUBLE:
            self.place += 8
        elif kind == _BINARY:
            length = self._varint()
            self.place += length
        elif kind in (_LIST, _SET):
            size_and_kind = self._byte()
            count = size_and_kind >> 4 if size_and_kind >> 4 < 15 else self._varint()
            self._skip_all(count, (size_and_kind & 15,), depth)
        elif kind == _MAP:
            count = self._varint()
            kinds = self._byte() if count else 0
            self._skip_all(count, (kinds >> 4, kinds & 15), depth)
        elif kind == _STRUCT:
            while kind_and_step := self._byte():
                if not kind_and_step >> 4:
                    self._zigzag()
                self._skip(kind_and_step & 15, depth + 1)
        else:
            raise PageError
        if self.place > len(self.data):
            raise PageError

    def _skip_all(self, count: int, kinds: tuple[int, ...], depth: int) -> None:
        for _ in range(count):
            for kind in kinds:
                self._skip(kind, depth + 1, inside=True)
