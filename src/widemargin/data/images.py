"""Small images by name, whole in memory: CIFAR-10 and 100, MNIST, Fashion-MNIST, Omniglot, ORL faces, checked.

Pixels stay bytes until a batch is made of them: CIFAR-10 is 184 MB so, and four times that as floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import unknown_name_error
from .image_bytes import PixelsAndLabels
from .image_catalogue import IMAGE_SETS
from .image_files import given_folders, read_originals
from .stratified import stratified_split, stratified_subset

__all__ = ["ImageSet", "Images", "image_set_names", "load_images", "stratified_split", "stratified_subset"]


@dataclass(frozen=True, eq=False)
class Images:
    """Images x, uint8 [N, C, H, W], their labels y, int64 [N], and the class names."""

    name: str
    x: Tensor
    y: Tensor
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Tensor) -> Images:
        """These rows, in this order."""
        return Images(self.name, self.x.index_select(0, rows), self.y.index_select(0, rows), self.class_names)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A training and a test part; mean and std are those of the training pixels in [0, 1], per channel."""

    name: str
    train: Images
    test: Images
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.train.class_names


def image_set_names() -> tuple[str, ...]:
    """Every name `load_images` knows.

    >>> image_set_names()
    ('cifar10', 'cifar100', 'fashion_mnist', 'mnist', 'omniglot', 'orl_faces')
    """
    return tuple(sorted((*IMAGE_SETS, "omniglot", "orl_faces")))


def canonical_set_name(name: str) -> str | None:
    """The set's own spelling of a name such as `CIFAR-10`; None if there is no such set."""
    return {_normalize_set_name(known): known for known in image_set_names()}.get(_normalize_set_name(name))


def load_images(name: str, data_dir: str | Path | None = None) -> ImageSet:
    """The set; looked for in `data_dir`, `WIDEMARGIN_DATA` and the cache, else downloaded. `CIFAR-10` is `cifar10`."""
    set_name = canonical_set_name(name)
    if set_name is None:
        raise unknown_name_error("image set", name, image_set_names())
    if set_name == "omniglot":
        from .omniglot import load_omniglot

        return load_omniglot(list(given_folders(("omniglot",), data_dir)))
    if set_name == "orl_faces":
        from .orl import ORL_FOLDERS, load_orl

        return load_orl(list(given_folders(ORL_FOLDERS, data_dir)))
    entry = IMAGE_SETS[set_name]
    originals = read_originals(entry, data_dir)

    def make_part(pair: PixelsAndLabels) -> Images:
        x, y = pair
        pixels = torch.from_numpy(x if x.flags.writeable else x.copy())  # torch shares memory, which bytes must not
        return Images(entry.name, pixels, torch.from_numpy(y), originals.class_names)

    return ImageSet(entry.name, make_part(originals.train), make_part(originals.test), entry.mean, entry.std)


def _normalize_set_name(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")
