"""Flags of the original training scripts ("seeds"): `--gin scope.name=value …` and `--margin_loss`, as a `TrainConfig`.

Their commands configure the objects that the script builds by assignments: `build_transform.scale=(0.8,1)` for the
augmentation, `build_model.patch_size=2` for the model, `MarginHead.s=10` for the loss. Values are literals or bare
words and are never evaluated; an assignment without effect is an error, so that no setting is lost silently.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..io.errors import InputError, format_value, shorten, unknown_name_error
from ..io.options import add_arguments, given_values, options_of
from ..io.text import normalize_flag
from ..losses.grammar import MAX_LITERAL_CHARS, parse_call, parse_literal
from ..training.config import TrainConfig
from ..training.recipes import list_recipes, recipe_values

# The original script uses s = 10 for each of its three losses unless MarginHead.s is given, and its softmax is a cosine
# softmax: unit embeddings and unit class weights.
_SEED_LOSSES = {"arcface": "arcface(s=10)", "arcgrad": "arcgrad(s=10)", "softmax": "normface(s=10)"}
# Options of the model that other flags determine.
_RESERVED_MODEL_OPTIONS = {
    "size": "--input_size",
    "channels": "the data",
    "in_chans": "the data",
    "num_classes": "the data",
}
INTERPOLATIONS = ("nearest", "bilinear", "bicubic")

_ASSIGNMENT_START = re.compile(r"[A-Za-z_]\w*\s*\.\s*[A-Za-z_]\w*\s*=(?!=)")
_ASSIGNMENT_PATTERN = re.compile(r"\s*([A-Za-z_]\w*)\s*\.\s*([A-Za-z_]\w*)\s*=(.*)", re.DOTALL)
_SYNTAX_HINT = "write scope.name=value, such as MarginHead.s=10"

# Defaults of the original script; they apply only with --margin-loss.
_SEED_DEFAULTS: dict[str, Any] = {
    "epochs": 100,
    "warmup_epochs": 5.0,
    "warmup_lr": 1e-6,
    "min_lr": 1e-5,
    "schedule": "cosine",
    "augment": "seed",
    "neck": True,
    "weight_decay": 0.05,
    "opt": "adamw",
}


# Fields of `TrainConfig` with another spelling in the original script: the flag, and its attribute.
_SEED_SPELLINGS = {
    "data": ("--data-set", "seed_data"),
    "model": ("--model", "seed_model"),
    "repeated_augmentation": ("--ra", "seed_repeats"),
    "label_smoothing": ("--smoothing", "seed_smoothing"),
}


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the fields of `TrainConfig` and the original script's flags; `config_from_options` reads them."""
    add_arguments(parser, TrainConfig)
    parser.add_argument("--pretrained", action="store_true", help="start from timm's pretrained weights")
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        help=f"settings of a well-known run, which other options change: {', '.join(list_recipes())}; NAME:cpu is a "
        "variant on generated images that a CPU trains in seconds",
    )
    seeds = parser.add_argument_group("flags of the original training scripts")
    options = options_of(TrainConfig)
    for name, (flag, dest) in _SEED_SPELLINGS.items():
        ours = name.upper() if options[name].positional else f"--{name.replace('_', '-')}"
        seeds.add_argument(flag, dest=dest, type=options[name].parse_text, metavar="VALUE", help=f"as {ours}")
    seeds.add_argument("--data-location", metavar="DIR", help="as --data-dir: the data folder or its parent")
    seeds.add_argument("--margin-loss", metavar="LOSS", help="as LOSS, with the defaults of the original script")
    seeds.add_argument("--reprob", type=float, metavar="P", help="probability of random erasing")
    seeds.add_argument("--gin", nargs="+", default=[], metavar="NAME=VALUE", help="such as build_model.patch_size=2")


def config_from_options(options: argparse.Namespace) -> TrainConfig:
    """Return the config that the options describe."""
    return TrainConfig(**values_from_options(options))


