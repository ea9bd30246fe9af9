"""Metrics of a classifier from class indices y [n] and probabilities [n, C], collected over folds.

Accuracy, balanced accuracy, macro F1 and ROC AUC are in percent; log loss, Brier score and calibration error are not.
A metric that is undefined for its rows is NaN. Temperature scaling (C. Guo et al., ICML 2017) is here as well, because
the probabilities of a margin loss mean little without it: its scale s sets how sharp they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

NUM_BINS = 15
"""Bins of equal width of the top probability, for the calibration error and the reliability diagram."""
MAX_MATRIX_CLASSES = 60
"""Up to this many classes the whole confusion matrix is kept; above, only its margins, diagonal and largest entries."""
MAX_MISTAKES = 50
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 1e3


class Metric(NamedTuple):
    """Name, title, direction and format of a metric."""

    name: str
    label: str
    is_percent: bool
    higher_is_better: bool
    decimals: int
    is_ranking: bool = True
    """True if methods may be ranked by it; not by the calibration error, which is 0 for a constant guess."""


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", True, True, 2),
        Metric("balanced_accuracy", "balanced accuracy", True, True, 2),
        Metric("macro_f1", "macro F1", True, True, 2),
        Metric("log_loss", "log loss", False, False, 4),
        Metric("roc_auc", "ROC AUC", True, True, 2),
        Metric("brier", "Brier score", False, False, 4),
        Metric("ece", "calibration error (ECE)", False, False, 4, is_ranking=False),
    )
}
"""Every metric by its name."""


def accuracy(y: ArrayLike, predicted: ArrayLike) -> float:
    """Percent of the rows that are right; `predicted` holds classes [n] or probabilities [n, C].

    >>> accuracy([0, 1, 1, 1], [0, 1, 0, 1])
    75.0
    """
    labels, classes = np.asarray(y), _predicted_classes(predicted)
    return float((labels == classes).mean() * 100.0) if len(labels) else math.nan


def balanced_accuracy(y: ArrayLike, predicted: ArrayLike) -> float:
    """Mean recall in percent of the classes present in y; `predicted` holds classes [n] or probabilities [n, C].

    >>> balanced_accuracy([0, 0, 0, 1], [0, 0, 0, 0])
    50.0
    """
    support, _, hits = _class_counts(np.asarray(y, np.int64), _predicted_classes(predicted))
    there = support > 0
    return float((hits[there] / support[there]).mean() * 100.0) if there.any() else math.nan


def macro_f1(y: ArrayLike, predicted: ArrayLike) -> float:
    """Mean F1 in percent of the classes present in y or predicted; `predicted` is classes [n] or probabilities [n, C].

    >>> round(macro_f1([0, 0, 0, 1], [0, 0, 0, 0]), 2)
    42.86
    """
    support, answered, hits = _class_counts(np.asarray(y, np.int64), _predicted_classes(predicted))
    there = (support + answered) > 0
    return float((2 * hits[there] / (support + answered)[there]).mean() * 100.0) if there.any() else math.nan


def log_loss(y: ArrayLike, probabilities: ArrayLike) -> float:
    """Mean −ln p of the true class; probabilities are clipped at the machine epsilon and renormalised.

    >>> round(log_loss([0, 1], [[0.9, 0.1], [0.4, 0.6]]), 4)
    0.3081
    """
    labels, p = np.asarray(y), np.asarray(probabilities, np.float64)
    if not len(labels) or not np.isfinite(p).all():
        return math.nan
    clipped = np.clip(p, np.finfo(np.float64).eps, 1.0)
    of_truth: FloatArray = clipped[np.arange(len(labels)), labels] / clipped.sum(1)
    return float(-np.log(of_truth).mean())


def brier(y: ArrayLike, probabilities: ArrayLike) -> float:
    """Brier score in its multiclass form: mean over rows of Σ_c (p_c − [y = c])², from 0 to 2.

    With two classes it is twice the binary form, which counts the positive class only.

    >>> round(brier([0, 1], [[0.9, 0.1], [0.4, 0.6]]), 4)
    0.17
    """
    labels, p = np.asarray(y), np.asarray(probabilities, np.float64)
    if not len(labels):
        return math.nan
    of_truth = p[np.arange(len(labels)), labels]
    return float(((p**2).sum(1) - 2 * of_truth + 1).mean())


def roc_auc(y: ArrayLike, probabilities: ArrayLike) -> float:
    """Area under the ROC curve in percent, ties counted half.

    With two classes, the AUC of class 1; with more, the mean of one class against the rest, over the classes that have
    both positives and negatives in y.

    >>> round(roc_auc([0, 1, 1], [[0.9, 0.1], [0.4, 0.6], [0.9, 0.1]]), 2)
    75.0
    """
    labels, p = np.asarray(y), np.asarray(probabilities, np.float64)
    if not np.isfinite(p).all():
        return math.nan
    columns = [1] if p.shape[1] == 2 else range(p.shape[1])
    counts = np.bincount(labels, minlength=p.shape[1])
    areas = [_area(labels == c, p[:, c]) for c in columns if 0 < counts[c] < len(labels)]
    return float(np.mean(areas) * 100.0) if areas else math.nan


def _area(positive: NDArray[np.bool_], scores: FloatArray) -> float:
    """Mann–Whitney statistic from midranks."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    midranks = np.cumsum(counts) - (counts - 1) / 2
    hits = int(positive.sum())
    above = float(midranks[places][positive].sum()) - hits * (hits + 1) / 2
    return above / (hits * (len(scores) - hits))


