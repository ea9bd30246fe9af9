"""Data sets that the library `datasets` (Hugging Face) wrote with `save_to_disk`, read by pyarrow alone.

The folder of a data set holds `state.json`, which lists its Arrow files, and `dataset_info.json` with the features; a
folder with `dataset_dict.json` holds one such folder for each split. An image is a struct of `bytes` and `path`, of
which `save_to_disk` fills the bytes. The files are not compressed, so that the bytes of an image lie in one piece: only
their places are kept.

A label is a `ClassLabel`, or a value (text or a whole number) in a column called label or class. A list of these
(`Sequence`, `List`) is any number of labels; a list of booleans or of floats has a 0 or 1 for each label.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...io.bounded import read_json
from ...io.errors import InputError, format_value, shorten
from ..label_sets import LabelSet, as_label_set
from .packed import MAX_SLICE_BYTES, PackedFiles, PackedPart, PackedSet, open_packed_file
from .packed_labels import label_images, read_label_list, split_words

_SPLITS = {"train": "train", "test": "test", "validation": "val", "valid": "val", "val": "val"}
_LABEL_COLUMNS = ("label", "labels", "class", "classes")
_MAX_FILES = 100_000


def read_arrow_set(root: Path, label_separator: str | None = None) -> PackedSet:
    """A saved data set, or several as splits."""
    if not (root / "dataset_dict.json").is_file():
        return PackedSet(root, "arrow", read_dataset(root, label_separator))
    splits = _read(root / "dataset_dict.json").get("splits")
    if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits):
        raise InputError(f"{root / 'dataset_dict.json'}: its splits are not a list of names")
    parts: dict[str, PackedPart] = {}
    for name in splits:
        if (part := _SPLITS.get(name)) is not None and part not in parts:
            parts[part] = read_dataset(root / _plain_name(name, root / "dataset_dict.json"), label_separator)
    if "train" not in parts:
        raise InputError(f"{root}: no split named train; it has {shorten(', '.join(map(repr, splits)))}")
    return PackedSet(root, "arrow", parts["train"], parts.get("test"), parts.get("val"))


def read_dataset(folder: Path, label_separator: str | None = None) -> PackedPart:
    """The images of one saved data set."""
    state = _read(folder / "state.json")
    listed = state.get("_data_files")
    if not isinstance(listed, list) or not 0 < len(listed) <= _MAX_FILES:
        raise InputError(f"{folder / 'state.json'}: lists no Arrow files")
    if state.get("_indices_data_files"):
        raise InputError(f"{folder}: a selection of rows of an older version of datasets; save it again")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in listed]
    paths = tuple(folder / _plain_name(name, folder / "state.json") for name in names)
    features = _read(folder / "dataset_info.json").get("features")
    if not isinstance(features, dict):
        raise InputError(f"{folder / 'dataset_info.json'}: it lists no features")
    image, label = _find_columns(features, folder)
    found = [_read_arrow_file(path, image, label) for path in paths]
    file_index = np.repeat(np.arange(len(paths), dtype=np.int32), [len(offsets) for offsets, _, _ in found])
    offsets, sizes = (np.concatenate([part[k] for part in found]) for k in (0, 1))
    rows = np.concatenate([np.arange(len(part[0])) for part in found])
    values: list[Any] = [value for part in found for value in part[2]]
    if not values:
        raise InputError(f"{folder}: no images in it")
    images = PackedFiles(paths, file_index, offsets, sizes, rows, "row ")
    return _label_rows(images, values, features[label], label_separator, f"{folder}, column {label}")


def _label_rows(images: PackedFiles, values: list[Any], feature: Any, separator: str | None, where: str) -> PackedPart:
    """Classes by the names of a `ClassLabel`, else by the values themselves."""
    item = _list_item(feature)
    names = (feature if item is None else item).get("names")
    known = tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()
    if item is not None:
        labels = [_read_labels(value, item, f"{where}, row {row}") for row, value in enumerate(values)]
        if not known:
            return label_images(images, labels)
        numbers = tuple(map(str, range(len(known))))
        unknown = next((number for some in labels for number in some if number not in numbers), None)
        if unknown is not None:
            raise InputError(f"{where}: label {format_value(unknown)} is not one of its {len(known):,} classes")
        return replace(label_images(images, labels, numbers), class_names=known)
    wrong = [value for value in values if isinstance(value, bool) or not isinstance(value, str | int)]
    if wrong:
        raise InputError(f"{where}: the label {format_value(wrong[0])} is neither a number nor a string")
    if known:
        wrong = [value for value in values if not (isinstance(value, int) and 0 <= value < len(known))]
        if wrong:
            raise InputError(f"{where}: label {format_value(wrong[0])} is not one of its {len(known):,} classes")
        used, y = np.unique(np.array(values, np.int64), return_inverse=True)
        return PackedPart(images, y.astype(np.int64), tuple(known[number] for number in used.tolist()))
    if separator is not None and all(isinstance(value, str) for value in values):
        return label_images(images, [split_words(value, separator) for value in values])
    return label_images(images, [str(value) for value in values])


def _list_item(feature: Any) -> dict[str, Any] | None:
    """What a column of lists holds lists of, in each of the three spellings of `datasets`; None for other columns."""
    if isinstance(feature, list):
        item = feature[0] if len(feature) == 1 else None
    else:
        is_list = isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList")
        item = feature.get("feature") if is_list else None
    return item if isinstance(item, dict) else None


def _read_labels(value: Any, item: dict[str, Any], where: str) -> LabelSet:
    """The labels of a row of a column of lists."""
    if not isinstance(value, list):
        raise InputError(f"{where}: {format_value(value)} where other rows have a list of labels")
    if str(item.get("dtype", "")).startswith(("bool", "float")):
        found = as_label_set(np.array([math.nan if part is None else part for part in value]), where)
        if found is None:
            raise InputError(f"{where}: the labels {format_value(value)}, not a 0 or 1 for each of two or more labels")
        return found
    return read_label_list(value, where)


def _find_columns(features: dict[str, Any], folder: Path) -> tuple[str, str]:
    """The columns of images and of labels."""
    kinds = {name: _kind_of(feature) for name, feature in features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    if len(images) != 1:
        raise InputError(
            f"{folder}: {len(images)} columns of images among {shorten(', '.join(features))}; expected one"
        )
    classes = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    labels = [name for name in classes if _list_item(features[name]) is None] or classes
    labels = labels or [name for name, kind in kinds.items() if kind == "Value" and name.lower() in _LABEL_COLUMNS]
    labels = [name for name in (*classes, *labels) if name == "label"][:1] or labels
    if len(labels) != 1:
        has = f"several columns of labels ({shorten(', '.join(labels))})" if labels else "no column of labels"
        raise InputError(f"{folder}: {has}; rename the one to use to `label`")
    return images[0], labels[0]


def _kind_of(feature: Any) -> Any:
    """The type of a column, of lists that of their items."""
    item = _list_item(feature)
    if item is not None:
        return item.get("_type")
    return feature.get("_type") if isinstance(feature, dict) else None


def _read_arrow_file(path: Path, image: str, label: str) -> tuple[NDArray[np.int64], NDArray[np.int64], list[Any]]:
    """Offsets and sizes of the images of an Arrow file, and their labels."""
    try:
        import pyarrow as pa
    except ImportError:
        raise InputError(f'{path}: needs pyarrow; pip install "widemargin[parquet]"') from None
    open_packed_file(path).close()  # one line where it is no file
    offsets, sizes, labels = [np.empty(0, np.int64)], [np.empty(0, np.int64)], list[Any]()
    try:
        with pa.memory_map(str(path)) as mapped:
            whole = mapped.read_buffer()
            for batch in pa.ipc.open_stream(pa.BufferReader(whole)):
                batch.validate(full=True)
                column = batch.column(batch.schema.get_field_index(image)) if image in batch.schema.names else None
                if column is None or label not in batch.schema.names:
                    raise InputError(f"{path}: no columns {image} and {label}")
                places = _find_bytes(pa, column, whole, path)
                offsets.append(places[0])
                sizes.append(places[1])
                labels += batch.column(batch.schema.get_field_index(label)).to_pylist()
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        why = shorten(" ".join(str(error).split()))
        raise InputError(f"{path}: not an Arrow file of `save_to_disk`, or damaged ({why})") from None
    return np.concatenate(offsets), np.concatenate(sizes), labels


def _find_bytes(pa: Any, column: Any, whole: Any, path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where in the file the bytes of the images of a column lie."""
    if not pa.types.is_struct(column.type) or column.type.get_field_index("bytes") < 0:
        raise InputError(f"{path}: its images are {shorten(str(column.type))}, not bytes; save the data set again")
    values = column.field("bytes")
    wide = pa.types.is_large_binary(values.type)
    if not wide and not pa.types.is_binary(values.type):
        raise InputError(f"{path}: its images are {shorten(str(values.type))}, not bytes; save the data set again")
    if column.null_count or values.null_count:
        raise InputError(f"{path}: some images have no bytes but a path; save the data set with its images embedded")
    _, ends, data = values.buffers()
    bounds = np.frombuffer(ends, np.int64 if wide else np.int32)[values.offset : values.offset + len(values) + 1]
    places: NDArray[np.int64] = bounds.astype(np.int64)
    start = 0 if data is None else data.address - whole.address
    if len(values) and not 0 <= start <= start + int(places[-1]) <= whole.size:
        raise InputError(f"{path}: compressed files are not read; save the data set without compression")
    sizes: NDArray[np.int64] = np.diff(places)
    if len(sizes) and int(sizes.max()) > MAX_SLICE_BYTES:
        raise InputError(f"{path}: an image of {int(sizes.max()):,} bytes is too large")
    return start + places[:-1], sizes


def _read(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: not a file written by `save_to_disk`")
    return found


def _plain_name(name: Any, where: Path) -> str:
    """A file or folder directly in a data set's own folder: no path that leaves it."""
    if not isinstance(name, str) or name in ("", ".", "..") or PurePath(name).name != name or "\0" in name:
        raise InputError(f"{where}: {format_value(name)} must be the name of a file in the same folder")
    return name
