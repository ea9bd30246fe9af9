"""timm's RandAugment on batches of bytes, the same for the same seed whatever else the process does.

timm draws from the generators of Python and NumPy that the whole process shares, while batches are made in a thread
during the training. So every thread works with its own copy of that one module of timm, whose generators are its
own and are seeded for each image. The module needs neither torch nor torchvision.

timm's and not torchvision's v2: that one has no such policies (`mstd`, `inc1`) and draws from torch's own generator.
"""

from __future__ import annotations

import importlib.util
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ...io.errors import InputError
from ...numerics.random import integers

MIN_PIXELS_FOR_THREADS = 128 * 128  # below, Python overhead dominates and threads only wait for each other
_thread_local = threading.local()


def rand_augment(
    x: Tensor, config: str, seed: int | Tensor, *, mean: tuple[float, ...] = (0.5,), interpolation: str = "bicubic"
) -> Tensor:
    """Bytes [N, C, H, W] through timm's RandAugment, as in `rand-m9-mstd0.5-inc1`.

    `seed` is a number for the batch or one for each image; `mean` (of pixels in [0, 1]) fills what moves in from
    outside.
    """
    if not len(x):
        return x
    if isinstance(seed, int):
        seed = integers(torch.Generator().manual_seed(seed), len(x), 2**31)
    fill = tuple(min(255, round(255 * value)) for value in mean)
    grey = x.shape[1] == 1
    arrays = x[:, 0].numpy() if grey else x.permute(0, 2, 3, 1).contiguous().numpy()
    policy = (config, fill[:1] if grey else (fill * 3)[:3], interpolation, min(x.shape[2:]))

    def augment_one(pair: tuple[NDArray[np.uint8], int]) -> NDArray[np.uint8]:
        return np.asarray(_policy(*policy)(Image.fromarray(pair[0]), pair[1]))

    pairs = list(zip(arrays, seed.tolist(), strict=True))
    small = x.shape[2] * x.shape[3] < MIN_PIXELS_FOR_THREADS
    done = torch.from_numpy(
        np.stack(list(map(augment_one, pairs) if small else _thread_pool().map(augment_one, pairs)))
    )
    return done.unsqueeze(1) if grey else done.permute(0, 3, 1, 2).contiguous()


@cache
def _thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="rand_augment")


def _policy(config: str, fill: tuple[int, ...], interpolation: str, size: int) -> Callable[[Image.Image, int], Any]:
    """What augments an image with a seed, made once per thread."""
    policies: dict[Any, Any] = _thread_local.__dict__.setdefault("policies", {})
    key = (config, fill, interpolation, size)
    if key not in policies:
        module = _get_auto_augment_module()
        hparams = {
            "translate_const": int(size * 0.45),
            "img_mean": fill if len(fill) > 1 else fill[0],
            "interpolation": Image.Resampling[interpolation.upper()],
        }
        try:
            transform = module.rand_augment_transform(config, hparams)
        except (AssertionError, ValueError, KeyError):
            raise InputError(f"RandAugment {config!r} cannot be read; write it like rand-m9-mstd0.5-inc1") from None

        def apply_policy(image: Image.Image, seed: int) -> Any:
            module.random.seed(seed)
            module.np.random.seed(seed)
            return transform(image)

        policies[key] = apply_policy
    return policies[key]  # type: ignore[no-any-return]


class _IsolatedNumpy:
    """NumPy, except for its generator."""

    def __init__(self) -> None:
        self.random = np.random.RandomState()

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def _get_auto_augment_module() -> Any:
    """This thread's copy of timm's module, with generators of its own."""
    if "module" not in _thread_local.__dict__:
        _thread_local.module = _load_auto_augment_copy()
        _thread_local.module.random, _thread_local.module.np = random.Random(), _IsolatedNumpy()
        patch_posterize(_thread_local.module)
    return _thread_local.module


def patch_posterize(auto_augment: Any) -> None:
    """In timm's module: the strongest level keeps no bit, which was black until Pillow began to refuse it."""
    for name, change in list(auto_augment.NAME_TO_OP.items()):
        if name.startswith("Posterize"):
            auto_augment.NAME_TO_OP[name] = partial(_posterize, change)


def _posterize(operation: Callable[..., Any], image: Image.Image, bits: int, **options: Any) -> Any:
    return operation(image, bits, **options) if bits > 0 else Image.new(image.mode, image.size)


def _load_auto_augment_copy() -> ModuleType:
    timm = importlib.util.find_spec("timm")  # found, not imported
    path = Path(timm.origin).parent / "data" / "auto_augment.py" if timm and timm.origin else None
    if path is None or not path.is_file():
        raise InputError("RandAugment needs timm: pip install 'widemargin[vision]'")
    spec = importlib.util.spec_from_file_location("widemargin_auto_augment", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
