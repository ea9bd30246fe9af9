"""Original files of the image sets: found in a folder, in the cache or on the network.

From an archive only the wanted members are taken, under our own names and at their known sizes.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..bounded_files import open_regular
from ..errors import InputError
from .bounded import Bounded
from .fetch import FetchError, cache_dir, fetch, written
from .image_bytes import LARGEST_NAMES, Originals, path_of, read
from .image_catalogue import ImageEntry

LARGEST_ARCHIVE = 256 << 20
_BESIDE = 1 << 20  # bytes of names, headers and what else lies beside the wanted members


def read_originals(entry: ImageEntry, data_dir: str | Path | None = None) -> Originals:
    """The set from `data_dir`, `WIDEMARGIN_DATA` or the cache, else downloaded; what is given must be right."""
    given = list(given_folders(entry.folders, data_dir))
    for folder in given:
        if all(path_of(folder, file.name) for file in entry.files):
            return read(entry, folder)
    for folder in given:
        lacking = [file.name for file in entry.files if not path_of(folder, file.name)]
        if len(lacking) < len(entry.files):
            raise InputError(f"{folder}: no {lacking[0]}, which belongs to {entry.name!r}; put all its files there")
    kept = cache_dir() / "images" / entry.name
    if all(path_of(kept, file.name) for file in entry.files):
        try:
            return read(entry, kept)
        except InputError:
            pass  # a damaged file in the cache is nobody's work: it is fetched again
    archives = [folder / name for folder in given for name in _packed_names(entry) if (folder / name).is_file()]
    return _kept(entry, kept, archives[0] if archives and entry.kind == "cifar" else None)


def given_folders(folders: tuple[str, ...], data_dir: str | Path | None) -> Iterator[Path]:
    """Each folder given may be the set's own, the one that holds it, or the parent of a folder `data` that does."""
    for given, whose in ((data_dir, "--data-dir"), (os.environ.get("WIDEMARGIN_DATA"), "WIDEMARGIN_DATA")):
        if given:
            folder = Path(given).expanduser()
            if not folder.is_dir():
                raise InputError(f"{whose}: {folder} is no folder")
            yield from (folder / name for name in folders)
            yield folder
            yield from (folder / "data" / name for name in folders)


def _packed_names(entry: ImageEntry) -> list[str]:
    """What the network has: one archive, or every file gzipped."""
    if entry.kind == "cifar":
        return [url.rpartition("/")[2] for url in entry.urls]
    return [f"{file.name}.gz" for file in entry.files]


# ---------------------------------------------------------------- from the network


def _kept(entry: ImageEntry, kept: Path, archive: Path | None) -> Originals:
    """Download (or unpack an archive put there by hand), read, and only then keep in the cache."""
    try:
        kept.mkdir(parents=True, exist_ok=True)
        room = TemporaryDirectory(dir=kept.parent, prefix=f".{entry.name}.")
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{kept}: cannot be written ({why}); set WIDEMARGIN_CACHE to another folder") from None
    with room as name:
        folder = Path(name)
        if archive is not None:
            _check_archive(entry, archive)
            _unpack(entry, archive, folder)
        else:
            try:
                _download(entry, folder)
            except InputError as error:
                first, *more = _packed_names(entry)
                files = f"{first!r} and {len(more)} more" if more else repr(first)
                remedy = f"download it elsewhere and give the folder that holds {files} with --data-dir"
                raise InputError(f"data set {entry.name!r}: {error}; {remedy}") from None
        originals = read(entry, folder)
        for path in folder.iterdir():
            path.replace(kept / path.name)
    return originals


def _download(entry: ImageEntry, folder: Path) -> None:
    packed = dict(entry.packed)
    failed: FetchError | None = None
    for url in entry.urls:
        try:
            if entry.kind == "cifar":
                name = url.rpartition("/")[2]
                archive = fetch(url, folder / name, sha256=packed.get(name), limit=LARGEST_ARCHIVE)
                _unpack(entry, archive, folder)
                archive.unlink()
                return
            for name in _packed_names(entry):
                fetch(url + name, folder / name, sha256=packed.get(name), limit=LARGEST_ARCHIVE)
            return
        except FetchError as error:
            failed = failed or error
    assert failed is not None
    raise failed


def _check_archive(entry: ImageEntry, archive: Path) -> None:
    expected = dict(entry.packed).get(archive.name)
    try:
        with open_regular(archive, LARGEST_ARCHIVE) as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{archive}: cannot be read ({error.strerror})") from None
    if expected is not None and found != expected:
        raise InputError(f"{archive}: not the original of {entry.name!r}: SHA-256 is {found}, expected {expected}")


def _tar(stream: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode="r|")


def _unpack(entry: ImageEntry, archive: Path, folder: Path) -> None:
    """The wanted members alone, wherever they lie in the archive, at the sizes they must have."""
    sizes = {file.name: file.count * entry.record for file in entry.files}
    missing = set(sizes)
    try:
        # Read as a stream, so that neither a bomb in front of a member nor one in its name's place unpacks beyond this.
        most = sum(sizes.values()) + _BESIDE
        with (
            open_regular(archive) as stream,
            gzip.open(stream) as unpacked,
            _tar(Bounded(unpacked, most, str(archive))) as pack,
        ):
            for member in pack:
                name = member.name.rpartition("/")[2]
                if not member.isfile() or (name not in missing and name != entry.names_file):
                    continue
                if member.size != sizes.get(name, member.size) or (name not in sizes and member.size > LARGEST_NAMES):
                    raise InputError(f"{archive}: {name} has {member.size:,} bytes, not those of {entry.name!r}")
                content = pack.extractfile(member)
                assert content is not None
                with written(folder / name) as target:
                    shutil.copyfileobj(content, target)
                missing.discard(name)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, OSError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{archive}: a damaged archive ({why}); download it again") from None
    if missing:
        raise InputError(f"{archive}: no {min(missing)} in the archive; it is not the original of {entry.name!r}")
