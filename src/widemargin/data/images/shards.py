"""Tar shards in the layout of WebDataset: `000001.jpg` beside `000001.cls`, `.json` or `.npy`, read in place.

The files of a sample share their path up to the first dot of the name. Labels are read as WebDataset decodes the files
and as public sets use them:

- `.cls` holds one class, a number or a word.
- `.json` holds the class as the value of "label", "cls", "class" or "target" (or their plurals). A list there, of words
  or class numbers, is any number of labels.
- `.npy` holds an array of 0 and 1, one for each label.
- `.txt` is a caption in this layout, so it is a label only where a separator says that it lists labels (`red;round`).

Headers are read one after the other and checked; names only tell samples apart and are never used as paths. Long names
(GNU, pax) are read up to a bound.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

import numpy as np

from ...io.bounded import NotJSONError, parse_json
from ...io.errors import InputError, format_value, shorten, spell_option
from ..label_sets import LabelSet, as_label_set
from .decode import IMAGE_SUFFIXES
from .packed import (
    MAX_SLICE_BYTES,
    PackedFiles,
    PackedPart,
    PackedSet,
    expand_braces,
    open_packed_file,
    read_span,
    tar_parts,
)
from .packed_labels import label_images, read_label_list, split_words

LABEL_KEYS = ("label", "labels", "cls", "class", "classes", "target", "targets")
LABEL_EXTENSIONS = ("cls", "json", "npy")
IMAGE_EXTENSIONS = tuple(suffix[1:] for suffix in IMAGE_SUFFIXES)
_BLOCK = 512
_MAX_HEADER_BYTES = 1 << 20  # of a long name or a pax header
_MAX_LABEL_BYTES = 1 << 20  # of a .cls, .json, .npy or .txt
_MAX_WORD_CHARS = 1000
_REGULAR_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)


class TarMember(NamedTuple):
    """A file in an archive."""

    name: str
    offset: int
    size: int


def read_tar_set(root: Path, label_separator: str | None = None) -> PackedSet:
    """The shards of a folder (all, or those of train/, test/ and val/), of one file, or of a pattern with braces."""
    if root.is_dir():
        parts = tar_parts(root)
    else:
        names = expand_braces(str(root))
        parts = {"train": [Path(name) for name in names]}
    by_part = {part: read_shards(paths, label_separator) for part, paths in parts.items()}
    return PackedSet(root, "tar", by_part["train"], by_part.get("test"), by_part.get("val"))


def read_shards(paths: list[Path], label_separator: str | None = None) -> PackedPart:
    """The samples of some shards, in their order."""
    samples = [
        (number, *sample) for number, path in enumerate(paths) for sample in _iter_samples(path, label_separator)
    ]
    if not samples:
        raise InputError(f"{paths[0]}: no images in it")
    numbers, images, labels = zip(*samples, strict=True)
    names = np.array([image.name for image in images], dtype=object)
    file_index = np.array(numbers, np.int32)
    offsets, sizes = (np.array([getattr(image, of) for image in images], np.int64) for of in ("offset", "size"))
    return label_images(PackedFiles(tuple(paths), file_index, offsets, sizes, names), labels)


def _iter_samples(path: Path, separator: str | None) -> Iterator[tuple[TarMember, str | LabelSet]]:
    """Image and labels of each sample of a shard; its files stand one after the other."""
    with open_packed_file(path) as file:
        for fields in _group_members(file, path):
            yield _read_sample(file, path, fields, separator)


def _group_members(file: BinaryIO, path: Path) -> Iterator[dict[str, TarMember]]:
    """The files of each sample, by extension."""
    stem: str | None = None
    fields: dict[str, TarMember] = {}
    for member in iter_tar_members(file, path):
        folder, _, name = member.name.rpartition("/")
        base, dot, extension = name.partition(".")
        if not dot or not base or PurePosixPath(name).name.startswith("."):
            continue  # not part of a sample, such as a hidden file of the system that packed it
        if (key := f"{folder}/{base}") != stem:
            if fields:
                yield fields
            stem, fields = key, {}
        fields.setdefault(extension.lower(), member)
    if fields:
        yield fields


def _read_sample(
    file: BinaryIO, path: Path, fields: dict[str, TarMember], separator: str | None
) -> tuple[TarMember, str | LabelSet]:
    name = next(iter(fields.values())).name
    where = f"{path}, {shorten(name, 200)}"
    images = [member for extension, member in fields.items() if extension.rpartition(".")[2] in IMAGE_EXTENSIONS]
    if not images:
        raise InputError(f"{where}: a sample without an image; it has {', '.join(sorted(fields))[:200]}")
    if images[0].size > MAX_SLICE_BYTES:
        raise InputError(f"{where}: {images[0].size:,} bytes are not an image")
    texts = ("cls",) if separator is None else ("cls", "txt")
    for extension in (one for one in texts if one in fields):
        text = _read_text(file, path, fields[extension], where)
        return images[0], _check_word(text, where) if separator is None else split_words(text, separator)
    if "json" in fields:
        return images[0], _read_json_labels(_read_text(file, path, fields["json"], where), where, separator)
    if "npy" in fields:
        return images[0], _read_row_of_labels(_read_bytes(file, path, fields["npy"], where), where)
    caption = f"; a .txt is a caption unless {spell_option('label_separator')} is given" if "txt" in fields else ""
    raise InputError(f"{where}: a sample without a label: it has no .cls, .json or .npy{caption}")


def _read_json_labels(text: str, where: str, separator: str | None) -> str | LabelSet:
    try:
        values = parse_json(text, where)
    except NotJSONError as error:
        raise InputError(str(error)) from None
    keys = [key for key in LABEL_KEYS if isinstance(values, dict) and key in values]
    if not keys:
        raise InputError(f"{where}: its .json has none of {', '.join(LABEL_KEYS)}")
    label = values[keys[0]]
    if isinstance(label, list):
        return read_label_list(label, where)
    if isinstance(label, bool) or not isinstance(label, str | int):
        raise InputError(f"{where}: the label {format_value(label)} is neither a number, a string nor a list of these")
    if separator is not None and isinstance(label, str):
        return split_words(label, separator)
    return _check_word(str(label), where)


def _read_row_of_labels(data: bytes, where: str) -> LabelSet:
    """The labels of an array file. Its bytes are viewed, so that no header makes it allocate or unpickle anything."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
        row = np.frombuffer(data, dtype, offset=file.tell())
    except (ValueError, TypeError, EOFError, OverflowError) as error:
        why = shorten(" ".join(str(error).split()))
        raise InputError(f"{where}: its .npy is not an array of 0 and 1, one for each label ({why})") from None
    found = as_label_set(row, where) if shape == row.shape else None
    if found is None:
        raise InputError(f"{where}: its .npy has the shape {list(shape)}, not [C], a 0 or 1 for each of C labels")
    return found


