"""A small training for checks to disturb: its images, its command, and the comparison of two runs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .check import Outcome

# Seconds on one core: three classes of noisy colours, a small network, an average, a held-out part, a best checkpoint.
_MODEL, _LOSS = "fast(width=0.125)", "arcgrad(s=10)"
_TRAIN_ARGS: tuple[str, ...] = ("--input-size", "16", "--batch-size", "12", "--augment", "fast")
_TRAIN_ARGS += ("--opt", "sgd", "--lr", "0.05", "--ema", "0.9", "--val-fraction", "0.2", "--quiet")
_TIMING_FIELDS = ("seconds", "images_per_second")


def training_unavailable_outcome() -> Outcome | None:
    """Return the outcome of a check if training is not installed; None if it is."""
    for name in ("lightning_fabric", "PIL", "safetensors"):
        if find_spec(name) is None:
            return Outcome(0, 0, "nothing", f'not tried: {name} is missing; pip install "widemargin[train]"')
    return None


def generate_image_folder(root: Path, images_per_class: int = 16, side: int = 20) -> Path:
    """Write a folder of images that can be learned in a second, with a test part."""
    import torch
    from PIL import Image

    draws = torch.Generator().manual_seed(0)
    for part, count in (("train", images_per_class), ("test", 4)):
        for number, word in enumerate(("red", "green", "blue")):
            place = root / part / word
            place.mkdir(parents=True)
            for index in range(count):
                pixels = torch.randint(100, (side, side + 4, 3), generator=draws, dtype=torch.uint8)
                pixels[:, :, number] += 120
                Image.fromarray(pixels.numpy()).save(place / f"{index}.png")
    return root


def train_argv(
    data: Path,
    out: Path,
    *extra_args: str,
    epochs: int = 4,
    repeated_augmentation: int = 25,
    model: str = _MODEL,
    loss: str = _LOSS,
) -> list[str]:
    """Return the training command, which resumes if possible."""
    size = ("--epochs", str(epochs), "--repeated-augmentation", str(repeated_augmentation))
    return ["train", str(data), model, loss, *_TRAIN_ARGS, *size, "--out", str(out), "--resume", *extra_args]


class Tally:
    """Counts cases tried and survived, and collects the reasons of failures."""

    def __init__(self) -> None:
        self.tried, self.survived, self.problems = 0, 0, list[str]()

    def add(self, description: str, problem: str, count: int = 1) -> None:
        """Add `count` cases; `problem` is empty if all passed."""
        self.tried += count
        if problem:
            self.problems.append(f"{description}: {problem}")
        else:
            self.survived += count

    def outcome(self, note: str = "", lost: str = "nothing") -> Outcome:
        """Return the outcome of the check; `lost` is the loss if all passed."""
        notes = "; ".join(filter(None, (note, *self.problems)))
        return Outcome(self.tried, self.survived, "see the note" if self.problems else lost, notes)


def difference(reference: Path, other: Path, checkpoints: Sequence[str] = ("last", "best")) -> str:
    """Return what differs between two finished runs, compared bit for bit, or was left behind; empty if nothing."""
    for name in checkpoints:
        if said := _checkpoint_difference(reference / "checkpoints" / name, other / "checkpoints" / name):
            return said
    try:
        first, second = (_read_metrics(folder / "metrics.jsonl") for folder in (reference, other))
        records = [_read_json(folder / "record.json") for folder in (reference, other)]
    except (OSError, ValueError) as error:
        return f"cannot be read: {error}"
    if first != second:
        return f"metrics.jsonl: {len(second)} lines, not the {len(first)} of the uninterrupted run, or other ones"
    for name in ("test", "angles", "confusion", "val"):
        if records[0].get(name) != records[1].get(name):
            return f"record.json: {name} differs"
    remaining = [path.name for path in other.rglob("*") if path.suffix == ".new" or path.name == ".lock"]
    return f"left behind: {', '.join(remaining)}" if remaining else ""


def _checkpoint_difference(one: Path, other: Path) -> str:
    """Return what differs between two checkpoints with valid checksums."""
    import torch

    from widemargin.io.errors import InputError
    from widemargin.training import checkpoint

    try:
        first, second = checkpoint.load(one), checkpoint.load(other)
    except InputError as error:
        return str(error)
    for ours, theirs in zip(first[:2], second[:2], strict=True):
        if list(ours) != list(theirs):
            return f"{other.name}: other names of tensors"
        for name, value in ours.items():
            if not torch.equal(value, theirs[name]):
                return f"{other.name}: {name} differs"
    states = [
        {name: value for name, value in found[2].items() if name not in _TIMING_FIELDS} for found in (first, second)
    ]
    return "" if states[0] == states[1] else f"{other.name}: state.json differs"


def _read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the log without times; as text, so that a partial line counts."""
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in line.items() if name not in _TIMING_FIELDS} for line in lines]


def _read_json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def draw_table(path: Path, rows: int = 120) -> Path:
    """Write three classes in four columns of noise as CSV."""
    draws = random.Random(0)
    lines = ["a,b,c,d,kind"]
    for row in range(rows):
        kind = row % 3
        values = [draws.gauss(1.5 * (kind == column), 1.0) for column in range(4)]
        lines.append(",".join([*(f"{value:.3f}" for value in values), ("one", "two", "three")[kind]]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
