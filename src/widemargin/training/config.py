"""`TrainConfig`: one experiment on images as a frozen value, to JSON and back, and as a command line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..data.images import MAX_IMAGE_SIZE
from ..io import bounded
from ..io.bounded import read_file
from ..io.errors import InputError, format_value, unknown_name_error

OPTIMIZERS = ("adam", "adamw", "sgd", "muon")
SCHEDULES = ("onecycle", "cosine", "plateau", "constant")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true")
_MAX_COUNT = 2**31 - 1  # of anything that is counted; beyond it something deep inside would give up
_MAX_SEED = 2**63 - 1
_MAX_FLOAT = 1e300


@dataclass(frozen=True)
class TrainConfig:
    """What is trained, on what, and how. Defaults are the paper's for CIFAR-10 (its Table III), except the rate."""

    data: str = "cifar10"
    model: str = "resnet18"
    loss: str = "arcgrad(s=10)"
    epochs: int = 120
    batch_size: int = 256
    seed: int = 0
    opt: str = "adam"
    lr: float = 0.001
    weight_decay: float = 5e-4
    momentum: float = 0.9
    schedule: str = "onecycle"
    warmup_epochs: float = 0.0
    warmup_lr: float = 1e-6
    min_lr: float = 0.0
    label_smoothing: float = 0.0
    augment: str = "paper"
    augment_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    neck: bool = False
    embedding_dim: int = 0
    """Length of the embeddings, by a linear layer behind the backbone; 0 keeps the backbone's own."""
    repeated_augmentation: int = 1
    """Repeated augmentation: how often each image stands in an epoch's order, one after the other."""
    input_size: int | None = None
    per_class: int = 0
    """Images of each class in a batch (P×K batches, for losses on pairs and triplets); 0 takes images as they come."""
    unseen_classes: float = 0.0
    """Part of the classes that training never sees; their images are what the run is evaluated on."""
    train_fraction: float = 1.0
    """Part of the training images that is used (Figure 3)."""
    val_fraction: float = 0.0
    """Part of the training images kept back to choose by; the test images never choose anything."""
    accumulate: int = 1
    clip: float = 0.0
    """Largest gradient norm; 0 does not clip."""
    ema: float = 0.0
    """Decay of the averaged weights that are evaluated; 0 keeps no average."""
    precision: str = "32-true"
    compile: bool = False
    channels_last: bool = True
    sync_bn: bool = True
    """Batch norm over the images of all GPUs; alone and on CPUs it has no meaning."""
    ckpt_freq: int = 0
    """Epochs between checkpoints that are kept, beside the last one."""
    init_from: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        for name in ("augment_options", "model_options"):
            value = getattr(self, name)
            if not isinstance(value, Mapping):
                raise InputError(f"{name} must be names with values, got {format_value(value)}")
            object.__setattr__(self, name, {_check_utf8(key): _normalize_value(inner) for key, inner in value.items()})
        for name in ("data", "model", "loss", "augment", "opt", "schedule", "precision", "init_from", "name"):
            value = getattr(self, name)
            optional = name in ("init_from", "name")
            if not (
                value is None if optional and not isinstance(value, str) else isinstance(value, str) and value.strip()
            ):
                raise InputError(f"{name} must be a text{' or nothing' if optional else ''}, got {format_value(value)}")
            _normalize_value(value)
        for name in ("neck", "compile", "channels_last", "sync_bn"):
            if not isinstance(getattr(self, name), bool):  # the word "false" would count as true
                raise InputError(f"{name} must be true or false, got {format_value(getattr(self, name))}")
        for name, allowed in (("opt", OPTIMIZERS), ("schedule", SCHEDULES), ("precision", PRECISIONS)):
            if getattr(self, name) not in allowed:
                raise unknown_name_error(name, getattr(self, name), allowed)
        for name, low in (
            ("epochs", 1),
            ("batch_size", 1),
            ("repeated_augmentation", 1),
            ("accumulate", 1),
            ("ckpt_freq", 0),
            ("per_class", 0),
            ("embedding_dim", 0),
            ("seed", 0),
        ):
            value = getattr(self, name)
            most = _MAX_SEED if name == "seed" else _MAX_COUNT
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise InputError(f"{name} must be a whole number of at least {low}, got {format_value(value)}")
            if value > most:
                raise InputError(f"{name} must be at most {most:,}, got {format_value(value)}")
        for name in ("lr", "weight_decay", "momentum", "warmup_epochs", "warmup_lr", "min_lr", "clip"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MAX_FLOAT:
                raise InputError(f"{name} must be a number of at least 0, got {format_value(value)}")
        for name, low, high in (
            ("train_fraction", 0, 1),
            ("val_fraction", 0, 1),
            ("ema", 0, 1),
            ("label_smoothing", 0, 1),
            ("unseen_classes", 0, 1),
        ):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not (low < value <= high if name == "train_fraction" else low <= value < high):
                raise InputError(f"{name} must lie between {low} and {high}, got {format_value(value)}")
        size = self.input_size
        if size is not None and (type(size) is not int or not 1 <= size <= MAX_IMAGE_SIZE):
            raise InputError(
                f"input_size must be a whole number from 1 to {MAX_IMAGE_SIZE:,}, got {format_value(size)}"
            )

    @property
    def data_name(self) -> str:
        """The set's name, or a folder's own without the path to it."""
        return Path(self.data).name

    def to_command(self) -> list[str]:
        """The words of `widemargin train …` that describe this config."""
        return build_train_command(self)

    def to_json(self) -> str:
        """The config as JSON; `from_json` reads it back to an equal config."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "run.json") -> TrainConfig:
        """The config in a JSON text; a field that does not exist is an error. `where` names the file in messages."""
        values = bounded.parse_json(text, where)
        if not isinstance(values, dict):
            raise InputError(f"{where}: holds no run")
        allowed = [spec.name for spec in fields(cls)]
        for name in values:
            if name not in allowed:
                raise InputError(f"{where}: {unknown_name_error('field of a run', name, allowed)}")
        try:
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise InputError(f"{where}: {error}") from None

    @classmethod
    def read(cls, folder: str | Path) -> TrainConfig:
        """The config of a run folder, from its `run.json`."""
        path = Path(folder) / "run.json"
        try:
            return cls.from_json(read_file(path, bounded.MAX_JSON_BYTES), str(path))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error}); is {folder} a run?") from None


def _normalize_value(value: Any) -> Any:
    """Lists as tuples: JSON has only the former, and a config that was read back must equal the one written."""
    if isinstance(value, str):
        return _check_utf8(value)
    if isinstance(value, int | float) and not abs(value) < _MAX_FLOAT:  # JSON has no NaN, and NaN is not itself
        raise InputError(f"{format_value(value)} is no value for an option of a run; write a finite number")
    if isinstance(value, Mapping):
        return {_check_utf8(key): _normalize_value(inner) for key, inner in value.items()}
    return tuple(_normalize_value(inner) for inner in value) if isinstance(value, list | tuple) else value


def _check_utf8(text: Any) -> str:
    """A text that can be written to a file; bytes of a path that are no UTF-8 cannot."""
    found = str(text)
    try:
        found.encode()
    except UnicodeEncodeError:
        raise InputError(f"{format_value(found)} is no text in UTF-8; rename it") from None
    return found


_POSITIONAL_FIELDS = ("data", "model", "loss")
_COMPOSITE_FIELDS = ("augment", "augment_options", "model_options")


def build_train_command(config: TrainConfig) -> list[str]:
    """Words that describe the same run when they are typed again; what is as by default is left out.

    A folder must be given by its whole path, and a set by its usual name, as the command itself writes them.

    >>> config = TrainConfig("mnist", "fast", "arcgrad(s=10)", lr=0.05, neck=True, repeated_augmentation=3)
    >>> build_train_command(config)
    ['widemargin', 'train', 'mnist', 'fast', 'arcgrad(s=10)', '--lr', '0.05', '--neck', '--repeated-augmentation', '3']
    """
    defaults = TrainConfig()
    words = ["widemargin", "train", *(str(getattr(config, name)) for name in _POSITIONAL_FIELDS)]
    for name in (spec.name for spec in fields(TrainConfig)):
        value = getattr(config, name)
        if name not in (*_POSITIONAL_FIELDS, *_COMPOSITE_FIELDS) and value != getattr(defaults, name):
            words += _format_flag(name.replace("_", "-"), value)
    if config.augment != defaults.augment or config.augment_options:
        words += _format_flag("augment", format_with_options(config.augment, config.augment_options))
    if config.model_options:
        words += ["--gin", *(f"build_model.{name}={value!r}" for name, value in config.model_options.items())]
    return words


def format_with_options(name: str, options: Mapping[str, Any]) -> str:
    """A name with options as we write them everywhere; those that stand in the name already come first.

    >>> format_with_options("fast", {}), format_with_options("resnet18(stem_type=deep)", {"output_stride": 8})
    ('fast', 'resnet18(stem_type=deep, output_stride=8)')
    """
    if not options:
        return name
    inside = ", ".join(f"{key}={value!r}" for key, value in options.items())
    before = name.strip().removesuffix(")")
    if before == name.strip():
        return f"{before}({inside})"
    return f"{before}{inside})" if before.rstrip().endswith(("(", ",")) else f"{before}, {inside})"


def _format_flag(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    written = repr(float(value)) if isinstance(value, float) else str(value)
    return [f"--{name}={written}"] if written.startswith("-") else [f"--{name}", written]


# Command-line options of a `TrainConfig`.

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
