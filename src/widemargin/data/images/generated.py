"""Generated images of any number of classes, to try a training run or to measure one without a data set.

A class is a random smooth pattern; its images are the pattern with noise. `generated(classes=1000000, size=12)` is the
name of a set: everything follows from the options, and nothing is read or written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...io.errors import InputError
from ...io.options import check_option_names, check_options, option
from ...losses.grammar import parse_call
from ...numerics.random import integers, normal

GENERATED_NAME = "generated"
_GRID = 4  # numbers along a side of a pattern, before it is enlarged
_CHUNK_VALUES = 1 << 24  # pixels drawn at once
_MAX_BYTES = 16 << 30


class GeneratedArrays(NamedTuple):
    """Pixels and labels of both parts, names of the classes, and mean and standard deviation of each channel."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class GeneratedSet:
    """Options of a generated set."""

    classes: int = option(10, "number of classes", low=2, high=1 << 26)
    per_class: int = option(10, "training images of each class", low=1)
    test: int = option(1000, "test images: one of each class, class after class, until there are so many", low=1)
    size: int = option(32, "pixels along a side", low=_GRID, high=1024)
    channels: int = option(3, "colour channels", low=1, high=16)
    noise: float = option(0.1, "standard deviation of the noise; patterns lie between 0 and 1", low=0)
    seed: int = option(0, "random seed", low=0, high=2**63 - 1)

    def __post_init__(self) -> None:
        check_options(self, f"{GENERATED_NAME}: {{}}")
        pixels = self.channels * self.size**2
        if pixels * (self.classes * self.per_class + self.test) > _MAX_BYTES:
            raise InputError(
                f"{GENERATED_NAME}: these images take more than {_MAX_BYTES >> 30} GiB; take fewer or smaller"
            )

    def draw(self) -> GeneratedArrays:
        """Draw the images."""
        draw = torch.Generator().manual_seed(self.seed)
        patterns = integers(draw, self.classes, 256, self.channels, _GRID, _GRID).to(torch.uint8)
        names = tuple(map(str, range(self.classes)))
        train = self._draw(patterns, self.classes * self.per_class, draw)
        test = self._draw(patterns, self.test, draw)
        some = train[0][:: -(-len(train[0]) // 1000)].double().div_(255.0)
        std = some.std((0, 2, 3)).clamp(min=1e-3)
        return GeneratedArrays(train, test, names, tuple(some.mean((0, 2, 3)).tolist()), tuple(std.tolist()))

    def _draw(self, patterns: Tensor, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """So many images, of the classes in turn, and their labels."""
        y = torch.arange(count, dtype=torch.int64) % self.classes
        x = torch.empty(count, self.channels, self.size, self.size, dtype=torch.uint8)
        step = max(1, _CHUNK_VALUES // (self.channels * self.size**2))
        for start in range(0, count, step):
            coarse = patterns[y[start : start + step]].float()
            fine = F.interpolate(coarse, size=(self.size, self.size), mode="bilinear", align_corners=True)
            fine += normal(draw, *fine.shape).mul_(255.0 * self.noise)
            x[start : start + step] = fine.round_().clamp_(0, 255).to(torch.uint8)
        return x, y


def draw_generated(name: str) -> GeneratedArrays:
    """Draw the generated set of a name.

    >>> images = draw_generated("generated(classes=3, per_class=2, size=8, channels=1, test=4)")
    >>> images.train[0].shape, images.train[1].tolist(), images.test[1].tolist()
    (torch.Size([6, 1, 8, 8]), [0, 1, 2, 0, 1, 2], [0, 1, 2, 0])
    """
    _, options = parse_call(name, "the image set")
    check_option_names(GeneratedSet, f"option of {GENERATED_NAME}", options)
    return GeneratedSet(**options).draw()
