"""Labels of packed images: one class per image as int64 [N], or any number of labels per image as booleans [N, C].

Readers of packed files pass what they read for each image: a word, or a set of words where an image has any number of
labels, or a row of 0 and 1 (`MultiHot`). Digits are numbers: "9" comes before "10".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...io.errors import InputError, format_value
from ..label_sets import LabelSet, MultiHot, encode_label_sets
from .packed import PackedFiles, PackedPart


def number_classes(labels: Sequence[str] | NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The class of each image, from 0 on, and the names of the classes: numbers by size, words by the alphabet.

    >>> number_classes(["10", "9", "10"])
    (array([1, 0, 1]), ('9', '10'))
    """
    values = np.asarray(labels)
    if values.dtype.kind == "U" and all(re.fullmatch("[0-9]{1,18}", word) for word in set(values.tolist())):
        values = values.astype(np.int64)
    names, y = np.unique(values, return_inverse=True)
    return y.astype(np.int64), tuple(str(name) for name in names.tolist())


def label_images(
    images: PackedFiles, labels: Sequence[str | LabelSet], class_names: tuple[str, ...] | None = None
) -> PackedPart:
    """A part of a set from its images and the label or labels of each.

    Args:
        images: the images [N].
        labels: a word each, or a set of words or a row of 0 and 1 each; the two are never mixed.
        class_names: names of the columns of rows of 0 and 1, or every label that a set may contain; by default the
            numbers of the columns, and the labels that occur.
    """
    one = [label for label in labels if isinstance(label, str)]
    if len(one) == len(labels):
        y, names = number_classes(one)
        return PackedPart(images, y, names)
    if one:
        row = next(row for row, label in enumerate(labels) if isinstance(label, str))
        raise InputError(f"{images[row]}: one label, {format_value(one[0])}, where other images have lists of labels")
    sets: list[LabelSet] = [label for label in labels if not isinstance(label, str)]
    sizes = [label.size if isinstance(label, MultiHot) else 0 for label in sets]
    if len(set(sizes)) > 1:
        row = next(row for row, size in enumerate(sizes) if size != sizes[0])
        raise InputError(
            f"{images[row]}: a row of {sizes[row]} labels, {sizes[0]} in the first image; give equally many"
        )
    if class_names is not None:
        names = class_names
    elif sizes[0]:
        names = tuple(map(str, range(sizes[0])))
    else:
        names = number_classes(sorted({word for label in sets if isinstance(label, frozenset) for word in label}))[1]
    encoded = encode_label_sets(sets, names, str(images.files[0].parent)).numpy()
    return PackedPart(images, encoded, names, has_declared_labels=bool(class_names or sizes[0]))


def align_label_sets(parts: Sequence[PackedPart], where: str) -> list[PackedPart]:
    """Parts whose images have any number of labels, with columns for the labels of all parts; other parts unchanged."""
    if all(part.y.ndim == 1 for part in parts):
        return list(parts)
    if any(part.y.ndim == 1 for part in parts):
        raise InputError(f"{where}: images of one part have lists of labels, those of another one label each")
    if len({part.class_names for part in parts}) == 1:
        return list(parts)
    if any(part.has_declared_labels for part in parts):
        raise InputError(f"{where}: its parts are not labelled with the same {len(parts[0].class_names):,} labels")
    _, names = number_classes(sorted({name for part in parts for name in part.class_names}))
    column = {name: k for k, name in enumerate(names)}
    found = []
    for part in parts:
        y = np.zeros((len(part.y), len(names)), np.bool_)
        y[:, [column[name] for name in part.class_names]] = part.y
        found.append(replace(part, y=y, class_names=names))
    return found


def split_words(text: str, separator: str) -> frozenset[str]:
    """The labels of a text such as `red;round`; none where it is empty.

    >>> sorted(split_words(" red;round;", ";")), split_words("", ";")
    (['red', 'round'], frozenset())
    """
    return frozenset(word.strip() for word in text.split(separator) if word.strip())


def read_label_list(values: Sequence[object], where: str) -> frozenset[str]:
    """The labels of a list of words or of class numbers, without repetition.

    >>> sorted(read_label_list([3, 17], "a.json")), read_label_list([], "a.json")
    (['17', '3'], frozenset())
    """
    words = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
            raise InputError(
                f"{where}: {format_value(value)} in a list of labels is neither a string nor a class number"
            )
        words.append(str(value).strip())
    if len(set(words)) < len(words):
        raise InputError(
            f"{where}: the list of labels {format_value(list(values))} repeats one; list the classes that the image "
            "has, not a 0 or 1 for each class"
        )
    return frozenset(words)
