"""A small batch for tests of heads."""

import torch

D, C = 6, 5


def batch(n=8, dtype=torch.float32, d=D, c=C):
    draw = torch.Generator().manual_seed(3)
    return torch.randn(n, d, generator=draw).to(dtype).requires_grad_(), torch.randint(c, (n,), generator=draw)
