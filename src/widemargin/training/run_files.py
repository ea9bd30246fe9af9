"""Validation of the files of a run folder; a ValueError states what is wrong.

These files can be edited, or written by another version, so every field that is used is validated here.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.images import MAX_IMAGE_SIZE
from ..io.errors import InputError, shorten
from ..io.options import format_setting
from ..losses.grammar import is_number
from ..metrics.confusion import Confusion
from . import checkpoint

if TYPE_CHECKING:
    from .config import TrainConfig

_MAX_ITEM_VALUES = 1 << 26  # numbers of an item
_TRAIN_METRIC_FIELDS = ("train_top1", "train_exact_match", "train_recall1")
_EPOCH_NUMBER_FIELDS = ("loss", *_TRAIN_METRIC_FIELDS, "knn", "lr", "seconds", "images_per_second", "step")


_NOT_IN_NAME = ("data", "model", "loss", "seed", "name", "epochs", "device")
_MAX_NAME_CHARS = 200  # file systems allow 255 bytes


def default_run_folder(config: TrainConfig) -> Path:
    """`runs/NAME`, with a name in characters that every file system accepts.

    The name holds the options that differ from their defaults, so that runs with other options have other folders; not
    the number of epochs and the device, with which a run may be resumed. A name that is too long ends in a hash.

    >>> from widemargin.training.config import TrainConfig
    >>> default_run_folder(TrainConfig("mnist", "fast", "softmax", seed=3)).as_posix()
    'runs/mnist-fast-softmax-seed3'
    >>> default_run_folder(TrainConfig("mnist", "fast", "softmax", lr=0.05, neck=True)).as_posix()
    'runs/mnist-fast-softmax-seed0-lr=0.05-neck'
    """
    words = config.name
    if words is None:
        words = f"{os.path.basename(config.data)}-{config.model}-{config.loss}-seed{config.seed}"
        for name, value in config.changed_values().items():
            if name not in _NOT_IN_NAME:
                words += f"-{name}" if value is True else f"-{name}={format_setting(value)}"
    name = re.sub(r"[^A-Za-z0-9.=_+-]+", "_", words).strip("_.") or "run"
    if len(name) > _MAX_NAME_CHARS:
        digest = hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()[:8]
        name = f"{name[: _MAX_NAME_CHARS - 9]}-{digest}"
    return Path("runs", name)


def check_no_run(folder: Path, remedy: str) -> None:
    """Raise InputError if a folder already holds a run; `remedy` is the end of the message."""
    if checkpoint.exists(folder / "checkpoints" / "last"):
        raise InputError(f"{folder} already contains a run: {remedy}")


def check_epoch_line(line: Any) -> dict[str, Any]:
    """A line of `metrics.jsonl`: an epoch, numbers, and names with numbers."""
    found = _check_encodable(_check_mapping(line, "it"))
    if type(found.get("epoch")) is not int or not 0 <= found["epoch"] < 2**31:
        raise ValueError("it has no epoch")
    for name in _EPOCH_NUMBER_FIELDS:
        _check_number(found.get(name, 0.0), name)
    for name in ("margin_values", "val"):
        for key, value in _check_mapping(found.get(name, {}), name).items():
            if name == "margin_values" or key in ("top1", "recall1", "map", "loss"):
                _check_number(value, key)
    _check_mapping(found.get("mining", {}), "mining")
    if "histogram" in found:
        _check_counts(_check_mapping(found["histogram"], "histogram").get("target"), "histogram")
    return found


def parse_record(value: Any) -> dict[str, Any]:
    """`record.json`: the metrics of a finished run, with its `confusion` as a `Confusion`."""
    found = _check_encodable(_check_mapping(value, "it"))
    _check_number(found.get("seconds", 0.0), "seconds")
    for name in ("test", "angles"):
        for key, figure in _check_mapping(found.get(name) or {}, name).items():
            if figure is not None and key != "tar":
                _check_number(figure, key)
    for key, ends in _check_mapping(found.get("intervals") or {}, "intervals").items():
        if ends is not None and not (isinstance(ends, list) and len(ends) == 2):
            raise ValueError(f"intervals.{shorten(key)} is not a pair of numbers")
        for end in ends or ():
            _check_number(end, f"intervals.{key}")
    _check_mapping(found.get("versions", {}), "versions")
    listed = _check_mapping(found.get("manifest", {}), "manifest")
    _check_number(listed.get("tested", 0), "tested")
    for part, count in _check_mapping(listed.get("images", {}), "images").items():
        _check_number(count, part)
    if found.get("confusion") is not None:
        found["confusion"] = Confusion.from_json(found["confusion"])
    return found


def check_input_spec(value: Any) -> dict[str, Any]:
    """`input_spec` of a checkpoint or hub folder: class names and the shape of the inputs."""
    found = _check_mapping(value, "input_spec")
    names = found.get("class_names")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError("input_spec.class_names is not a list of names")
    counts = found.get("class_counts", [0] * len(names))
    _check_counts(counts, "input_spec.class_counts")
    if len(counts) != len(names) or not all(type(n) is int for n in counts):
        raise ValueError("input_spec.class_counts must have one integer per class")
    for name in ("multilabel", "open_set"):
        if not isinstance(found.get(name, False), bool):
            raise ValueError(f"input_spec.{name} must be true or false")
    if "shape" in found:  # of a dataset's items
        shape = found["shape"]
        if not isinstance(shape, list) or not all(type(n) is int and 1 <= n <= _MAX_ITEM_VALUES for n in shape):
            raise ValueError("input_spec.shape is not a list of integers")
        if math.prod(shape) > _MAX_ITEM_VALUES:
            raise ValueError(f"input_spec.shape has more than {_MAX_ITEM_VALUES:,} numbers")
        for name, allowed in (("labels", ("numbers", "names")), ("dtype", ("float", "int64"))):
            if found.get(name) not in allowed:
                raise ValueError(f"input_spec.{name} must be one of {', '.join(allowed)}")
        _check_spec_classes(found)
        return found
    for name, low, high in (("channels", 1, 65_536), ("size", 1, MAX_IMAGE_SIZE), ("native_size", 0, 65_536)):
        if type(found.get(name)) is not int or not low <= found[name] <= high:
            raise ValueError(f"input_spec.{name} is not an integer from {low} to {high:,}")
    augment = _check_mapping(found.get("augment"), "input_spec.augment")
    for name in ("mean", "std"):
        if not isinstance(augment.get(name), list) or len(augment[name]) not in (1, found["channels"]):
            raise ValueError(f"input_spec.augment.{name} must have one number per channel")
    return found


def _check_spec_classes(found: dict[str, Any]) -> None:
    """Numbers in the labels of a dataset's classes, and the classes that were held out."""
    if not isinstance(found.get("declared_names", False), bool):
        raise ValueError("input_spec.declared_names must be true or false")
    held_out = found.get("val_class_names", [])
    if not isinstance(held_out, list) or not all(isinstance(name, str) for name in held_out):
        raise ValueError("input_spec.val_class_names is not a list of names")
    for name, names in (("class_numbers", found["class_names"]), ("val_class_numbers", held_out)):
        numbers = found.get(name, [0] * len(names))
        if not isinstance(numbers, list) or len(numbers) != len(names) or not all(type(n) is int for n in numbers):
            raise ValueError(f"input_spec.{name} must have one integer per class")


