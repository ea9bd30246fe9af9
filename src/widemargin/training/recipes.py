"""Recipes: settings of well-known training runs as files, each with its source, expected figure and cost.

A file of `recipe_files/` holds `[config]`, fields of a `TrainConfig`, and `[cpu]`, what differs in a variant that a CPU
trains in seconds on generated images: it shows that everything works together, and is no result.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ..io.errors import InputError, unknown_name_error
from .config import TrainConfig

_FOLDER = "recipe_files"
CPU_SUFFIX = ":cpu"


@dataclass(frozen=True)
class Recipe:
    """Settings of a run, where they come from, and what to expect of them."""

    name: str
    title: str
    source: str
    expected: str
    """The published figure, and whether it was measured here."""
    cost: str
    departures: str
    """What differs from the source."""
    config: dict[str, Any]
    cpu: dict[str, Any]
    """Fields of the variant for CPUs, in place of those in `config`."""

    def values(self, *, cpu: bool = False) -> dict[str, Any]:
        """The fields of a `TrainConfig` that the recipe sets."""
        return {**self.config, **(self.cpu if cpu else {})}

    def __str__(self) -> str:
        facts = (
            ("source", self.source),
            ("expected", self.expected),
            ("cost", self.cost),
            ("departs", self.departures),
        )
        return "\n".join((f"{self.name}: {self.title}", *(f"  {name}: {text}" for name, text in facts)))


@cache
def list_recipes() -> tuple[str, ...]:
    """Names of the recipes.

    >>> list_recipes()
    ('adaface_r50', 'arcface_r50', 'cosface_r50_sampled', 'retrieval_vit')
    """
    folder = files(__package__) / _FOLDER
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")))


@cache
def load_recipe(name: str) -> Recipe:
    """The recipe of a name."""
    if name not in list_recipes():
        raise unknown_name_error("recipe", name, list_recipes())
    text = (files(__package__) / _FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    return Recipe(name=name, **tomllib.loads(text))


def recipe_values(text: str) -> dict[str, Any]:
    """The fields that `NAME` sets, or `NAME:cpu` for the variant that a CPU trains in seconds.

    >>> values = recipe_values("cosface_r50_sampled")
    >>> values["backend"], values["sample_rate"], "data" in values
    ('sampled', 0.2, False)
    """
    is_cpu = text.endswith(CPU_SUFFIX)
    return load_recipe(text.removesuffix(CPU_SUFFIX)).values(cpu=is_cpu)


def recipe_config(text: str, **changes: Any) -> TrainConfig:
    """The `TrainConfig` of a recipe with some fields changed; a recipe without data of its own needs `data`.

    >>> recipe_config("arcface_r50", data="faces", batch_size=512).lr
    0.2
    """
    values = {**recipe_values(text), **changes}
    if "data" not in values:
        raise InputError(f"the recipe {text} trains on your images: name them, as in recipe_config({text!r}, data=…)")
    return TrainConfig(**values)