def _read_text(file: BinaryIO, path: Path, member: TarMember, where: str) -> str:
    try:
        return _read_bytes(file, path, member, where).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{where}: its label is not UTF-8 text") from None


def _read_bytes(file: BinaryIO, path: Path, member: TarMember, where: str) -> bytes:
    if member.size > _MAX_LABEL_BYTES:
        raise InputError(f"{where}: {member.size:,} bytes are not a label")
    return read_span(file, path, member.offset, member.size)


def _check_word(text: str, where: str) -> str:
    word = text.strip()
    if not word or len(word) > _MAX_WORD_CHARS:
        raise InputError(f"{where}: the label {shorten(repr(word))} is empty or not a word")
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
            raise InputError(f"{path}, {name}: claims {length:,} bytes, more than the file has; copy it again")
        place = data + length + -length % _BLOCK
        if header.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE):
            if length > _MAX_HEADER_BYTES:
                raise InputError(
                    f"{path}: a header of {length:,} bytes at byte {data:,} is too large; the file is damaged"
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
            raise InputError(
                f"{path}, {shorten(header.name, 200)}: sparse files are not read; pack the images as plain files"
            )
        long_name, long_size = None, None


def _read_pax(data: bytes, path: Path, name: str | None) -> tuple[str | None, int | None]:
    """Name and size in the records `LENGTH KEY=VALUE` of a pax header."""
    place, size = 0, None
    while place < len(data):
        digits, _, _ = data[place : place + 20].partition(b" ")
        if not digits.isdigit() or not len(digits) < int(digits) <= len(data) - place:
            raise InputError(f"{path}: its pax header is damaged")
        record = data[place + len(digits) + 1 : place + int(digits)].removesuffix(b"\n")
        key, _, value = record.partition(b"=")
        if key == b"path":
            name = value.decode("utf-8", "surrogateescape")
        elif key == b"size":
            if not value.isdigit() or len(value) > 18:
                raise InputError(f"{path}: its pax header is damaged")
            size = int(value)
        place += int(digits)
    return name, size
