"""Targets of the attacks: a small trained run and its hub folder, created by the real commands."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from .check import Outcome
from .sandbox import Sandbox, run_cli

COLOURS = ("red", "green", "blue")
_FIXTURE_TRAIN_ARGS: tuple[str, ...] = (
    "fast(width=0.125)",
    "arcgrad(s=10)",
    "--input-size",
    "16",
    "--batch-size",
    "12",
)
_FIXTURE_TRAIN_ARGS += ("--augment", "fast", "--opt", "sgd", "--lr", "0.05", "--epochs", "1", "--quiet")


def fixtures_unavailable_outcome() -> Outcome | None:
    """Return the outcome of a check if training on images is not installed; None if it is."""
    for name in ("lightning_fabric", "PIL", "safetensors"):
        if find_spec(name) is None:
            return Outcome(0, 0, "nothing", f'not tried: {name} is missing; pip install "widemargin[train]"')
    return None


def generate_class_images(root: Path, classes: Sequence[str] = COLOURS, images_per_class: int = 12) -> Path:
    """Write small images of these classes, one colour for each, with a test part."""
    import torch
    from PIL import Image

    draws = torch.Generator().manual_seed(0)
    for part, count in (("train", images_per_class), ("test", 4)):
        for number, word in enumerate(classes):
            place = root / part / word
            place.mkdir(parents=True)
            for index in range(count):
                pixels = torch.randint(100, (16, 16, 3), generator=draws, dtype=torch.uint8)
                pixels[:, :, number % 3] += 100 + 20 * (number // 3 % 3)
                Image.fromarray(pixels.numpy()).save(place / f"{index}.png")
    return root


def fixture_train_argv(images: Path, out: Path, *extra_args: str) -> tuple[str, ...]:
    """Return the arguments of a training that takes a second."""
    return ("train", str(images), *_FIXTURE_TRAIN_ARGS, "--out", str(out), *extra_args)


def train_fixtures(sandbox: Sandbox, folder: Path) -> tuple[Path, Path, Path]:
    """Create images, a run trained on them, and its hub folder; creating them counts as attempts of the sandbox."""
    images, run, hub = generate_class_images(folder / "images"), folder / "run", folder / "hub"
    for what, words in (
        ("train", fixture_train_argv(images, run)),
        ("export", ("export", str(run), "--hub", str(hub))),
    ):
        sandbox.expect_harmless(f"{what} what is attacked", run_cli, *words)
    if not (run / "checkpoints" / "last" / "state.json").is_file() or not (hub / "widemargin.json").is_file():
        sandbox.add_result("something to attack", "the training has left no checkpoint")
    return images, run, hub


def copy_beside(source: Path, name: str) -> Path:
    """Copy a folder next to the original, to be corrupted."""
    place = source.with_name(name)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place)
    return place


def update_checksums(checkpoint: Path) -> None:
    """Recompute a checkpoint's checksums, as an attacker would."""
    files = sorted(path for path in checkpoint.iterdir() if path.is_file() and path.name != "sha256.json")
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (checkpoint / "sha256.json").write_text(json.dumps(sums), encoding="utf-8")
