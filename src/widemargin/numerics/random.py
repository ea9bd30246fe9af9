"""Random numbers of a batch that several processes may share.

Numbers are drawn for the whole batch, and each process keeps those of its rows. So a sample is augmented in the same
way whichever process has it, and several processes train on the same batches as one.

Batches are made in a thread of their own, and the default dtype is the whole process's: Fabric switches it in
every step of `--precision 64-true`. So dtype and device of a draw are named here, and nothing else may draw without
naming them; a number drawn in another dtype is another number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class BatchSlice:
    """Rows from `start` on of a batch of `total`, whose numbers `generator` draws."""

    generator: torch.Generator
    total: int
    start: int = 0


RandomSource = torch.Generator | BatchSlice


def make_generator(*seeds: int) -> torch.Generator:
    """A generator seeded by these numbers, such as seed, epoch and step."""
    state = np.random.SeedSequence(seeds).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


def as_batch_slice(source: RandomSource, n: int) -> BatchSlice:
    """The batch that n rows are part of; with a bare generator they are all of it."""
    return source if isinstance(source, BatchSlice) else BatchSlice(source, n)


def uniform(source: RandomSource, n: int, *shape: int) -> Tensor:
    """n rows of numbers in [0, 1)."""
    rows = as_batch_slice(source, n)
    drawn = torch.rand(rows.total, *shape, generator=rows.generator, dtype=torch.float32, device="cpu")
    return drawn[rows.start : rows.start + n]


def integers(source: RandomSource, n: int, high: int, *shape: int) -> Tensor:
    """n rows of whole numbers from 0 up to, not including, `high`."""
    rows = as_batch_slice(source, n)
    drawn = torch.randint(high, (rows.total, *shape), generator=rows.generator, dtype=torch.int64, device="cpu")
    return drawn[rows.start : rows.start + n]


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Numbers of the standard normal distribution."""
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def permutation(generator: torch.Generator, n: int) -> Tensor:
    """The numbers from 0 up to, not including, n in a random order."""
    return torch.randperm(n, generator=generator, dtype=torch.int64, device="cpu")


def beta(source: RandomSource, n: int, alpha: float) -> Tensor:
    """n numbers of Beta(α, α), by NumPy: `torch.distributions.Beta` takes no generator."""
    rows = as_batch_slice(source, n)
    seed = int(torch.randint(2**62, (), generator=rows.generator, dtype=torch.int64, device="cpu"))
    drawn = np.random.default_rng(seed).beta(alpha, alpha, size=rows.total).astype(np.float32)
    return torch.from_numpy(drawn)[rows.start : rows.start + n]