def values_from_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a `TrainConfig` that the options give, in either spelling."""
    gin = parse_gin(options.gin)
    given = given_values(options, TrainConfig)
    values: dict[str, Any] = {**(_SEED_DEFAULTS if options.margin_loss else {}), **_recipe_defaults(options), **given}
    for name, (flag, dest) in _SEED_SPELLINGS.items():
        if (theirs := getattr(options, dest)) is not None:
            if (ours := getattr(options, name)) is not None:
                raise InputError(f"{name} is given twice: {shorten(str(ours))} and {flag} {shorten(str(theirs))}")
            values[name] = theirs
    if "data" in values:
        values["data"] = _resolve_data(values["data"], getattr(options, "data_dir", None))
    head = gin["MarginHead"]
    if options.margin_loss and options.loss:
        raise InputError("the loss is given twice, as LOSS and as --margin-loss; remove one")
    if options.margin_loss:
        values["loss"] = seed_loss_spec(options.margin_loss, head)
    elif head:
        raise InputError(f"--gin MarginHead.{next(iter(head))} belongs to --margin-loss: write its value in the loss")
    inside: dict[str, Any] = {}
    if options.augment is not None:
        values["augment"], inside = parse_call(options.augment, "--augment")
    erasing = {} if options.reprob is None else {"erase": options.reprob}
    pretrained = {"pretrained": True} if options.pretrained else {}
    augment_sources = (inside, options.augment_options or {}, gin["build_transform"], erasing)
    model_sources = (options.model_options or {}, gin["build_model"], pretrained)
    if options.augment is not None:
        values.pop("augment_options", None)  # a recipe's are those of its own augmentation
    if any(augment_sources):
        values["augment_options"] = _merge_settings(augment_sources, "augmentation", "--augment")
    if any(model_sources):
        values["model_options"] = _merge_settings(model_sources, "model", "--model-options")
    if run_name := options.name or os.environ.get("WANDB_NAME"):
        values["name"] = run_name
    return values


def _recipe_defaults(options: argparse.Namespace) -> dict[str, Any]:
    if options.recipe is None:
        return {}
    if options.margin_loss:
        raise InputError("--recipe and --margin-loss both set many options: give one of them")
    values = recipe_values(options.recipe)
    if "data" not in values and options.data is None and options.seed_data is None:
        raise InputError(f"--recipe {options.recipe} trains on your images: widemargin train DATA --recipe …")
    return values


def _merge_settings(sources: Iterable[Mapping[str, Any]], what: str, taken_from: str) -> dict[str, Any]:
    """Merge the options of one object from all sources."""
    merged: dict[str, Any] = {}
    for given in sources:
        for key, value in given.items():
            if key in merged:
                raise InputError(f"{key} of the {what} is given twice: remove it from {taken_from}")
            merged[key] = value
    return merged


def _resolve_data(given: str, data_dir: str | None) -> str:
    """A set by its own name, a folder or file by its whole path: a run is evaluated from elsewhere too.

    What lies in the folder of `--data-dir` keeps its path below it, so that it can be found below another one.
    """
    from ..data.images.sets import canonical_set_name

    known = canonical_set_name(given)
    path = os.path.expanduser(given)
    if not known and data_dir is not None and not os.path.isabs(path) and os.path.exists(os.path.join(data_dir, path)):
        return given
    return known or (os.path.abspath(path) if os.path.exists(path) else given)


def parse_gin(tokens: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse the words after `--gin` to scope → name → value; one word may hold several assignments.

    >>> parse_gin(["build_transform.scale=(0.8,1)", "build_model.patch_size=2 build_model.stem_type='deep'"])
    {'build_transform': {'scale': (0.8, 1.0)}, 'build_model': {'patch_size': 2, 'stem_type': 'deep'}, 'MarginHead': {}}
    """
    values: dict[str, dict[str, Any]] = {scope: {} for scope in _SCOPES}
    for token in [tokens] if isinstance(tokens, str) else tokens:
        for text in _split_assignments(token):
            scope, name, value = _parse_assignment(text)
            if name in values[scope]:
                raise InputError(f"--gin {scope}.{name} is given twice")
            values[scope][name] = value
    return values


