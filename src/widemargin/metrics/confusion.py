"""Confusion of classes: samples and correct predictions of every class, and the most frequent mistakes.

Memory grows with the number of classes, not with its square: a matrix of 100,000 classes would take 80 GB. A file
holds the matrix itself if it is small, as version 0.1.0 wrote it for any number of classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MAX_MATRIX_CLASSES = 100  # up to this many classes a file holds the matrix
_MIN_MISTAKE_LIMIT = 10_000  # mistakes that are always kept: all possible ones up to MAX_MATRIX_CLASSES


@dataclass(frozen=True)
class Confusion:
    """Counts per class, and mistakes as three columns, most frequent first."""

    images: tuple[int, ...]
    """Images of every class."""
    correct: tuple[int, ...]
    """Correct predictions of every class."""
    true_classes: tuple[int, ...] = ()
    predicted_classes: tuple[int, ...] = ()
    mistake_counts: tuple[int, ...] = ()

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.images)

    @property
    def num_omitted_mistakes(self) -> int:
        """Wrong predictions that are not among the kept mistakes."""
        return sum(self.images) - sum(self.correct) - sum(self.mistake_counts)

    @property
    def class_accuracy(self) -> list[float | None]:
        """Recall of every class in percent; None for a class without images."""
        return [100.0 * right / n if n else None for right, n in zip(self.correct, self.images, strict=True)]

    @property
    def balanced_accuracy(self) -> float:
        """Mean of `class_accuracy` over the classes that have images; NaN without images.

        >>> Confusion(images=(90, 10, 0), correct=(90, 5, 0)).balanced_accuracy
        75.0
        """
        recalls = [value for value in self.class_accuracy if value is not None]
        return sum(recalls) / len(recalls) if recalls else math.nan

    @classmethod
    def from_predictions(cls, labels: Tensor, predictions: Tensor, num_classes: int) -> Confusion:
        """Count labels [N] and predictions [N], both from 0 to `num_classes` − 1.

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
        """List (true class, prediction, count), most frequent first."""
        return list(zip(self.true_classes, self.predicted_classes, self.mistake_counts, strict=True))

    def matrix(self) -> list[list[int]]:
        """Return the matrix, a row per true class and a column per prediction; needs all mistakes, so few classes."""
        rows = [[0] * self.num_classes for _ in range(self.num_classes)]
        for k, count in enumerate(self.correct):
            rows[k][k] = count
        for true, answer, times in self.mistakes():
            rows[true][answer] = times
        return rows

    def to_json(self) -> list[list[int]] | dict[str, Any]:
        """Return the matrix of up to 100 classes, or the columns of more."""
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
        """Restore from the result of `to_json` or a matrix of any size; a ValueError states what is wrong."""
        if isinstance(value, list):
            return cls._from_matrix(value)
        if not isinstance(value, dict) or not isinstance(value.get("mistakes"), dict):
            raise ValueError("confusion is neither a square of counts nor counts with mistakes")
        images, right = (_check_counts(value.get(name)) for name in ("images", "right"))
        true, answer, times = (_check_counts(value["mistakes"].get(name)) for name in ("true", "answer", "times"))
        if not images or len(right) != len(images) or not len(true) == len(answer) == len(times):
            raise ValueError("confusion has columns of different lengths")
        if any(place >= len(images) for place in (*true, *answer)):
            raise ValueError(f"confusion names a class above its {len(images)}")
        return cls(images, right, true, answer, times)

    @classmethod
    def _from_matrix(cls, rows: list[Any]) -> Confusion:
        if not rows or not all(isinstance(row, list) and len(row) == len(rows) for row in rows):
            raise ValueError("confusion is not a square of counts")
        counts = [_check_counts(row) for row in rows]
        mistakes = [(i, j, n) for i, row in enumerate(counts) for j, n in enumerate(row) if n and i != j]
        mistakes.sort(key=lambda mistake: -mistake[2])
        true, answer, times = zip(*mistakes, strict=True) if mistakes else ((), (), ())
        return cls(tuple(map(sum, counts)), tuple(row[i] for i, row in enumerate(counts)), true, answer, times)


def _check_counts(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(n) is int and 0 <= n < 10**15 for n in value):
        raise ValueError("confusion holds something other than counts")
    return tuple(value)
