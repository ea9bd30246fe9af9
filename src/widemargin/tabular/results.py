"""Results of a comparison, in memory or on disk: one JSON line per set and method, complete or absent.

A line is added, flushed and synced when its work is done, so a run that was stopped goes on with what
is missing. Lines of other settings are never mixed in.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..data.tabular.table import Table
from ..io import bounded
from ..io.bounded import MAX_IN_MEMORY_LOG_BYTES, NotAFileError, open_regular, read_lines
from ..io.errors import InputError, spell_option
from ..io.provenance import versions
from ..losses.grammar import is_number
from ..metrics.classification import FoldMetrics

MAJORITY = "majority"
"""The baseline that always answers the most frequent class of the table."""
BASELINES = (MAJORITY, "logistic_regression", "svm", "random_forest", "hist_gradient_boosting", "mlp")

RESULTS_FILE_NAME = "results.jsonl"

_MAX_CLASS_NAME_LENGTH = 80  # of a name in a line of the file

MAX_TRAIN_ACCURACY_ROWS = 2000
"""Accuracy on a training part is measured on at most so many of its rows: its error is then about one percent."""


@dataclass(frozen=True)
class Result:
    """What one method reached on one set: a line of `results.jsonl`."""

    set: str
    loss: str
    """The loss as its parse string, or the name of a baseline."""
    mean: float
    """Percent."""
    std: float
    """Percent, over the folds."""
    folds: list[float]
    """Accuracy in percent of every fold of every repeat, repeat after repeat."""
    seed: int
    seconds: float
    versions: dict[str, str]
    settings: dict[str, Any] = field(default_factory=dict)
    """Everything else that makes the result what it is: cv_repeats, folds, stratify, data, mlp_config."""
    angles: dict[str, float] = field(default_factory=dict)
    """WC-Intra, W-Inter, C-Inter in radians, those that are known; empty for baselines."""
    train: list[float] = field(default_factory=list)
    """Accuracy in percent on the training rows of every fold, a sample of 2,000 where there are more; empty in lines
    of versions that did not measure it."""
    metrics: dict[str, list[float]] = field(default_factory=dict)
    """Every metric (`widemargin.metrics.classification.METRICS`) of every fold, NaN where it is undefined (null in the
    file); empty in lines of versions that had accuracy only."""
    details: dict[str, Any] = field(default_factory=dict)
    """What the folds have together: class_names, counts per class, mistakes, reliability, temperatures (see
    `FoldMetrics`); rows and columns of the table."""

    max_train_rows: ClassVar[int] = MAX_TRAIN_ACCURACY_ROWS

    @property
    def is_baseline(self) -> bool:
        """Whether the method is one of scikit-learn's classifiers or the majority class, and not a loss."""
        return self.loss in BASELINES

    @property
    def has_diverged(self) -> bool:
        """Whether a loss ended in NaN or infinity on a fold; its accuracy is then meaningless."""
        return not self.is_baseline and "w_inter" not in self.angles

    @property
    def train_mean(self) -> float | None:
        """Mean accuracy in percent on the training rows; None where it was not measured."""
        return float(np.mean(self.train)) if self.train else None

    def scores(self, metric: str) -> list[float]:
        """A metric of every fold, NaN where it is undefined, as ROC AUC is in a test part of one class."""
        if metric == "accuracy":
            return self.folds
        if metric not in self.metrics:
            raise InputError(
                f"the result of {self.loss} on {self.set} has no {metric}: it was written by an older version; compute "
                f"it again with {spell_option('overwrite', True)}"
            )
        return self.metrics[metric]

    def mean_and_std(self, metric: str) -> tuple[float, float]:
        """Mean and standard deviation (n − 1) of a metric over the folds in which it is defined; NaN if in none."""
        if metric == "accuracy":
            return self.mean, self.std
        known = [value for value in self.metrics.get(metric, ()) if math.isfinite(value)]
        return _mean_and_std(known) if known else (math.nan, math.nan)

    @property
    def evaluation(self) -> FoldMetrics | None:
        """Counts per class, confusions and reliability over all folds; None where the line has none."""
        return FoldMetrics.from_dict({"metrics": self.metrics, **self.details}) if "support" in self.details else None

    @property
    def key(self) -> tuple[str, str]:
        """Set and loss, which identify the line."""
        return self.set, self.loss


def make_result(
    table: Table,
    loss: str,
    folds: list[float],
    seconds: float,
    seed: int,
    settings: dict[str, Any],
    angles: dict[str, float],
    train: Sequence[float] = (),
    evaluation: FoldMetrics | None = None,
) -> Result:
    """A result with its mean and standard deviation (n − 1) worked out."""
    mean, std = _mean_and_std(folds)
    known = {name: value for name, value in angles.items() if math.isfinite(value)}  # JSON has no NaN
    took = round(seconds, 3)
    details: dict[str, Any] = {"rows": len(table), "columns": len(table.columns)}
    if evaluation is not None:
        details |= evaluation.to_dict()
        del details["metrics"]
        details["class_names"] = [name[:_MAX_CLASS_NAME_LENGTH] for name in table.class_names]
    return Result(
        table.name,
        loss,
        mean,
        std,
        folds,
        seed,
        took,
        versions(),
        settings,
        known,
        list(train),
        {} if evaluation is None else evaluation.metrics,
        details,
    )


def _mean_and_std(folds: Sequence[float]) -> tuple[float, float]:
    return float(np.mean(folds)), float(np.std(folds, ddof=1)) if len(folds) > 1 else 0.0