def ece(y: ArrayLike, probabilities: ArrayLike) -> float:
    """Expected calibration error: mean distance of confidence and accuracy over 15 bins of the top probability.

    >>> round(ece([0, 1], [[0.9, 0.1], [0.4, 0.6]]), 4)
    0.25
    """
    labels, p = np.asarray(y), np.asarray(probabilities, np.float64)
    if not len(labels) or not np.isfinite(p).all():
        return math.nan
    _, confidence, hits = _bin_sums(labels, p)
    return float(np.abs(confidence - hits).sum() / len(labels))


def compute_metrics(
    y: ArrayLike, probabilities: ArrayLike | None, predicted: ArrayLike | None = None
) -> dict[str, float]:
    """Compute every metric; `predicted` defaults to the most probable class.

    Without probabilities (None) the metrics that need them are NaN.
    """
    if predicted is None:
        if probabilities is None:
            raise ValueError("give probabilities, predicted classes or both")
        predicted = _predicted_classes(probabilities)
    metrics = {
        "accuracy": accuracy(y, predicted),
        "balanced_accuracy": balanced_accuracy(y, predicted),
        "macro_f1": macro_f1(y, predicted),
    }
    for name, compute in (("log_loss", log_loss), ("roc_auc", roc_auc), ("brier", brier), ("ece", ece)):
        metrics[name] = math.nan if probabilities is None else compute(y, probabilities)
    return metrics


def _predicted_classes(values: ArrayLike) -> IntArray:
    array = np.asarray(values)
    return array.argmax(1) if array.ndim == 2 else array.astype(np.int64)


def _class_counts(y: IntArray, predicted: IntArray, num_classes: int = 0) -> tuple[IntArray, IntArray, IntArray]:
    """Count rows, predictions and correct predictions of every class."""
    if len(y):
        num_classes = max(num_classes, int(y.max()) + 1, int(predicted.max()) + 1)
    support, answered, hits = (np.bincount(k, minlength=num_classes) for k in (y, predicted, y[y == predicted]))
    return support, answered, hits


