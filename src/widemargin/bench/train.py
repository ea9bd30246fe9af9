"""What the training loop costs: `widemargin train`'s own epoch against the barest loop over the same network.

The bare loop has everything ready: augmented batches in memory, no Fabric, no histogram, no logged sums; forward,
backward, step, and the next. Both train the same network under the same loss with the same optimizer, precision and
memory layout, by turns in one process; what counts is the median of the ratios of neighbouring rounds. A round has
few steps, so the first batch, for which the loop has to wait, weighs more than in a true epoch.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from ..data.batches import Batch
from ..run import Run
from ..training.moving import Training
from ..training.network import network
from ..training.optimizers import optimizer
from ..training.telling import Telling

# Model → images of a batch and steps of a round, so that a round lasts some ten seconds on two cores.
ROUNDS_OF = {"fast(widths=(32,96,96),bias=False)": (500, 20), "fast(bias=False)": (500, 8), "resnet18": (64, 8)}
USUAL = (64, 8)
TARGET = 0.95
CLASSES, SIDE, IMAGES = 10, 32, 50_000  # CIFAR-10's


@dataclass(frozen=True)
class Source:
    """Where the images are, and how many there are to learn from."""

    data: str
    images: int
    input_size: int | None = None


@contextmanager
def generated(images: int) -> Iterator[Source]:
    """Noise in CIFAR-10's shape, in a folder that is gone afterwards; it is read into memory as any small folder is."""
    from PIL import Image

    draw, each = np.random.default_rng(0), -(-images // CLASSES)
    with tempfile.TemporaryDirectory(prefix="widemargin-") as root:
        for part, count in (("train", each), ("test", 1)):
            for label in range(CLASSES):
                place = Path(root, part, str(label))
                place.mkdir(parents=True)
                for number, pixels in enumerate(draw.integers(256, size=(count, SIDE, SIDE, 3), dtype=np.uint8)):
                    Image.fromarray(pixels).save(place / f"{number}.bmp")
        yield Source(root, CLASSES * each, SIDE)


class Bare:
    """The shortest loop there is over batches that are ready."""

    def __init__(self, run: Run, sees: dict[str, Any], batches: Sequence[Batch], device: torch.device) -> None:
        self.batches, self.device, self.mixed = batches, device, run.precision == "bf16-mixed"
        self.model = network(run, sees).to(device)
        if run.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = optimizer(run, self.model)

    def __call__(self) -> None:
        """A step for every batch."""
        self.model.train()
        for images, y, mix in self.batches:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed):
                loss = self.model(images, y, mix=mix).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    """How long it takes, until all is done."""
    begun = time.perf_counter()
    work()
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - begun


def run_of(model: str, loss: str, precision: str, source: Source, rounds: int, size: tuple[int, int]) -> Run:
    """A run whose epoch has as many steps as asked for, `size` being images of a batch and steps."""
    batch, steps = size
    share = min(1.0, CLASSES * -(-batch * steps // CLASSES) / source.images)
    plain = Run(data=source.data, model=model, loss=loss, precision=precision, batch_size=batch, share=share)
    return replace(plain, input_size=source.input_size, epochs=rounds + 1, schedule="constant")


def measure(run: Run, data_dir: str | None, rounds: int, told: Callable[[float], Any]) -> dict[str, Any]:
    """Images per second of both loops, and the ratio of every round."""
    training = Training(run, data_dir)
    device, batches = training.fabric.device, training.inputs.batches
    bare = Bare(run, training.inputs.sees, [training.fabric.to_device(b) for b in batches.epoch(0)], device)
    training.inputs.prepare_network(bare.model)
    ways: dict[str, Callable[[], Any]] = {"loop": lambda: training.one_epoch(Telling()), "bare": bare}
    for way in ways.values():  # first calls are slow
        way()
    told(1.0)
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            spent[name].append(seconds(way, device))
        told(1.0)
    images = len(batches) * run.batch_size
    ratios = [bare / loop for loop, bare in zip(spent["loop"], spent["bare"], strict=True)]
    return {
        "model": run.model,
        "precision": run.precision,
        "batch": run.batch_size,
        "steps": len(batches),
        "images_per_second": {name: images / median(values) for name, values in spent.items()},
        "ratio": median(ratios),
        "ratios": ratios,
    }