def check_training_state(value: Any) -> dict[str, Any]:
    """`state.json` of a checkpoint: epoch, step, and the state needed to resume."""
    found = _check_mapping(value, "state.json")
    for name in ("epoch", "step"):
        if type(found.get(name)) is not int or not 0 <= found[name] < 2**62:
            raise ValueError(f"{name} is not an integer of at least 0")
    for name in ("seconds", "best"):
        if found.get(name) is not None or name == "seconds":
            _check_number(found.get(name), name)
    for name in ("optimizer", "precision"):
        _check_mapping(found.get(name), name)
    plateau = _check_mapping(found.get("plateau"), "plateau")
    _check_number(plateau.get("best"), "plateau.best")  # infinite before the first epoch
    if type(plateau.get("num_bad_epochs")) is not int or not 0 <= plateau["num_bad_epochs"] < 2**62:
        raise ValueError("plateau.num_bad_epochs is not an integer of at least 0")
    if not is_number(plateau.get("lr_scale")) or not 0.0 <= plateau["lr_scale"] <= 1.0:
        raise ValueError("plateau.lr_scale is not a number from 0 to 1")
    if "manifest" in found and not isinstance(_check_mapping(found["manifest"], "manifest").get("digest"), str):
        raise ValueError("manifest has no digest")
    if found.get("mid_epoch") is not None:
        mid_epoch = _check_mapping(found["mid_epoch"], "mid_epoch")
        _check_number(mid_epoch.get("elapsed_seconds"), "mid_epoch.elapsed_seconds")
        if type(mid_epoch.get("step")) is not int or not isinstance(mid_epoch.get("rng_states"), list):
            raise ValueError("mid_epoch lacks step or rng_states")
        _check_mapping(mid_epoch.get("sums"), "mid_epoch.sums")
    return found


def _check_encodable(found: dict[str, Any]) -> dict[str, Any]:
    """Return `value` if it can be encoded as UTF-8: JSON can contain lone surrogates, which UTF-8 cannot encode."""
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it contains a lone surrogate, such as \\ud800") from None
    return found


def _check_mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not a mapping")
    return value


def _check_number(value: Any, what: str) -> None:
    if not is_number(value):
        raise ValueError(f"{shorten(what)} is not a number")


def _check_counts(value: Any, what: str) -> None:
    fine = isinstance(value, list) and value and all(is_number(n) and math.isfinite(n) and 0 <= n < 1e15 for n in value)
    if not fine:
        raise ValueError(f"{what} is not a list of counts")
