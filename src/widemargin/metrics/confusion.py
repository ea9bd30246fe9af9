"""Which classes are taken for which: images and right answers of every class, and the most frequent mistakes.

Kept in memory that grows with the number of classes, not with its square: a matrix of 100,000 classes would be 80 GB. A
file has the matrix itself where it is small, as version 0.1.0 wrote it for every number of classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MAX_MATRIX_CLASSES = 100  # classes up to which a file has the matrix
_MIN_MISTAKE_LIMIT = 10_000  # mistakes that are kept in any case: all there can be up to MAX_MATRIX_CLASSES


@dataclass(frozen=True)
class Confusion:
    """Counts per class, and mistakes as three columns, the most frequent first."""

    images: tuple[int, ...]
    """Images of every class."""
    correct: tuple[int, ...]
    """Right answers of every class."""
    true_classes: tuple[int, ...] = ()
    predicted_classes: tuple[int, ...] = ()
    mistake_counts: tuple[int, ...] = ()

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.images)

    @property
    def num_omitted_mistakes(self) -> int:
        """Wrong answers beyond the mistakes that are kept."""
        return sum(self.images) - sum(self.correct) - sum(self.mistake_counts)

    @property
    def class_accuracy(self) -> list[float | None]:
        """Percent of the images of every class that are right (its recall); None for a class without images."""
        return [100.0 * right / n if n else None for right, n in zip(self.correct, self.images, strict=True)]

    @property
    def balanced_accuracy(self) -> float:
        """Mean of `class_accuracy` over the classes that have images; NaN without any.

        >>> Confusion(images=(90, 10, 0), correct=(90, 5, 0)).balanced_accuracy
        75.0
        """
        known = [value for value in self.class_accuracy if value is not None]
        return sum(known) / len(known) if known else math.nan

    @classmethod
    def from_predictions(cls, labels: Tensor, predictions: Tensor, num_classes: int) -> Confusion:
        """Of labels [N] and answers [N], both from 0 up to, not including, `num_classes`.

        >>> Confusion.from_predictions(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 0, 1]), 2).mistakes()
        [(1, 0, 2)]
        """
        labels, predictions = labels.long().cpu(), predictions.long().cpu()
        images = torch.bincount(labels, minlength=num_classes)
        right = torch.bincount(labels[labels == predictions], minlength=num_classes)
        wrong = labels != predictions
        pairs, times = torch.unique(labels[wrong] * num_classes + predictions[wrong], return_counts=True)
        order = torch.argsort(times, descending=True, stable=True)[: max(_MIN_MISTAKE_LIMIT, num_classes)]
        true, answer = pairs[order] // num_classes, pairs[order] % num_classes
        columns = (images, right, true, answer, times[order])
        return cls(*(tuple(column.tolist()) for column in columns))

    def mistakes(self) -> list[tuple[int, int, int]]:
        """True class, answer and how often, the most frequent first."""
        return list(zip(self.true_classes, self.predicted_classes, self.mistake_counts, strict=True))

    def matrix(self) -> list[list[int]]:
        """A row per true class, a column per answer; for few classes, of which all mistakes are kept."""
        rows = [[0] * self.num_classes for _ in range(self.num_classes)]
        for k, count in enumerate(self.correct):
            rows[k][k] = count
        for true, answer, times in self.mistakes():
            rows[true][answer] = times
        return rows

    def to_json(self) -> list[list[int]] | dict[str, Any]:
        """The matrix of up to 100 classes, the columns of more."""
        if self.num_classes <= MAX_MATRIX_CLASSES:
            return self.matrix()
        mistakes = {
            "true": list(self.true_classes),
            "answer": list(self.predicted_classes),
            "times": list(self.mistake_counts),
        }
        return {"images": list(self.images), "right": list(self.correct), "mistakes": mistakes}

    @classmethod
    def from_json(cls, value: Any) -> Confusion:
        """What `to_json` gave, or a matrix of any size; a ValueError says in a few words what is wrong."""
        if isinstance(value, list):
            return cls._from_matrix(value)
        if not isinstance(value, dict) or not isinstance(value.get("mistakes"), dict):
            raise ValueError("confusion is no square of counts, nor counts with mistakes")
        images, right = (_check_counts(value.get(name)) for name in ("images", "right"))
        true, answer, times = (_check_counts(value["mistakes"].get(name)) for name in ("true", "answer", "times"))
        if not images or len(right) != len(images) or not len(true) == len(answer) == len(times):
            raise ValueError("confusion has columns of different lengths")
        if any(place >= len(images) for place in (*true, *answer)):
            raise ValueError(f"confusion names a class beyond its {len(images)}")
        return cls(images, right, true, answer, times)

    @classmethod
    def _from_matrix(cls, rows: list[Any]) -> Confusion:
        if not rows or not all(isinstance(row, list) and len(row) == len(rows) for row in rows):
            raise ValueError("confusion is no square of counts")
        counts = [_check_counts(row) for row in rows]
        found = [(i, j, n) for i, row in enumerate(counts) for j, n in enumerate(row) if n and i != j]
        found.sort(key=lambda mistake: -mistake[2])
        true, answer, times = zip(*found, strict=True) if found else ((), (), ())
        return cls(tuple(map(sum, counts)), tuple(row[i] for i, row in enumerate(counts)), true, answer, times)


def _check_counts(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(n) is int and 0 <= n < 10**15 for n in value):
        raise ValueError("confusion holds no counts")
    return tuple(value)
