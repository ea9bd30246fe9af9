"""Gradients of streamed heads: frozen weights, accumulation, hooks, learnable numbers inside φ."""

import pytest
import torch

import widemargin as wm
from head_batch import C, D, batch


@pytest.mark.parametrize("spec", ["arcgrad", "softmax(bias=True)"])
def test_streamed_head_with_frozen_weights_still_reaches_the_embeddings(spec):
    x, y = batch(dtype=torch.float64)
    dense, streamed = (wm.Head(D, C, spec, backend=backend, dtype=torch.float64) for backend in ("dense", "stream"))
    streamed.load_state_dict(dense.state_dict())
    streamed.weight.requires_grad_(False)
    wanted, got = (torch.autograd.grad(head(x, y).sum(), x)[0] for head in (dense, streamed))
    torch.testing.assert_close(got, wanted)
    streamed(x, y).sum().backward()
    assert streamed.weight.grad is None


def test_streamed_gradients_accumulate_and_reach_hooks():
    x, y = batch(dtype=torch.float64)
    head = wm.Head(D, C, "arcface(s=8)", backend="stream", dtype=torch.float64)
    seen = []
    head.weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    head(x, y).sum().backward()
    once = head.weight.grad.clone()
    loss = head(x, y).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(head.weight.grad, 3 * once)
    assert len(seen) == 3


def test_a_learnable_number_inside_phi_gets_its_gradient_on_both_backends():
    from dataclasses import dataclass

    from widemargin.losses.base import option

    @dataclass(frozen=True, repr=False)
    class Bent(wm.Margin):
        name = "bent"
        s: float = option(5.0, "scale", allows_schedule=True, allows_learnable=True)
        t: float = option(2.0, "bend", allows_schedule=True, allows_learnable=True)

        def phi(self, cos):
            return cos - cos**2 / (self.t * self.s)

    x, y = batch(dtype=torch.float64)
    found = []
    for backend in ("dense", "stream"):
        torch.manual_seed(0)
        head = wm.Head(D, C, Bent(s=wm.Learnable(5), t=wm.Learnable(2)), backend=backend, dtype=torch.float64)
        found.append(torch.autograd.grad(head(x, y).sum(), (x, *head.parameters())))
    torch.testing.assert_close(*found)
