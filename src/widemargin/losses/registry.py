"""Registry of losses, which finds them by file name.

A loss is a file in `margins/`, `pairs/`, `regularizers/` or `classical/`; its file name is its name. Names are known
without importing anything, so the command line stays fast; classes are imported when asked for.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

from ..io.errors import InputError, unknown_name_error

if TYPE_CHECKING:
    from .base import Loss


LOSS_FAMILIES = ("margins", "pairs", "regularizers", "classical")
LOSS_GROUPS = {
    "softmax": "baselines without a margin",
    "margin": "faces, products, species, any open set; one margin for all samples and classes",
    "self-tuning": "no parameters; the scale or the margin adapts to every batch",
    "hard-classes": "many classes and clean labels; classes too near to a sample count more",
    "quality": "images of very different quality, estimated by the norm of the embedding",
    "long-tail": "few classes have most of the samples",
    "noisy-labels": "wrong labels, or classes with several modes; several weights per class",
    "one-vs-all": "open sets with one threshold; a binary decision per class instead of one softmax",
    "speakers": "speaker verification",
    "proxies": "retrieval; samples are compared with one or more vectors per class",
    "pairs": "samples compared with each other: open sets, retrieval, views of one image; alone or added to a margin",
    "regularizers": "class weights kept apart; only added to a loss that has some",
    "classical": "losses on predictions and targets",
}
"""Groups of losses by use, in the order in which they are listed; each loss names its group."""


@functools.cache
def _family_by_name() -> dict[str, str]:
    """Return the family (`margins`, `pairs`, …) of every loss by name, from the file names alone."""
    here = Path(__file__).parent
    families: dict[str, str] = {}
    for family in LOSS_FAMILIES:
        for module in pkgutil.iter_modules([str(here / family)]):
            if module.name in families:
                raise InputError(f"{module.name}.py is in two families, {families[module.name]} and {family}")
            if not module.name.startswith("_"):
                families[module.name] = family
    return families


def list_losses(family: str | None = None, *, group: str | None = None) -> list[str]:
    """Return the names of all losses, of one family (`margins`, `pairs`, …) or of one group (`LOSS_GROUPS`).

    >>> "arcgrad" in list_losses("margins"), "triplet" in list_losses("pairs"), "focal" in list_losses()
    (True, True, True)
    >>> list_losses(group="long-tail")
    ['ldam', 'logit_adjusted']
    """
    if family is not None and family not in LOSS_FAMILIES:
        raise unknown_name_error("family of losses", family, LOSS_FAMILIES)
    if group is not None and group not in tuple(LOSS_GROUPS):
        raise unknown_name_error("group of losses", group, LOSS_GROUPS)
    families = _family_by_name()
    return [
        name
        for candidate in LOSS_FAMILIES
        for name in sorted(families)
        if families[name] == candidate and family in (None, candidate)
        if group is None or loss_class(name).group == group
    ]


@functools.cache
def loss_class(name: str) -> type[Loss]:
    """Import and return the class of a loss by name."""
    from .base import Loss

    module = importlib.import_module(f"{__package__}.{_family_by_name()[name]}.{name}")
    for item in vars(module).values():
        if isinstance(item, type) and issubclass(item, Loss) and item.__module__ == module.__name__:
            if item.name != name:
                raise InputError(f"{module.__name__}: the loss is named {item.name!r}; give it the name of its file")
            if item.group not in LOSS_GROUPS:
                raise unknown_name_error(f"group of {name}", item.group, LOSS_GROUPS)
            return item
    raise InputError(f"{module.__name__}: this file defines no loss")


@functools.cache
def canonical_names() -> dict[str, str]:
    """Map every name and alias to the name of the loss."""
    table: dict[str, str] = {}
    for name in list_losses():
        for spelling in (name, *loss_class(name).aliases):
            if spelling in table:
                raise InputError(f"{spelling!r} is the name of two losses, {table[spelling]} and {name}")
            table[spelling] = name
    return table


def find_loss_class(class_name: str) -> type[Loss] | None:
    """Return the loss with the class name `class_name` (`ArcFace`), for `widemargin.ArcFace`."""
    for name in list_losses():
        # The file name without underscores is the class name in lower case.
        if name.replace("_", "") == class_name.lower() and loss_class(name).__name__ == class_name:
            return loss_class(name)
    return None
