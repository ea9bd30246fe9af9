"""Models of the depth experiment: a stack in which initialisation and rate differ between models.

`StackedTrainer` with what the paper leaves open: how weights start, whether a ReLU follows the embedding, and the
optimizer (AdamW without decay is Adam; or SGD with momentum).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...tabular.batched import ModelSettings, StackedTable, StackedTrainer
from ...tabular.config import MLPConfig

INITS = ("torch", "lecun", "he")
"""torch: uniform within ±1/√fan_in, biases too (`nn.Linear`); lecun and he: normal, variance 1 and 2 over fan_in."""
OPTIMIZERS = ("adam", "sgd")
_MOMENTUM = 0.9
_MAX_EMBEDDING = 1e9  # larger ones belong to a model that has diverged


class ModelStart(NamedTuple):
    """How one model of the stack starts and learns."""

    init: str
    lr: float
    rows: NDArray[np.int64]
    seed: tuple[int, ...]


def draw_layer(init: str, fan_in: int, fan_out: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Weight [fan_in, fan_out] and bias [fan_out] of one layer.

    >>> weight, bias = draw_layer("torch", 100, 50, np.random.default_rng(0))
    >>> weight.shape, bool(weight.abs().max() <= 0.1), bool(bias.abs().max() > 0)
    (torch.Size([100, 50]), True, True)
    """
    if init == "torch":
        bound = 1.0 / math.sqrt(fan_in)
        return (
            torch.from_numpy(rng.uniform(-bound, bound, (fan_in, fan_out))),
            torch.from_numpy(rng.uniform(-bound, bound, fan_out)),
        )
    gain = math.sqrt((2.0 if init == "he" else 1.0) / fan_in)
    return torch.from_numpy(gain * rng.standard_normal((fan_in, fan_out))), torch.zeros(fan_out)


def zero_diverged(embedded: Tensor) -> Tensor:
    """Embeddings [K, N, D] with those of diverged models replaced by 0: at high rates that is a result, not an error.

    >>> zero_diverged(torch.tensor([[[1.0]], [[float("nan")]]])).flatten().tolist()
    [1.0, 0.0]
    """
    is_sane = (embedded.detach().abs() < _MAX_EMBEDDING).all(2, keepdim=True).all(1, keepdim=True)
    return torch.where(is_sane, embedded, 0.0)


class DepthTrainer(StackedTrainer):
    """Models of one loss, depth and width that differ in initialisation, rate and training part."""

    def __init__(
        self,
        loss: str,
        table: StackedTable,
        models: Sequence[ModelStart],
        config: MLPConfig,
        steps_and_batch: tuple[int, int],
        optimizer: str,
        has_relu_embedding: bool,
    ) -> None:
        rates = torch.tensor([model.lr for model in models])
        settings = ModelSettings(rates, torch.zeros(len(models)))
        rows, seeds = [model.rows for model in models], [model.seed for model in models]
        super().__init__(loss, table, rows, seeds, config, steps_and_batch, settings)
        self.network.has_relu_embedding = has_relu_embedding
        self._draw_weights([model.init for model in models], seeds)
        if optimizer == "sgd":
            self._adamw = _SGDPerModel([p for p, _ in self._parameters_with_decay()], rates / config.lr)
        self.objective.register_forward_pre_hook(lambda _, args: (zero_diverged(args[0]), *args[1:]))

    @torch.no_grad()
    def embed(self, indices: Tensor) -> Tensor:
        """Embeddings [K, B, D]; 0 of models that have diverged, which then answer the first class."""
        return zero_diverged(super().embed(indices))

    @torch.no_grad()
    def _draw_weights(self, inits: Sequence[str], seeds: Sequence[Sequence[int]]) -> None:
        for k, (init, seed) in enumerate(zip(inits, seeds, strict=True)):
            rng = np.random.default_rng([*seed, 3])
            for weight, bias in self.network.layers():
                drawn, offsets = draw_layer(init, weight.shape[1], weight.shape[2], rng)
                weight[k].copy_(drawn)
                bias[k, 0].copy_(offsets)


class _SGDPerModel:
    """SGD with momentum in which every model of a stack has a rate of its own."""

    def __init__(self, parameters: Sequence[Tensor], lr_factors: Tensor) -> None:
        self.parameters = list(parameters)
        self.velocities = [torch.zeros_like(p) for p in self.parameters]
        self.lr_factors = [
            lr_factors.to(p).repeat_interleave(len(p) // len(lr_factors)).view(-1, *[1] * (p.ndim - 1))
            for p in self.parameters
        ]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One step down the gradients, which are then cleared."""
        for p, velocity, factor in zip(self.parameters, self.velocities, self.lr_factors, strict=True):
            if p.grad is not None:
                velocity.mul_(_MOMENTUM).add_(p.grad)
                p.sub_(velocity * factor, alpha=lr)
                p.grad = None
