"""Bytes of a file as text: what it is by its first bytes, and its encoding. What is no table is refused in one line."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from ...io.errors import InputError
from .table import quote_cell

MAX_TABLE_BYTES = 1 << 30  # bytes of a table, unpacked
MAX_ROW_CHARACTERS = 1 << 24  # characters: fifty thousand columns of three hundred
_TEXT_CHUNK_BYTES = 1 << 20
BYTES_NOT_IN_CP1252 = (b"\x81", b"\x8d", b"\x8f", b"\x90", b"\x9d")
PARQUET_MAGIC = b"PAR1"
ZIP_MAGIC = b"PK\x03\x04"

EXCEL_MESSAGE = "an Excel workbook; export its sheet as CSV"
NON_TABLE_SIGNATURES = (
    (b"\xd0\xcf\x11\xe0", EXCEL_MESSAGE),
    (ZIP_MAGIC, "a zip archive; unpack it and give the CSV file inside"),
    (b"BZh", "compressed with bzip2; unpack it first"),
    (b"\xfd7zXZ", "compressed with xz; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it first"),
    (b"%PDF", "a PDF; export the table as CSV"),
    (b"<!doctype", "a web page; download the file itself"),
    (b"<html", "a web page; download the file itself"),
    (b"<?xml", "an XML file; export the table as CSV"),
    (b"@relation", "an ARFF file; export it as CSV"),
    (b"{", "a JSON file; export it as CSV"),
    (b"[{", "a JSON file; export it as CSV"),
)
BYTE_ORDER_MARKS = (  # byte order marks; UTF-32 begins as UTF-16 does, so it is asked for first
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)


@dataclass(frozen=True)
class EncodedText:
    """The bytes of a text and their encoding; decoded line by line, for all of it at once may take four times as much.

    >>> list(EncodedText(b"a,b\\r\\n1,2", "utf-8").lines())
    ['a,b\\r\\n', '1,2']
    """

    data: bytes
    encoding: str

    def lines(self) -> Iterable[str]:
        """Every line with what ends it."""
        return io.TextIOWrapper(io.BytesIO(self.data), self.encoding, newline="")

    def decode_start(self, size: int) -> str:
        """The text of the first bytes; a character that is cut off is left out."""
        return self.data[:size].decode(self.encoding, "ignore")


def decode_table_text(data: bytes, file: str) -> tuple[EncodedText, list[str]]:
    """The text of a table and a note if its encoding had to be guessed."""
    if not any(piece.strip(b" \t\r\n\0") for piece in _iter_chunks(data)):  # all at once would be a copy of all
        zeros = any(piece.strip() for piece in _iter_chunks(data))
        raise InputError(f"{file}: contains only zero bytes" if zeros else f"{file}: the file is empty")
    for mark, encoding in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            try:
                return _check_table_text(EncodedText(_to_utf8(data, encoding), "utf-8"), file), []
            except UnicodeDecodeError:
                raise InputError(f"{file}: damaged {encoding.upper()} text; save it as UTF-8") from None
    start = data[:4096].lstrip().lower()
    for first, what in NON_TABLE_SIGNATURES:
        if start.startswith(first.lower()):
            sheet = first == ZIP_MAGIC and (b"[content_types].xml" in start or file.lower().endswith((".xlsx", ".ods")))
            raise InputError(f"{file}: is {EXCEL_MESSAGE if sheet else what}")
    wrong = _find_non_utf8(data)
    if wrong is None:
        return _check_table_text(EncodedText(data, "utf-8"), file), []
    row = data.count(b"\n", 0, wrong) + 1
    if any(byte in data for byte in BYTES_NOT_IN_CP1252):
        raise InputError(f"{file}: row {row} is not text in UTF-8; save the table as CSV in UTF-8")
    text = _check_table_text(EncodedText(data, "cp1252"), file)
    return text, [f"row {row} is not UTF-8, so the file was read as Windows-1252 text"]


def _iter_chunks(data: bytes) -> Iterator[bytes]:
    return (data[start : start + _TEXT_CHUNK_BYTES] for start in range(0, len(data), _TEXT_CHUNK_BYTES))


def _to_utf8(data: bytes, encoding: str) -> bytes:
    """Text of another encoding as UTF-8, without its byte order mark, piece by piece."""
    return b"".join(part.encode() for part in codecs.iterdecode(_iter_chunks(data), encoding))


def _find_non_utf8(data: bytes) -> int | None:
    """The place of the first byte that is no UTF-8; None where all of them are."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = 0
    for piece in chain(_iter_chunks(data), [b""]):
        waiting = len(decoder.getstate()[0])
        try:
            decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            return done - waiting + error.start
        done += len(piece)
    return None


def _check_table_text(text: EncodedText, file: str) -> EncodedText:
    """The text, unless its characters are those of a program or picture."""
    if b"\0" in text.data:
        row = text.data.count(b"\n", 0, text.data.index(b"\0")) + 1
        raise InputError(f"{file}: row {row} contains a zero byte, so it is not text; save the table as CSV in UTF-8")
    sample = text.decode_start(65536)
    odd = [character for character in sample if character < " " and character not in "\t\r\n\f\v\x1a"]
    if len(odd) > len(sample) // 100:
        raise InputError(f"{file}: contains control characters such as {quote_cell(odd[0])}, so it is not a text table")
    data = text.data.rstrip(b"\x1a")  # the end mark of old DOS programs
    for start in range(0, len(data) - MAX_ROW_CHARACTERS, MAX_ROW_CHARACTERS):
        if all(data.find(mark, start, start + MAX_ROW_CHARACTERS) < 0 for mark in (b"\n", b"\r")):
            row = max(data.count(mark, 0, start) for mark in (b"\n", b"\r")) + 1
            raise InputError(f"{file}: row {row}: more than {MAX_ROW_CHARACTERS:,} characters; is this a table?")
    if not any(line.strip() for line in EncodedText(data, text.encoding).lines()):
        raise InputError(f"{file}: the file is empty")
    return EncodedText(data, text.encoding)
