"""Where the bytes of a table come from: a file, a pipe, standard input (`-`) or an https address.

All are bounded by the same size, also once they are unpacked. A pipe and standard input may be silent for 30 seconds,
a server as long as `download` allows; addresses follow the rules there (https, also after a redirect; http from this
machine only) and are downloaded anew each time. A file named `-` is `./-`.
"""

from __future__ import annotations

import re
import tempfile
import zlib
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from ...io.bounded import TooLargeError, gunzip_bounded, read_file, read_standard_input, read_stream
from ...io.errors import InputError
from ...io.text import escape_unprintable
from ..download import FetchError, fetch
from .text import MAX_TABLE_BYTES
from .uci import uci_set_names

STANDARD_INPUT = "-"
GZIP_MAGIC = b"\x1f\x8b"
_ADDRESS_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_SAFE_IN_ADDRESS = "%/:=&?~#+!$,;'@()*[]"


class TableSource(NamedTuple):
    """The bytes of a table, unpacked if they were gzipped, and what to call it."""

    data: bytes
    stored_bytes: int
    """How many bytes there were before that."""
    file: str
    """For messages and pages: as it was given, on one line; an address without its query."""
    table_name: str


def is_address(path: str | Path) -> bool:
    """Whether this is an address of the network and not a file.

    >>> [is_address(path) for path in ("https://a.org/x.csv", "ftp://a.org/x.csv", "x.csv", "C:/x.csv")]
    [True, True, False, False]
    """
    return isinstance(path, str) and _ADDRESS_PATTERN.match(path) is not None


def read_source(path: str | Path) -> TableSource:
    """All bytes of a table."""
    if path == STANDARD_INPUT:
        file, name, data = "stdin", "stdin", _read_standard_input()
    elif is_address(path):
        file, name = _describe_address(str(path))
        data = _download(str(path), file)
    else:
        place = Path(path).expanduser()
        file, name, data = escape_unprintable(str(path)), place.name, _read_path(place, escape_unprintable(str(place)))
    stored_bytes = len(data)
    if data.startswith(GZIP_MAGIC):
        try:
            data = gunzip_bounded(data, MAX_TABLE_BYTES, file)
        except (OSError, EOFError, zlib.error):
            raise InputError(f"{file}: a damaged gzip file; compress or download it again") from None
    name = name.removesuffix(".gz")
    return TableSource(data, stored_bytes, file, Path(name).stem or name)


def _read_path(path: Path, file: str) -> bytes:
    try:
        return read_stream(path, MAX_TABLE_BYTES)
    except TooLargeError:
        raise _too_large_error(file) from None
    except FileNotFoundError:
        raise InputError(f"{file}: no such file or data set{_suggest_name(path)}") from None
    except InputError:
        if path.is_dir():
            raise InputError(f"{file}: a folder; give a CSV, TSV or Parquet file") from None
        raise
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise InputError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _read_standard_input() -> bytes:
    try:
        return read_standard_input(MAX_TABLE_BYTES)
    except TooLargeError:
        raise _too_large_error("stdin") from None
    except OSError as error:
        raise InputError(f"stdin: cannot be read ({error.strerror or error})") from None


def _download(address: str, file: str) -> bytes:
    if "@" in address.partition("://")[2].partition("/")[0]:
        raise InputError(f"{file}: URLs with a user name are not fetched; download the file and pass its path")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table"
        try:
            fetch(quote(address, safe=_SAFE_IN_ADDRESS), path, max_bytes=MAX_TABLE_BYTES, use_mirror=False)
        except FetchError as error:
            raise InputError(f"{file}: cannot be downloaded ({error.reason})") from None
        return read_file(path, MAX_TABLE_BYTES)


def _describe_address(address: str) -> tuple[str, str]:
    """The address without what may be secret in it, and the name of its file.

    >>> _describe_address("https://user:word@a.org/data/my%20rows.csv?key=1#top")
    ('https://a.org/data/my%20rows.csv', 'my rows.csv')
    >>> _describe_address("https://a.org")
    ('https://a.org', 'a_org')
    """
    try:
        parts = urlsplit(address)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return escape_unprintable(address), "table"
    last = unquote(parts.path).rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^\w.+ -]", "_", last) or re.sub(r"\W", "_", host)
    return escape_unprintable(f"{parts.scheme}://{host}{parts.path}"), name


def _too_large_error(file: str) -> InputError:
    return InputError(f"{file}: larger than {MAX_TABLE_BYTES >> 30} GiB; take a sample of its rows")


def _suggest_name(path: Path) -> str:
    """The nearest file beside it or data set, and how to list these."""
    try:
        sibling_names = [entry.name for entry in path.absolute().parent.iterdir() if not entry.name.startswith(".")]
    except OSError:
        sibling_names = []
    lowered = {name.lower(): name for name in (*sibling_names, *uci_set_names())}
    near = get_close_matches(path.name.lower(), lowered, n=1, cutoff=0.6)
    hint = f"; did you mean {lowered[near[0]]!r}?" if near else ";"
    return f"{hint} widemargin compare --list prints the data sets"
