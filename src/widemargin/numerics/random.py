"""Random numbers of a batch that may be split over several processes.

Numbers are drawn for the whole batch, and each process keeps those of its rows. So a sample is augmented in the same
way on any process, and several processes train on the same batches as one.

Batches are prepared in a background thread, but the default dtype is global to the process: Fabric switches it in
every step of `--precision 64-true`. So every draw names its dtype and device here, and no other code may draw without
naming them; in another dtype the same seed gives other numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class BatchSlice:
    """Rows from `start` of a batch of `total` rows, whose random numbers come from `generator`."""

    generator: torch.Generator
    total: int
    start: int = 0


RandomSource = torch.Generator | BatchSlice


def make_generator(*seeds: int) -> torch.Generator:
    """Return a generator seeded by several numbers, such as seed, epoch and step."""
    state = np.random.SeedSequence(seeds).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


def as_batch_slice(source: RandomSource, n: int) -> BatchSlice:
    """Return the batch that n rows belong to; with a bare generator they are the whole batch."""
    return source if isinstance(source, BatchSlice) else BatchSlice(source, n)


def uniform(source: RandomSource, n: int, *shape: int) -> Tensor:
    """Draw n rows of uniform numbers in [0, 1)."""
    rows = as_batch_slice(source, n)
    numbers = torch.rand(rows.total, *shape, generator=rows.generator, dtype=torch.float32, device="cpu")
    return numbers[rows.start : rows.start + n]


def integers(source: RandomSource, n: int, high: int, *shape: int) -> Tensor:
    """Draw n rows of integers from 0 to `high` − 1."""
    rows = as_batch_slice(source, n)
    numbers = torch.randint(high, (rows.total, *shape), generator=rows.generator, dtype=torch.int64, device="cpu")
    return numbers[rows.start : rows.start + n]


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw from the standard normal distribution."""
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def permutation(generator: torch.Generator, n: int) -> Tensor:
    """Return a random permutation of 0 to n − 1."""
    return torch.randperm(n, generator=generator, dtype=torch.int64, device="cpu")


def beta(source: RandomSource, n: int, alpha: float) -> Tensor:
    """Draw n numbers from Beta(α, α) with NumPy: `torch.distributions.Beta` takes no generator."""
    rows = as_batch_slice(source, n)
    seed = int(torch.randint(2**62, (), generator=rows.generator, dtype=torch.int64, device="cpu"))
    numbers = np.random.default_rng(seed).beta(alpha, alpha, size=rows.total).astype(np.float32)
    return torch.from_numpy(numbers)[rows.start : rows.start + n]
