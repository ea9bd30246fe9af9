"""Metrics of several labels per sample: average precision of each label, their mean (mAP), F1 and exact matches.

`truth` [N, C] holds the labels of each sample (0 or 1, or booleans), `scores` [N, C] are logits or probabilities. All
metrics are in percent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..io.errors import InputError
from ..numerics.validation import is_plain_float


@dataclass(frozen=True)
class MultilabelMetrics:
    """Multi-label metrics in percent."""

    mean_average_precision: float | None
    """Mean of the average precisions (macro mAP); None if no label has a positive sample."""
    average_precision: tuple[float | None, ...]
    """Average precision of each label; None if no sample has it."""
    f1_micro: float
    """F1 of all decisions together (micro)."""
    f1_macro: float
    """Mean F1 over the labels (macro); 0 for a label that is neither present nor predicted, as in scikit-learn."""
    exact_match: float
    """Samples with all labels right: scikit-learn's accuracy of multi-label predictions."""


def multilabel_metrics(truth: Tensor, scores: Tensor, *, threshold: float = 0.0) -> MultilabelMetrics:
    """Compute the metrics; a label is predicted if its score is above `threshold`, 0 for logits.

    >>> truth = torch.tensor([[1, 0], [1, 1], [0, 1]])
    >>> metrics = multilabel_metrics(truth, torch.tensor([[2.0, -1.0], [1.0, 0.5], [-1.0, -0.5]]))
    >>> metrics.mean_average_precision, round(metrics.exact_match, 2)
    (100.0, 66.67)
    """
    is_true = _check_truth(truth, scores)
    by_label = average_precisions(is_true, scores)
    defined = [value for value in by_label if value is not None]
    predicted = scores > threshold
    hits, wrong = (is_true & predicted).sum(0).double(), (is_true ^ predicted).sum(0).double()
    f1 = 2.0 * hits / (2.0 * hits + wrong).clamp(min=1.0)
    total_hits, total_wrong = float(hits.sum()), float(wrong.sum())
    return MultilabelMetrics(
        sum(defined) / len(defined) if defined else None,
        tuple(by_label),
        100.0 * 2.0 * total_hits / max(2.0 * total_hits + total_wrong, 1.0),
        100.0 * float(f1.mean()),
        100.0 * float((is_true == predicted).all(1).double().mean()),
    )


def average_precisions(truth: Tensor, scores: Tensor) -> list[float | None]:
    """Average precision of each label in percent, Σ (R_k − R_{k−1}) P_k over the thresholds; None without a positive.

    Samples with equal scores share one threshold, so their order does not matter.
    """
    is_true = _check_truth(truth, scores)
    precisions: list[float | None] = []
    for label, values in zip(is_true.T, scores.T, strict=True):
        positives = int(label.sum())
        if not positives:
            precisions.append(None)
            continue
        ordered, order = values.sort(descending=True)
        hits = label[order].double().cumsum(0)
        last = torch.ones_like(label)  # last sample of a run of equal scores
        last[:-1] = ordered[1:] != ordered[:-1]
        ends = last.nonzero().squeeze(1)
        recalled = hits[ends]
        gained = torch.diff(recalled, prepend=recalled.new_zeros(1))
        precisions.append(100.0 * float((gained * recalled / (ends + 1)).sum()) / positives)
    return precisions


def _check_truth(truth: Tensor, scores: Tensor) -> Tensor:
    """Validate the truth and return it as booleans [N, C]."""
    if not is_plain_float(scores) or scores.ndim != 2 or not scores.numel():
        raise InputError("scores must be a float tensor [N, C] of at least one sample and label")
    if not isinstance(truth, Tensor) or truth.shape != scores.shape:
        actual = list(truth.shape) if isinstance(truth, Tensor) else type(truth).__name__
        raise InputError(f"truth must have the shape of the scores, {list(scores.shape)}, got {actual}")
    if bool(scores.isnan().any()):
        raise InputError("scores contain NaN")
    if truth.dtype != torch.bool and not bool(((truth == 0) | (truth == 1)).all()):
        raise InputError("truth must be 0 or 1 for each label")
    return truth.bool()
