"""Many small networks at once: K models of one shape as stacked matrices, trained on K training parts of one table.

Models are independent: each has its own weights, order of rows and adaptive state, so it equals a model trained alone.
Only the dropout masks of a step and random numbers that a margin draws for its samples are shared. One batched product
per layer replaces K small ones, whose overhead would take most of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.adamw import adamw

from ..losses.base import Loss
from ..losses.grammar import Sum
from ..numerics import angles, torch_compat
from ..numerics.precision import widest_float_dtype
from .batched_objective import StackedObjective, draw_class_weights
from .config import MLPConfig


class StackedNetwork(nn.Module):
    """ReLU networks [K, N, F] → embeddings [K, N, D]; the last layer is linear, so that angles use the whole sphere.

    Args:
        sizes: width of the input, of the hidden layers and of the embedding.
        rngs: one random generator per model; weights after He et al. (arXiv 1502.01852).
    """

    has_relu_embedding = False
    """Whether a ReLU follows the last layer too; only experiments on depth set it."""

    def __init__(self, sizes: Sequence[int], rngs: Sequence[np.random.Generator], dtype: torch.dtype) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in pairwise(sizes):
            gain = math.sqrt(2.0 / fan_in)
            start = np.stack([draw.standard_normal((fan_in, fan_out)) for draw in rngs]) * gain
            self.weights.append(nn.Parameter(torch.from_numpy(start).to(dtype)))
            self.biases.append(nn.Parameter(torch.zeros(len(rngs), 1, fan_out, dtype=dtype)))

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of every layer."""
        return list(zip(self.weights, self.biases, strict=True))

    def forward(self, x: Tensor, masks: Sequence[Tensor] = ()) -> Tensor:
        """Embeddings; `masks` [N, H] multiply the hidden layers (dropout)."""
        return apply_layers(self.layers(), x, masks, self.has_relu_embedding)


def apply_layers(
    layers: Sequence[tuple[Tensor, Tensor]], x: Tensor, masks: Sequence[Tensor] = (), has_relu_embedding: bool = False
) -> Tensor:
    """Apply the layers in order, with a ReLU after all but the last (or all); takes a list, since looking up parameters
    is slow."""
    last = len(layers) - 1
    for i, (weight, bias) in enumerate(layers):
        x = torch.baddbmm(bias, x, weight)
        if i < last:
            x = torch.relu(x) * masks[i] if masks else torch.relu(x)
    return torch.relu(x) if has_relu_embedding else x


_GATHER_CHUNK_VALUES = 1 << 20  # numbers gathered at once: fits into the cache, with few calls


