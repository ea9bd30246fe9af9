"""K multi-layer networks of one shape, as stacked matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class StackedNetwork(nn.Module):
    """ReLU networks [K, N, F] → embeddings [K, N, D]; the last layer is linear, so that angles use the whole sphere.

    Args:
        sizes: width of the input, of the hidden layers and of the embedding.
        draws: one random generator per model; weights after He et al. (arXiv 1502.01852).
    """

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
        return apply_layers(self.layers(), x, masks)


def apply_layers(layers: Sequence[tuple[Tensor, Tensor]], x: Tensor, masks: Sequence[Tensor] = ()) -> Tensor:
    """The layers one after the other, a ReLU after all but the last; looking them up costs more than some of them."""
    last = len(layers) - 1
    for i, (weight, bias) in enumerate(layers):
        x = torch.baddbmm(bias, x, weight)
        if i < last:
            x = _MaskedReLU.apply(x, masks[i]) if masks else torch.relu(x)  # type: ignore[no-untyped-call]
    return x


class _MaskedReLU(torch.autograd.Function):
    """`relu(x) · mask` in one new tensor instead of two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        kept = torch.relu(x).mul_(mask)
        ctx.save_for_backward(kept, mask)
        return kept

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        kept, mask = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(gradient * mask, kept, 0), None
