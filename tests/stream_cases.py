"""Dense and streamed heads side by side, for tests of the streaming backend."""

import torch

import widemargin as wm

D, C = 16, 300


def batch(n=12, d=D, c=C, dtype=torch.float64):
    return torch.randn(n, d, dtype=dtype, requires_grad=True), torch.randint(c, (n,))


def pair(spec, dtype=torch.float64, d=D, c=C, **options):
    """A dense and a streamed head with the same weights."""
    dense, streamed = (wm.Head(d, c, spec, backend=backend, dtype=dtype, **options) for backend in ("dense", "stream"))
    streamed.load_state_dict(dense.state_dict())
    return dense, streamed


def gradients(head, x, y, **how):
    loss = head(x, y, **how)
    return loss, *torch.autograd.grad(loss.sum(), (x, *head.parameters()))


def assert_same(one, other, rtol=1e-10, atol=1e-12):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)
