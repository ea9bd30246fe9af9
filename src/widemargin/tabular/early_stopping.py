"""Early stopping for a stack of models: each keeps its best weights by validation rows of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..io.errors import InputError
from .batched import StackedTrainer

CHECKS_PER_TRAINING = 50
"""How often a full training is interrupted to evaluate the validation rows, or for a line of a verbose one."""
_CHUNK_VALUES = 1 << 22


def train_validation_split(
    y: NDArray[np.int64], fraction: float, seed: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training and validation rows: about `fraction` of each class is held out, but never the whole class.

    >>> training, validation = train_validation_split(np.array([0] * 6 + [1] * 3 + [2]), 0.3, seed=[0])
    >>> np.array([0] * 6 + [1] * 3 + [2])[validation].tolist()
    [0, 0, 1]
    """
    order = np.random.default_rng([*seed, 3]).permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    first = np.unique(y[order], return_index=True)[1]
    spare = np.delete(order, first)
    count = min(len(spare), max(1, round(fraction * len(y))))
    if not count:
        raise InputError(
            "early stopping needs a class with at least two rows to hold one out; set val_fraction=0 "
            "(in MarginClassifier early_stopping=False)"
        )
    chosen = spare[((np.arange(count) + 0.5) * len(spare) / count).astype(np.int64)]  # at equal distances: stratified
    return np.setdiff1d(order, chosen), np.sort(chosen)


class EarlyStopping:
    """Best weights of K models by their validation rows: accuracy, and among equals the smaller log loss.

    A model without an improvement for `patience` checks is finished: its best weights are kept while the others of
    the stack go on, so that it equals a model trained alone.

    Args:
        trainer: the stack in training.
        validation: the rows of each model's validation part.
        patience: number of checks without an improvement after which a model is finished.
    """

    def __init__(self, trainer: StackedTrainer, validation: Sequence[NDArray[np.int64]], patience: int) -> None:
        self.trainer, self.patience = trainer, patience
        longest = max(len(part) for part in validation)
        device = trainer.table.x.device
        self._rows = torch.from_numpy(np.stack([np.resize(part, longest) for part in validation])).to(device)
        counts = torch.tensor([len(part) for part in validation], device=device)
        self._is_real = torch.arange(longest, device=device) < counts.unsqueeze(1)
        weight = trainer.sample_weight
        self._row_weights = self._is_real.double() if weight is None else self._is_real * weight[self._rows].double()
        self._totals = self._row_weights.sum(1).clamp_min(torch.finfo(torch.float64).tiny)
        models = len(validation)
        self.accuracies: list[NDArray[np.float64]] = []
        """Validation accuracy [K] of every check."""
        self._best_accuracy = torch.full((models,), -1.0, dtype=torch.float64, device=device)
        self._best_log_loss = torch.full_like(self._best_accuracy, torch.inf)
        self._checks_since_best = torch.zeros(models, dtype=torch.int64, device=device)
        self._best_states: list[Tensor] = []

    @property
    def is_finished(self) -> bool:
        """Whether all models are finished."""
        return bool((self._checks_since_best >= self.patience).all())

    @torch.no_grad()
    def check(self) -> None:
        """Evaluate the validation rows and remember the weights of the models that are better than before."""
        accuracy, log_loss = self._evaluate()
        self.accuracies.append(accuracy.cpu().numpy())
        active = self._checks_since_best < self.patience
        is_better = (accuracy > self._best_accuracy) | (
            (accuracy == self._best_accuracy) & (log_loss < self._best_log_loss)
        )
        is_better &= active
        self._checks_since_best += active.to(torch.int64)
        self._checks_since_best[is_better] = 0
        self._best_accuracy = torch.where(is_better, accuracy, self._best_accuracy)
        self._best_log_loss = torch.where(is_better, log_loss, self._best_log_loss)
        tensors = self._tensors()
        if not self._best_states:
            self._best_states = [tensor.clone() for tensor in tensors]
        else:
            for best, tensor in zip(self._best_states, tensors, strict=True):
                best[is_better] = tensor[is_better]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the best weights of every model."""
        for best, tensor in zip(
            self._best_states, self._tensors(), strict=False
        ):  # without a check the last weights are kept
            tensor.copy_(best)

    def _evaluate(self) -> tuple[Tensor, Tensor]:
        models, longest = self._rows.shape
        y = self.trainer.table.y
        correct = torch.zeros(models, dtype=torch.float64, device=y.device)
        log_loss = torch.zeros_like(correct)
        width = max(self.trainer.table.num_inputs, *self.trainer.config.hidden, self.trainer.table.num_classes)
        step = max(1, _CHUNK_VALUES // (models * width))
        for start in range(0, longest, step):
            rows, is_real = self._rows[:, start : start + step], self._is_real[:, start : start + step]
            weights = self._row_weights[:, start : start + step]
            logits, truth = self.trainer.logits(rows).double(), y[rows]
            right, losses = _answers_and_losses(logits, truth)
            correct += (right * weights).sum(1)
            log_loss += (torch.where(is_real, losses, 0.0) * weights).sum(1)
        return correct / self._totals, (log_loss / self._totals).nan_to_num(torch.inf)

    def _tensors(self) -> list[Tensor]:
        """Tensors that predictions depend on, [K, …] each: network, class weights and state of the margin."""
        modules = (self.trainer.network, self.trainer.objective.head)
        held = [value for module in modules for value in (*module.parameters(), *module.buffers())]
        return [value.data for value in held if value.ndim and len(value) == len(self._rows)]


def _answers_and_losses(logits: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the prediction is right, and its log loss, [K, B] each; of several labels all must be right."""
    if truth.ndim == logits.ndim:
        losses = F.binary_cross_entropy_with_logits(logits, truth.to(logits.dtype), reduction="none")
        return ((logits > 0) == truth).all(-1), losses.mean(-1)
    losses = F.cross_entropy(logits.flatten(0, 1), truth.flatten(), reduction="none").view_as(truth)
    return logits.argmax(-1) == truth, losses


def train_with_validation(
    trainer: StackedTrainer,
    validation: Sequence[NDArray[np.int64]] | None,
    patience: int,
    on_progress: Callable[[int], None] | None = None,
    on_check: Callable[[EarlyStopping | None], None] | None = None,
) -> EarlyStopping | None:
    """Train to the end, or with validation rows until no model improves, and restore the best weights of each.

    `on_progress` gets the number of steps done since the last call (all that remain when training stops early),
    `on_check` is called after every check.
    """
    if validation is None and on_check is None:
        trainer.run(on_progress=on_progress)
        return None
    stopping = None if validation is None else EarlyStopping(trainer, validation, patience)
    interval = max(1, trainer.steps // CHECKS_PER_TRAINING)
    while trainer.step < trainer.steps and not (stopping is not None and stopping.is_finished):
        trainer.run(interval, on_progress)
        if stopping is not None:
            stopping.check()
        if on_check is not None:
            on_check(stopping)
    if on_progress is not None and trainer.step < trainer.steps:
        on_progress(trainer.steps - trainer.step)
    if stopping is not None:
        stopping.restore()
    return stopping
