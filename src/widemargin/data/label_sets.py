"""Several labels per sample: label sets and multi-hot rows as values, their matrix [N, C], and how to divide it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..io.errors import InputError, format_value


class MultiHot(NamedTuple):
    """A row of 0 and 1 as the places of its ones: small, hashable and comparable, unlike a tensor."""

    present: tuple[int, ...]
    size: int


LabelSet: TypeAlias = "MultiHot | frozenset[Any]"
"""The labels of one sample: places in a row of 0 and 1, or the labels themselves."""


def as_label_set(label: Any, where: str) -> LabelSet | None:
    """The labels of a sample that has a set of them or a row of 0 and 1; None where it has one label.

    >>> as_label_set({"red", "round"}, "item 0") == frozenset({"red", "round"})
    True
    >>> as_label_set(torch.tensor([1.0, 0.0, 1.0]), "item 0")
    MultiHot(present=(0, 2), size=3)
    """
    if isinstance(label, Tensor | np.ndarray):
        return _read_row(np.asarray(label), where) if label.ndim == 1 and len(label) > 1 else None
    if isinstance(label, MultiHot):
        return label
    if isinstance(label, set | frozenset):
        return frozenset(label)
    if isinstance(label, list | tuple):
        if all(isinstance(part, str) for part in label):
            return frozenset(label)
        raise InputError(
            f"{where}: the labels {format_value(label)} are a {type(label).__name__} of numbers; give a tensor of 0 "
            "and 1 for each class, or a set of labels"
        )
    return None


def _read_row(row: np.ndarray, where: str) -> MultiHot:
    if row.dtype.kind not in "biuf" or not np.isin(row, (0, 1)).all():
        raise InputError(
            f"{where}: several labels must be a row of 0 and 1, or a set; got {format_value(row.tolist())}"
        )
    return MultiHot(tuple(np.flatnonzero(row).tolist()), len(row))


def encode_label_sets(labels: Sequence[LabelSet], class_names: Sequence[str], where: str) -> Tensor:
    """Which of the classes each sample has, booleans [N, C].

    >>> encode_label_sets([frozenset({"b"}), frozenset()], ["a", "b"], "train").tolist()
    [[False, True], [False, False]]
    """
    found = torch.zeros(len(labels), len(class_names), dtype=torch.bool)
    place = {name: k for k, name in enumerate(class_names)}
    for row, label in enumerate(labels):
        if isinstance(label, MultiHot):
            if label.size != len(class_names):
                raise InputError(f"{where}, item {row}: {label.size} entries of 0 and 1, expected {len(class_names)}")
            found[row, list(label.present)] = True
            continue
        if not isinstance(label, frozenset):
            raise InputError(
                f"{where}, item {row}: {format_value(label)} is a single label, but others are sets; pass sets for all"
            )
        for part in label:
            if str(part) not in place:
                raise InputError(
                    f"{where}, item {row}: the label {format_value(part)} is not one of the classes of train"
                )
            found[row, place[str(part)]] = True
    return found


def label_set_names(labels: Iterable[LabelSet], where: str) -> tuple[str, ...]:
    """Names of the classes that label sets are of: every label, sorted, or the places of rows of 0 and 1."""
    sizes = {label.size for label in labels if isinstance(label, MultiHot)}
    if sizes:
        if len(sizes) > 1:
            raise InputError(f"{where}: rows of 0 and 1 of several lengths ({', '.join(map(str, sorted(sizes)))})")
        return tuple(map(str, range(sizes.pop())))
    every = {part for label in labels for part in label}
    try:
        return tuple(map(str, sorted(every)))
    except TypeError:
        raise InputError(f"{where}: labels have several types; use one type") from None


def rarest_labels(y: Tensor) -> Tensor:
    """For each row of `y` [N, C] its rarest label, C for a row without any: groups to divide samples by.

    A share of each group is about the same share of each label, and a rare label is not left to chance.
    """
    counts = y.sum(0)
    rarity = torch.where(y.bool(), counts, len(y) + 1)
    return torch.where(y.any(1), rarity.argmin(1), y.shape[1])
