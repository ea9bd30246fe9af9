"""timm's transforms for the images of a folder, each image with a seed of its own.

They draw from the generators of Python, NumPy and torch that a whole process shares; torch's is the one the network's
dropout draws from at the same time. So they run in processes of their own, which seed all three for every image: what
comes out follows from the file and the seed alone, whichever process had it and whatever it did before.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ...io.errors import InputError, spell_option
from ...io.worker_pool import block_sigint, end_with_parent, hide_main_module
from .augment import Augment
from .decode import ImageFile, read_image
from .rand_augment import patch_posterize, rand_augment


def timm_transform_options(augment: Augment) -> dict[str, Any]:
    """The arguments of timm's `create_transform` for an augmentation: what it names, and nothing timm would add."""
    mean, std = (values * 3 if len(values) == 1 else values for values in (augment.mean, augment.std))
    return {
        "input_size": augment.size,
        "is_training": True,
        "scale": augment.scale,
        "ratio": augment.ratio,
        "hflip": augment.hflip if augment.flip == "random" else 0.0,
        "color_jitter": None,
        "auto_augment": augment.rand or None,
        "interpolation": augment.interpolation,
        "mean": mean,
        "std": std,
        "re_prob": augment.erase,
        "re_mode": "pixel",
    }


@cache
def make_timm_transform(augment: Augment) -> Callable[[Image.Image], Tensor]:
    """timm's transform: an image to float32 z-scores [3, H, W]."""
    for what, values in (("mean", augment.mean), ("std", augment.std)):
        if len(values) not in (1, 3):
            raise InputError(f"{what} has {len(values)} numbers, the images have 3 channels")
    data = _import_timm("timm.data")
    try:
        transform: Callable[[Image.Image], Tensor] = data.create_transform(**timm_transform_options(augment))
    except (AssertionError, KeyError, ValueError):
        raise InputError(f"timm cannot read rand={augment.rand!r}; write it like rand-m9-mstd0.5-inc1") from None
    return transform


def check_rand(augment: Augment) -> None:
    """Raise InputError if `rand` cannot be read, before the first image is."""
    if augment.rand and augment.timm:
        make_timm_transform(augment)
    elif augment.rand:
        rand_augment(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), augment.rand, 0, interpolation=augment.interpolation)


def _import_timm(module: str) -> Any:
    try:
        importlib.import_module("widemargin.models.torchvision_compat")  # before timm, see its docstring
        return importlib.import_module(module)
    except ImportError:
        raise InputError(f'{spell_option("augment", "timm")} needs timm: pip install "widemargin[vision]"') from None


class TimmImageLoader:
    """Decodes and transforms files in processes, which start with the first batch and end with this object."""

    def __init__(self, augment: Augment, workers: int) -> None:
        self.augment, self.workers = augment, workers
        self._executor: ProcessPoolExecutor | None = None

    def __call__(self, paths: Sequence[ImageFile], seeds: Sequence[int]) -> tuple[Tensor, list[str | None]]:
        """z-scores float32 [N, 3, H, W] of the files, each transformed under its seed, and what is wrong with each."""
        side = self.augment.size
        shape = (len(paths), 3, side, side)
        x = torch.empty(shape, dtype=torch.float32, device="cpu", memory_format=torch.channels_last)
        chunk_size = max(1, min(8, len(paths) // (4 * self.workers)))
        try:
            with block_sigint():  # a process that is missing is started here
                found = self._get_executor().map(
                    _load_and_transform, repeat(self.augment), paths, seeds, chunksize=chunk_size
                )
            problems: list[str | None] = []
            for place, image in enumerate(found):
                problems.append(image if isinstance(image, str) else None)
                if not isinstance(image, str):
                    x[place] = torch.from_numpy(image)
        except BrokenProcessPool:
            self._executor = None
            raise InputError("a process that decodes images died, most likely for lack of memory") from None
        return x, problems

    def _get_executor(self) -> ProcessPoolExecutor:
        if self._executor is None:
            make_timm_transform(self.augment)  # report invalid options here, before any process is started
            spawn = multiprocessing.get_context("spawn")  # safe with the threads of torch, the same on every system
            self._executor = ProcessPoolExecutor(self.workers, mp_context=spawn, initializer=_init_worker)
            with hide_main_module(), block_sigint():  # a script needs no `if __name__ == "__main__"`
                for _ in range(self.workers):
                    self._executor.submit(os.getpid)  # each starts a process
        return self._executor


# ---------------------------------------------------------------- in a process of its own


def _init_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles the interrupt and stops this one
    end_with_parent(None)  # a parent that is killed cannot stop its workers, which would wait forever
    torch.set_num_threads(1)
    patch_posterize(_import_timm("timm.data.auto_augment"))


def _load_and_transform(augment: Augment, path: ImageFile, seed: int) -> NDArray[np.float32] | str:
    """The pixels of an image, or what is wrong with it: an error would end the other images of the batch."""
    try:
        image = read_image(path)
    except InputError as error:
        return str(error)
    transform = make_timm_transform(augment)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  as timm draws
    torch.manual_seed(seed)
    array: NDArray[np.float32] = transform(image).numpy()  # a tensor would be sent through a shared file
    return array
