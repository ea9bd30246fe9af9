"""The content of image files, as size and SHA-256: a picture under another name is the same content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError
from .decode import open_image


class FileDigest(NamedTuple):
    """Bytes of a file and the SHA-256 of them, in hexadecimal digits."""

    size: int
    sha256: str


def hash_file(path: Path) -> FileDigest:
    """Read and hash a file."""
    with open_image(path) as file:
        try:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error}); repair or remove it") from None
        return FileDigest(os.fstat(file.fileno()).st_size, digest)


def hash_files(paths: Iterable[Path]) -> list[FileDigest]:
    """The same for many files, in their order; hashing leaves Python's lock alone, so threads share the work."""
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1), thread_name_prefix="hash") as pool:
        return list(pool.map(hash_file, paths))