@dataclass(frozen=True)
class StackedTable:
    """A table for the models of a stack: shared values, and the scaling of each model."""

    x: Tensor
    """[n, F]; NaN where a value is missing."""
    y: Tensor
    """[n] class indices, or [n, C] booleans if rows have several labels."""
    num_classes: int
    shift: Tensor
    """[K, 1, F]: model k sees `x · scale + shift`."""
    scale: Tensor
    """[K, 1, F]"""
    fill: Tensor | None = None
    """[K, 1, F]: replaces missing values; None if none are missing."""
    decorrelation: Tensor | None = None
    """[K, P, P]: multiplies the first P scaled columns, `(x · scale + shift) @ decorrelation`; None: unchanged."""
    projection: Tensor | None = None
    """[K, F, P]: the scaled columns of a wide table become P components; None leaves them unchanged."""
    prepared: Tensor | None = None
    """[K, n, P]: all rows preprocessed, if `prepare` was called."""

    @property
    def num_inputs(self) -> int:
        """Number of inputs of the network."""
        return self.x.shape[1] if self.projection is None else self.projection.shape[2]

    def prepare(self) -> StackedTable:
        """The same table with all its rows preprocessed, K · n · P numbers: for tables that are read many times."""
        models, rows = len(self.scale), len(self.x)
        prepared = self.x.new_empty(models, rows, self.num_inputs)
        step = max(1, _GATHER_CHUNK_VALUES // (models * self.x.shape[1]))
        for start in range(0, rows, step):
            chunk = torch.arange(start, min(rows, start + step), device=self.x.device)
            prepared[:, start : start + step] = self.preprocess(chunk.expand(models, -1))
        return replace(self, prepared=prepared)

    def preprocess(self, indices: Tensor) -> Tensor:
        """Inputs [K, B, P] of the networks for rows [K, B] of the table."""
        if self.prepared is not None:
            first = torch.arange(len(self.prepared), device=indices.device).unsqueeze(1) * self.prepared.shape[1]
            chosen = self.prepared.flatten(0, 1).index_select(0, (indices + first).flatten())
            return chosen.view(*indices.shape, -1)
        x = self.x.index_select(0, indices.flatten()).view(*indices.shape, -1)
        if self.fill is not None:
            x = torch.where(torch.isnan(x), self.fill, x)
        x = x.mul_(self.scale).add_(self.shift)
        if self.projection is not None:
            return torch.bmm(x, self.projection)
        if self.decorrelation is None:
            return x
        num_decorrelated = self.decorrelation.shape[-1]
        decorrelated = torch.bmm(x[..., :num_decorrelated], self.decorrelation)
        return (
            decorrelated
            if num_decorrelated == x.shape[-1]
            else torch.cat([decorrelated, x[..., num_decorrelated:]], -1)
        )


@dataclass(frozen=True)
class ModelSettings:
    """Settings that differ between the models of a stack, [K] each."""

    lr: Tensor
    weight_decay: Tensor
    margin_values: Mapping[str, Tensor] = field(default_factory=dict)
    """Numbers of the margin, such as `s` and `m`, by name."""

    def take(self, models: Tensor) -> ModelSettings:
        """The settings of some of the models, by their indices."""
        margin_values = {name: values[models] for name, values in self.margin_values.items()}
        return ModelSettings(self.lr[models], self.weight_decay[models], margin_values)


class ModelOptimizer(Protocol):
    """Updates the parameters of a stack."""

    def step(self, lr: float) -> None:
        """Update the parameters and clear their gradients."""


class StackedTrainer:
    """K models of one loss in training: `run` does steps, `logits`, `embed` and `predict` change nothing.

    Args:
        spec: the loss, one for all models.
        table: the table, with the scaling of each model.
        training: the rows of each model's training part.
        seeds: for each model the numbers its random draws start from; the first is the same for all.
        config: how to train.
        steps_and_batch: steps and batch size; by default those for the smallest training part.
        settings: rate, decay and numbers of the margin for each model; by default those of `config` and `spec` for all.
        sample_weight: [n], a factor of each row's loss; by default 1 for all.
    """

    def __init__(
        self,
        spec: str | Sum | Loss,
        table: StackedTable,
        training: Sequence[np.ndarray],
        seeds: Sequence[Sequence[int]],
        config: MLPConfig,
        steps_and_batch: tuple[int, int] | None = None,
        settings: ModelSettings | None = None,
        sample_weight: Tensor | None = None,
    ) -> None:
        self.table, self.config, self.step = table, config, 0
        self.sample_weight = None if sample_weight is None else sample_weight.to(table.x)
        self.steps, self.batch = steps_and_batch or config.steps_and_batch(min(len(part) for part in training))
        dtype, device = table.x.dtype, table.x.device
        starts = [np.random.default_rng([*seed, 0]) for seed in seeds]
        self.network = StackedNetwork((table.num_inputs, *config.hidden), starts, dtype).to(device)
        start = draw_class_weights(starts, table.num_classes, config.hidden[-1], dtype).to(device)
        margin_values = {} if settings is None else settings.margin_values
        self.objective = StackedObjective(
            spec,
            start,
            config.label_smoothing,
            margin_values,
            is_multilabel=table.y.ndim == 2,
            seeds=[int(own.integers(2**62)) for own in starts],
        )
        self.order = _draw_row_order(training, seeds, self.steps, self.batch, device)
        # One stream per layer, so that masks do not depend on how many steps are drawn at once.
        self._mask_rngs = [np.random.default_rng([seeds[0][0], 1, layer]) for layer in range(len(config.hidden) - 1)]
        self._torch_rng_state = torch.Generator().manual_seed(seeds[0][0]).get_state()
        self._adamw: ModelOptimizer
        if settings is None:
            self._adamw = _AdamW(self._parameters_with_decay(), config.weight_decay)
        else:
            self._adamw = _AdamWPerModel(self._parameters_with_decay(), settings.lr / config.lr, settings.weight_decay)

    def _parameters_with_decay(self) -> list[tuple[Tensor, bool]]:
        found = [(p, True) for p in self.network.weights] + [(p, False) for p in self.network.biases]
        for part in self.objective.parts:
            weight = getattr(part, "weight", None)
            found += [(p, bool(part.has_weight_decay) and p is weight) for p in part.parameters()]
        return found

    def run(self, steps: int | None = None, on_progress: Callable[[int], None] | None = None) -> None:
        """Run the next `steps` steps (by default all that remain); `on_progress` gets the number of steps done."""
        # Some losses draw from torch's generator (elasticface, `mining=distance`). It has a state of its own here, kept
        # from call to call, so that a training does not depend on what else draws numbers.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.set_state(self._torch_rng_state)
            self._run_until(self.steps if steps is None else min(self.steps, self.step + steps), on_progress)
            self._torch_rng_state = torch.default_generator.get_state()

    def _run_until(self, end: int, on_progress: Callable[[int], None] | None) -> None:
        models, features = len(self.order), self.table.num_inputs
        steps_per_gather = max(1, _GATHER_CHUNK_VALUES // (models * self.batch * max(features, 1)))
        self.objective.train()
        layers = self.network.layers()
        mean_weights = torch.full(
            (models, self.batch), 1.0 / self.batch, dtype=self.table.x.dtype, device=self.table.x.device
        )
        while self.step < end:
            count = min(steps_per_gather, end - self.step)
            order = self.order[:, self.step * self.batch : (self.step + count) * self.batch]
            x, y, masks = (
                self._group_by_step(self.table.preprocess(order)),
                self._group_by_step(self.table.y[order]),
                self._draw_dropout_masks(count),
            )
            weights = (
                None if self.sample_weight is None else self._group_by_step(self.sample_weight[order] / self.batch)
            )
            for i in range(count):
                embedded = apply_layers(layers, x[i], [mask[i] for mask in masks], self.network.has_relu_embedding)
                # Every model's mean.
                self.objective(embedded, y[i]).backward(mean_weights if weights is None else weights[i])
                self._adamw.step(self._learning_rate(self.step))
                self.step += 1
            if on_progress is not None:
                on_progress(count)

    def _group_by_step(self, rows: Tensor) -> Tensor:
        """[K, steps·B, …] → [steps, K, B, …]."""
        return rows.view(len(rows), -1, self.batch, *rows.shape[2:]).transpose(0, 1).contiguous()

    def _learning_rate(self, step: int) -> float:
        done = step / self.steps
        rising = min(1.0, (done + 1.0 / self.steps) / self.config.warmup) if self.config.warmup else 1.0
        return self.config.lr * rising * 0.5 * (1.0 + math.cos(math.pi * done))

    def _draw_dropout_masks(self, steps: int) -> list[Tensor]:
        """Dropout masks [steps, B, H] of every hidden layer, scaled to keep the mean."""
        share = self.config.dropout
        if not share:
            return []
        like = self.table.x
        widths = zip(self._mask_rngs, self.config.hidden[:-1], strict=True)
        kept = [draw.random((steps, self.batch, width), np.float32) >= share for draw, width in widths]
        return [torch.from_numpy(mask).to(like.device, like.dtype).div_(1.0 - share) for mask in kept]

    @torch.no_grad()
    def embed(self, indices: Tensor) -> Tensor:
        """Embeddings [K, B, D] of rows [K, B] of the table."""
        embedded: Tensor = self.network(self.table.preprocess(indices))
        return embedded

    @torch.no_grad()
    def logits(self, indices: Tensor) -> Tensor:
        """Logits [K, B, C] of rows [K, B] of the table."""
        self.objective.eval()
        return self.objective.logits(self.embed(indices))

    @torch.no_grad()
    def predict(self, indices: Tensor) -> Tensor:
        """Predicted classes [K, B] of rows [K, B] of the table."""
        self.objective.eval()
        return self.objective.ranking_scores(self.embed(indices)).argmax(-1)


class _AdamW:
    """AdamW (arXiv 1711.05101) with torch's own kernel; the optimizer object around it costs more than it here."""

    def __init__(self, parameters: Sequence[tuple[Tensor, bool]], weight_decay: float) -> None:
        self.parameters = [p for p, _ in parameters]
        self.decayed_parameters = [p for p, wanted in parameters if wanted]
        self.weight_decay = weight_decay
        self.exp_avgs, self.exp_avg_sqs = ([torch.zeros_like(p) for p in self.parameters] for _ in range(2))
        self.state_steps = [torch.zeros((), dtype=torch.float32, device=p.device) for p in self.parameters]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update the parameters and clear their gradients."""
        if self.weight_decay:
            torch_compat.multiply_all_(self.decayed_parameters, 1.0 - lr * self.weight_decay)
        adamw(
            self.parameters,
            [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters],
            self.exp_avgs,
            self.exp_avg_sqs,
            [],
            self.state_steps,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=lr,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
        for p in self.parameters:
            p.grad = None


class _AdamWPerModel:
    """AdamW in which every model of a stack has a rate and a decay of its own, which torch's kernel does not offer.

    Args:
        parameters: with whether each decays; the first dimension of all of them is the models', or a multiple of it.
        lr_factors: [K], times the rate given to `step`.
        weight_decay: [K].
    """

    def __init__(self, parameters: Sequence[tuple[Tensor, bool]], lr_factors: Tensor, weight_decay: Tensor) -> None:
        self.parameters = [p for p, _ in parameters]
        self.exp_avgs, self.exp_avg_sqs = ([torch.zeros_like(p) for p in self.parameters] for _ in range(2))
        self.lr_factors = [_expand_to(lr_factors, p) for p in self.parameters]
        self.decays = [_expand_to(weight_decay, p) if wanted else None for p, wanted in parameters]
        self.steps = 0

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update the parameters and clear their gradients."""
        self.steps += 1
        bias1, bias2 = 1.0 - 0.9**self.steps, 1.0 - 0.999**self.steps
        state = zip(self.parameters, self.exp_avgs, self.exp_avg_sqs, self.lr_factors, self.decays, strict=True)
        for p, exp_avg, exp_avg_sq, factor, decay in state:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            if decay is not None:
                p.mul_(1.0 - lr * factor * decay)
            exp_avg.lerp_(grad, 0.1)
            exp_avg_sq.mul_(0.999).addcmul_(grad, grad, value=0.001)
            update = exp_avg / exp_avg_sq.sqrt().div_(math.sqrt(bias2)).add_(1e-8)
            p.sub_(update.mul_(factor), alpha=lr / bias1)
            p.grad = None


def _expand_to(values: Tensor, p: Tensor) -> Tensor:
    """Numbers [K] of the models in the shape that meets a parameter [K, …] or [K · parts, …]."""
    each = values.to(p).repeat_interleave(len(p) // len(values))
    return each.view(-1, *[1] * (p.ndim - 1))


def _draw_row_order(
    training: Sequence[np.ndarray], seeds: Sequence[Sequence[int]], steps: int, batch: int, device: torch.device
) -> Tensor:
    """Which rows every model sees, [K, steps·B]: its training part again and again, shuffled anew."""
    order = np.empty((len(training), steps * batch), np.int64)
    for k, (part, seed) in enumerate(zip(training, seeds, strict=True)):
        passes = math.ceil(steps * batch / len(part))
        shuffled = np.random.default_rng([*seed, 2]).permuted(np.tile(part, (passes, 1)), axis=1)
        order[k] = shuffled.ravel()[: steps * batch]
    return torch.from_numpy(order).to(device)


_ANGLES_CHUNK_VALUES = 1 << 22


@torch.no_grad()
def stack_angles(trainer: StackedTrainer, parts: Sequence[NDArray[np.int64]]) -> Tensor:
    """[K, 3] in radians: WC-Intra, W-Inter, C-Inter (see `metrics.angles`) of each model, centres from its own rows."""
    weight = trainer.objective.head.class_weights.to(widest_float_dtype(trainer.table.x.device))
    sums, counts = _sum_by_class(trainer, parts, weight[:, :, 0])
    present = counts > 0
    unit_w, unit_c = angles.unit_and_norm(weight)[0], angles.unit_and_norm(sums)[0].unsqueeze(2)
    own = torch.where(present, angles.smallest_angle(unit_w, unit_c), 0.0).sum(1) / present.sum(1)
    everyone = torch.ones_like(present)
    return torch.stack([own, _mean_of_pairs(unit_w, everyone), _mean_of_pairs(unit_c, present)], 1)


def _sum_by_class(trainer: StackedTrainer, parts: Sequence[NDArray[np.int64]], like: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of the embeddings of each class, whose direction is the centre's, and how many there are."""
    models, classes, dim = like.shape
    sums, counts = torch.zeros_like(like), like.new_zeros(models, classes)
    most = max(len(part) for part in parts)
    padded = torch.from_numpy(np.stack([np.resize(part, most) for part in parts]))
    real = torch.from_numpy(np.stack([np.arange(most) < len(part) for part in parts]))
    first = torch.arange(models).unsqueeze(1) * classes
    step = max(1, _ANGLES_CHUNK_VALUES // (models * max(trainer.table.num_inputs, *trainer.config.hidden)))
    for start in range(0, most, step):
        rows, kept = padded[:, start : start + step], real[:, start : start + step]
        place = (trainer.table.y[rows] + first)[kept]
        embedded = trainer.embed(rows)[kept]
        sums.view(-1, dim).index_add_(0, place, embedded.to(sums.dtype))
        counts.view(-1).index_add_(0, place, torch.ones_like(place, dtype=counts.dtype))
    return sums, counts


def _mean_of_pairs(unit: Tensor, present: Tensor) -> Tensor:
    """Mean angle [K] over the pairs of present classes, with unit vectors [K, C, S, D]; NaN where there are none."""
    pairs = (present.unsqueeze(2) & present.unsqueeze(1)).triu(1)
    theta = torch.where(pairs, angles.safe_arccos(angles.nearest_cosines(unit, unit)), 0.0)
    return theta.sum((1, 2)) / pairs.sum((1, 2))
