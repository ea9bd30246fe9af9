"""Overhead of the training loop: an epoch of `widemargin train` against a minimal loop over the same network.

The minimal loop has augmented batches in memory, no Fabric, no histogram, no logged sums; only forward, backward and
step. Both train the same network with the same loss, optimizer, precision and memory layout, alternating in one
process; the result is the median of the ratios of neighbouring rounds. A round has few steps, so the first batch, for
which the loop has to wait, counts more than in a real epoch.

Also the time of ArcGrad's head beyond softmax's, in percent of a training step of the paper's ResNet-18: forward and
backward of both heads, alternating, on embeddings of the network's size; the median of many, and the step of the
network for the same number of images, in the same process. The paper reports 3.4 %.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from widemargin.data.images.batches import Batch
from widemargin.head.objective import Objective
from widemargin.io.errors import InputError
from widemargin.io.provenance import versions
from widemargin.training.config import TrainConfig
from widemargin.training.logging import ProgressReporter
from widemargin.training.model import build_margin_model
from widemargin.training.optim import build_optimizer
from widemargin.training.trainer import Trainer

# Model → batch size and steps per round, so that a round takes about ten seconds on two cores.
ROUND_SIZES = {"fast(widths=(32,96,96),bias=False)": (500, 20), "fast(bias=False)": (500, 8), "resnet18": (64, 8)}
DEFAULT_ROUND_SIZE = (64, 8)
MIN_LOOP_RATIO = 0.95
CIFAR_NUM_CLASSES, CIFAR_IMAGE_SIZE, CIFAR_NUM_IMAGES = 10, 32, 50_000  # CIFAR-10's


@dataclass(frozen=True)
class ImageSource:
    """Place and number of the training images."""

    data: str
    num_images: int
    input_size: int | None = None


@contextmanager
def generate_noise_images(num_images: int) -> Iterator[ImageSource]:
    """Noise images of CIFAR-10's shape in a temporary folder; loaded into memory like any small folder."""
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
    """The minimal loop over prepared batches."""

    def __init__(
        self, config: TrainConfig, input_spec: dict[str, Any], batches: Sequence[Batch], device: torch.device
    ) -> None:
        self.batches, self.device, self.is_mixed_precision = batches, device, config.precision == "bf16-mixed"
        self.model = build_margin_model(config, input_spec).to(device)
        if config.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = build_optimizer(config, self.model)

    def __call__(self) -> None:
        """Run a step for every batch."""
        self.model.train()
        for images, y, mix in self.batches:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_mixed_precision):
                loss = self.model(images, labels=y, mix=mix).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def time_call(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of a call, including its work on the device."""
    start = time.perf_counter()
    work()
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - start


def make_round_config(
    model: str, loss: str, precision: str, source: ImageSource, rounds: int, size: tuple[int, int]
) -> TrainConfig:
    """Return a config whose epoch has the requested steps; `size` is batch size and steps."""
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


OVERHEAD_LOSSES = ("softmax", "arcgrad(s=10)")
OVERHEAD_EMBEDDING_DIM, OVERHEAD_CLASS_COUNTS = 512, (10, 100)
PAPER_EXTRA_PERCENT, MAX_EXTRA_PERCENT = 3.4, 1.0  # percent


def measure_head_overhead(
    batch: int, rounds: int, repeats: int, on_progress: Callable[[float], Any]
) -> list[dict[str, Any]]:
    """For each number of classes, the seconds of both heads and of a step, and the difference in percent of it."""
    draw, device = torch.Generator().manual_seed(0), torch.device("cpu")
    images = torch.randn(batch, 3, CIFAR_IMAGE_SIZE, CIFAR_IMAGE_SIZE, generator=draw).contiguous(
        memory_format=torch.channels_last
    )
    input_spec = {
        "class_names": [str(label) for label in range(OVERHEAD_CLASS_COUNTS[0])],
        "channels": 3,
        "size": CIFAR_IMAGE_SIZE,
    }
    labels = torch.randint(OVERHEAD_CLASS_COUNTS[0], (batch,), generator=draw)
    step = BareLoop(
        TrainConfig(model="resnet18", loss=OVERHEAD_LOSSES[0]), input_spec, [(images, labels, None)], device
    )
    heads = {
        num_classes: [_make_head_step(loss, num_classes, batch) for loss in OVERHEAD_LOSSES]
        for num_classes in OVERHEAD_CLASS_COUNTS
    }
    step()  # first calls are slow
    on_progress(1.0)
    steps: list[float] = []
    spent: dict[int, list[tuple[float, float]]] = {num_classes: [] for num_classes in OVERHEAD_CLASS_COUNTS}
    for _ in range(rounds):
        steps.append(time_call(step, device))
        for num_classes, works in heads.items():
            both = [[time_call(work, device) for work in works] for _ in range(repeats + 1)][1:]
            spent[num_classes].append((median(pair[0] for pair in both), median(pair[1] for pair in both)))
        on_progress(1.0)
    rows = []
    for num_classes, pairs in spent.items():
        shares = [100.0 * (more - less) / whole for (less, more), whole in zip(pairs, steps, strict=True)]
        plain, ours = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
        rows.append(
            {
                "num_classes": num_classes,
                "batch": batch,
                "embedding_dim": OVERHEAD_EMBEDDING_DIM,
                "head_seconds": dict(zip(OVERHEAD_LOSSES, (plain, ours), strict=True)),
                "step_seconds": median(steps),
                "extra_percent": median(shares),
                "extras_percent": shares,
            }
        )
    return rows


def _make_head_step(loss: str, num_classes: int, batch: int) -> Callable[[], None]:
    """Forward and backward of a head, with the gradients of embeddings and class weights."""
    draw = torch.Generator().manual_seed(1)
    objective = Objective(loss, OVERHEAD_EMBEDDING_DIM, num_classes)
    x = torch.randn(batch, OVERHEAD_EMBEDDING_DIM, generator=draw).requires_grad_()
    y = torch.randint(num_classes, (batch,), generator=draw)

    def head_step() -> None:
        x.grad = None
        objective.zero_grad()
        objective(x, y).mean().backward()

    return head_step


def print_train(
    models: Sequence[str] | None,
    loss: str,
    precisions: Sequence[str],
    rounds: int,
    batch: int | None,
    steps: int | None,
    repeats: int,
    data_dir: str | None,
    synthetic_data: bool,
    json_path: str | None,
) -> None:
    """Measure both and print both tables."""
    from widemargin.io.progress import progress_bar
    from widemargin.io.resources import keep_freed_memory
    from widemargin.viz.terminal import check_writable, console

    numbers = {"--rounds": rounds, "--batch-size": batch, "--steps": steps, "--repeats": repeats}
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise InputError(f"{name} must be an integer of at least 1, got {value}")
    if json_path:
        check_writable(json_path)
    keep_freed_memory()  # as `widemargin train` does; also for the minimal loop
    sizes = {model: ROUND_SIZES.get(model, DEFAULT_ROUND_SIZE) for model in models or ROUND_SIZES}
    sizes = {model: (batch or size[0], steps or size[1]) for model, size in sizes.items()}
    most = max(size[0] * size[1] for size in sizes.values())
    cifar = nullcontext(ImageSource("cifar10", CIFAR_NUM_IMAGES))
    with generate_noise_images(most) if synthetic_data else cifar as source:
        total = (rounds + 1) * (len(sizes) * len(precisions) + 1)
        with progress_bar("training", total) as on_progress:
            configs = [
                make_round_config(model, loss, precision, source, rounds, size)
                for model, size in sizes.items()
                for precision in precisions
            ]
            loops = [measure_training_loop(config, data_dir, rounds, on_progress) for config in configs]
            heads = measure_head_overhead(batch or 128, rounds, repeats, on_progress)
    screen = console()
    screen.print(_loop_table(loops, rounds, torch.get_num_threads()))
    screen.print(_head_table(heads))
    screen.print(
        f"red: below {MIN_LOOP_RATIO:g} of the minimal loop, above {MAX_EXTRA_PERCENT:g} % of a step"
        f" (the paper reports {PAPER_EXTRA_PERCENT:g} %)"
    )
    if json_path:
        facts: dict[str, Any] = {"versions": versions(), "threads": torch.get_num_threads(), "loss": loss}
        facts |= {"data": "generated" if synthetic_data else "cifar10", "rounds": rounds, "repeats": repeats}
        Path(json_path).write_text(json.dumps({**facts, "loop": loops, "head": heads}, indent=1) + "\n")


def _loop_table(rows: Sequence[dict[str, Any]], rounds: int, threads: int) -> Any:
    from rich.table import Table

    title = f"widemargin train's loop against a minimal one: images/s, median of {rounds} rounds, {threads} threads"
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("model", "precision", "batch × steps", "loop", "minimal", "ratio", "from – to"):
        table.add_column(column, justify="left" if column in ("model", "precision") else "right")
    for row in rows:
        speed, ratio = row["images_per_second"], f"{row['ratio']:.3f}"
        table.add_row(
            row["model"],
            row["precision"],
            f"{row['batch']} × {row['steps']}",
            f"{speed['loop']:,.0f}",
            f"{speed['bare']:,.0f}",
            ratio if row["ratio"] >= MIN_LOOP_RATIO else f"[bold red]{ratio}[/]",
            f"{min(row['ratios']):.3f} – {max(row['ratios']):.3f}",
        )
    return table


def _head_table(rows: Sequence[dict[str, Any]]) -> Any:
    from rich.table import Table

    sizes = f"N={rows[0]['batch']}, D={OVERHEAD_EMBEDDING_DIM}"
    title = f"Head forward and backward, {sizes}, next to a ResNet-18 step of the same N"
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("classes", *(f"{loss}, µs" for loss in OVERHEAD_LOSSES), "step, ms", "extra, % of the step"):
        table.add_column(column, justify="right")
    for row in rows:
        extra = f"{row['extra_percent']:.3f}"
        table.add_row(
            str(row["num_classes"]),
            *(f"{row['head_seconds'][loss] * 1e6:,.0f}" for loss in OVERHEAD_LOSSES),
            f"{row['step_seconds'] * 1e3:,.0f}",
            extra if row["extra_percent"] <= MAX_EXTRA_PERCENT else f"[bold red]{extra}[/]",
        )
    return table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "--models", nargs="+", metavar="MODEL", help="networks to train (default: two of fast, and resnet18)"
    )
    parser.add_argument("--loss", default="arcgrad(s=10)", help='loss of the loops (default "arcgrad(s=10)")')
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=("32-true", "bf16-mixed"),
        default=["32-true"],
        help="one or both (default 32-true)",
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of each loop (default 5)")
    parser.add_argument("--batch-size", type=int, metavar="N", help="images of a batch (default: by model; heads 128)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of a round (default: by model)")
    parser.add_argument("--repeats", type=int, default=200, metavar="N", help="calls per head and round (default 200)")
    parser.add_argument("--synthetic-data", action="store_true", help="noise of CIFAR-10's shape instead of CIFAR-10")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    parser.add_argument("--json", metavar="FILE", help="also write the results to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    print_train(
        options.models,
        options.loss,
        list(dict.fromkeys(options.precision)),
        options.rounds,
        options.batch_size,
        options.steps,
        options.repeats,
        options.data_dir,
        options.synthetic_data,
        options.json,
    )
