"""ResNet-18 and ResNet-34 for small images, as the paper trains them on CIFAR.

The stem is one 3×3 convolution of stride 1 without pooling, so a 32×32 image keeps its pixels up to the first
block; then four stages of basic blocks of widths 64, 128, 256 and 512, and the mean over all places: D = 512.
Reference: He et al., Deep Residual Learning (arXiv 1512.03385), with the small-image stem in common use.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..io.errors import InputError

_STAGE_WIDTHS = (64, 128, 256, 512)


def _conv(in_channels: int, out_channels: int, kernel_size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=kernel_size // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(in_channels, out_channels, 3, stride), nn.BatchNorm2d(out_channels)
        self.conv2, self.norm2 = _conv(out_channels, out_channels, 3, 1), nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(_conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class ResNet(nn.Module):
    """Basic blocks in four stages; x [N, C, H, W] → [N, 512].

    `zero_init_last` starts every block as its shortcut (the last gamma is 0), which steadies large learning rates.
    `width` multiplies the widths of all stages: 0.25 has a sixteenth of the weights, for experiments on CPUs.
    """

    def __init__(
        self, blocks: tuple[int, ...], channels: int = 3, zero_init_last: bool = False, width: float = 1.0
    ) -> None:
        super().__init__()
        if isinstance(width, bool) or not isinstance(width, int | float) or not 1 / 64 <= width <= 8:
            raise InputError(f"width={width!r} must be a number from 1/64 to 8")
        widths = [round(width * stage_width) for stage_width in _STAGE_WIDTHS]
        if not isinstance(zero_init_last, bool):
            raise InputError(f"zero_init_last={zero_init_last!r} must be True or False")
        self.embedding_dim = widths[-1]
        self.stem, self.norm = _conv(channels, widths[0], 3, 1), nn.BatchNorm2d(widths[0])
        layers: list[nn.Module] = []
        in_channels = widths[0]
        for stage, (out_channels, count) in enumerate(zip(widths, blocks, strict=True)):
            for index in range(count):
                layers.append(BasicBlock(in_channels, out_channels, stride=2 if stage > 0 and index == 0 else 1))
                in_channels = out_channels
        self.blocks = nn.Sequential(*layers)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, BasicBlock) and zero_init_last:
                nn.init.zeros_(module.norm2.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = self.blocks(x)
        return x.mean((2, 3))


def resnet18(*, channels: int, size: tuple[int, int], zero_init_last: bool = False, width: float = 1.0) -> ResNet:
    """The paper's network for CIFAR-10: two blocks per stage, 11.2 million weights. Any size of image will do."""
    return ResNet((2, 2, 2, 2), channels, zero_init_last, width)


def resnet34(*, channels: int, size: tuple[int, int], zero_init_last: bool = False, width: float = 1.0) -> ResNet:
    """The paper's network for CIFAR-100: 3, 4, 6 and 3 blocks, 21.3 million weights. Any size of image will do."""
    return ResNet((3, 4, 6, 3), channels, zero_init_last, width)
