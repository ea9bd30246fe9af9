"""`widemargin reproduce`: tables and figures of the ArcGrad paper, ours beside theirs."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any


def add_parser(commands: Any) -> None:
    """One command per recipe: every file of `recipes`; what they share stands in its `parts`."""
    from .. import recipes

    parser = commands.add_parser("reproduce", help="tables and figures of the ArcGrad paper, made again")
    which = parser.add_subparsers(dest="recipe", metavar="RECIPE", required=True, parser_class=type(parser))
    for found in pkgutil.iter_modules(recipes.__path__):
        if found.ispkg:
            continue
        module = importlib.import_module(f"{recipes.__name__}.{found.name}")
        text = inspect.getdoc(module) or ""
        recipe = which.add_parser(found.name, help=text.partition("\n")[0], description=text)
        module.add(recipe)
        recipe.set_defaults(run=module.run)
