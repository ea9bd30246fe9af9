"""The classes of a dataset passed to `wm.train`, and those of the items that are passed beside it to select or test by.

A part that is evaluated is of the training classes, or of none of them: an open set, evaluated by its embeddings. Where
both datasets declare the names of their classes (`dataset.classes`), classes are the same if their names are, whatever
their numbers: two image folders number their own subfolders each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.label_sets import MultiHot, encode_label_sets, label_set_names
from ..io.errors import InputError, format_value


@dataclass(frozen=True)
class Classes:
    """The classes of a run: their names, and whether a label is a class's number or its name."""

    names: tuple[str, ...]
    by_number: bool
    """Labels are the numbers 0 … C−1; otherwise a label, written as text, is the name of its class."""
    is_multilabel: bool = False
    """Whether an item has any number of labels: a set of them, or a row of 0 and 1."""
    numbers: tuple[int, ...] | None = None
    """Class numbers in the labels, in the order of `names`, where these are not 0 … C−1; −1 for a class without one."""
    declared: bool = False
    """Whether the names are those that the dataset declares, so that another one's are compared with them."""

    @classmethod
    def from_labels(cls, labels: Sequence[Any], names: Sequence[str] | None, where: str) -> Classes:
        """The classes of these labels; `names` are those of the classes 0 … C−1 where they are known.

        >>> Classes.from_labels(["cat", "ant", "cat"], None, "train")
        Classes(names=('ant', 'cat'), by_number=False, is_multilabel=False, numbers=None, declared=False)
        >>> Classes.from_labels([2, 0, 1], None, "train").by_number, Classes.from_labels([8, 3], None, "train").names
        (True, ('3', '8'))
        """
        kinds = {type(label) for label in set(labels)}
        if len(kinds) > 1:
            said = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise InputError(f"{where}: labels have several types ({said}); use one type")
        is_multilabel = bool(kinds & {MultiHot, frozenset})
        are_numbers = kinds in ({int}, {MultiHot})
        if is_multilabel:
            found = cls(label_set_names(labels, where) if names is None else tuple(map(str, names)), are_numbers, True)
        elif names is not None:
            found = cls(tuple(str(name) for name in names), are_numbers)
        else:
            try:
                values = sorted(set(labels))
            except TypeError:
                raise InputError(f"{where}: labels of this type cannot be sorted: {format_value(labels[0])}") from None
            found = cls(tuple(map(str, values)), are_numbers and values == list(range(len(values))))
        if len(set(found.names)) < len(found.names):
            raise InputError(f"{where}: two classes have the same name")
        if len(found.names) < 2:
            raise InputError(f"{where}: all items have the label {found.names[0]!r}; at least two classes are needed")
        return found

    def encode(self, labels: Sequence[Any], where: str) -> Tensor:
        """The class number of each label, int64 [N]; booleans [N, C] where items have several labels."""
        if self.is_multilabel:
            return encode_label_sets(labels, self.names, where)
        places = self.find(labels, where)
        if bool((places < 0).any()):
            self.refuse(labels[int((places < 0).nonzero()[0, 0])], where)
        return places

    def find(self, labels: Sequence[Any], where: str) -> Tensor:
        """The class number of each label, int64 [N]; −1 for a label of no class."""
        if self.by_number:
            found = np.asarray(labels)
            if found.dtype.kind not in "iu":
                wrong = next(label for label in labels if type(label) is not int)
                raise InputError(
                    f"{where}: the label {format_value(wrong)} is not a class number, unlike those of train"
                )
            if self.numbers is None:
                outside = (found < 0) | (found >= len(self.names))
                return torch.from_numpy(np.where(outside, -1, found).astype(np.int64))
            place = {number: k for k, number in enumerate(self.numbers) if number >= 0}
            return torch.tensor([place.get(label, -1) for label in labels], dtype=torch.int64)
        if all(type(label) is int for label in labels) and not all(name.lstrip("-").isdecimal() for name in self.names):
            raise InputError(f"{where}: the label {labels[0]!r} is a number, unlike those of train")
        named = {name: k for k, name in enumerate(self.names)}
        return torch.tensor([named.get(str(label), -1) for label in labels], dtype=torch.int64)

    def refuse(self, label: Any, where: str, why: str = "") -> None:
        """Raise the error about a label of no class."""
        some = ", ".join(self.names[:5]) + (", …" if self.names[5:] else "")
        raise InputError(
            f"{where}: the label {format_value(label)} is not one of the {len(self.names):,} classes of train "
            f"({some}){why}"
        )

    def select(self, places: Sequence[int]) -> Classes:
        """The classes at these places, in this order."""
        numbers = range(len(self.names)) if self.numbers is None else self.numbers
        return replace(
            self,
            names=tuple(self.names[k] for k in places),
            numbers=tuple(numbers[k] for k in places) if self.by_number else None,
        )

    def for_dataset(self, declared: Sequence[str] | None) -> Classes:
        """The same classes with the numbers that another dataset gives to their names, if it declares names too."""
        if declared is None or not self.declared or not self.by_number:
            return self
        place = {name: k for k, name in enumerate(declared)}
        return replace(self, numbers=tuple(place.get(name, -1) for name in self.names))


