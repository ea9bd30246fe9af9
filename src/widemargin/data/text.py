"""Bytes of a file as text: what it is by its first bytes, which encoding, and one clear line for what is no table."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path

from ..errors import InputError
from ..printable import printable
from .bounded import gunzipped
from .cells import shown

LARGEST = 1 << 30  # a table beyond this does not fit the memory as Python strings
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


def read_bytes(path: Path, others: Callable[[], Iterable[str]] = tuple) -> bytes:
    """All bytes of a file, unpacked if gzipped; `others` gives names to suggest besides the files around it."""
    file = named(path)
    try:
        with path.open("rb") as stream:
            data = stream.read(LARGEST + 1)
    except FileNotFoundError:
        raise InputError(f"{file}: no such file{_nearest(path, others)}") from None
    except IsADirectoryError:
        raise InputError(f"{file}: a folder; give a CSV, TSV or Parquet file") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise InputError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if data.startswith(GZIP):
        try:
            data = gunzipped(data, LARGEST, file)
        except (OSError, EOFError, zlib.error):
            raise InputError(f"{file}: a damaged gzip file; compress or download it again") from None
    if len(data) > LARGEST:
        raise InputError(f"{file}: larger than {LARGEST >> 30} GiB; take a sample of its rows")
    return data


def _nearest(path: Path, others: Callable[[], Iterable[str]]) -> str:
    try:
        beside = [entry.name for entry in path.absolute().parent.iterdir() if not entry.name.startswith(".")]
    except OSError:
        beside = []
    lowered = {name.lower(): name for name in (*beside, *others())}
    near = get_close_matches(path.name.lower(), lowered, n=1, cutoff=0.6)
    return f"; did you mean {lowered[near[0]]!r}?" if near else "; give a file or the name of a data set"


def decoded(data: bytes, file: str) -> tuple[str, list[str]]:
    """The text of a table and a note if its encoding had to be guessed."""
    if not data.strip(b" \t\r\n\0"):
        raise InputError(f"{file}: the file is empty" if not data.strip() else f"{file}: holds nothing but zero bytes")
    for mark, encoding in MARKS:
        if data.startswith(mark):
            try:
                return _checked(data.decode(encoding), file), []
            except UnicodeDecodeError:
                raise InputError(f"{file}: damaged {encoding.upper()} text; save it as UTF-8") from None
    start = data[:4096].lstrip().lower()
    for first, what in NOT_TABLES:
        if start.startswith(first.lower()):
            sheet = first == ZIP and (b"[content_types].xml" in start or file.lower().endswith((".xlsx", ".ods")))
            raise InputError(f"{file}: is {EXCEL if sheet else what}")
    try:
        return _checked(data.decode("utf-8"), file), []
    except UnicodeDecodeError as error:
        row = data.count(b"\n", 0, error.start) + 1
    try:
        text = _checked(data.decode("cp1252"), file)
    except UnicodeDecodeError:
        raise InputError(f"{file}: row {row} is not text in UTF-8; save the table as CSV in UTF-8") from None
    return text, [f"row {row} is not UTF-8, so the file was read as Windows-1252 text"]


def _checked(text: str, file: str) -> str:
    """The text, unless its characters are those of a program or picture."""
    if "\0" in text:
        row = text.count("\n", 0, text.index("\0")) + 1
        raise InputError(f"{file}: row {row} holds a zero byte, so this is no text; save the table as CSV in UTF-8")
    sample = text[:65536]
    odd = [character for character in sample if character < " " and character not in "\t\r\n\f\v\x1a"]
    if len(odd) > len(sample) // 100:
        raise InputError(f"{file}: holds control characters such as {shown(odd[0])}, so this is no table in text")
    if not text.strip():
        raise InputError(f"{file}: the file is empty")
    return text.rstrip("\x1a")  # the end mark of old DOS programs
