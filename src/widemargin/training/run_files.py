"""What the files of a run folder must hold for those who read them; a ValueError says what is wrong in a few words.

Anybody can edit these files, and older or newer versions may have written them: what is read elsewhere by name is
looked at here once.
"""

from __future__ import annotations

import json
import math
from typing import Any

from ..errors import short
from ..literal import is_number
from ..metrics.confusion import Confusion
from ..run import LARGEST_SIDE

_NUMBERS = ("loss", "train_top1", "lr", "seconds", "images_per_second", "step")


def epoch_line(line: Any) -> dict[str, Any]:
    """A line of `metrics.jsonl`: an epoch, numbers, and names with numbers."""
    found = _written(_names(line, "it"))
    if type(found.get("epoch")) is not int or not 0 <= found["epoch"] < 2**31:
        raise ValueError("it has no epoch")
    for name in _NUMBERS:
        _number(found.get(name, 0.0), name)
    for name in ("numbers", "held_out"):
        for key, value in _names(found.get(name, {}), name).items():
            if name == "numbers" or key in ("top1", "recall1", "loss"):
                _number(value, key)
    _names(found.get("mining", {}), "mining")
    if "histogram" in found:
        _counts(_names(found["histogram"], "histogram").get("own"), "histogram")
    return found


def record(value: Any) -> dict[str, Any]:
    """`record.json`: the figures of a finished run, with its `confusion` as a `Confusion`."""
    found = _written(_names(value, "it"))
    _number(found.get("seconds", 0.0), "seconds")
    for name in ("test", "angles"):
        for key, figure in _names(found.get(name) or {}, name).items():
            if figure is not None and key != "tar":
                _number(figure, key)
    for key, ends in _names(found.get("intervals") or {}, "intervals").items():
        if ends is not None and not (isinstance(ends, list) and len(ends) == 2):
            raise ValueError(f"intervals.{short(key)} is no pair of numbers")
        for end in ends or ():
            _number(end, f"intervals.{key}")
    _names(found.get("versions", {}), "versions")
    listed = _names(found.get("manifest", {}), "manifest")
    _number(listed.get("tested", 0), "tested")
    for part, count in _names(listed.get("images", {}), "images").items():
        _number(count, part)
    if found.get("confusion") is not None:
        found["confusion"] = Confusion.from_json(found["confusion"])
    return found


def sees(value: Any) -> dict[str, Any]:
    """`sees` in a checkpoint or a model's folder: what the network must know of its images."""
    found = _names(value, "sees")
    classes = found.get("classes")
    if not isinstance(classes, list) or not classes or not all(isinstance(name, str) for name in classes):
        raise ValueError("sees.classes is no list of names")
    for name, low, high in (("channels", 1, 65_536), ("size", 1, LARGEST_SIDE), ("native", 0, 65_536)):
        if type(found.get(name)) is not int or not low <= found[name] <= high:
            raise ValueError(f"sees.{name} is no whole number from {low} to {high:,}")
    augment = _names(found.get("augment"), "sees.augment")
    for name in ("mean", "std"):
        if not isinstance(augment.get(name), list) or len(augment[name]) not in (1, found["channels"]):
            raise ValueError(f"sees.augment.{name} has not one number per channel")
    return found


def progress(value: Any) -> dict[str, Any]:
    """`state.json` of a checkpoint: how far a run is, and the numbers it goes on with."""
    found = _names(value, "state.json")
    for name in ("epoch", "step"):
        if type(found.get(name)) is not int or not 0 <= found[name] < 2**62:
            raise ValueError(f"{name} is no whole number of at least 0")
    for name in ("seconds", "best"):
        if found.get(name) is not None or name == "seconds":
            _number(found.get(name), name)
    for name in ("optimizer", "precision"):
        _names(found.get(name), name)
    plateau = _names(found.get("plateau"), "plateau")
    for name in ("best", "waited", "dropped"):
        _number(plateau.get(name), f"plateau.{name}")
    if "manifest" in found and not isinstance(_names(found["manifest"], "manifest").get("digest"), str):
        raise ValueError("manifest has no digest")
    if found.get("within") is not None:
        within = _names(found["within"], "within")
        _number(within.get("spent"), "within.spent")
        if type(within.get("step")) is not int or not isinstance(within.get("random"), list):
            raise ValueError("within has no step and random numbers")
        _names(within.get("sums"), "within.sums")
    return found


def _written(found: dict[str, Any]) -> dict[str, Any]:
    """The same, once it is seen that it can be written again: JSON can spell halves of characters, UTF-8 cannot."""
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half a character, such as \\ud800") from None
    return found


def _names(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} holds no names with values")
    return value


def _number(value: Any, what: str) -> None:
    if not is_number(value):
        raise ValueError(f"{short(what)} is no number")


def _counts(value: Any, what: str) -> None:
    fine = isinstance(value, list) and value and all(is_number(n) and math.isfinite(n) and 0 <= n < 1e15 for n in value)
    if not fine:
        raise ValueError(f"{what} holds no counts")
