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
from .bounded import BoundedReader
from .fetch import FetchError, atomic_write, cache_dir, fetch
from .image_bytes import MAX_CLASS_NAMES_BYTES, ImageSetArrays, find_original_file, read_image_set
from .image_catalogue import ImageSetEntry

MAX_ARCHIVE_BYTES = 256 << 20
_ARCHIVE_OVERHEAD_BYTES = 1 << 20  # bytes of names, headers and what else lies beside the wanted members


def read_originals(entry: ImageSetEntry, data_dir: str | Path | None = None) -> ImageSetArrays:
    """The set from `data_dir`, `WIDEMARGIN_DATA` or the cache, else downloaded; what is given must be right."""
    given = list(given_folders(entry.folders, data_dir))
    for folder in given:
        if all(find_original_file(folder, file.name) for file in entry.files):
            return read_image_set(entry, folder)
    for folder in given:
        lacking = [file.name for file in entry.files if not find_original_file(folder, file.name)]
        if len(lacking) < len(entry.files):
            raise InputError(f"{folder}: no {lacking[0]}, which belongs to {entry.name!r}; put all its files there")
    cache_folder = cache_dir() / "images" / entry.name
    if all(find_original_file(cache_folder, file.name) for file in entry.files):
        try:
            return read_image_set(entry, cache_folder)
        except InputError:
            pass  # a damaged file in the cache is nobody's work: it is fetched again
    archives = [folder / name for folder in given for name in _packed_names(entry) if (folder / name).is_file()]
    return _fetch_into_cache(entry, cache_folder, archives[0] if archives and entry.file_format == "cifar" else None)


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


def _packed_names(entry: ImageSetEntry) -> list[str]:
    """What the network has: one archive, or every file gzipped."""
    if entry.file_format == "cifar":
        return [url.rpartition("/")[2] for url in entry.urls]
    return [f"{file.name}.gz" for file in entry.files]


# ---------------------------------------------------------------- from the network


def _fetch_into_cache(entry: ImageSetEntry, cache_folder: Path, archive: Path | None) -> ImageSetArrays:
    """Download (or unpack an archive put there by hand), read, and only then keep in the cache."""
    try:
        cache_folder.mkdir(parents=True, exist_ok=True)
        temporary_folder = TemporaryDirectory(dir=cache_folder.parent, prefix=f".{entry.name}.")
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{cache_folder}: cannot be written ({why}); set WIDEMARGIN_CACHE to another folder") from None
    with temporary_folder as name:
        folder = Path(name)
        if archive is not None:
            _check_archive(entry, archive)
            _unpack(entry, archive, folder)
        else:
            try:
                _download_image_files(entry, folder)
            except InputError as error:
                first, *more = _packed_names(entry)
                files = f"{first!r} and {len(more)} more" if more else repr(first)
                remedy = f"download it elsewhere and give the folder that holds {files} with --data-dir"
                raise InputError(f"data set {entry.name!r}: {error}; {remedy}") from None
        originals = read_image_set(entry, folder)
        for path in folder.iterdir():
            path.replace(cache_folder / path.name)
    return originals


def _download_image_files(entry: ImageSetEntry, folder: Path) -> None:
    packed = dict(entry.download_sha256)
    failed: FetchError | None = None
    for url in entry.urls:
        try:
            if entry.file_format == "cifar":
                name = url.rpartition("/")[2]
                archive = fetch(url, folder / name, sha256=packed.get(name), max_bytes=MAX_ARCHIVE_BYTES)
                _unpack(entry, archive, folder)
                archive.unlink()
                return
            for name in _packed_names(entry):
                fetch(url + name, folder / name, sha256=packed.get(name), max_bytes=MAX_ARCHIVE_BYTES)
            return
        except FetchError as error:
            failed = failed or error
    assert failed is not None
    raise failed


def _check_archive(entry: ImageSetEntry, archive: Path) -> None:
    expected = dict(entry.download_sha256).get(archive.name)
    try:
        with open_regular(archive, MAX_ARCHIVE_BYTES) as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{archive}: cannot be read ({error.strerror})") from None
    if expected is not None and found != expected:
        raise InputError(f"{archive}: not the original of {entry.name!r}: SHA-256 is {found}, expected {expected}")


def _tar(stream: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode="r|")


def _unpack(entry: ImageSetEntry, archive: Path, folder: Path) -> None:
    """The wanted members alone, wherever they lie in the archive, at the sizes they must have."""
    sizes = {file.name: file.num_items * entry.record_bytes for file in entry.files}
    missing = set(sizes)
    try:
        # Read as a stream, so that neither a bomb in front of a member nor one in its name's place unpacks beyond this.
        max_bytes = sum(sizes.values()) + _ARCHIVE_OVERHEAD_BYTES
        with (
            open_regular(archive) as stream,
            gzip.open(stream) as unpacked,
            _tar(BoundedReader(unpacked, max_bytes, str(archive))) as pack,
        ):
            for member in pack:
                name = member.name.rpartition("/")[2]
                if not member.isfile() or (name not in missing and name != entry.class_names_file):
                    continue
                if member.size != sizes.get(name, member.size) or (
                    name not in sizes and member.size > MAX_CLASS_NAMES_BYTES
                ):
                    raise InputError(f"{archive}: {name} has {member.size:,} bytes, not those of {entry.name!r}")
                content = pack.extractfile(member)
                assert content is not None
                with atomic_write(folder / name) as target:
                    shutil.copyfileobj(content, target)
                missing.discard(name)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, OSError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{archive}: a damaged archive ({why}); download it again") from None
    if missing:
        raise InputError(f"{archive}: no {min(missing)} in the archive; it is not the original of {entry.name!r}")
