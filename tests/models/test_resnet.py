"""The paper's ResNets: weights, shapes and start."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from widemargin.models.build import build_backbone
from widemargin.models.resnet import ResNet


def weights(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def basic_resnet_weights(blocks: tuple[int, ...], channels: int) -> int:
    """Counted from the definition: 3×3 and 1×1 convolutions, two numbers per channel of each norm."""
    total, inside = channels * 64 * 9 + 2 * 64, 64
    for width, count in zip((64, 128, 256, 512), blocks, strict=True):
        for _ in range(count):
            total += 9 * inside * width + 9 * width * width + 4 * width
            total += inside * width + 2 * width if inside != width else 0
            inside = width
    return total


@pytest.mark.parametrize(("name", "blocks"), [("resnet18", (2, 2, 2, 2)), ("resnet34", (3, 4, 6, 3))])
def test_the_papers_resnets_have_the_weights_of_their_definition(name, blocks):
    model = build_backbone(name)
    assert isinstance(model, ResNet)
    assert weights(model) == basic_resnet_weights(blocks, 3)
    if name == "resnet18":
        assert weights(model) == 11_168_832
    assert model.embedding_dim == 512
    places: list[torch.Size] = []
    for block in model.blocks:
        block.register_forward_hook(lambda _m, _i, out: places.append(out.shape[1:]))
    assert model.eval()(torch.randn(1, 3, 32, 32)).shape == (1, 512)
    assert (places[0], places[-1]) == ((64, 32, 32), (512, 4, 4))  # no pixel is lost before the first block


def test_a_resnets_start():
    model = build_backbone("resnet18")
    stem = model.blocks[0].conv1.weight
    assert stem.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)  # He, fan out
    assert all((block.norm2.weight == 1).all() for block in model.blocks)
    zero = build_backbone("resnet18", zero_init_last=True)
    assert isinstance(zero, ResNet)
    assert all((block.norm2.weight == 0).all() for block in zero.blocks)
