"""Finds the losses and reads the little language: the only registry.

A loss is a file in `margins/`, `terms/` or `classical/`; its file name is its name. Names are known
without importing anything, so the command line stays fast; classes are imported when asked for.

The language: `name(option=value, …)`. Values are Python literals, bare words, lists (one number per
class) or schedules; `a + 0.5*b` is a sum; a comma outside parentheses separates losses of a list.
Nothing is ever evaluated: the text is read as a syntax tree and only these shapes are accepted.
"""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..io.errors import InputError, shorten, unknown_name_error

if TYPE_CHECKING:
    from .base import Loss
    from .margin import Margin


LOSS_FAMILIES = ("margins", "terms", "classical")
# Longer than any honest spelling except one number per class for very many classes.
_MAX_SPEC_CHARS = 4_000_000


@dataclass(frozen=True, repr=False)
class Sum:
    """A weighted sum of losses, `arcface + 0.02*center`; its repr is its parse string."""

    parts: tuple[tuple[float, Loss], ...]

    def __repr__(self) -> str:
        from .schedule import format_number

        return " + ".join(
            repr(loss) if factor == 1.0 else f"{format_number(factor)}*{loss!r}" for factor, loss in self.parts
        )


@functools.cache
def _family_by_name() -> dict[str, str]:
    """Name of every loss and the shelf it stands on, from the file names alone."""
    here = Path(__file__).parent
    found: dict[str, str] = {}
    for family in LOSS_FAMILIES:
        for module in pkgutil.iter_modules([str(here / family)]):
            if module.name in found:
                raise InputError(f"{module.name}.py stands on two shelves, {found[module.name]} and {family}")
            if not module.name.startswith("_"):
                found[module.name] = family
    return found