def seed_loss_spec(name: str, head_options: Mapping[str, Any]) -> str:
    """Return our loss string for `--margin_loss` and the values of `MarginHead`.

    A name of the original script means its loss with the default s = 10; anything else is parsed as one of our losses,
    and the values of MarginHead replace its own.

    >>> seed_loss_spec("softmax", {}), seed_loss_spec("arcgrad", {"s": 5})
    ('normface(s=10)', 'arcgrad(s=5)')
    >>> seed_loss_spec("arcface(s=20, m=0.1)", {"s": 30})
    'arcface(s=30, m=0.1)'
    """
    from ..losses.grammar import Sum, parse
    from ..losses.margin import Margin
    from ..losses.registry import list_losses

    value = parse(_SEED_LOSSES.get(name.strip().lower(), name) if isinstance(name, str) else name)
    parts: list[tuple[float, Any]] = list(value.parts) if isinstance(value, Sum) else [(1.0, value)]
    margin_indices = [place for place, (_, loss) in enumerate(parts) if isinstance(loss, Margin)]
    if not margin_indices:
        raise InputError(f"{shorten(name)!r} is not a margin; margins are {', '.join(list_losses('margins'))}")
    factor, margin = parts[margin_indices[0]]
    for key in head_options:
        if key not in margin.options():
            what = f"--gin MarginHead: {margin.name}, which --margin_loss {shorten(name)!r} means, has"
            raise InputError(f"{what} no {key} (it has {', '.join(margin.options()) or 'none'})")
    parts[margin_indices[0]] = (factor, replace(margin, **head_options))
    return repr(Sum(tuple(parts)) if isinstance(value, Sum) else parts[0][1])


def _split_assignments(token: str) -> list[str]:
    """Split one word into assignments, at spaces outside brackets and quotes before another one begins."""
    if not isinstance(token, str) or not token.strip():
        raise InputError(f"--gin got an empty word; {_SYNTAX_HINT}")
    if len(token) > MAX_LITERAL_CHARS:
        raise InputError(
            f"--gin {shorten(token)!r}: {len(token)} characters are too many (at most {MAX_LITERAL_CHARS})"
        )
    cuts, depth, quote, escaped = [0], 0, "", False
    for place, letter in enumerate(token):
        if quote:
            quote = "" if letter == quote and not escaped else quote
            escaped = letter == "\\" and not escaped
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif depth == 0 and letter.isspace() and token[:place].strip() and _ASSIGNMENT_START.match(token, place + 1):
            cuts.append(place)
    return [token[start:end] for start, end in zip(cuts, [*cuts[1:], len(token)], strict=True)]


def _parse_assignment(text: str) -> tuple[str, str, Any]:
    match = _ASSIGNMENT_PATTERN.fullmatch(text)
    if match is None:
        missing = "has no =" if "=" not in text else "has no scope.name before its ="
        raise InputError(f"--gin {shorten(text.strip())!r} {missing}; {_SYNTAX_HINT}")
    scope, name, text_value = match.groups()
    if scope not in _SCOPES:
        raise unknown_name_error("scope in --gin", scope, _SCOPES)
    where = f"--gin {scope}.{name}"
    checks = _SCOPES[scope]
    if checks is not None and name not in checks:
        raise unknown_name_error(f"name in --gin {scope}", name, checks)
    if checks is None and name in _RESERVED_MODEL_OPTIONS:
        raise InputError(f"{where}: is determined by {_RESERVED_MODEL_OPTIONS[name]}")
    value = parse_literal(text_value, where)
    if isinstance(value, str) and value[:1] in ("(", "["):  # quotes that a shell left around a tuple
        value = parse_literal(value, where)
    return scope, name, value if checks is None else checks[name](value, where)


