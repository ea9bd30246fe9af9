"""`widemargin reproduce`: tables and figures of the papers, with the published values."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
from collections.abc import Sequence
from pathlib import Path

from .. import reproduce
from .parser import select_subcommands

_SHARED = ("__init__", "paper", "seed_flags")  # shared by recipes; more of it is in `reproduce.parts`


def recipe_names() -> list[str]:
    """Return the names of the recipes: the files of `reproduce` that define one."""
    return sorted(path.stem for path in Path(reproduce.__path__[0]).glob("*.py") if path.stem not in _SHARED)


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> None:
    """Add one subcommand per recipe; only the recipe named in `argv` is imported."""
    subparsers = parser.add_subparsers(dest="recipe", metavar="RECIPE", required=True, parser_class=type(parser))
    needed = select_subcommands(recipe_names(), argv)
    for name in recipe_names():
        text = inspect.cleandoc(_read_docstring(name))
        recipe = subparsers.add_parser(name, help=text.partition("\n")[0], description=text)
        if name in needed:
            module = importlib.import_module(f"{reproduce.__name__}.{name}")
            module.add_arguments(recipe)
            recipe.set_defaults(run=module.run)


def _read_docstring(name: str) -> str:
    """Return the docstring of a recipe's file without importing it."""
    source = Path(reproduce.__path__[0]).joinpath(f"{name}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)) or ""