def list_losses(family: str | None = None) -> list[str]:
    """Names of all losses, or of one shelf: `margins`, `terms` or `classical`.

    >>> "arcgrad" in losses("margins"), "triplet" in losses("terms"), "focal" in losses()
    (True, True, True)
    """
    if family is not None and family not in LOSS_FAMILIES:
        raise unknown_name_error("shelf", family, LOSS_FAMILIES)
    found = _family_by_name()
    return [
        name
        for candidate in LOSS_FAMILIES
        for name in sorted(found)
        if found[name] == candidate and family in (None, candidate)
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
            return item
    raise InputError(f"{module.__name__}: no loss in this file")


@functools.cache
def _canonical_names() -> dict[str, str]:
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


def parse(text: str) -> Any:
    """The value that `text` describes: a loss, or a `Sum` of losses.

    >>> parse("arcface(m=0.3)")
    arcface(s=64, m=0.3)
    >>> parse("softmax + 0.02*center")
    softmax + 0.02*center(alpha=0.5)
    >>> parse("arcface(s=64, m=warmup(0, 0.5, steps_per_epoch=1000))").m
    warmup(start=0, end=0.5, steps=1000)
    """
    found = _read_losses(text, _parse_loss_expression(text))
    if len(found) > 1:
        raise InputError(f"{shorten(text)!r} is a list of {len(found)} losses where one is wanted")
    return found[0]


def parse_list(text: str) -> list[Any]:
    """The losses of a comma-separated list; commas inside parentheses do not split it.

    >>> parse_list("softmax, arcgrad(s=5), arcface(s=20, m=0.1)")
    [softmax, arcgrad(s=5), arcface(s=20, m=0.1)]
    """
    return _read_losses(text, _parse_loss_expression(text))


def parse_margin(text: str) -> Margin:
    """A margin by its parse string; anything else is an error that names the margins."""
    from .margin import Margin

    value = parse(text)
    if not isinstance(value, Margin):
        raise InputError(f"{shorten(text)!r} is not a margin; margins are {', '.join(list_losses('margins'))}")
    return value


def _parse_loss_expression(text: str) -> ast.expr:
    if not isinstance(text, str):
        raise InputError(f"a loss is written as text, such as 'arcface(m=0.3)'; got {type(text).__name__}")
    if not text.strip():
        raise InputError("an empty loss; write a name such as 'arcface(m=0.3)'")
    if len(text) > _MAX_SPEC_CHARS:
        raise InputError(f"a loss of {len(text)} characters is too long (at most {_MAX_SPEC_CHARS})")
    try:
        with warnings.catch_warnings():  # Python remarks on odd spellings such as 0.5if; the line below says enough
            warnings.simplefilter("ignore")
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        how = "write name(option=value, …) + factor*name(…), and commas between several losses"
        raise InputError(f"cannot read {shorten(text)!r}; {how}") from None


def _source(text: str, node: ast.expr) -> str:
    part, whole = shorten(ast.get_source_segment(text.strip(), node) or ""), shorten(text)
    return repr(whole) if part == whole else f"{part!r} in {whole!r}"


def _read_losses(text: str, node: ast.expr) -> list[Any]:
    nodes = node.elts if isinstance(node, ast.Tuple) else [node]
    if not nodes:
        raise InputError("an empty list of losses")
    found = []
    for item in nodes:
        parts = _read_sum(text, item)
        found.append(parts[0][1] if len(parts) == 1 and parts[0][0] == 1.0 else Sum(tuple(parts)))
    return found


def _read_sum(text: str, node: ast.expr) -> list[tuple[float, Loss]]:
    # `a + b + c` nests to the left: walked in a loop, so that a long sum cannot exhaust the stack.
    nodes: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        nodes.append(node.right)
        node = node.left
    return [_read_weighted_loss(text, item) for item in (node, *reversed(nodes))]


def _read_weighted_loss(text: str, node: ast.expr) -> tuple[float, Loss]:
    factor = 1.0
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factor = _factor(text, node.left)
        node = node.right
    name, keywords = _call(text, node)
    known = _canonical_names()
    if name.lower() not in known:
        raise unknown_name_error("loss", name, known)
    return factor, _build_loss(loss_class(known[name.lower()]), keywords)


def _factor(text: str, node: ast.expr) -> float:
    value = _value(text, node)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
        hint = "; write the factor first, 0.5*center" if isinstance(value, str) else ""
        raise InputError(f"{shorten(text)!r}: the factor before * must be a number above 0{hint}")
    return float(value)


def _call(text: str, node: ast.expr) -> tuple[str, dict[str, Any]]:
    if isinstance(node, ast.Name):
        return node.id, {}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        if node.args:
            raise InputError(f"{shorten(text)!r}: options of {name} are given by name, such as {name}(s=10)")
        return name, _read_keywords(text, name, node.keywords)
    name = text.strip().replace("-", "_")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and name in _canonical_names():
        raise InputError(f"cannot read {shorten(text)!r}; did you mean {name!r}?")
    raise InputError(f"cannot read {_source(text, node)}; write name(option=value, …)")


def _read_keywords(text: str, name: str, pairs: list[ast.keyword]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        if pair.arg is None:
            raise InputError(f"{shorten(text)!r}: ** is not part of the language")
        if pair.arg in found:
            raise InputError(f"{name}: {pair.arg} is given twice")
        found[pair.arg] = _value(text, pair.value)
    return found


def _value(text: str, node: ast.expr) -> Any:
    from .schedule import SCHEDULES, build_schedule

    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        if name not in SCHEDULES:
            raise unknown_name_error("schedule", name, SCHEDULES)
        positional = [_value(text, item) for item in node.args]
        return build_schedule(name, positional, _read_keywords(text, name, node.keywords))
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise InputError(f"cannot read the value {_source(text, node)}") from None


def _build_loss(kind: type[Loss], keywords: dict[str, Any]) -> Loss:
    allowed = kind.options()
    for key in keywords:
        if key not in allowed:
            raise unknown_name_error(f"option of {kind.name}", key, allowed)
    return kind(**keywords)
