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
from ..run import TrainConfig
from ..training.moving import Trainer
from ..training.network import build_margin_model
from ..training.optimizers import build_optimizer
from ..training.telling import ProgressReporter

# Model → images of a batch and steps of a round, so that a round lasts some ten seconds on two cores.
ROUND_SIZES = {"fast(widths=(32,96,96),bias=False)": (500, 20), "fast(bias=False)": (500, 8), "resnet18": (64, 8)}
DEFAULT_ROUND_SIZE = (64, 8)
MIN_LOOP_RATIO = 0.95
CIFAR_NUM_CLASSES, CIFAR_IMAGE_SIZE, CIFAR_NUM_IMAGES = 10, 32, 50_000  # CIFAR-10's


@dataclass(frozen=True)
class ImageSource:
    """Where the images are, and how many there are to learn from."""

    data: str
    num_images: int
    input_size: int | None = None


@contextmanager
def generate_noise_images(num_images: int) -> Iterator[ImageSource]:
    """Noise in CIFAR-10's shape, in a folder that is gone afterwards; it is read into memory as any small folder is."""
    from PIL import Image

    draw, each = np.random.default_rng(0), -(-num_images // CIFAR_NUM_CLASSES)
    with tempfile.TemporaryDirectory(prefix="widemargin-") as root:
        for part, count in (("train", each), ("test", 1)):
            for label in range(CIFAR_NUM_CLASSES):
                place = Path(root, part, str(label))
                place.mkdir(parents=True)
                for number, pixels in enumerate(
                    draw.integers(256, size=(count, CIFAR_IMAGE_SIZE, CIFAR_IMAGE_SIZE, 3), dtype=np.uint8)
                ):
                    Image.fromarray(pixels).save(place / f"{number}.bmp")
        yield ImageSource(root, CIFAR_NUM_CLASSES * each, CIFAR_IMAGE_SIZE)


class BareLoop:
    """The shortest loop there is over batches that are ready."""

    def __init__(
        self, config: TrainConfig, input_spec: dict[str, Any], batches: Sequence[Batch], device: torch.device
    ) -> None:
        self.batches, self.device, self.is_mixed_precision = batches, device, config.precision == "bf16-mixed"
        self.model = build_margin_model(config, input_spec).to(device)
        if config.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = build_optimizer(config, self.model)

    def __call__(self) -> None:
        """A step for every batch."""
        self.model.train()
        for images, y, mix in self.batches:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_mixed_precision):
                loss = self.model(images, y, mix=mix).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def time_call(work: Callable[[], Any], device: torch.device) -> float:
    """How long it takes, until all is done."""
    begun = time.perf_counter()
    work()
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - begun


def make_round_config(
    model: str, loss: str, precision: str, source: ImageSource, rounds: int, size: tuple[int, int]
) -> TrainConfig:
    """A run whose epoch has as many steps as asked for, `size` being images of a batch and steps."""
    batch, steps = size
    share = min(1.0, CIFAR_NUM_CLASSES * -(-batch * steps // CIFAR_NUM_CLASSES) / source.num_images)
    plain = TrainConfig(
        data=source.data, model=model, loss=loss, precision=precision, batch_size=batch, train_fraction=share
    )
    return replace(plain, input_size=source.input_size, epochs=rounds + 1, schedule="constant")


def measure_training_loop(
    config: TrainConfig, data_dir: str | None, rounds: int, on_progress: Callable[[float], Any]
) -> dict[str, Any]:
    """Images per second of both loops, and the ratio of every round."""
    training = Trainer(config, data_dir)
    device, batches = training.fabric.device, training.inputs.batches
    bare = BareLoop(
        config, training.inputs.input_spec, [training.fabric.to_device(b) for b in batches.iter_epoch(0)], device
    )
    training.inputs.whiten_backbone(bare.model)
    ways: dict[str, Callable[[], Any]] = {"loop": lambda: training.train_epoch(ProgressReporter()), "bare": bare}
    for way in ways.values():  # first calls are slow
        way()
    on_progress(1.0)
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            spent[name].append(time_call(way, device))
        on_progress(1.0)
    images = len(batches) * config.batch_size
    ratios = [bare / loop for loop, bare in zip(spent["loop"], spent["bare"], strict=True)]
    return {
        "model": config.model,
        "precision": config.precision,
        "batch": config.batch_size,
        "steps": len(batches),
        "images_per_second": {name: images / median(values) for name, values in spent.items()},
        "ratio": median(ratios),
        "ratios": ratios,
    }
