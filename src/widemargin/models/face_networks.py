"""Networks of face recognition for 112×112 images: IResNet-18, -34, -50, -100 and MobileFaceNet.

IResNet is ArcFace's ResNet: a 3×3 stem of stride 1, blocks norm – convolution – norm – PReLU – convolution – norm with
a plain sum behind them, then norm, dropout, one linear layer over all places and a norm whose gain stays 1.
MobileFaceNet is made of inverted bottlenecks with depthwise convolutions, and of a global depthwise convolution in
place of pooling.

Modules have the names that insightface's `arcface_torch` gives them, so that the state dict of an IResNet fits theirs.
References: Deng et al., ArcFace (arXiv 1801.07698), section 3.1; Chen et al., MobileFaceNets (arXiv 1804.07573),
Table 1; the definitions in use are insightface's.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..io.errors import InputError

_STAGE_WIDTHS = (64, 128, 256, 512)
_STRIDE = 16  # of all stages together
_IRESNET_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 14, 3), 100: (3, 13, 30, 3)}


def _conv(in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    padding = kernel_size // 2
    return nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, groups=groups, bias=False)


class IBasicBlock(nn.Module):
    """Two 3×3 convolutions between three norms, and a shortcut; the second convolution has the stride."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(in_channels), _conv(in_channels, out_channels, 3)
        self.bn2, self.prelu = nn.BatchNorm2d(out_channels), nn.PReLU(out_channels)
        self.conv2, self.bn3 = _conv(out_channels, out_channels, 3, stride), nn.BatchNorm2d(out_channels)
        self.downsample = (
            nn.Sequential(_conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))
            if stride != 1 or in_channels != out_channels
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.bn3(self.conv2(self.prelu(self.bn2(self.conv1(self.bn1(x))))))
        found: Tensor = inner + (x if self.downsample is None else self.downsample(x))
        return found


