"""Random scored pairs and embeddings for the tests of metrics."""

import numpy as np
import torch


def scored_pairs(n=400, seed=0, digits=None):
    draw = np.random.default_rng(seed)
    same = draw.random(n) < 0.4
    scores = draw.normal(size=n) + 1.2 * same
    return (scores if digits is None else scores.round(digits)), same


def clustered_embeddings(n=300, classes=20, dim=16, seed=0):
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=draw)
    centres = torch.randn(classes, dim, generator=draw)
    return centres[y] + 1.5 * torch.randn(n, dim, generator=draw), y