def _check_numbers(value: Any, where: str, example: str) -> tuple[float, ...]:
    items = value if isinstance(value, tuple | list) else (value,)
    if not items or any(isinstance(item, bool) or not isinstance(item, int | float) for item in items):
        raise InputError(f"{where}={format_value(value)} must be numbers, such as {example}")
    return tuple(float(item) for item in items)


def _range_checker(max_value: float, example: str) -> Callable[[Any, str], Any]:
    def check(value: Any, where: str) -> tuple[float, float]:
        pair = _check_numbers(value, where, example)
        if len(pair) != 2 or not 0 < pair[0] <= pair[1] <= max_value:
            most = f", at most {max_value:g}" if max_value < 1e9 else ""
            raise InputError(
                f"{where}={format_value(value)} must be two increasing numbers above 0{most}, as {example}"
            )
        return pair[0], pair[1]

    return check


def _check_mean(value: Any, where: str) -> tuple[float, ...]:
    return _check_numbers(value, where, "(0.4914, 0.4822, 0.4465), one per channel")


def _check_std(value: Any, where: str) -> tuple[float, ...]:
    numbers = _check_numbers(value, where, "(0.2470, 0.2435, 0.2616), one per channel")
    if min(numbers) <= 0:
        raise InputError(f"{where}={format_value(value)} must be above 0 in every channel")
    return numbers


def _check_probability(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{where}={format_value(value)} must be a number from 0 to 1")
    return float(value)


def _check_interpolation(value: Any, where: str) -> str:
    if value not in INTERPOLATIONS:
        raise unknown_name_error(f"value of {where}", shorten(str(value)), INTERPOLATIONS)
    return str(value)


def _check_number(value: Any, where: str) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where}={format_value(value)} must be a number")
    return value


# Scope → name → check of its value; values of a scope without checks are passed on unchanged.
_SCOPES: dict[str, dict[str, Callable[[Any, str], Any]] | None] = {
    "build_transform": {
        "scale": _range_checker(1.0, "(0.8, 1)"),
        "ratio": _range_checker(1e9, "(0.75, 1.3333)"),
        "mean": _check_mean,
        "std": _check_std,
        "hflip": _check_probability,
        "interpolation": _check_interpolation,
    },
    "build_model": None,
    "MarginHead": {"s": _check_number, "m": _check_number},
}


# A recipe that is one command of the original scripts: as printed, or its first epoch on a part of the images.

# In CPU size a run only shows that model, neck, loss, augmentation and optimizer work together.
_CPU_OVERRIDES: dict[str, Any] = {
    "epochs": 1,
    "warmup_epochs": 0.0,
    "train_fraction": 0.02,
    "ckpt_freq": 0,
    "precision": "bf16-mixed",
}


def add_seed_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts import runs

    runs.add_image_arguments(parser, seeds=None)


def make_seed_config(command: str, size: str, name: str) -> TrainConfig:
    """Return the config of an original command, in full or in CPU size."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_train_arguments(parser)
    options = parser.parse_args([normalize_flag(word) for word in shlex.split(command)[2:]])
    full = replace(config_from_options(options), name=name)
    return full if size == "full" else replace(full, **_CPU_OVERRIDES)


def run_seed_recipe(options: argparse.Namespace, recipe: str, command: str, name: str, seed_top1: float) -> None:
    """Train if missing, and print our result next to the original one."""
    from pathlib import Path

    from ..training.evaluate import format_metrics
    from .parts.runs import complete_image_runs, read_record

    config = make_seed_config(command, options.size, name)
    out = complete_image_runs([config], options, recipe)
    record = read_record(config, Path(options.runs_dir))
    if record is None:
        return
    test = record["test"]
    print(
        f"{config.model}, {config.loss}, {config.epochs} epochs of {100 * config.train_fraction:g} % "
        "of the training images:"
    )
    print(f"{format_metrics(test)} ({record['seconds']:.0f} s)")
    note = "" if options.size == "full" else "; one epoch of a fiftieth of the images only shows that it runs"
    print(f"published result after all epochs: {seed_top1:.2f} %{note}")
    print(f"wrote {out / 'records.jsonl'}")
