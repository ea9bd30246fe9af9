"""Images per second from a folder, a RecordIO file and tar shards, against torchvision's ImageFolder with DataLoader.

Both decode, crop at random, resize, flip and normalise the same JPEG files into float batches, with as many workers:
threads here, processes there. They take turns in one process, epoch by epoch, after an epoch each to warm up, in which
the files come into memory and the processes start; what counts is the median of the ratios of neighbouring epochs.
"""

from __future__ import annotations

import argparse
import io
import json
import struct
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from widemargin.data.images.augment import Augment
from widemargin.data.images.folder import load_folder
from widemargin.data.images.image_files import IMAGENET_MEAN, IMAGENET_STD, FolderBatches, FolderImages
from widemargin.data.images.packed_sets import read_packed_set
from widemargin.io.progress import progress_bar
from widemargin.io.provenance import versions

MIN_LOADER_RATIO = 1.0
CROP_SCALE, CROP_RATIO = (0.5, 1.0), (3 / 4, 4 / 3)
_MAGIC = 0xCED7230A


def write_images(root: Path, num_images: int, num_classes: int, stored_size: int) -> list[tuple[bytes, int]]:
    """JPEG files of smooth noise at root/train and root/test, and their bytes with labels."""
    from PIL import Image

    draw = np.random.default_rng(0)
    found = []
    for number in range(num_images):
        label = number % num_classes
        coarse = Image.fromarray(draw.integers(256, size=(12, 12, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize((stored_size, stored_size), Image.Resampling.BICUBIC)).astype(np.int16)
        pixels = (pixels + draw.integers(-12, 13, size=pixels.shape)).clip(0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
        found.append((buffer.getvalue(), label))
        for part in ("train", "test") if number < num_classes else ("train",):
            path = root / part / f"{label:04d}" / f"{number:06d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(buffer.getvalue() if part == "train" else buffer.getvalue() + b"\0")
    return found


def write_recordio(folder: Path, images: Iterable[tuple[bytes, int]]) -> Path:
    """The images as `train.rec` with its index."""
    folder.mkdir()
    path, lines = folder / "train.rec", []
    with path.open("wb") as file:
        for number, (data, label) in enumerate(images):
            body = struct.pack("<IfQQ", 0, float(label), number, 0) + data
            if struct.pack("<I", _MAGIC) in body:
                continue  # one in a billion, which the format would write in pieces
            lines.append(f"{number}\t{file.tell()}\n")
            file.write(struct.pack("<II", _MAGIC, len(body)) + body + bytes(-len(body) % 4))
    path.with_suffix(".idx").write_text("".join(lines))
    return path


def write_shards(folder: Path, images: list[tuple[bytes, int]], per_shard: int) -> Path:
    """The images as tar shards in the layout of WebDataset."""
    folder.mkdir()
    for start in range(0, len(images), per_shard):
        with tarfile.open(folder / f"{start // per_shard:06d}.tar", "w") as pack:
            for number, (data, label) in enumerate(images[start : start + per_shard], start):
                for ending, content in (("jpg", data), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{number:06d}.{ending}")
                    member.size = len(content)
                    pack.addfile(member, io.BytesIO(content))
    return folder


def make_loaders(root: Path, images: list[tuple[bytes, int]], size: int, batch: int, workers: int) -> dict[str, Any]:
    """Loaders by name: a function of the epoch that yields its batches."""
    augment = Augment(
        size=size, scale=CROP_SCALE, ratio=CROP_RATIO, flip="random", mean=IMAGENET_MEAN, std=IMAGENET_STD
    )
    sources = {"folder": load_folder(root / "images").train}
    for name, path in (
        ("rec", write_recordio(root / "rec", images)),
        ("tar", write_shards(root / "tar", images, 1000)),
    ):
        part = read_packed_set(path).train
        sources[name] = FolderImages(name, part.images, torch.from_numpy(part.y), part.class_names)
    found: dict[str, Any] = {
        name: FolderBatches(part, batch, augment, 0, workers=workers).iter_epoch for name, part in sources.items()
    }
    found["torchvision"] = _torchvision_epochs(root / "images" / "train", size, batch, workers)
    return found


def _torchvision_epochs(folder: Path, size: int, batch: int, workers: int) -> Callable[[int], Iterator[Any]]:
    import widemargin.models.torchvision_compat  # noqa: F401  # isort: skip  (before torchvision)
    from torchvision import datasets, transforms

    steps = [
        transforms.RandomResizedCrop(size, CROP_SCALE, CROP_RATIO, transforms.InterpolationMode.BICUBIC),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
    ]
    loader: Any = torch.utils.data.DataLoader(
        datasets.ImageFolder(str(folder), transforms.Compose(steps)),
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return lambda epoch: iter(loader)


def images_per_second(batches: Iterator[Any]) -> float:
    """Images of an epoch by the time it takes."""
    begun, count = time.perf_counter(), 0
    for x, *_ in batches:
        count += len(x)
    return count / (time.perf_counter() - begun)


def measure_loaders(
    num_images: int, stored_size: int, size: int, batch: int, workers: int, rounds: int
) -> dict[str, Any]:
    """Images per second of every loader, and the ratios to torchvision's."""
    with _temporary_folder() as root:
        images = write_images(root / "images", num_images, 50, stored_size)
        loaders = make_loaders(root, images, size, batch, workers)
        speeds: dict[str, list[float]] = {name: [] for name in loaders}
        with progress_bar("data", float((rounds + 1) * len(loaders))) as on_progress:
            for epoch in range(rounds + 1):
                for name, iter_epoch in loaders.items():
                    speed = images_per_second(iter_epoch(epoch))
                    if epoch:  # the first one brings files into memory and starts processes
                        speeds[name].append(speed)
                    on_progress(1.0)
    theirs = speeds["torchvision"]
    ratios = {
        name: median(ours / other for ours, other in zip(values, theirs, strict=True))
        for name, values in speeds.items()
        if name != "torchvision"
    }
    return {
        "images": num_images,
        "stored_size": stored_size,
        "size": size,
        "batch": batch,
        "workers": workers,
        "rounds": rounds,
        "images_per_second": {name: round(median(values), 1) for name, values in speeds.items()},
        "ratio": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "versions": versions(),
    }


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="widemargin-") as root:
        yield Path(root)


def print_data(options: argparse.Namespace) -> None:
    """Measure and print."""
    from widemargin.io.errors import InputError
    from widemargin.viz.terminal import check_writable

    for name in ("images", "stored_size", "size", "batch", "workers", "rounds"):
        if getattr(options, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}")
    if options.batch > options.images:
        raise InputError(f"--images {options.images} make no batch of {options.batch}")
    if options.json:
        check_writable(options.json)
    torch.set_num_threads(1)
    found = measure_loaders(
        options.images, options.stored_size, options.size, options.batch, options.workers, options.rounds
    )
    speeds = found["images_per_second"]
    print(
        f"{options.images:,} JPEG files of {options.stored_size} pixels to {options.size}, {options.workers} workers: "
        f"torchvision {speeds['torchvision']:,.0f} images/s"
    )
    for name, ratio in found["ratio"].items():
        print(f"  {name:<7} {speeds[name]:>8,.0f} images/s, ratio {ratio:.2f} (wanted: at least {MIN_LOADER_RATIO})")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--images", type=int, default=4000, metavar="N", help="images (default 4000)")
    parser.add_argument("--stored-size", type=int, default=160, metavar="N", help="pixels of the files (default 160)")
    parser.add_argument("--size", type=int, default=112, metavar="N", help="pixels of the batches (default 112)")
    parser.add_argument("--batch", type=int, default=128, metavar="N", help="images of a batch (default 128)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="threads and processes (default 2)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="epochs of each (default 5)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    parser.set_defaults(run=print_data)
