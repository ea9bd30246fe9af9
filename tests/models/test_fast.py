"""The fast network: widths, whitening, start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from widemargin.io.errors import InputError
from widemargin.models.build import build_backbone
from widemargin.models.fast import FastNet

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@pytest.fixture(scope="module")
def photographs(data_dir: Path) -> Tensor:
    """The first thousand training images of CIFAR-10, normalised, read byte by byte from the official file."""
    file = data_dir / "cifar-10-batches-bin" / "data_batch_1.bin"
    if not file.is_file():
        pytest.skip("CIFAR-10 is not at hand")
    rows = np.fromfile(file, dtype=np.uint8, count=1000 * 3073).reshape(1000, 3073)
    images = torch.from_numpy(rows[:, 1:].reshape(1000, 3, 32, 32)).float() / 255
    return (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


@pytest.mark.parametrize(
    ("text", "widths"),
    [
        ("fast", (64, 256, 256)),
        ("fast(width=0.5)", (32, 128, 128)),
        ("fast(widths=(32, 96, 96))", (32, 96, 96)),
        ("Fast( widths = [8, 16, 12] )", (8, 16, 12)),  # narrower than the 24 whitened channels
        ("fast(width=0.01)", (8, 8, 8)),
    ],
)
def test_widths_of_the_fast_network(text, widths):
    model = build_backbone(text)
    assert isinstance(model, FastNet)
    assert tuple(block.conv2.out_channels for block in model.blocks) == widths
    assert model.embedding_dim == widths[-1]
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, widths[-1])


def test_whitening_whitens_photographs(photographs):
    model = build_backbone("fast")
    assert isinstance(model, FastNet)
    plain = patches_power(photographs)
    assert plain[0, 1] > 0.8 * plain[0, 0]  # neighbouring pixels are nearly the same
    model.whiten(photographs)
    z = F.conv2d(photographs.double(), model.filters.double())
    assert torch.equal(model.filters[:12], -model.filters[12:])
    z = z[:, :12].transpose(0, 1).flatten(1)
    power = z @ z.T / z.shape[1]
    values = torch.linalg.eigvalsh(plain)
    wanted = values / (values + 5e-4)  # eps takes a little from the faintest directions
    torch.testing.assert_close(power, wanted.diag(), rtol=0, atol=1e-5)
    assert wanted.min() > 0.5


def patches_power(images: Tensor) -> Tensor:
    """Second moment of all 2×2 patches, from four shifted copies."""
    x = images.double()
    shifted = [x[:, :, i : i + 31, j : j + 31] for i in (0, 1) for j in (0, 1)]
    flat = torch.stack(shifted, 2).flatten(1, 2).transpose(0, 1).flatten(1)  # channel first, then place
    return flat @ flat.T / flat.shape[1]


def test_whitening_is_the_same_for_the_same_images_and_belongs_to_no_optimizer(photographs):
    one, two = build_backbone("fast(width=0.25)"), build_backbone("fast(width=0.25)")
    assert isinstance(one, FastNet)
    assert isinstance(two, FastNet)
    one.whiten(photographs[:600])
    two.whiten(photographs[:600].to(memory_format=torch.channels_last))
    torch.testing.assert_close(one.filters, two.filters, rtol=1e-5, atol=1e-6)
    assert all(p is not one.filters for p in one.parameters())
    assert "filters" in one.state_dict()


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(4, 3, 8, 8, dtype=torch.uint8), "normalised float images, got torch.uint8"),
        (torch.zeros(4, 1, 8, 8), r"takes images \[N, 3, H, W\], got \[4, 1, 8, 8\]"),
        (torch.zeros(3, 8, 8), r"got \[3, 8, 8\]"),
        (torch.zeros(0, 3, 8, 8), "no patches"),
        (torch.full((2, 3, 8, 8), float("nan")), "NaN or infinity"),
        ([1, 2], "got list"),
    ],
)
def test_what_cannot_be_whitened(images, message):
    model = build_backbone("fast(width=0.25)")
    assert isinstance(model, FastNet)
    with pytest.raises(InputError, match=message):
        model.whiten(images)
    assert model.filters.isfinite().all()


def test_blank_images_leave_finite_filters():
    model = build_backbone("fast(width=0.25)")
    assert isinstance(model, FastNet)
    model.whiten(torch.zeros(2, 3, 8, 8))
    assert model.filters.isfinite().all()


def test_the_fast_networks_start_and_what_it_learns():
    model = build_backbone("fast")
    assert isinstance(model, FastNet)
    block = model.blocks[0]
    x = torch.randn(1, 24, 9, 9)
    torch.testing.assert_close(block.conv1(x)[:, :24], x)  # new convolutions hand their input on
    assert (block.conv1.weight[24:].abs().sum((1, 2, 3)) > 0).all()
    assert block.norm1.momentum == 0.4
    learned = {name for name, p in model.named_parameters() if p.requires_grad}
    assert "bias" in learned
    assert "blocks.0.norm1.bias" in learned
    assert "blocks.0.norm1.weight" not in learned
    without = build_backbone("fast(bias=False)")
    assert without.bias is None
    x = torch.randn(2, 3, 32, 32)
    assert without.load_state_dict(model.state_dict(), strict=False).unexpected_keys == ["bias"]
    with torch.no_grad():
        model.bias.zero_()
        torch.testing.assert_close(without.eval()(x), model.eval()(x))
    with pytest.raises(InputError, match="bias='no'"):
        build_backbone("fast(bias=no)")
