"""Losses at many scales and margins on one table, all settings and folds as one stack; and the tables they run on."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...data.tabular.encode import check_width, encode
from ...data.tabular.table import Column, Table
from ...losses.base import Loss
from ...tabular.batched import ModelSettings
from ...tabular.config import MLPConfig
from ...tabular.crossval import Partition
from ...tabular.model_stacks import StackedModels, TrainingJob, predictions
from .cells import Row

SCALES = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0)
MARGINS = (0.1, 0.2, 0.35, 0.5)
FEW_SCALES, FEW_MARGINS = (3.0, 10.0, 30.0, 60.0), (0.1, 0.35)
"""Where a setting takes minutes."""


class Setting(NamedTuple):
    """A loss with a scale and, where it has one, a margin."""

    loss: str
    s: float
    m: float | None = None

    def __str__(self) -> str:
        return f"{self.loss}(s={self.s:g})" if self.m is None else f"{self.loss}(s={self.s:g}, m={self.m:g})"


def grid_settings(
    losses: Iterable[str] = ("arcgrad", "normface", "cosface", "arcface"),
    scales: Sequence[float] = SCALES,
    margins: Sequence[float] = MARGINS,
) -> list[Setting]:
    """All settings: scales for ArcGrad and NormFace, scales and margins for CosFace and ArcFace.

    >>> len(grid_settings()), str(grid_settings()[0]), str(grid_settings(["arcface"])[-1])
    (80, 'arcgrad(s=1)', 'arcface(s=60, m=0.5)')
    """
    return [
        Setting(loss, s, m)
        for loss in losses
        for s in scales
        for m in (margins if loss in ("cosface", "arcface") else (None,))
    ]


def image_settings() -> list[Setting]:
    """The sixteen settings on images, four of each loss, the losses in turn: an interrupted list compares all four.

    >>> len(image_settings()), [str(setting) for setting in image_settings()[:3]]
    (16, ['arcgrad(s=3)', 'normface(s=3)', 'cosface(s=10, m=0.1)'])
    """
    by_loss = [grid_settings([loss], FEW_SCALES) for loss in ("arcgrad", "normface")]
    by_loss += [grid_settings([loss], (10.0, 30.0), FEW_MARGINS) for loss in ("cosface", "arcface")]
    return [setting for together in zip(*by_loss, strict=True) for setting in together]


def image_rows(records: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows of `scale_page` from the records of runs on images, in the order of the settings; means over seeds."""
    values: dict[tuple[str, str], list[float]] = {}
    for record in records:
        metric = "top1" if record["data"] == "cifar10" else "recall1"
        values.setdefault((str(record["data"]), str(record["loss"])), []).append(float(record["test"][metric]))
    return [
        {"set": name, "loss": each.loss, "s": each.s, "m": each.m, "accuracy": statistics.fmean(found)}
        for name in dict.fromkeys(name for name, _ in values)
        for each in image_settings()
        if (found := values.get((name, str(each)))) is not None
    ]


def fold_accuracies(
    table: Table,
    loss: str | Loss,
    split: Sequence[Partition],
    config: MLPConfig,
    seed: int,
    settings: Sequence[Setting] | None = None,
) -> NDArray[np.float64]:
    """Accuracy in percent [settings, folds] of one loss at several settings, or [1, folds] of the loss as it is."""
    count = 1 if settings is None else len(settings)
    jobs = [TrainingJob(part.training, (seed, k)) for _ in range(count) for k, part in enumerate(split)]
    tests = [part.test for _ in range(count) for part in split]
    model_settings = None
    if settings is not None:
        repeated = [setting for setting in settings for _ in split]
        margin_values = {"s": torch.tensor([setting.s for setting in repeated])}
        if settings[0].m is not None:
            margin_values["m"] = torch.tensor([float(setting.m or 0.0) for setting in repeated])
        ones = torch.ones(len(jobs))
        model_settings = ModelSettings(config.lr * ones, config.weight_decay * ones, margin_values)
    found = np.empty(len(jobs))
    for block, trainer, _ in StackedModels(encode(table), table, loss, config, seed).train(jobs, None, model_settings):
        parts = [tests[k] for k in block]
        answers = predictions(trainer, parts)
        for place, (k, part) in enumerate(zip(block, parts, strict=True)):
            found[k] = 100.0 * float((answers[place, : len(part)] == table.y[part]).mean())
    return found.reshape(count, len(split))


def config_for(table: Table, split: Sequence[Partition]) -> MLPConfig:
    """The settings that `compare` would take for this table."""
    rows = min(len(part.training) for part in split)
    return MLPConfig.for_table(rows, check_width(table), len(table.class_names))


FIFTY_CLASSES = "fifty_classes"


def load_table(name: str, data_dir: str | None) -> Table:
    """A UCI set by its name, or the table of 50 classes (20,000 × 30, `make_classification`, 20 informative columns,
    one cluster per class)."""
    from ...data.tabular.uci import load_uci_set

    if name != FIFTY_CLASSES:
        return load_uci_set(name, data_dir)
    from sklearn.datasets import make_classification

    x, y = make_classification(
        20_000, 30, n_informative=20, n_redundant=5, n_classes=50, n_clusters_per_class=1, random_state=0
    )
    return table_from_arrays(name, x, y)


def table_from_arrays(name: str, x: NDArray[np.float64], y: NDArray[np.int64]) -> Table:
    """A table of plain numbers."""
    columns = tuple(Column(f"x{place}", x[:, place].copy()) for place in range(x.shape[1]))
    return Table(name, columns, y.astype(np.int64), tuple(str(k) for k in range(int(y.max()) + 1)))
