"""Erasing a box of an image, and mixing images in pairs (mixup, CutMix), for whole batches.

Partners are neighbours, 0 with 1, 2 with 3 and so on, so that a process that has an even number of rows of a batch
has both of every pair. Whoever makes the batches sees to it that neighbours are no relatives.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .draws import BatchSlice, RandomSource, as_batch_slice, beta, integers, normal, uniform
from .geometry import BOX_ATTEMPTS, broadcast_per_image, cast_like

MixPartners = tuple[Tensor, Tensor]
"""Of each sample the row of its partner and its own share λ, both [N]."""


def erase(
    x: Tensor,
    source: RandomSource,
    p: float = 0.25,
    area: tuple[float, float] = (0.02, 1 / 3),
    ratio: tuple[float, float] = (0.3, 1 / 0.3),
) -> Tensor:
    """A random box of an image replaced by noise, pixel by pixel, with this probability.

    Normal noise for floats, which are thought to be normalised; any byte for bytes. Z. Zhong et al., Random Erasing
    Data Augmentation, arXiv 1708.04896, in the form with one box and no second thoughts.
    """
    n, channels, height, width = x.shape
    rows = as_batch_slice(source, n)
    drawn = uniform(rows.generator, rows.total, BOX_ATTEMPTS + 2, 2)
    shape, place, gate = drawn[:, :BOX_ATTEMPTS], drawn[:, BOX_ATTEMPTS], drawn[:, BOX_ATTEMPTS + 1, 0]
    share = (area[0] + (area[1] - area[0]) * shape[..., 0]) * (height * width)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = (low + (high - low) * shape[..., 1]).exp()
    tall, wide = (share * aspect).sqrt().round(), (share / aspect).sqrt().round()
    fits = (tall < height) & (wide < width)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    hit = torch.nonzero((gate < p) & fits.any(1)).squeeze(1)  # in the whole batch: its noise is drawn for all
    size = (channels, height, width)
    if x.is_floating_point():
        noise = normal(rows.generator, len(hit), *size)
    else:
        noise = integers(rows.generator, len(hit), 256, *size)
    ours = (hit >= rows.start) & (hit < rows.start + n)
    hit, noise = hit[ours], noise[ours].to(x)
    tall, wide = tall.gather(1, first).squeeze(1)[hit], wide.gather(1, first).squeeze(1)[hit]
    top = (place[hit, 0] * (height - tall + 1)).floor()
    left = (place[hit, 1] * (width - wide + 1)).floor()
    box = _box_masks(top, top + tall, left, left + wide, height, width).to(x.device)
    at = (hit - rows.start).to(x.device)
    return x.index_copy(0, at, torch.where(box, noise, x.index_select(0, at)))


def mixup(x: Tensor, source: RandomSource, alpha: float = 0.8) -> tuple[Tensor, MixPartners]:
    """Every image blended with its partner, λ of Beta(α, α). H. Zhang et al., arXiv 1710.09412."""
    return mix(x, source, mixup_alpha=alpha, cutmix_alpha=0.0)


def cutmix(x: Tensor, source: RandomSource, alpha: float = 1.0) -> tuple[Tensor, MixPartners]:
    """A box of every image replaced by its partner's; λ is the share that stays. S. Yun et al., arXiv 1905.04899."""
    return mix(x, source, mixup_alpha=0.0, cutmix_alpha=alpha)


def mix(
    x: Tensor,
    source: RandomSource,
    mixup_alpha: float = 0.8,
    cutmix_alpha: float = 1.0,
    prob: float = 1.0,
    switch_prob: float = 0.5,
    per_sample: bool = False,
) -> tuple[Tensor, MixPartners]:
    """Mixup or, with probability `switch`, CutMix; with probability 1 − `prob` neither (λ = 1).

    One draw for the whole batch, or one for each sample. An α of 0 leaves that way of mixing out.
    """
    n, _, height, width = x.shape
    rows = as_batch_slice(source, n)
    draws: RandomSource = rows if per_sample else BatchSlice(rows.generator, 1)
    k = n if per_sample else 1
    uniforms = uniform(draws, k, 4)
    cut = (cutmix_alpha > 0) & ((uniforms[:, 0] < switch_prob) | (mixup_alpha <= 0))
    one = torch.ones_like(uniforms[:, 0])
    blend_share = beta(draws, k, mixup_alpha) if mixup_alpha > 0 else one
    cut_share = beta(draws, k, cutmix_alpha) if cutmix_alpha > 0 else one
    lam = torch.where(uniforms[:, 1] < prob, torch.where(cut, cut_share, blend_share), 1.0)
    tall, wide = ((1 - lam).sqrt() * height).floor(), ((1 - lam).sqrt() * width).floor()
    middle, centre = (uniforms[:, 2] * height).floor(), (uniforms[:, 3] * width).floor()
    top, bottom = (middle - (tall / 2).floor()).clamp(min=0), (middle + ((tall + 1) / 2).floor()).clamp(max=height)
    left, right = (centre - (wide / 2).floor()).clamp(min=0), (centre + ((wide + 1) / 2).floor()).clamp(max=width)
    box = _box_masks(top, bottom, left, right, height, width)
    stays = torch.where(cut, 1 - box.float().mean((1, 2, 3)), lam)
    # One formula for both: how much of each pixel stays. With 0 and 1 it copies exactly.
    keep = torch.where(cut.view(-1, 1, 1, 1), (~box).float(), broadcast_per_image(lam, lam)).to(x.device)
    partner = partners(n).to(x.device)
    values = x if x.is_floating_point() else x.to(torch.float32)
    mixed = values * keep + values.index_select(0, partner) * (1 - keep)
    return cast_like(mixed, x), (partner, stays.to(x.device).expand(n))


def partners(n: int) -> Tensor:
    """The neighbour of each of n rows; the last of an odd number is its own."""
    return (torch.arange(n, device="cpu") ^ 1).clamp(max=max(n - 1, 0))


def _box_masks(top: Tensor, bottom: Tensor, left: Tensor, right: Tensor, height: int, width: int) -> Tensor:
    """Masks [N, 1, H, W] of boxes in whole pixels."""
    y = torch.arange(height, device=top.device).view(1, -1, 1)
    x = torch.arange(width, device=top.device).view(1, 1, -1)
    tall = (y >= top.view(-1, 1, 1)) & (y < bottom.view(-1, 1, 1))
    return (tall & (x >= left.view(-1, 1, 1)) & (x < right.view(-1, 1, 1))).unsqueeze(1)
