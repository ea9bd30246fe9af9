"""fast: a small network for 32×32 images that learns in few epochs, made for CPUs.

In the manner of the public CIFAR-10 speed runs: a fixed 2×2 convolution that whitens patches of the training
images, with every filter and its negative; three blocks of convolution, max-pool, norm, GELU, convolution, norm,
GELU; the largest value of each channel. What makes it fast to train:

- whitened inputs (`whiten`), so the first layer need not be learned; only its bias is, and without it
  (`bias=False`) the backward pass through the largest feature map is spared: a fifth of the time;
- convolutions that begin as the identity on the channels they are given, so depth costs nothing at the start;
- norms whose running statistics follow within a few batches, and whose gain stays 1: only their bias is learned.

Reference: Jordan, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU (arXiv 2404.00498).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..io.errors import InputError

_DEFAULT_WIDTHS = (64, 256, 256)
_PATCH_SIZE = 2
_MIN_IMAGE_SIZE = 9  # one pixel goes to the whitening, three poolings halve the rest
_WHITEN_BATCH_SIZE = 500  # images whose patches are held together while whitening
_MAX_WIDTH = 65_536


class BiasOnlyBatchNorm2d(nn.BatchNorm2d):
    """Batch norm with a gain of 1 that is not learned, and statistics that forget all but the last few batches."""

    def __init__(self, num_features: int) -> None:
        super().__init__(num_features, momentum=0.4)
        self.weight.requires_grad_(False)


class DiracConv2d(nn.Conv2d):
    """A 3×3 convolution initialised to copy its input to its first channels."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 3, padding=1, bias=False)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            nn.init.dirac_(self.weight[: self.in_channels])


class FastBlock(nn.Module):
    """Two convolutions; the first is pooled before its norm, so everything after it costs a quarter."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = DiracConv2d(in_channels, out_channels), BiasOnlyBatchNorm2d(out_channels)
        self.conv2, self.norm2 = DiracConv2d(out_channels, out_channels), BiasOnlyBatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.norm2(self.conv2(x)))


class FastNet(nn.Module):
    """x [N, C, H, W] → [N, widths[-1]], from 9×9 pixels upwards. Call `whiten` once before training."""

    filters: Tensor

    def __init__(self, channels: int = 3, widths: tuple[int, int, int] = _DEFAULT_WIDTHS, bias: bool = True) -> None:
        super().__init__()
        self.embedding_dim = widths[-1]
        patch = channels * _PATCH_SIZE**2
        # A buffer, not a parameter: saved with the network, and out of every optimizer's reach.
        # Until `whiten` is called it is some orthonormal basis of the patches.
        basis = nn.init.orthogonal_(torch.empty(patch, patch)).view(patch, channels, _PATCH_SIZE, _PATCH_SIZE)
        self.register_buffer("filters", torch.cat((basis, -basis)))
        start = torch.empty(2 * patch).uniform_(-(patch**-0.5), patch**-0.5)
        self.bias = nn.Parameter(start) if bias else None
        self.blocks = nn.Sequential(
            FastBlock(2 * patch, widths[0]), FastBlock(widths[0], widths[1]), FastBlock(widths[1], widths[2])
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(F.conv2d(x, self.filters, self.bias))
        x = self.blocks(x)
        return x.amax((2, 3))

    @torch.no_grad()
    def whiten(self, images: Tensor, eps: float = 5e-4) -> None:
        """Set the filters so that patches of `images` come out uncorrelated and equally strong.

        `images` [N, C, H, W] are training images as the network will see them; some thousands are enough.
        `eps` keeps the faintest directions, mostly noise, somewhat below the others. The order and the signs of the
        filters are fixed, so that the same images give the same network.
        """
        moment = self._second_moment(images)
        power, axes = torch.linalg.eigh(moment)
        axes = axes.T
        largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
        basis = axes * largest.sign() / (power.clamp_min(0) + eps).sqrt()[:, None]
        basis = basis.view(-1, *self.filters.shape[1:])
        self.filters.copy_(torch.cat((basis, -basis)))

    def _second_moment(self, images: Tensor) -> Tensor:
        channels = self.filters.shape[1]
        if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] != channels:
            shape = list(images.shape) if isinstance(images, Tensor) else type(images).__name__
            raise InputError(f"whiten takes images [N, {channels}, H, W], got {shape}")
        if not len(images) or min(images.shape[2:]) < _PATCH_SIZE:
            raise InputError(f"whiten got no patches: images {list(images.shape)}")
        if not images.is_floating_point():
            raise InputError(f"whiten takes normalised float images, got {images.dtype}")
        moment = torch.zeros(channels * _PATCH_SIZE**2, channels * _PATCH_SIZE**2, dtype=torch.float64)
        count = 0
        for start in range(0, len(images), _WHITEN_BATCH_SIZE):
            part = images[start : start + _WHITEN_BATCH_SIZE]
            patches = F.unfold(part.to("cpu", torch.float64), _PATCH_SIZE).transpose(1, 2).flatten(0, 1)
            moment += patches.T @ patches
            count += len(patches)
        if not moment.isfinite().all():
            raise InputError("whiten got NaN or infinity; check the data, and std for 0")
        return moment / count


def fast(
    *, channels: int, size: tuple[int, int], width: float | None = None, widths: Any = None, bias: bool = True
) -> FastNet:
    """The network with its widths: `width` scales 64/256/256 in steps of 8, `widths` gives all three.

    `bias=False` leaves out what the whitening learns.
    """
    if min(size) < _MIN_IMAGE_SIZE:
        raise InputError(f"fast takes images from {_MIN_IMAGE_SIZE}×{_MIN_IMAGE_SIZE} pixels, got {size[0]}×{size[1]}")
    if not isinstance(bias, bool):
        raise InputError(f"fast: bias={bias!r} must be true or false")
    if width is not None and widths is not None:
        raise InputError("fast: width and widths both set the widths; use one of them")
    if widths is not None:
        whole = isinstance(widths, tuple | list) and all(type(w) is int and 1 <= w <= _MAX_WIDTH for w in widths)
        if not whole or len(widths) != 3:
            raise InputError(f"fast: widths={widths!r} must be three whole numbers, such as (32, 96, 96)")
        return FastNet(channels, (widths[0], widths[1], widths[2]), bias)
    factor = 1.0 if width is None else width
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 100:
        raise InputError(f"fast: width={width!r} must be a number above 0 and at most 100; 0.5 means 32/128/128")
    scaled = [max(8, 8 * round(w * factor / 8)) for w in _DEFAULT_WIDTHS]
    return FastNet(channels, (scaled[0], scaled[1], scaled[2]), bias)
