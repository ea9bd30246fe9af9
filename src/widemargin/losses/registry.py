"""The registry of losses: finds them by file name.

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
    "softmax": "where to start, and what the others are compared with; no margin",
    "margin": "faces, products, species, any open set; one margin for all samples and classes",
    "self-tuning": "no number to choose; the scale or the margin follows every batch",
    "hard-classes": "many classes and clean labels; classes that come too near to a sample count more",
    "quality": "images of very different quality, which the length of an embedding tells",
    "long-tail": "few classes have most of the samples",
    "noisy-labels": "wrong labels, or classes of several kinds; several weights per class",
    "one-vs-all": "open sets judged by one threshold; a yes or no for every class in place of one softmax",
    "speakers": "as speaker verification trains",
    "proxies": "retrieval; vectors of the classes take the place of samples to compare with",
    "pairs": "embeddings compared with each other: open sets, retrieval, views of one image; alone or beside a margin",
    "regularizers": "class weights kept apart; only beside a loss that has some",
    "classical": "losses on predictions and targets, what the others grew out of",
}
"""For whom losses are: each one names its group. In the order in which they are listed."""


@functools.cache
def _family_by_name() -> dict[str, str]:
    """Family (`margins`, `pairs`, …) of every loss by its name, from the file names alone."""
    here = Path(__file__).parent
    found: dict[str, str] = {}
    for family in LOSS_FAMILIES:
        for module in pkgutil.iter_modules([str(here / family)]):
            if module.name in found:
                raise InputError(f"{module.name}.py is in two families, {found[module.name]} and {family}")
            if not module.name.startswith("_"):
                found[module.name] = family
    return found


def list_losses(family: str | None = None, *, group: str | None = None) -> list[str]:
    """Names of all losses, of one family (`margins`, `pairs`, …) or of one group (`LOSS_GROUPS`).

    >>> "arcgrad" in list_losses("margins"), "triplet" in list_losses("pairs"), "focal" in list_losses()
    (True, True, True)
    >>> list_losses(group="long-tail")
    ['ldam', 'logit_adjusted']
    """
    if family is not None and family not in LOSS_FAMILIES:
        raise unknown_name_error("family of losses", family, LOSS_FAMILIES)
    if group is not None and group not in tuple(LOSS_GROUPS):
        raise unknown_name_error("group of losses", group, LOSS_GROUPS)
    found = _family_by_name()
    return [
        name
        for candidate in LOSS_FAMILIES
        for name in sorted(found)
        if found[name] == candidate and family in (None, candidate)
        if group is None or loss_class(name).group == group
    ]


@functools.cache
def loss_class(name: str) -> type[Loss]:
    """The class of a loss by its name; its module is imported here."""
    from .base import Loss

    module = importlib.import_module(f"{__package__}.{_family_by_name()[name]}.{name}")
    for item in vars(module).values():
        if isinstance(item, type) and issubclass(item, Loss) and item.__module__ == module.__name__:
            if item.name != name:
                raise InputError(f"{module.__name__}: the loss calls itself {item.name!r}; name it like its file")
            if item.group not in LOSS_GROUPS:
                raise unknown_name_error(f"group of {name}", item.group, LOSS_GROUPS)
            return item
    raise InputError(f"{module.__name__}: no loss in this file")


@functools.cache
def canonical_names() -> dict[str, str]:
    """Every name and alias, and the name it stands for."""
    table: dict[str, str] = {}
    for name in list_losses():
        for spelling in (name, *loss_class(name).aliases):
            if spelling in table:
                raise InputError(f"{spelling!r} is the name of two losses, {table[spelling]} and {name}")
            table[spelling] = name
    return table


def find_loss_class(class_name: str) -> type[Loss] | None:
    """The loss whose class is called `class_name` (`ArcFace`), for `widemargin.ArcFace`."""
    for name in list_losses():
        # The file name without underscores is the class name in small letters.
        if name.replace("_", "") == class_name.lower() and loss_class(name).__name__ == class_name:
            return loss_class(name)
    return None
