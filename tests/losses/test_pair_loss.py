"""What holds for every loss on pairs and triplets: gradients, precision, small batches, wrong inputs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import widemargin as wm
from pair_cases import PAIR_LOSSES, batch, loss_and_stats


@pytest.mark.parametrize("spec", PAIR_LOSSES)
def test_gradients_of_pair_losses_are_exact(spec):
    pair_loss = wm.parse(spec)
    x, y = batch([0, 1, 0, 1, 2], dim=3, seed=4, spread=0.5)

    def seeded_loss(points: Tensor) -> Tensor:
        torch.manual_seed(0)
        return pair_loss(points, y)

    assert seeded_loss(x).sum() > 0, "a loss of 0 shows nothing"
    assert loss_and_stats(spec, x, y)[1]["active"] > 0
    assert torch.autograd.gradcheck(seeded_loss, x.requires_grad_())


@pytest.mark.parametrize("spec", [*PAIR_LOSSES, "center", "center(learn=True)"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_embeddings_give_a_float32_loss_of_their_values(spec, dtype):
    x, y = batch([0, 1, 0, 1, 2, 2], dim=3, seed=4, spread=3.0)
    half = x.to(dtype).requires_grad_()
    torch.manual_seed(0)
    loss = wm.Objective(spec, 3, 3)(half, y)
    torch.manual_seed(0)
    wanted = wm.Objective(spec, 3, 3)(half.detach().double(), y)
    loss.sum().backward()
    assert loss.dtype == torch.float32
    assert loss.tolist() == pytest.approx(wanted.tolist(), rel=1e-5, abs=1e-5)
    assert half.grad.dtype == dtype
    assert half.grad.isfinite().all()


@pytest.mark.parametrize("spec", PAIR_LOSSES)
def test_autocast_changes_nothing(spec):
    x, y = batch([0, 1, 0, 1, 2, 2], dim=3, seed=4, spread=0.5)
    x, pair_loss = x.float(), wm.parse(spec)
    torch.manual_seed(0)
    wanted = pair_loss(x, y)
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(0)
        got = pair_loss(x, y)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("spec", [*PAIR_LOSSES, "center"])
@pytest.mark.parametrize("samples", [0, 1])
def test_batches_of_none_and_of_one(spec, samples):
    x = torch.ones(samples, 3, requires_grad=True)
    loss = wm.Objective(spec, 3, 4)(x, torch.zeros(samples, dtype=torch.int64))
    loss.sum().backward()
    assert loss.shape == (samples,)
    assert loss.tolist() == ([1.5] if spec == "center" else [0.0]) * samples
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("spec", PAIR_LOSSES)
def test_wrong_inputs_of_pair_losses_are_one_line_errors(spec):
    pair_loss = wm.parse(spec)
    for x, y, match in (
        (torch.zeros(3), torch.tensor([0, 1, 2]), r"float tensor \[N, D\], got \[3\]"),
        (torch.zeros(3, 2, dtype=torch.int64), torch.tensor([0, 1, 2]), "int64"),
        (torch.zeros(3, 2), torch.tensor([0, 1]), r"shape \[3\]"),
        (torch.zeros(3, 2), torch.tensor([0.0, 1.0, 1.0]), "integer class numbers"),
        (torch.zeros(3, 2), torch.tensor([0, -1, 1]), "label -1"),
        (torch.tensor([[1.0, math.nan], [0.0, 1.0]]), torch.tensor([0, 1]), "NaN"),
    ):
        with pytest.raises(wm.InputError, match=match) as caught:
            pair_loss(x, y)
        assert "\n" not in str(caught.value)
