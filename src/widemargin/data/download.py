"""Files from the network: fetched once, whole or not at all, checked, and kept in a cache.

Only https (http from this machine itself, for tests and mirrors behind a tunnel), also after a redirect; bounded in
size, checked against a known SHA-256; what arrives is bytes and is never run or unpickled.

Not by pooch, which follows https to http, has no bound, sends .netrc's passwords and knows certifi's authorities only.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from ..io.bounded import read_file
from ..io.errors import InputError

DOWNLOAD_ATTEMPTS, RETRY_DELAY_SECONDS, TIMEOUT_SECONDS = 3, 0.5, 30.0
MAX_DOWNLOAD_BYTES = 1 << 30
PROGRESS_MIN_BYTES = 5 << 20  # bytes from which a download shows its progress
DOWNLOAD_CHUNK_BYTES = 1 << 16


class FetchError(InputError):
    """A download that failed; `reason` says why in a few words."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"cannot download {url}: {reason}")
        self.url, self.reason = url, reason


def cache_dir() -> Path:
    """`WIDEMARGIN_CACHE`, else `$XDG_CACHE_HOME/widemargin`, else `~/.cache/widemargin`."""
    own, shared = os.environ.get("WIDEMARGIN_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser()
    try:
        return (Path(shared) if shared else Path.home() / ".cache") / "widemargin"
    except RuntimeError:
        raise InputError("no home folder to store downloads in; set WIDEMARGIN_CACHE to a folder") from None


def mirror_url(url: str) -> str:
    """The address on the mirror: `WIDEMARGIN_MIRROR` takes the place of scheme and host."""
    mirror = os.environ.get("WIDEMARGIN_MIRROR")
    return mirror.rstrip("/") + url[url.index("/", len("https://")) :] if mirror else url


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Write to a temporary file that is renamed when it is complete."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{path.parent}: cannot be written ({why}); set WIDEMARGIN_CACHE to another folder") from None
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _has_sha256(path: Path, sha256: str, max_bytes: int) -> bool:
    """Whether a file has the expected SHA-256."""
    try:
        return sha256_hex(read_file(path, max_bytes)) == sha256
    except (OSError, InputError):
        return False


def fetch(
    url: str,
    path: Path,
    *,
    sha256: str | None = None,
    max_bytes: int = MAX_DOWNLOAD_BYTES,
    use_mirror: bool = True,
) -> Path:
    """`path`, downloaded from `url` unless it is there already; tried three times when the network falters.

    The mirror has the known data sets; an address that a user gives is fetched without it.
    """
    if path.is_file() and (sha256 is None or _has_sha256(path, sha256, max_bytes)):
        return path
    address = mirror_url(url) if use_mirror else url
    if not is_allowed_url(address):
        raise FetchError(address, "only https addresses are fetched")
    for attempt in range(1, DOWNLOAD_ATTEMPTS + 1):
        try:
            with atomic_write(path) as stream:
                found = _download_to_stream(address, stream, max_bytes)
                if sha256 is not None and found != sha256:
                    raise FetchError(address, f"its SHA-256 is {found}, expected {sha256}; deleted")
            return path
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, InputError):
                raise
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # the error is also the response, with an open connection
            if attempt == DOWNLOAD_ATTEMPTS or not _is_retryable(error):
                raise FetchError(address, _error_reason(error)) from None
            time.sleep(RETRY_DELAY_SECONDS * 2 ** (attempt - 1))
    raise AssertionError  # the last try returns or raises


def is_allowed_url(address: str) -> bool:
    """Whether an address may be fetched: over https, or from this machine itself.

    >>> [is_allowed_url(f"{start}/x") for start in ("https://a.org", "http://a.org", "http://127.0.0.1:80", "file://")]
    [True, False, True, False]
    """
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
    except ValueError:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _SafeRedirectHandler(urllib.request.HTTPRedirectHandler):
    """Follows redirects to allowed addresses only, and never from https to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not is_allowed_url(newurl) or (req.type == "https" and not newurl.lower().startswith("https:")):
            raise FetchError(req.full_url, f"it redirects to {newurl}, but only https addresses are fetched")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def sha256_hex(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _opener() -> urllib.request.OpenerDirector:
    """Opens http and https and nothing else; the usual opener knows ftp, files and data too."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        _SafeRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _download_to_stream(url: str, stream: IO[bytes], max_bytes: int) -> str:
    """Write what the address gives and return its SHA-256."""
    request = urllib.request.Request(url, headers={"User-Agent": "widemargin"})
    checksum, size = hashlib.sha256(), 0
    with _opener().open(request, timeout=TIMEOUT_SECONDS) as response:
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else None
        if total is not None and total > max_bytes:
            raise FetchError(url, f"{total:,} bytes, more than the {max_bytes:,} expected at most")
        with _download_progress(url, total) as advance:
            while chunk := response.read(DOWNLOAD_CHUNK_BYTES):
                size += len(chunk)
                if size > max_bytes:
                    raise FetchError(url, f"more than the {max_bytes:,} bytes expected at most")
                stream.write(chunk)
                checksum.update(chunk)
                advance(len(chunk))
    if total is not None and size != total:
        raise http.client.IncompleteRead(b"", total - size)
    return checksum.hexdigest()


@contextmanager
def _download_progress(url: str, total: int | None) -> Iterator[Any]:
    if (total or 0) < PROGRESS_MIN_BYTES or not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    parts = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(url.rpartition("/")[2], total=total)
        yield lambda size: bar.advance(task, size)


def _is_retryable(error: Exception) -> bool:
    """Whether another try may succeed: not for a missing page, an unknown host or a closed port."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code >= 500 or error.code in (408, 429)
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return not isinstance(cause, socket.gaierror | ConnectionRefusedError | str | ValueError)


def _error_reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer within {TIMEOUT_SECONDS:g} s"
    if isinstance(cause, http.client.IncompleteRead):
        return "the connection ended before the file did"
    if isinstance(cause, socket.gaierror | ConnectionError):
        return f"no connection ({cause.strerror or cause})"
    return " ".join(str(cause).split()) or type(cause).__name__
