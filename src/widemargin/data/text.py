"""Bytes of a file as text: what it is by its first bytes, which encoding, and one clear line for what is no table."""

from __future__ import annotations

import codecs
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from pathlib import Path

from ..bounded_files import TooLargeError, read_stream
from ..errors import InputError
from ..printable import printable
from .bounded import gunzipped
from .cells import shown

LARGEST = 1 << 30  # bytes of a table, unpacked
LONGEST_ROW = 1 << 24  # characters: fifty thousand columns of three hundred
_CHUNK = 1 << 20
NOT_CP1252 = (b"\x81", b"\x8d", b"\x8f", b"\x90", b"\x9d")
PARQUET = b"PAR1"
GZIP = b"\x1f\x8b"
ZIP = b"PK\x03\x04"

EXCEL = "an Excel workbook; export its sheet as CSV"
NOT_TABLES = (
    (b"\xd0\xcf\x11\xe0", EXCEL),
    (ZIP, "a zip archive; unpack it and give the CSV file inside"),
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
MARKS = (  # byte order marks; UTF-32 begins as UTF-16 does, so it is asked for first
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)


def named(path: str | Path) -> str:
    """A path as messages and pages show it: as it was given, on one line."""
    return printable(str(path))


def read_bytes(path: Path, others: Callable[[], Iterable[str]] = tuple) -> tuple[bytes, int]:
    """All bytes of a file or pipe, unpacked if gzipped, and how many there were before that.

    `others` gives names to suggest besides the files around it.
    """
    file = named(path)
    try:
        data = read_stream(path, LARGEST)
    except TooLargeError:
        raise InputError(f"{file}: larger than {LARGEST >> 30} GiB; take a sample of its rows") from None
    except FileNotFoundError:
        raise InputError(f"{file}: no such file{_nearest(path, others)}") from None
    except InputError:
        if path.is_dir():
            raise InputError(f"{file}: a folder; give a CSV, TSV or Parquet file") from None
        raise
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise InputError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    stored = len(data)
    if data.startswith(GZIP):
        try:
            data = gunzipped(data, LARGEST, file)
        except (OSError, EOFError, zlib.error):
            raise InputError(f"{file}: a damaged gzip file; compress or download it again") from None
    return data, stored


def _nearest(path: Path, others: Callable[[], Iterable[str]]) -> str:
    try:
        beside = [entry.name for entry in path.absolute().parent.iterdir() if not entry.name.startswith(".")]
    except OSError:
        beside = []
    lowered = {name.lower(): name for name in (*beside, *others())}
    near = get_close_matches(path.name.lower(), lowered, n=1, cutoff=0.6)
    return f"; did you mean {lowered[near[0]]!r}?" if near else "; give a file or the name of a data set"


@dataclass(frozen=True)
class Text:
    """The bytes of a text and their encoding; decoded line by line, for all of it at once may take four times as much.

    >>> list(Text(b"a,b\\r\\n1,2", "utf-8").lines())
    ['a,b\\r\\n', '1,2']
    """

    data: bytes
    encoding: str

    def lines(self) -> Iterable[str]:
        """Every line with what ends it."""
        return io.TextIOWrapper(io.BytesIO(self.data), self.encoding, newline="")

    def start(self, size: int) -> str:
        """The text of the first bytes; a character that is cut off is left out."""
        return self.data[:size].decode(self.encoding, "ignore")


def decoded(data: bytes, file: str) -> tuple[Text, list[str]]:
    """The text of a table and a note if its encoding had to be guessed."""
    if not any(piece.strip(b" \t\r\n\0") for piece in _pieces(data)):  # all at once would be a copy of all
        zeros = any(piece.strip() for piece in _pieces(data))
        raise InputError(f"{file}: holds nothing but zero bytes" if zeros else f"{file}: the file is empty")
    for mark, encoding in MARKS:
        if data.startswith(mark):
            try:
                return _checked(Text(_utf8(data, encoding), "utf-8"), file), []
            except UnicodeDecodeError:
                raise InputError(f"{file}: damaged {encoding.upper()} text; save it as UTF-8") from None
    start = data[:4096].lstrip().lower()
    for first, what in NOT_TABLES:
        if start.startswith(first.lower()):
            sheet = first == ZIP and (b"[content_types].xml" in start or file.lower().endswith((".xlsx", ".ods")))
            raise InputError(f"{file}: is {EXCEL if sheet else what}")
    wrong = _not_utf8(data)
    if wrong is None:
        return _checked(Text(data, "utf-8"), file), []
    row = data.count(b"\n", 0, wrong) + 1
    if any(byte in data for byte in NOT_CP1252):
        raise InputError(f"{file}: row {row} is not text in UTF-8; save the table as CSV in UTF-8")
    text = _checked(Text(data, "cp1252"), file)
    return text, [f"row {row} is not UTF-8, so the file was read as Windows-1252 text"]


def _pieces(data: bytes) -> Iterator[bytes]:
    return (data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK))


def _utf8(data: bytes, encoding: str) -> bytes:
    """Text of another encoding as UTF-8, without its byte order mark, piece by piece."""
    return b"".join(part.encode() for part in codecs.iterdecode(_pieces(data), encoding))


def _not_utf8(data: bytes) -> int | None:
    """The place of the first byte that is no UTF-8; None where all of them are."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = 0
    for piece in chain(_pieces(data), [b""]):
        waiting = len(decoder.getstate()[0])
        try:
            decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            return done - waiting + error.start
        done += len(piece)
    return None


def _checked(text: Text, file: str) -> Text:
    """The text, unless its characters are those of a program or picture."""
    if b"\0" in text.data:
        row = text.data.count(b"\n", 0, text.data.index(b"\0")) + 1
        raise InputError(f"{file}: row {row} holds a zero byte, so this is no text; save the table as CSV in UTF-8")
    sample = text.start(65536)
    odd = [character for character in sample if character < " " and character not in "\t\r\n\f\v\x1a"]
    if len(odd) > len(sample) // 100:
        raise InputError(f"{file}: holds control characters such as {shown(odd[0])}, so this is no table in text")
    data = text.data.rstrip(b"\x1a")  # the end mark of old DOS programs
    for start in range(0, len(data) - LONGEST_ROW, LONGEST_ROW):
        if all(data.find(mark, start, start + LONGEST_ROW) < 0 for mark in (b"\n", b"\r")):
            row = max(data.count(mark, 0, start) for mark in (b"\n", b"\r")) + 1
            raise InputError(f"{file}: row {row}: more than {LONGEST_ROW:,} characters; is this a table?")
    if not any(line.strip() for line in Text(data, text.encoding).lines()):
        raise InputError(f"{file}: the file is empty")
    return Text(data, text.encoding)