class ResultStore:
    """Results by set and method: those of `results.jsonl` in a folder, or in memory only where there is none.

    Args:
        folder: where `results.jsonl` is, or will be; None keeps results in memory.
        overwrite: start over instead of continuing with the stored results.
    """

    def __init__(self, folder: str | Path | None = None, overwrite: bool = False) -> None:
        self.folder = None if folder is None else Path(folder)
        self.path = None if self.folder is None else self.folder / RESULTS_FILE_NAME
        self.results: dict[tuple[str, str], Result] = {}
        if self.path is not None:
            _prepare_file(self.path, overwrite)
            self.results = _read_results(self.path)

    def find_matching(self, key: tuple[str, str], seed: int, settings: dict[str, Any]) -> Result | None:
        """The stored result; one of other settings is refused."""
        found = self.results.get(key)
        if found is None:
            return None
        wanted, there = (
            _flatten_settings(seed, json.loads(json.dumps(settings))),
            _flatten_settings(found.seed, found.settings),
        )
        for name in sorted({*wanted, *there}):
            if wanted.get(name) != there.get(name):
                if name == "data":
                    raise InputError(
                        f"{self.path} holds {key[1]} on {key[0]} as it was before the file or its target changed; "
                        f"choose another {spell_option('out')}, or use {spell_option('overwrite', True)}"
                    )
                raise InputError(
                    f"{self.path} holds {key[1]} on {key[0]} with another {name} ({there.get(name)}, "
                    f"now {wanted.get(name)}): choose another {spell_option('out')}, or use "
                    f"{spell_option('overwrite', True)}"
                )
        return found

    def add(self, result: Result) -> None:
        """Add a result; in a file it is appended and synced to disk."""
        self.results[result.key] = result
        if self.path is None:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(format_result_line(result))
            file.flush()
            os.fsync(file.fileno())


def _prepare_file(path: Path, overwrite: bool) -> None:
    """Create the folder and the file, or empty the file; refuse links and anything else that is not a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if overwrite:
            path.unlink(missing_ok=True)
        if path.is_symlink():
            raise NotAFileError(f"{path.name} is a symbolic link, which is not followed")
        if os.path.lexists(path):
            open_regular(path).close()  # not a pipe, which a writer would wait for
        with path.open("a"):
            pass
    except (OSError, NotAFileError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{path.parent}: cannot be written ({why}); choose another folder") from None


def _read_results(path: Path) -> dict[tuple[str, str], Result]:
    """Read the stored lines; an incomplete last line is removed, and its result computed again."""
    found: dict[tuple[str, str], Result] = {}
    whole = 0  # bytes of lines that have an end
    for number, line in enumerate(read_lines(path, MAX_IN_MEMORY_LOG_BYTES), 1):
        if not line.endswith(b"\n"):
            os.truncate(path, whole)  # in place: what is there stays there whatever happens
            break
        whole += len(line)
        try:
            result = parse_result_line(line)
        except (ValueError, TypeError, KeyError):
            advice = f"delete the line, or start over with {spell_option('overwrite', True)}"
            raise InputError(f"{path}: line {number} is not a result; {advice}") from None
        found[result.key] = result
    return found


def _flatten_settings(seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """All settings by name, those of `mlp_config` among them, so that the one which differs can be named.

    Of tuning only the number of trials and the metric are settings; what was chosen is a result.
    """
    tuning = settings.get("tuning")
    known = tuning if isinstance(tuning, dict) else {}
    nested = {
        "mlp_config": None,
        "tuning": None,
        "tune_trials": known.get("trials"),
        "tuned_metric": known.get("metric"),
    }
    return {"seed": seed, **settings, **nested, **settings.get("mlp_config", {})}


def format_result_line(result: Result) -> str:
    """A result as a line of the file, with null for a metric that is undefined: JSON has no NaN."""
    metrics = {
        name: [value if math.isfinite(value) else None for value in values] for name, values in result.metrics.items()
    }
    return json.dumps({**asdict(result), "metrics": metrics}, ensure_ascii=False, allow_nan=False) + "\n"


_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "list": list,
    "dict": dict,
}


def parse_result_line(line: str | bytes) -> Result:
    """A line as a result; unknown fields are an error, as a line of something else would have."""
    value = bounded.parse_json(line, "a line")
    kinds = {spec.name: _JSON_TYPES[str(spec.type).partition("[")[0]] for spec in fields(Result)}
    if not isinstance(value, dict) or not all(isinstance(value[name], kinds[name]) for name in value):
        raise ValueError("not a result")
    result = Result(**{**value, "metrics": _parse_metrics(value.get("metrics", {}), value["folds"])})
    numbers = (result.mean, result.std, result.seconds, *result.folds, *result.angles.values(), *result.train)
    if not result.folds or not all(is_number(number) and math.isfinite(number) for number in numbers):
        raise ValueError("not a result")
    if result.train and len(result.train) != len(result.folds):
        raise ValueError("not a result")
    if isinstance(value["seed"], bool) or not isinstance(result.settings.get("mlp_config", {}), dict):
        raise ValueError("not a result")
    _check_details(result)
    return result


def _parse_metrics(metrics: dict[str, Any], folds: list[Any]) -> dict[str, list[float]]:
    """Metrics with NaN for null."""
    for values in metrics.values():
        if not isinstance(values, list) or len(values) != len(folds):
            raise ValueError("not a result")
        if not all(value is None or (is_number(value) and math.isfinite(value)) for value in values):
            raise ValueError("not a result")
    return {name: [math.nan if value is None else value for value in values] for name, values in metrics.items()}


def _check_details(result: Result) -> None:
    evaluation, names = result.evaluation, result.details.get("class_names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("not a result")
    if evaluation is not None and len(names) != evaluation.num_classes:
        raise ValueError("not a result")
    if not all(type(result.details.get(name, 0)) is int for name in ("rows", "columns")):
        raise ValueError("not a result")
