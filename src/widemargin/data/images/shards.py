"""Tar shards in the layout of WebDataset: `000001.jpg` beside `000001.cls` or `000001.json`, read in place.

The files of a sample share their path up to the first dot of the name. `.cls` holds the class, a number or a word; of a
`.json` it is the value of "label", "cls", "class" or "target". Headers are read one after the other and checked; names
only tell samples apart and are never used as paths. Long names (GNU, pax) are read up to a bound.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

import numpy as np

from ...io.bounded import NotJSONError, parse_json
from ...io.errors import InputError, format_value, shorten
from .packed import (
    MAX_SLICE_BYTES,
    PackedFiles,
    PackedPart,
    PackedSet,
    expand_braces,
    number_classes,
    open_packed_file,
    read_span,
    tar_parts,
)

LABEL_KEYS = ("label", "cls", "class", "target")
IMAGE_EXTENSIONS = ("bmp", "gif", "jpeg", "jpg", "pbm", "pgm", "png", "ppm", "tif", "tiff", "webp")
_BLOCK = 512
_MAX_HEADER_BYTES = 1 << 20  # of a long name or a pax header
_MAX_LABEL_BYTES = 1 << 20  # of a .cls or .json
_MAX_WORD_CHARS = 1000
_REGULAR_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)


class TarMember(NamedTuple):
    """A file in an archive."""

    name: str
    offset: int
    size: int


def read_tar_set(root: Path) -> PackedSet:
    """The shards of a folder (all, or those of train/, test/ and val/), of one file, or of a pattern with braces."""
    if root.is_dir():
        parts = tar_parts(root)
    else:
        names = expand_braces(str(root))
        parts = {"train": [Path(name) for name in names]}
    found = {part: read_shards(paths) for part, paths in parts.items()}
    return PackedSet(root, "tar", found["train"], found.get("test"), found.get("val"))


def read_shards(paths: list[Path]) -> PackedPart:
    """The samples of some shards, in their order."""
    samples = [(number, *sample) for number, path in enumerate(paths) for sample in _iter_samples(path)]
    if not samples:
        raise InputError(f"{paths[0]}: no images in it")
    numbers, images, labels = zip(*samples, strict=True)
    y, class_names = number_classes(list(labels))
    names = np.array([image.name for image in images], dtype=object)
    file_index = np.array(numbers, np.int32)
    offsets, sizes = (np.array([getattr(image, of) for image in images], np.int64) for of in ("offset", "size"))
    return PackedPart(PackedFiles(tuple(paths), file_index, offsets, sizes, names), y, class_names)


def _iter_samples(path: Path) -> Iterator[tuple[TarMember, str]]:
    """Image and label of each sample of a shard; its files stand one after the other."""
    with open_packed_file(path) as file:
        yield from _group_members(file, path)


def _group_members(file: BinaryIO, path: Path) -> Iterator[tuple[TarMember, str]]:
    stem: str | None = None
    fields: dict[str, TarMember] = {}
    for member in iter_tar_members(file, path):
        folder, _, name = member.name.rpartition("/")
        base, dot, extension = name.partition(".")
        if not dot or not base or PurePosixPath(name).name.startswith("."):
            continue  # no part of a sample, such as a file of the system that packed it
        if (key := f"{folder}/{base}") != stem:
            if fields:
                yield _read_sample(file, path, fields)
            stem, fields = key, {}
        fields.setdefault(extension.lower(), member)
    if fields:
        yield _read_sample(file, path, fields)


def _read_sample(file: BinaryIO, path: Path, fields: dict[str, TarMember]) -> tuple[TarMember, str]:
    name = next(iter(fields.values())).name
    where = f"{path}, {shorten(name, 200)}"
    images = [member for extension, member in fields.items() if extension.rpartition(".")[2] in IMAGE_EXTENSIONS]
    if not images:
        raise InputError(f"{where}: a sample without an image; it has {', '.join(sorted(fields))[:200]}")
    if images[0].size > MAX_SLICE_BYTES:
        raise InputError(f"{where}: {images[0].size:,} bytes are no image")
    if "cls" in fields:
        text = _read_text(file, path, fields["cls"], where)
        return images[0], _check_word(text, where)
    if "json" in fields:
        try:
            values = parse_json(_read_text(file, path, fields["json"], where), where)
        except NotJSONError as error:
            raise InputError(str(error)) from None
        keys = [key for key in LABEL_KEYS if isinstance(values, dict) and key in values]
        if not keys:
            raise InputError(f"{where}: its .json has none of {', '.join(LABEL_KEYS)}")
        label = values[keys[0]]
        if isinstance(label, bool) or not isinstance(label, str | int):
            raise InputError(f"{where}: the label {format_value(label)} is neither a number nor a word")
        return images[0], _check_word(str(label), where)
    raise InputError(f"{where}: a sample without a label: there is no .cls and no .json beside the image")


def _read_text(file: BinaryIO, path: Path, member: TarMember, where: str) -> str:
    if member.size > _MAX_LABEL_BYTES:
        raise InputError(f"{where}: {member.size:,} bytes are no label")
    try:
        return read_span(file, path, member.offset, member.size).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{where}: its label is no text in UTF-8") from None


def _check_word(text: str, where: str) -> str:
    word = text.strip()
    if not word or len(word) > _MAX_WORD_CHARS:
        raise InputError(f"{where}: the label {shorten(repr(word))} is empty, or no word")
    return word


def iter_tar_members(file: BinaryIO, path: Path) -> Iterator[TarMember]:
    """The files of an archive that is not compressed, in their order; links, folders and devices are left out."""
    size, place = os.fstat(file.fileno()).st_size, 0
    long_name: str | None = None
    long_size: int | None = None
    while place + _BLOCK <= size:
        block = read_span(file, path, place, _BLOCK)
        if block.count(0) == _BLOCK:  # the end of the archive
            return
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError) as error:
            what = "compressed; unpack it first" if block[:2] == b"\x1f\x8b" else f"no tar header ({error})"
            raise InputError(f"{path}: at byte {place:,}: {what}") from None
        length = header.size if long_size is None else long_size
        data = place + _BLOCK
        if length < 0 or data + length > size:
            name = shorten(long_name or header.name, 200)
            raise InputError(
                f"{path}, {name}: says that it has {length:,} bytes, which the file has not; copy it again"
            )
        place = data + length + -length % _BLOCK
        if header.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE):
            if length > _MAX_HEADER_BYTES:
                raise InputError(
                    f"{path}: a header of {length:,} bytes at byte {data:,}; no archive of images has that"
                )
            extra = read_span(file, path, data, length)
            if header.type == tarfile.GNUTYPE_LONGNAME:
                long_name = extra.rstrip(b"\0").decode("utf-8", "surrogateescape")
            elif header.type == tarfile.XHDTYPE:
                long_name, long_size = _read_pax(extra, path, long_name)
            continue
        if header.type in _REGULAR_TYPES:
            yield TarMember(long_name or header.name, data, length)
        elif header.type == tarfile.GNUTYPE_SPARSE:
            raise InputError(f"{path}, {shorten(header.name, 200)}: a sparse file; pack the images without holes")
        long_name, long_size = None, None


def _read_pax(data: bytes, path: Path, name: str | None) -> tuple[str | None, int | None]:
    """Name and size in the records `LENGTH KEY=VALUE` of a pax header."""
    place, size = 0, None
    while place < len(data):
        digits, _, _ = data[place : place + 20].partition(b" ")
        if not digits.isdigit() or not len(digits) < int(digits) <= len(data) - place:
            raise InputError(f"{path}: a pax header that is damaged")
        record = data[place + len(digits) + 1 : place + int(digits)].removesuffix(b"\n")
        key, _, value = record.partition(b"=")
        if key == b"path":
            name = value.decode("utf-8", "surrogateescape")
        elif key == b"size":
            if not value.isdigit() or len(value) > 18:
                raise InputError(f"{path}: a pax header that is damaged")
            size = int(value)
        place += int(digits)
    return name, size
