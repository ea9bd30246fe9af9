"""Command-line options of a `TrainConfig`."""

from __future__ import annotations

import argparse
from typing import Any

from .config import TrainConfig

_NUMERIC_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("epochs", int, "passes over the training images"),
    ("batch-size", int, "images per step, all processes together"),
    ("accumulate", int, "steps whose gradients are added before one is taken"),
    ("lr", float, "peak learning rate"),
    ("min-lr", float, "where the cosine ends"),
    ("warmup-epochs", float, "epochs that lead up to the rate"),
    ("warmup-lr", float, "where they begin"),
    ("weight-decay", float, "on matrices whose length matters"),
    ("momentum", float, "of sgd"),
    ("label-smoothing", float, "probability mass spread over the other classes"),
    ("clip", float, "largest gradient norm; 0 does not clip"),
    ("ema", float, "decay of averaged weights, which are then evaluated; 0 keeps none"),
    ("train-fraction", float, "part of the training images that is used"),
    ("embedding-dim", int, "length of the embeddings, by a linear layer; 0 keeps the backbone's own"),
    ("repeated-augmentation", int, "how often each image stands in an epoch, one after the other"),
    ("per-class", int, "images of each class in a batch, for losses on pairs and triplets (P×K)"),
    (
        "unseen-classes",
        float,
        "part of the classes that is kept back entirely, to be evaluated on; they choose nothing",
    ),
    (
        "val-fraction",
        float,
        "part of the training images kept back to choose the checkpoint `best` by; nothing else does",
    ),
    ("input-size", int, "pixels along a side, at most 4096"),
    ("ckpt-freq", int, "epochs between checkpoints that are kept"),
    ("seed", int, "start of every random draw"),
)
_BOOLEAN_OPTIONS: tuple[tuple[str, str], ...] = (
    ("neck", "the seeds' embedding neck, 2048 – 512"),
    ("compile", "torch.compile the step"),
    ("channels-last", "memory format of images and weights, the fastest for convolutions (default)"),
    (
        "sync-bn",
        "batch norm over all GPUs of a run (default); torch has none over CPU processes, so it is left out there",
    ),
)

_CHOICE_OPTIONS: tuple[tuple[str, str], ...] = (
    ("opt", "adam, adamw, sgd or muon"),
    ("schedule", "onecycle, cosine, plateau or constant"),
    ("augment", 'none, paper (crop and flip), fast, seed, or timm for folders; also "paper(pad=2, mixup=0.8)"'),
    ("precision", "32-true, bf16-mixed, 16-mixed or 64-true"),
)


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """One option per field of `TrainConfig` that is a number, a choice or a switch."""
    for name, kind, meaning in _NUMERIC_OPTIONS:
        parser.add_argument(f"--{name}", type=kind, metavar="X", help=_help_with_default(name, meaning))
    for name, meaning in _CHOICE_OPTIONS:
        parser.add_argument(f"--{name}", help=_help_with_default(name, meaning))
    for name, meaning in _BOOLEAN_OPTIONS:
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=meaning)


def given_config_values(options: argparse.Namespace) -> dict[str, Any]:
    """Fields of `TrainConfig` that were given as options, except the augmentation."""
    names = [name for name, _, _ in _NUMERIC_OPTIONS] + [name for name, _ in (*_CHOICE_OPTIONS, *_BOOLEAN_OPTIONS)]
    fields = [name.replace("-", "_") for name in names if name != "augment"]
    return {name: getattr(options, name) for name in fields if getattr(options, name) is not None}


def _help_with_default(name: str, meaning: str) -> str:
    value = getattr(TrainConfig(), name.replace("-", "_"))
    if value is None or ("; 0 " in meaning and not value):  # which is said already
        return meaning
    return f"{meaning} (default {f'{value:g}' if isinstance(value, float) else value})"