def _bin_sums(y: IntArray, p: FloatArray) -> FloatArray:
    """Per bin ((k − 1)/15, k/15] of the top probability: rows, summed confidence, correct predictions [3, 15]."""
    top = p.max(1)
    bins = np.clip(np.ceil(top * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
    right = p.argmax(1) == y
    return np.stack([np.bincount(bins, weights, NUM_BINS) for weights in (np.ones(len(top)), top, right)])


# Temperature scaling.


def softmax(logits: ArrayLike, temperature: float = 1.0) -> FloatArray:
    """Return probabilities [n, C] of logits [n, C] at a temperature; uniform for rows with NaN or infinite logits.

    A model that diverged then has the metrics of a uniform guess.

    >>> softmax([[0.0, np.log(3.0)], [np.nan, 0.0]]).round(2).tolist()
    [[0.25, 0.75], [0.5, 0.5]]
    """
    z = np.asarray(logits, np.float64) / temperature
    z = np.where(np.isfinite(z).all(1, keepdims=True), z, 0.0)
    e = np.exp(z - z.max(1, keepdims=True))
    probabilities: FloatArray = e / e.sum(1, keepdims=True)
    return probabilities


def fit_temperature(logits: ArrayLike, y: ArrayLike) -> float:
    """The temperature T in [0.001, 1000] that minimises the log loss of softmax(logits / T).

    One pseudo-observation is added, with a label uniform over the classes and the logits of all rows, each with weight
    1/n. It smooths the labels as Platt's targets do (1999): a few rows that are all classified correctly then give a
    confidence of about n / (n + 1) instead of 1, which would be T → 0; with many rows it has no influence. The
    objective is convex in 1/T and minimised exactly. Logits without information (all equal in every row, or none
    finite) give 1.
    >>> y = np.array([0, 1, 0, 1, 0])
    >>> round(fit_temperature(np.array([[9.0, 0], [0, 9], [9, 0], [0, 9], [0, 9]]), y), 2)
    8.19
    """
    z, labels = np.asarray(logits, np.float64), np.asarray(y)
    finite = np.isfinite(z).all(1) if z.ndim == 2 else np.zeros(0, np.bool_)
    z, labels = z[finite], labels[finite]
    if not len(z):
        return 1.0
    z = z - z.max(1, keepdims=True)
    if not z.any():
        return 1.0
    n = len(z)
    smoothed = (z[np.arange(n), labels].sum() + z.mean()) / (1.0 + 1.0 / n)  # z.mean(): Σ over rows of row means / n

    def derivatives(beta: float) -> tuple[float, float]:
        """First and second derivative in the inverse temperature, over 1 + 1/n."""
        p = np.exp(beta * z)
        p /= p.sum(1, keepdims=True)
        expected = (p * z).sum(1)
        return float(expected.sum() - smoothed), float((p * z**2).sum() - (expected**2).sum())

    low, high = 1.0 / MAX_TEMPERATURE, 1.0 / MIN_TEMPERATURE
    if derivatives(low)[0] >= 0:
        return MAX_TEMPERATURE
    if derivatives(high)[0] <= 0:
        return MIN_TEMPERATURE
    beta = 1.0
    for _ in range(200):  # Newton's method, with bisection of the logarithm if a step leaves the bracket
        slope, curvature = derivatives(beta)
        low, high = (beta, high) if slope < 0 else (low, beta)
        step = beta - slope / curvature if curvature > 0 else math.nan
        following = step if low < step < high else math.sqrt(low * high)
        if abs(following - beta) <= 1e-12 * beta:
            break
        beta = following
    return 1.0 / beta


def fit_temperatures(models: Sequence[tuple[ArrayLike, ArrayLike]]) -> list[float]:
    """Fit the temperature of every model, each given by its logits [n, C] and classes y [n]."""
    return [fit_temperature(logits, y) for logits, y in models]


# The folds of one method on one table.


@dataclass(frozen=True)
class Reliability:
    """Rows, mean top probability and accuracy (from 0 to 1) of every bin of the top probability; 0 in empty bins."""

    counts: tuple[int, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]

    @property
    def ece(self) -> float:
        """Calibration error of all rows together; NaN without rows."""
        total = sum(self.counts)
        gaps = (n * abs(c - a) for n, c, a in zip(self.counts, self.confidence, self.accuracy, strict=True))
        return sum(gaps) / total if total else math.nan

    @classmethod
    def from_sums(cls, sums: FloatArray) -> Reliability:
        """From rows, summed confidence and right answers per bin [3, bins]."""
        counts, confidence, hits = sums
        rows = np.maximum(counts, 1)
        return cls(
            tuple(counts.astype(np.int64).tolist()), tuple((confidence / rows).tolist()), tuple((hits / rows).tolist())
        )


@dataclass(frozen=True)
class FoldMetrics:
    """Results of a method on the test parts of a table: metrics per fold, counts summed over the folds."""

    metrics: dict[str, list[float]]
    """Metrics by name, one number per fold, NaN if undefined."""
    support: tuple[int, ...] = ()
    """Rows of every class."""
    predicted: tuple[int, ...] = ()
    """Predictions of every class."""
    hits: tuple[int, ...] = ()
    """Correct predictions of every class."""
    mistakes: tuple[tuple[int, int, int], ...] = ()
    """True class, predicted class and count, most frequent first: all up to 60 classes, the first 50 above."""
    reliability: Reliability | None = None
    """None without probabilities."""
    uncalibrated: Reliability | None = None
    """The same from the probabilities before temperature scaling, if given."""
    temperatures: list[float] = field(default_factory=list)
    """The temperature of every fold, if fitted."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.support)

    def confusion(self) -> IntArray | None:
        """Counts [C, C], rows true and columns predicted; None above 60 classes."""
        if self.num_classes > MAX_MATRIX_CLASSES:
            return None
        matrix = np.diag(np.array(self.hits, np.int64))
        for true, predicted, count in self.mistakes:
            matrix[true, predicted] = count
        return matrix

    def per_class(self) -> list[dict[str, float]]:
        """Precision, recall and F1 in percent and support of every class; NaN if undefined."""
        classes = []
        for rows, answers, hits in zip(self.support, self.predicted, self.hits, strict=True):
            precision, recall, f1 = (
                100.0 * part / whole if whole else math.nan
                for part, whole in ((hits, answers), (hits, rows), (2 * hits, rows + answers))
            )
            classes.append({"precision": precision, "recall": recall, "f1": f1, "support": rows})
        return classes

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON, which has no NaN: None in its place."""
        plain: dict[str, Any] = {
            "metrics": {name: [_none_if_nan(v) for v in values] for name, values in self.metrics.items()},
            "support": list(self.support),
            "predicted": list(self.predicted),
            "hits": list(self.hits),
            "mistakes": [list(mistake) for mistake in self.mistakes],
        }
        for name in ("reliability", "uncalibrated"):
            bins = getattr(self, name)
            if bins is not None:
                plain[name] = {part: list(getattr(bins, part)) for part in ("counts", "confidence", "accuracy")}
        if self.temperatures:
            plain["temperatures"] = list(self.temperatures)
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FoldMetrics:
        """Restore from the result of `to_dict`; anything else raises a ValueError."""
        try:
            metrics = {
                str(name): [math.nan if v is None else float(v) for v in folds]
                for name, folds in values["metrics"].items()
            }
            support, predicted, hits = (_check_counts(values[name]) for name in ("support", "predicted", "hits"))
            triples = [_check_counts(mistake) for mistake in values["mistakes"]]
            mistakes = tuple((true, answer, count) for true, answer, count in triples)
            after, before = (_reliability_from(values.get(name)) for name in ("reliability", "uncalibrated"))
            temperatures = _check_range(values.get("temperatures", []), MAX_TEMPERATURE)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not the metrics of folds ({error})") from None
        if not support or not len(support) == len(predicted) == len(hits):
            raise ValueError("support, predicted and hits must have the same length above 0")
        if any(place >= len(support) for mistake in mistakes for place in mistake[:2]):
            raise ValueError("a mistake names a class that does not exist")
        return cls(metrics, support, predicted, hits, mistakes, after, before, list(temperatures))


def _none_if_nan(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _check_counts(values: Sequence[Any]) -> tuple[int, ...]:
    if not all(type(n) is int and 0 <= n < 10**15 for n in values):
        raise ValueError("counts must be whole numbers")
    return tuple(values)


def _check_range(values: Sequence[Any], high: float) -> tuple[float, ...]:
    numbers = tuple(float(v) for v in values)
    if not all(0 <= v <= high for v in numbers):
        raise ValueError(f"numbers must be between 0 and {high:g}")
    return numbers


def _reliability_from(values: Mapping[str, Any] | None) -> Reliability | None:
    if values is None:
        return None
    counts = _check_counts(values["counts"])
    confidence, share = (_check_range(values[name], 1.0 + 1e-6) for name in ("confidence", "accuracy"))
    if not len(counts) == len(confidence) == len(share):
        raise ValueError("the bins of a reliability diagram differ in number")
    return Reliability(counts, confidence, share)


class FoldEvaluator:
    """Accumulates the test parts of one method on one table; its memory does not grow with the rows.

    >>> evaluator = FoldEvaluator(num_classes=2)
    >>> evaluator.add(np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]]))
    >>> result = evaluator.evaluation()
    >>> result.metrics["balanced_accuracy"], result.confusion().tolist()
    ([75.0], [[1, 0], [1, 1]])
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self._metrics: dict[str, list[float]] = {name: [] for name in METRICS}
        self._counts = np.zeros((3, num_classes), np.int64)
        self._mistakes: dict[int, int] = {}
        self._bins: dict[str, list[FloatArray]] = {}
        self._temperatures: list[float] = []

    def add(
        self,
        y: ArrayLike,
        probabilities: ArrayLike | None,
        predicted: ArrayLike | None = None,
        *,
        uncalibrated: ArrayLike | None = None,
        temperature: float | None = None,
    ) -> None:
        """Add one test part: classes y [n], probabilities [n, C] (None for a classifier without) and predictions [n].

        Args:
            predicted: classes; the most probable ones by default.
            uncalibrated: the probabilities before temperature scaling, for the reliability diagram.
            temperature: the temperature of `probabilities`, which is recorded.
        """
        labels = np.asarray(y, np.int64)
        if predicted is None and probabilities is not None:
            predicted = _predicted_classes(probabilities)
        for name, value in compute_metrics(labels, probabilities, predicted).items():
            self._metrics[name].append(value)
        answers = np.asarray(predicted, np.int64)
        self._counts += np.stack(_class_counts(labels, answers, self.num_classes))
        wrong = labels != answers
        pairs, times = np.unique(labels[wrong] * self.num_classes + answers[wrong], return_counts=True)
        for pair, count in zip(pairs.tolist(), times.tolist(), strict=True):
            self._mistakes[pair] = self._mistakes.get(pair, 0) + count
        for bins, p in (("reliability", probabilities), ("uncalibrated", uncalibrated)):
            values = None if p is None else np.asarray(p, np.float64)
            if values is not None and np.isfinite(values).all():
                self._bins.setdefault(bins, []).append(_bin_sums(labels, values))
        if temperature is not None:
            self._temperatures.append(float(temperature))

    def evaluation(self) -> FoldMetrics:
        """Metrics and counts of the parts added so far."""
        most = len(self._mistakes) if self.num_classes <= MAX_MATRIX_CLASSES else MAX_MISTAKES
        mistakes = sorted(self._mistakes.items(), key=lambda item: (-item[1], item[0]))[:most]
        bins = {name: Reliability.from_sums(np.sum(parts, axis=0)) for name, parts in self._bins.items()}
        support, predicted, hits = (tuple(counts.tolist()) for counts in self._counts)
        return FoldMetrics(
            {name: list(values) for name, values in self._metrics.items()},
            support,
            predicted,
            hits,
            tuple((*divmod(pair, self.num_classes), count) for pair, count in mistakes),
            bins.get("reliability"),
            bins.get("uncalibrated"),
            list(self._temperatures),
        )
