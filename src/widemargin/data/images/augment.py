"""Augmentation of small images as one frozen value: what is done to a batch, in the order in which it is right.

Crop or shift, size, flip and RandAugment on bytes; then the z-score; then erasing and mixing on floats. A value
prints, compares and goes into a run's file; the same value, batch and random numbers give the same images.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ...io.errors import InputError, format_value, unknown_name_error
from ...numerics.random import BatchSlice, RandomSource, integers
from . import MAX_IMAGE_SIZE
from .rand_augment import rand_augment
from .transforms import (
    INTERPOLATIONS,
    PAD_MODES,
    MixPartners,
    alternating_flip,
    centre_crop,
    cutmix,
    erase,
    flip,
    mix,
    mixup,
    pad_crop,
    random_resized_crop,
    resize,
    translate,
)

__all__ = [
    "Augment",
    "BatchSlice",
    "alternating_flip",
    "augment_names",
    "build_augment",
    "cutmix",
    "erase",
    "flip",
    "mix",
    "mixup",
    "normalize",
    "pad_crop",
    "rand_augment",
    "random_resized_crop",
    "resize",
    "translate",
]

FLIP_MODES = ("none", "random", "alternating")
DEFAULT_EVAL_ZOOM = 256 / 224  # the field's evaluation: resize to this times the size, keep the centre


def normalize(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """z-scores, float32 and channels last, of bytes or of floats in [0, 1]."""
    channels = x.shape[1]
    for what, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, channels):
            raise InputError(f"{what} has {len(values)} numbers, the images have {channels} channels")
    white = 1.0 if x.is_floating_point() else 255.0
    numbers = (torch.tensor(values, dtype=torch.float64, device="cpu") for values in (mean, std))
    centre, spread = (each.view(1, -1, 1, 1) for each in numbers)
    factor, shift = (1 / (white * spread)).float().to(x.device), (centre / spread).float().to(x.device)
    # Channel by channel first: along a row of pixels all is one vector, among three channels nothing is.
    planar = x.to(torch.float32, memory_format=torch.contiguous_format, copy=True).mul_(factor).sub_(shift)
    return planar.contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Augment:
    """Augmentation of a batch of images; the defaults only convert bytes to floats in [0, 1]."""

    size: int = 0
    """Pixels along a side of what comes out; 0 leaves the images as large as they are."""
    pad: int = 0
    """Random crop from the image padded by so many pixels, with zeros or its reflection (a translation)."""
    pad_mode: str = "zeros"
    flip: str = "none"
    hflip: float = 0.5
    """Probability of a random flip."""
    scale: tuple[float, float] | None = None
    """Random resized crop: range of the share of the area; None does not crop so."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: str = "bicubic"
    rand: str = ""
    """timm's RandAugment, such as rand-m9-mstd0.5-inc1; empty leaves it out."""
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mix_prob: float = 1.0
    switch: float = 0.5
    mix_each: bool = False
    """A share for every sample instead of one for the batch."""
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    eval_zoom: float | None = None
    """In evaluation resize to size × this and keep the centre; None does so by 256/224 after training with `scale` at
    another size than the images', as is usual, and otherwise not."""
    evaluation: bool = False
    timm: bool = False
    """Crop, flip, RandAugment, z-score and erasing by timm's transforms, image by image as a folder's files are
    decoded; mixing stays ours."""

    def __post_init__(self) -> None:
        for name in _option_types():
            _check_option_type(name, getattr(self, name))
        for name, allowed in (("flip", FLIP_MODES), ("pad_mode", PAD_MODES), ("interpolation", INTERPOLATIONS)):
            if getattr(self, name) not in allowed:
                raise unknown_name_error(name, str(getattr(self, name)), allowed)
        for name in ("hflip", "erase", "mix_prob", "switch"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InputError(f"{name}={getattr(self, name)!r} must be a probability from 0 to 1")
        for name in ("size", "pad", "mixup", "cutmix"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name}={getattr(self, name)!r} must be a number of at least 0")
        for name in ("size", "pad"):
            if getattr(self, name) > MAX_IMAGE_SIZE:
                raise InputError(
                    f"{name}={format_value(getattr(self, name))} must be at most {MAX_IMAGE_SIZE:,} pixels"
                )
        for name, most in (("scale", 1.0), ("ratio", float("inf"))):
            pair = getattr(self, name)
            if pair is not None and not (len(pair) == 2 and 0 < pair[0] <= pair[1] <= most):
                raise InputError(f"{name}={pair!r} must be two increasing numbers above 0 (at most 1 for scale)")
        if min(self.std) <= 0:
            raise InputError(f"std={self.std!r} must be above 0 in every channel")
        if self.eval_zoom is not None and not self.eval_zoom >= 1.0:
            raise InputError(f"eval_zoom={self.eval_zoom!r} must be a number of at least 1")
        if self.timm and (self.scale is None or self.pad or self.flip == "alternating"):
            raise InputError(
                "timm=True crops by scale and flips at random: it cannot be combined with pad or alternating flips"
            )

    @property
    def has_mixing(self) -> bool:
        """Whether images are mixed in pairs."""
        return (self.mixup > 0 or self.cutmix > 0) and self.mix_prob > 0

    def __call__(
        self, x: Tensor, indices: Tensor, epoch: int, source: RandomSource
    ) -> tuple[Tensor, MixPartners | None]:
        """float32 images of uint8 ones [N, C, H, W], and of each its partner and share if images are mixed.

        `indices` are the images' places in the data set, which the alternating flip goes by.
        """
        return self.apply_after_crop(self.crop(x, source), indices, epoch, source)

    def crop(self, x: Tensor, source: RandomSource) -> Tensor:
        """First stage: crop or resize the images to their final size."""
        size, zoom = self.size or x.shape[2], self.zoom(x.shape[2])
        if self.scale is not None:
            return random_resized_crop(x, source, size, self.scale, self.ratio, self.interpolation)
        if self.pad:
            x = pad_crop(x, source, self.pad, self.pad_mode)
        if not self.size and zoom == 1.0:
            return x
        return centre_crop(resize(x, int(size * zoom), self.interpolation), size)

    def zoom(self, input_size: int) -> float:
        """Ratio by which images are resized beyond `size` before the centre crop."""
        if not self.evaluation:
            return 1.0
        usual = DEFAULT_EVAL_ZOOM if self.size not in (0, input_size) else 1.0
        return usual if self.eval_zoom is None else self.eval_zoom

    def apply_after_crop(
        self, x: Tensor, indices: Tensor, epoch: int, source: RandomSource
    ) -> tuple[Tensor, MixPartners | None]:
        """Second stage: everything after cropping."""
        if self.flip == "random":
            x = flip(x, source, self.hflip)
        elif self.flip == "alternating":
            x = alternating_flip(x, indices, epoch)
        if self.rand:
            seeds = integers(source, len(x), 2**31)
            x = rand_augment(x, self.rand, seeds, mean=self.mean, interpolation=self.interpolation)
        x = normalize(x, self.mean, self.std)
        if self.erase:
            x = erase(x, source, self.erase)
        return self.mix(x, source)

    def mix(self, x: Tensor, source: RandomSource) -> tuple[Tensor, MixPartners | None]:
        """Last stage: normalise, and mix pairs of images if mixup or CutMix is on."""
        if not self.has_mixing:
            return x, None
        return mix(x, source, self.mixup, self.cutmix, self.mix_prob, self.switch, self.mix_each)

    def for_evaluation(self) -> Augment:
        """The same size and z-score without anything random."""
        if self.evaluation:
            return self
        zoom = 1.0 if self.eval_zoom is None and self.scale is None else self.eval_zoom
        plain = replace(self, timm=False, scale=None, pad=0, flip="none", rand="", erase=0.0, mixup=0.0, cutmix=0.0)
        return replace(plain, eval_zoom=zoom, evaluation=True)

    def transform_for_evaluation(self, x: Tensor) -> Tensor:
        """uint8 images as a network sees them in evaluation."""
        return self.for_evaluation()(x, torch.empty(0, dtype=torch.int64), 0, torch.Generator())[0]


# ---------------------------------------------------------------- presets

_PRESETS: dict[str, dict[str, Any]] = {
    "none": {},
    "paper": {"pad": 4, "flip": "random"},  # the paper's "+"
    "fast": {"pad": 2, "pad_mode": "reflect", "flip": "alternating"},  # the public CIFAR-10 speed runs'
    "seed": {  # defaults of the seeds' training script
        "scale": (0.08, 1.0),
        "flip": "random",
        "rand": "rand-m9-mstd0.5-inc1",
        "erase": 0.25,
        "mixup": 0.8,
        "cutmix": 1.0,
        "eval_zoom": DEFAULT_EVAL_ZOOM,
    },
    "timm": {  # for folders; crop, flip, policy and erasing as timm's own training recipes have them
        "timm": True,
        "scale": (0.08, 1.0),
        "flip": "random",
        "rand": "rand-m9-mstd0.5-inc1",
        "erase": 0.25,
    },
}


class HasMeanStd(Protocol):
    """Data with the mean and std of its training pixels, per channel."""

    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def std(self) -> tuple[float, ...]: ...


def augment_names() -> tuple[str, ...]:
    """Every name `build_augment` knows.

    >>> augment_names()
    ('none', 'paper', 'fast', 'seed', 'timm')
    """
    return tuple(_PRESETS)


def build_augment(name: str, data: HasMeanStd, size: int | None = None, **options: Any) -> Augment:
    """The augmentation of this name with the z-score of the data; options are fields that differ.

    >>> from types import SimpleNamespace
    >>> build_augment("paper", SimpleNamespace(mean=(0.13,), std=(0.31,)), hflip=0.0).pad
    4
    """
    if name not in _PRESETS:
        raise unknown_name_error("augmentation", name, _PRESETS)
    allowed = [field.name for field in fields(Augment) if field.name not in ("size", "evaluation", "timm")]
    for option in options:
        if option not in allowed:
            raise unknown_name_error("option of an augmentation", option, allowed)
    values: dict[str, Any] = {"mean": data.mean, "std": data.std, **_PRESETS[name], **options}
    if "hflip" in options and "flip" not in options:
        values["flip"] = "random"
    for key, value in values.items():
        values[key] = tuple(value) if isinstance(value, list) else value  # as JSON gives them
    return Augment(size=size or 0, **values)


def _check_option_type(option: str, value: Any) -> None:
    """Refuse a value of another type than the field of `Augment` has; the range is checked in `__post_init__`."""
    wanted = _option_types()[option]
    if value is None and wanted.endswith("None"):
        return
    if wanted.startswith("tuple"):
        is_valid, expected = (
            isinstance(value, tuple | list) and value and all(map(_is_number, value)),
            "several numbers",
        )
    elif wanted in ("str", "bool"):
        is_valid, expected = type(value).__name__ == wanted, "a word" if wanted == "str" else "True or False"
    else:
        is_valid, expected = _is_number(value) and (wanted != "int" or value == int(value)), "a number"
    if not is_valid:
        raise InputError(f"{option}={format_value(value)} of an augmentation must be {expected}")


@functools.cache
def _option_types() -> dict[str, str]:
    return {field.name: str(field.type) for field in fields(Augment)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
