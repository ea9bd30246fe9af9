"""Models of one loss on one table, trained in stacks of as many as fit into memory, each on its own rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.tabular.encode import EncodedTable, decorrelation, projection, scaling
from ..data.tabular.table import Table
from ..losses.base import Loss
from ..losses.class_counts import with_class_counts
from ..losses.grammar import Sum, parse
from .batched import ModelSettings, StackedTable, StackedTrainer
from .config import MLPConfig
from .early_stopping import train_validation_split, train_with_validation

# Weights of a stack of models: with gradients and moments four times as many numbers, well below 100 MiB.
_MAX_STACK_WEIGHTS = 1 << 22
# Rows that a stack draws in all its training: its order is kept, 8 bytes for each.
_MAX_STACK_SAMPLES = 1 << 25
_PREDICT_CHUNK_VALUES = 1 << 22
# Rows from which on a table is preprocessed once for each model, and numbers that a stack of models may take for that.
_MIN_PREPARED_ROWS, _MAX_PREPARED_VALUES = 4096, 1 << 26


def count_weights(inputs: int, config: MLPConfig, num_classes: int) -> int:
    """Weights of a model, without biases."""
    return sum(a * b for a, b in pairwise((inputs, *config.hidden, num_classes)))


class TrainingJob(NamedTuple):
    """One model to train: its rows and its seed."""

    rows: NDArray[np.int64]
    seed: tuple[int, ...]


class TrainedBlock(NamedTuple):
    """Models that were trained together."""

    block: NDArray[np.int64]
    """Their indices among the jobs."""
    trainer: StackedTrainer
    validation: list[NDArray[np.int64]] | None
    """Rows that each held out for early stopping; None without early stopping."""


@dataclass(frozen=True)
class StackedModels:
    """How the models of one loss on one table are trained, as many at a time as fit into memory."""

    encoded: EncodedTable
    table: Table
    loss: str | Sum | Loss
    config: MLPConfig
    seed: int
    dtype: torch.dtype = torch.float32
    sample_weight: torch.Tensor | None = None
    """[n], a factor of each row's loss."""

    def train(
        self,
        jobs: Sequence[TrainingJob],
        on_progress: Callable[[float], None] | None = None,
        settings: ModelSettings | None = None,
    ) -> Iterator[TrainedBlock]:
        """Train a model for each job; blocks come one after the other, so that only one is in memory."""
        config = self.config
        known: dict[tuple[int, tuple[int, ...]], tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        held_out = [  # trials of one part hold the same rows out
            known.setdefault((id(job.rows), job.seed), known.get((id(job.rows), job.seed)) or self._hold_out(job))
            for job in jobs
        ]
        training = [rows for rows, _ in held_out]
        steps_and_batch = config.steps_and_batch(min(len(rows) for rows in training))
        stacks = math.ceil(len(jobs) / self._models_per_stack(len(jobs), steps_and_batch))
        for block in np.array_split(np.arange(len(jobs)), stacks):
            rows = [training[k] for k in block]
            stacked_table = self._stacked_table(rows)
            if self._is_prepared:
                stacked_table = stacked_table.prepare()
            trainer = StackedTrainer(
                self._loss_with_counts,
                stacked_table,
                rows,
                [jobs[k].seed for k in block],
                config,
                steps_and_batch,
                None if settings is None else settings.take(torch.from_numpy(block)),
                self.sample_weight,
            )
            validation = [held_out[k][1] for k in block] if config.val_fraction else None
            on_steps = None if on_progress is None else _progress_of_steps(on_progress, steps_and_batch[0] * stacks)
            train_with_validation(trainer, validation, config.patience, on_steps)
            yield TrainedBlock(block, trainer, validation)

    def time_steps(self, jobs: Sequence[TrainingJob], steps: int) -> float:
        """Estimated seconds to train these jobs, from the time of `steps` steps."""
        training = [self._hold_out(job)[0] for job in jobs]
        steps_and_batch = self.config.steps_and_batch(min(len(rows) for rows in training))
        limit = self._models_per_stack(len(jobs), steps_and_batch)
        chosen = jobs[:limit]
        table = self._stacked_table(training[:limit])
        seeds = [job.seed for job in chosen]
        trainer = StackedTrainer(self._loss_with_counts, table, training[:limit], seeds, self.config, steps_and_batch)
        trainer.run(2)
        begun = time.perf_counter()
        trainer.run(steps)
        done = min(steps, trainer.steps - 2)
        return (time.perf_counter() - begun) * trainer.steps / max(1, done) * len(jobs) / len(chosen)

    def _stacked_table(self, parts: Sequence[NDArray[np.int64]]) -> StackedTable:
        """The table with the preprocessing of models trained on `parts` of it."""
        y, num_classes = self.table.y, len(self.table.class_names)
        return build_stacked_table(self.encoded, y, num_classes, parts, self.dtype, self.config)

    @property
    def _loss_with_counts(self) -> Sum | Loss:
        """The loss with the class counts of the whole table, if it uses counts.

        The models of a stack share one margin, so it cannot have the counts of each training part. Such losses depend
        on the ratios of the counts, which differ between parts by a row or two.
        """
        value = parse(self.loss) if isinstance(self.loss, str) else self.loss
        return with_class_counts(value, np.bincount(self.table.y, minlength=len(self.table.class_names)).tolist())

    def _hold_out(self, job: TrainingJob) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The training rows of a job, and those held out for early stopping."""
        if not self.config.val_fraction:
            return job.rows, job.rows[:0]
        training, validation = train_validation_split(self.table.y[job.rows], self.config.val_fraction, job.seed)
        return job.rows[training], job.rows[validation]

    @property
    def _num_inputs(self) -> int:
        columns, components = int(self.encoded.x.shape[1]), self.config.max_components
        return min(columns, components) if components else columns

    @property
    def _is_prepared(self) -> bool:
        """Whether all rows are preprocessed before training; for small tables doing so in every step costs little."""
        return len(self.table) > _MIN_PREPARED_ROWS or bool(self.config.max_components)

    def _models_per_stack(self, num_jobs: int, steps_and_batch: tuple[int, int]) -> int:
        weights = count_weights(self._num_inputs, self.config, len(self.table.class_names))
        weights += self.encoded.x.shape[1] * self._num_inputs if self.config.max_components else 0
        steps, batch = steps_and_batch
        limits = [num_jobs, _MAX_STACK_WEIGHTS // weights, _MAX_STACK_SAMPLES // (steps * batch)]
        if self._is_prepared:
            limits.append(_MAX_PREPARED_VALUES // (len(self.table) * self._num_inputs))
        return max(1, min(limits))


def _progress_of_steps(on_progress: Callable[[float], None], total_steps: int) -> Callable[[int], None]:
    return lambda done: on_progress(done / total_steps)


def build_stacked_table(
    encoded: EncodedTable,
    y: NDArray[np.int64],
    num_classes: int,
    parts: Sequence[NDArray[np.int64]],
    dtype: torch.dtype = torch.float32,
    config: MLPConfig | None = None,
) -> StackedTable:
    """A table with the preprocessing of models trained on `parts` of it; `config` has the projection of wide tables."""

    # Models with the same training part, as the trials of a tuning have, share its statistics.
    place = {id(part): k for k, part in enumerate({id(part): part for part in parts}.values())}
    repeated = [place[id(part)] for part in parts]
    parts = list({id(part): part for part in parts}.values())

    def tensor(values: NDArray[np.float64]) -> torch.Tensor:
        return torch.from_numpy(values).to(dtype)[repeated]

    scales = scaling(encoded, parts)
    fill = None if scales.fill is None else tensor(scales.fill).unsqueeze(1)
    shift, scale = tensor(scales.shift).unsqueeze(1), tensor(scales.scale).unsqueeze(1)
    matrix = projection_matrix = None
    if config is not None and config.max_components:
        projection_matrix = projection(encoded, y, num_classes, parts, scales, config.screening, config.max_components)
    else:
        matrix = decorrelation(encoded, parts, scales)
    return StackedTable(
        torch.from_numpy(encoded.x).to(dtype),
        torch.from_numpy(y),
        num_classes,
        shift,
        scale,
        fill,
        None if matrix is None else tensor(matrix),
        None if projection_matrix is None else tensor(projection_matrix),
    )


def part_logits(trainer: StackedTrainer, parts: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float64]]:
    """Logits [n, C] of each model's rows."""
    logits = _apply_to_parts(trainer.logits, trainer, parts)
    return [logits[k, : len(part)].double().numpy() for k, part in enumerate(parts)]


def predictions(trainer: StackedTrainer, parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Predicted classes [K, most] of each model's rows; shorter parts are filled up."""
    found: NDArray[np.int64] = _apply_to_parts(trainer.predict, trainer, parts).numpy()
    return found


def _apply_to_parts(
    function: Callable[[torch.Tensor], torch.Tensor], trainer: StackedTrainer, parts: Sequence[NDArray[np.int64]]
) -> torch.Tensor:
    """`function` of each model's rows [K, most], in chunks; shorter parts are filled up."""
    most = max(len(part) for part in parts)
    padded = torch.from_numpy(np.stack([np.resize(part, most) for part in parts]))
    widest = max(trainer.table.num_inputs, *trainer.config.hidden, trainer.table.num_classes)
    step = max(1, _PREDICT_CHUNK_VALUES // (len(parts) * widest))
    return torch.cat([function(padded[:, start : start + step]) for start in range(0, most, step)], 1)