class IResNet(nn.Module):
    """x [N, C, H, W] → [N, embedding_dim]; every stage halves the sides.

    `width` multiplies the channels of the stages: 1 is the network of the field.
    """

    def __init__(
        self,
        blocks: tuple[int, ...],
        channels: int,
        size: tuple[int, int],
        embedding_dim: int,
        dropout: float,
        width: float,
    ) -> None:
        super().__init__()
        self.embedding_dim = embedding_dim
        widths = [max(1, round(width * stage)) for stage in _STAGE_WIDTHS]
        self.conv1, self.bn1, self.prelu = _conv(channels, widths[0], 3), nn.BatchNorm2d(widths[0]), nn.PReLU(widths[0])
        in_channels, layers = widths[0], list[nn.Module]()
        for out_channels, count in zip(widths, blocks, strict=True):
            rest = [IBasicBlock(out_channels, out_channels, 1) for _ in range(count - 1)]
            layers.append(nn.Sequential(IBasicBlock(in_channels, out_channels, 2), *rest))
            in_channels = out_channels
        self.layer1, self.layer2, self.layer3, self.layer4 = layers
        places = math.prod(-(-side // _STRIDE) for side in size)
        self.bn2, self.dropout = nn.BatchNorm2d(widths[-1]), nn.Dropout(dropout, inplace=True)
        self.fc, self.features = nn.Linear(widths[-1] * places, embedding_dim), nn.BatchNorm1d(embedding_dim)
        self.features.weight.requires_grad_(False)  # stays 1: a gain per dimension would only stretch the sphere
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, 0.0, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.prelu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = self.dropout(torch.flatten(self.bn2(x), 1))
        features: Tensor = self.features(self.fc(x))
        return features


def _make_iresnet(depth: int, channels: int, size: tuple[int, int], options: dict[str, Any]) -> IResNet:
    name = f"iresnet{depth}"
    embedding_dim = _check_count(name, "num_features", options["num_features"])
    dropout, width = options["dropout"], options["width"]
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise InputError(f"{name}: dropout={dropout!r} must be a number of at least 0 and below 1")
    if isinstance(width, bool) or not isinstance(width, int | float) or not 0.25 <= width <= 8:
        # Below 16 channels oneDNN crashes in the backward pass of a 1×1 convolution with a stride (channels last).
        raise InputError(f"{name}: width={width!r} must be a number from 0.25 to 8; 1 is the usual network")
    if min(size) < _STRIDE:
        raise InputError(f"{name} takes images from {_STRIDE}×{_STRIDE} pixels, got {size[0]}×{size[1]}")
    return IResNet(_IRESNET_BLOCKS[depth], channels, size, embedding_dim, float(dropout), float(width))


def _check_count(name: str, what: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 65_536:
        raise InputError(f"{name}: {what}={value!r} must be a whole number from 1 to 65,536")
    return value


def iresnet18(
    *, channels: int, size: tuple[int, int], num_features: int = 512, dropout: float = 0.0, width: float = 1.0
) -> IResNet:
    """IResNet-18: 24.0 million parameters at 112×112."""
    return _make_iresnet(18, channels, size, {"num_features": num_features, "dropout": dropout, "width": width})


def iresnet34(
    *, channels: int, size: tuple[int, int], num_features: int = 512, dropout: float = 0.0, width: float = 1.0
) -> IResNet:
    """IResNet-34: 34.1 million parameters at 112×112."""
    return _make_iresnet(34, channels, size, {"num_features": num_features, "dropout": dropout, "width": width})


def iresnet50(
    *, channels: int, size: tuple[int, int], num_features: int = 512, dropout: float = 0.0, width: float = 1.0
) -> IResNet:
    """IResNet-50: 43.6 million parameters at 112×112."""
    return _make_iresnet(50, channels, size, {"num_features": num_features, "dropout": dropout, "width": width})


def iresnet100(
    *, channels: int, size: tuple[int, int], num_features: int = 512, dropout: float = 0.0, width: float = 1.0
) -> IResNet:
    """IResNet-100: 65.2 million parameters at 112×112."""
    return _make_iresnet(100, channels, size, {"num_features": num_features, "dropout": dropout, "width": width})


# ---------------------------------------------------------------- MobileFaceNet


def _conv_norm(
    in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    return [_conv(in_channels, out_channels, kernel_size, stride, groups), nn.BatchNorm2d(out_channels)]


class Bottleneck(nn.Module):
    """1×1 up to `inner` channels, 3×3 depthwise, 1×1 down; the input is added where the shapes agree."""

    def __init__(self, in_channels: int, out_channels: int, inner: int, stride: int) -> None:
        super().__init__()
        self.adds_input = stride == 1 and in_channels == out_channels
        self.layers = nn.Sequential(
            *_conv_norm(in_channels, inner, 1),
            nn.PReLU(inner),
            *_conv_norm(inner, inner, 3, stride, groups=inner),
            nn.PReLU(inner),
            *_conv_norm(inner, out_channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return x + found if self.adds_input else found


class MobileFaceNet(nn.Module):
    """x [N, C, H, W] → [N, embedding_dim].

    `scale` multiplies the channels between the bottlenecks, not those inside of them: 1 is the paper's network, 2 the
    one that insightface trains (its 0.45 GFLOPs), whose second convolution then has two channels to a group.
    """

    # inner channels, output channels, repetitions, stride: Table 1 of the paper
    _STAGES = ((128, 64, 5, 2), (256, 128, 1, 2), (256, 128, 6, 1), (512, 128, 1, 2), (256, 128, 2, 1))

    def __init__(self, channels: int, size: tuple[int, int], embedding_dim: int, scale: int) -> None:
        super().__init__()
        self.embedding_dim = embedding_dim
        width = 64 * scale
        self.stem = nn.Sequential(
            *_conv_norm(channels, width, 3, 2),
            nn.PReLU(width),
            *_conv_norm(width, width, 3, groups=64),
            nn.PReLU(width),
        )
        chain: list[nn.Module] = []
        for inner, out_channels, count, stride in self._STAGES:
            for index in range(count):
                # Of a repeated stage the first bottleneck has the stride; the others expand to as many channels.
                chain.append(Bottleneck(width, out_channels * scale, inner, stride if index == 0 else 1))
                width = out_channels * scale
        self.blocks = nn.Sequential(*chain)
        self.last = nn.Sequential(*_conv_norm(width, 512, 1), nn.PReLU(512))
        places = (-(-size[0] // _STRIDE), -(-size[1] // _STRIDE))
        self.pool = nn.Sequential(nn.Conv2d(512, 512, places, groups=512, bias=False), nn.BatchNorm2d(512))
        self.fc, self.features = nn.Linear(512, embedding_dim, bias=False), nn.BatchNorm1d(embedding_dim)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.last(self.blocks(self.stem(x))))
        features: Tensor = self.features(self.fc(torch.flatten(x, 1)))
        return features


def mobilefacenet(*, channels: int, size: tuple[int, int], num_features: int = 512, scale: int = 2) -> MobileFaceNet:
    """MobileFaceNet as insightface trains it, 2.06 million parameters; the paper's is `scale=1, num_features=128`."""
    if type(scale) is not int or not 1 <= scale <= 8:
        raise InputError(f"mobilefacenet: scale={scale!r} must be a whole number from 1 to 8")
    if min(size) < _STRIDE:
        raise InputError(f"mobilefacenet takes images from {_STRIDE}×{_STRIDE} pixels, got {size[0]}×{size[1]}")
    return MobileFaceNet(channels, size, _check_count("mobilefacenet", "num_features", num_features), scale)
