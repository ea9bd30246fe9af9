"""Metrics of several labels per sample: average precision of each label, their mean (mAP), F1 and exact matches.

`truth` [N, C] says which labels a sample has (0 or 1, or booleans), `scores` [N, C] are logits or probabilities. All
figures are percent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..io.errors import InputError
from ..numerics.validation import is_plain_float


@dataclass(frozen=True)
class MultilabelMetrics:
    """Figures in percent."""

    mean_average_precision: float | None
    """Mean of the average precisions (macro mAP); None where no label has a positive sample."""
    average_precision: tuple[float | None, ...]
    """Of each label; None where no sample has it."""
    f1_micro: float
    """F1 of all decisions together."""
    f1_macro: float
    """Mean over the labels of their F1; 0 for a label that is neither there nor predicted, as scikit-learn has it."""
    exact_match: float
    """Samples all of whose labels are right: scikit-learn's accuracy of multi-label predictions."""


def multilabel_metrics(truth: Tensor, scores: Tensor, *, threshold: float = 0.0) -> MultilabelMetrics:
    """Metrics of scores; a label is predicted where its score is above `threshold`, 0 for logits.

    >>> truth = torch.tensor([[1, 0], [1, 1], [0, 1]])
    >>> found = multilabel_metrics(truth, torch.tensor([[2.0, -1.0], [1.0, 0.5], [-1.0, -0.5]]))
    >>> found.mean_average_precision, round(found.exact_match, 2)
    (100.0, 66.67)
    """
    is_true = _check_truth(truth, scores)
    by_label = average_precisions(is_true, scores)
    known = [value for value in by_label if value is not None]
    predicted = scores > threshold
    hits, wrong = (is_true & predicted).sum(0).double(), (is_true ^ predicted).sum(0).double()
    f1 = 2.0 * hits / (2.0 * hits + wrong).clamp(min=1.0)
    total_hits, total_wrong = float(hits.sum()), float(wrong.sum())
    return MultilabelMetrics(
        sum(known) / len(known) if known else None,
        tuple(by_label),
        100.0 * 2.0 * total_hits / max(2.0 * total_hits + total_wrong, 1.0),
        100.0 * float(f1.mean()),
        100.0 * float((is_true == predicted).all(1).double().mean()),
    )


def average_precisions(truth: Tensor, scores: Tensor) -> list[float | None]:
    """Average precision of each label in percent, Σ (R_k − R_{k−1}) P_k over the thresholds; None without a positive.

    Samples of equal score count at one threshold, so that their order has no say.
    """
    is_true = _check_truth(truth, scores)
    found: list[float | None] = []
    for label, values in zip(is_true.T, scores.T, strict=True):
        positives = int(label.sum())
        if not positives:
            found.append(None)
            continue
        ordered, order = values.sort(descending=True)
        hits = label[order].double().cumsum(0)
        last = torch.ones_like(label)  # of a run of equal scores
        last[:-1] = ordered[1:] != ordered[:-1]
        ends = last.nonzero().squeeze(1)
        recalled = hits[ends]
        gained = torch.diff(recalled, prepend=recalled.new_zeros(1))
        found.append(100.0 * float((gained * recalled / (ends + 1)).sum()) / positives)
    return found


def _check_truth(truth: Tensor, scores: Tensor) -> Tensor:
    """The truth as booleans [N, C]."""
    if not is_plain_float(scores) or scores.ndim != 2 or not scores.numel():
        raise InputError("scores must be a float tensor [N, C] of at least one sample and label")
    if not isinstance(truth, Tensor) or truth.shape != scores.shape:
        given = list(truth.shape) if isinstance(truth, Tensor) else type(truth).__name__
        raise InputError(f"truth must have the shape of the scores, {list(scores.shape)}, got {given}")
    if bool(scores.isnan().any()):
        raise InputError("scores hold NaN")
    if truth.dtype != torch.bool and not bool(((truth == 0) | (truth == 1)).all()):
        raise InputError("truth must be 0 or 1 for each label")
    return truth.bool()
