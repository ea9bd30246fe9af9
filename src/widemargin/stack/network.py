"""K multi-layer networks of one shape, as stacked matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn


class StackedNetwork(nn.Module):
    """ReLU networks [K, N, F] → embeddings [K, N, D]; the last layer is linear, so that angles use the whole sphere.

    Args:
        sizes: width of the input, of the hidden layers and of the embedding.
        draws: one random generator per model; weights after He et al. (arXiv 1502.01852).
    """

    def __init__(self, sizes: Sequence[int], draws: Sequence[np.random.Generator], dtype: torch.dtype) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in pairwise(sizes):
            gain = math.sqrt(2.0 / fan_in)
            start = np.stack([draw.standard_normal((fan_in, fan_out)) for draw in draws]) * gain
            self.weights.append(nn.Parameter(torch.from_numpy(start).to(dtype)))
            self.biases.append(nn.Parameter(torch.zeros(len(draws), 1, fan_out, dtype=dtype)))

    def forward(self, x: Tensor, masks: Sequence[Tensor] = ()) -> Tensor:
        """Embeddings; `masks` [N, H] multiply the hidden layers (dropout)."""
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if i < last:
                x = torch.relu(x)
                if masks:
                    x = x * masks[i]
        return x