def align_labels(
    labels: Sequence[Any], declared: Sequence[str] | None, train: Classes, held_out: Classes | None, where: str
) -> tuple[Tensor, Tensor, Classes]:
    """Rows of the items that are used, their class numbers, and their classes: those of `train`, or others.

    Labels that are all of training classes keep those; where none is, the classes are the labels' own. Items of the
    classes that `val_classes` held out are left out.

    >>> train = Classes(("0", "1"), True)
    >>> align_labels([1, 0], None, train, None, "test")[1].tolist()
    [1, 0]
    >>> align_labels([7, 9], None, train, None, "test")[2].names
    ('7', '9')
    """
    rows = torch.arange(len(labels))
    if train.is_multilabel:
        return rows, train.encode(labels, where), train
    own = train.for_dataset(declared)
    y = own.find(labels, where)
    if held_out is not None:
        rows = rows[held_out.for_dataset(declared).find(labels, where) < 0]
        if not len(rows):
            raise InputError(f"{where}: every item is of a class that val_classes held out; pass items of others")
    unknown = rows[y[rows] < 0]
    if not len(unknown):
        return rows, y[rows], own
    if len(unknown) < len(labels):
        own.refuse(labels[int(unknown[0])], where, ", others are; pass items of these classes only, or of none of them")
    if declared is not None and all(type(label) is int for label in labels):
        used = sorted(set(labels))
        own = Classes(tuple(declared), True, declared=True).select(used)
    else:
        own = Classes.from_labels(labels, None, where)
    return rows, own.encode(labels, where), own


def classes_to_spec(classes: Classes, held_out: Classes | None) -> dict[str, Any]:
    """What the input spec of a run says of its classes beside their names; `classes_from_spec` reads it."""
    found: dict[str, Any] = {"labels": "numbers" if classes.by_number else "names"}
    if classes.numbers is not None:
        found["class_numbers"] = list(classes.numbers)
    if classes.declared:
        found["declared_names"] = True
    if held_out is not None:
        found["val_class_names"] = list(held_out.names)
        if held_out.numbers is not None:
            found["val_class_numbers"] = list(held_out.numbers)
    return found


def classes_from_spec(spec: Mapping[str, Any]) -> tuple[Classes, Classes | None]:
    """The training classes of a run, and those that it held out."""
    numbers, val_numbers = (spec.get(name) for name in ("class_numbers", "val_class_numbers"))
    classes = Classes(
        tuple(spec["class_names"]),
        spec["labels"] == "numbers",
        bool(spec.get("multilabel", False)),
        None if numbers is None else tuple(numbers),
        bool(spec.get("declared_names", False)),
    )
    if "val_class_names" not in spec:
        return classes, None
    return classes, replace(
        classes,
        names=tuple(spec["val_class_names"]),
        numbers=None if val_numbers is None else tuple(val_numbers),
    )
