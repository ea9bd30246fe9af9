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

from .errors import InputError, short, unknown

if TYPE_CHECKING:
    from .margin import Margin
    from .option import Loss

SHELVES = ("margins", "terms", "classical")
# Longer than any honest spelling except one number per class for very many classes.
_LONGEST = 4_000_000


@dataclass(frozen=True, repr=False)
class Sum:
    """A weighted sum of losses, `arcface + 0.02*center`; its repr is its parse string."""

    parts: tuple[tuple[float, Loss], ...]

    def __repr__(self) -> str:
        from .schedule import written

        return " + ".join(repr(loss) if factor == 1.0 else f"{written(factor)}*{loss!r}" for factor, loss in self.parts)


@functools.cache
def _shelf_of() -> dict[str, str]:
    """Name of every loss and the shelf it stands on, from the file names alone."""
    here = Path(__file__).parent
    found: dict[str, str] = {}
    for shelf in SHELVES:
        for module in pkgutil.iter_modules([str(here / shelf)]):
            if module.name in found:
                raise InputError(f"{module.name}.py stands on two shelves, {found[module.name]} and {shelf}")
            if not module.name.startswith("_"):
                found[module.name] = shelf
    return found


def losses(shelf: str | None = None) -> list[str]:
    """Names of all losses, or of one shelf: `margins`, `terms` or `classical`.

    >>> "arcgrad" in losses("margins"), "triplet" in losses("terms"), "focal" in losses()
    (True, True, True)
    """
    if shelf is not None and shelf not in SHELVES:
        raise unknown("shelf", shelf, SHELVES)
    found = _shelf_of()
    return [name for place in SHELVES for name in sorted(found) if found[name] == place and shelf in (None, place)]


@functools.cache
def loss_class(name: str) -> type[Loss]:
    """The class of a loss by its name; its module is imported here."""
    from .option import Loss

    module = importlib.import_module(f"{__package__}.{_shelf_of()[name]}.{name}")
    for item in vars(module).values():
        if isinstance(item, type) and issubclass(item, Loss) and item.__module__ == module.__name__:
            if item.name != name:
                raise InputError(f"{module.__name__}: the loss calls itself {item.name!r}; name it like its file")
            return item
    raise InputError(f"{module.__name__}: no loss in this file")


@functools.cache
def _by_any_name() -> dict[str, str]:
    """Every name and alias, and the name it stands for."""
    table: dict[str, str] = {}
    for name in losses():
        for spelling in (name, *loss_class(name).aliases):
            if spelling in table:
                raise InputError(f"{spelling!r} is the name of two losses, {table[spelling]} and {name}")
            table[spelling] = name
    return table


def class_named(class_name: str) -> type[Loss] | None:
    """The loss whose class is called `class_name` (`ArcFace`), for `widemargin.ArcFace`."""
    for name in losses():
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
    >>> parse("arcface(s=64, m=warmup(0, 0.5, steps=1000))").m
    warmup(start=0, end=0.5, steps=1000)
    """
    found = _sums(text, _tree(text))
    if len(found) > 1:
        raise InputError(f"{short(text)!r} is a list of {len(found)} losses where one is wanted")
    return found[0]


def parse_list(text: str) -> list[Any]:
    """The losses of a comma-separated list; commas inside parentheses do not split it.

    >>> parse_list("softmax, arcgrad(s=5), arcface(s=20, m=0.1)")
    [softmax, arcgrad(s=5), arcface(s=20, m=0.1)]
    """
    return _sums(text, _tree(text))


def parse_margin(text: str) -> Margin:
    """A margin by its parse string; anything else is an error that names the margins."""
    from .margin import Margin

    value = parse(text)
    if not isinstance(value, Margin):
        raise InputError(f"{short(text)!r} is not a margin; margins are {', '.join(losses('margins'))}")
    return value


def _tree(text: str) -> ast.expr:
    if not isinstance(text, str):
        raise InputError(f"a loss is written as text, such as 'arcface(m=0.3)'; got {type(text).__name__}")
    if not text.strip():
        raise InputError("an empty loss; write a name such as 'arcface(m=0.3)'")
    if len(text) > _LONGEST:
        raise InputError(f"a loss of {len(text)} characters is too long (at most {_LONGEST})")
    try:
        with warnings.catch_warnings():  # Python remarks on odd spellings such as 0.5if; the line below says enough
            warnings.simplefilter("ignore")
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        how = "write name(option=value, …) + factor*name(…), and commas between several losses"
        raise InputError(f"cannot read {short(text)!r}; {how}") from None


def _source(text: str, node: ast.expr) -> str:
    part, whole = short(ast.get_source_segment(text.strip(), node) or ""), short(text)
    return repr(whole) if part == whole else f"{part!r} in {whole!r}"


def _sums(text: str, node: ast.expr) -> list[Any]:
    nodes = node.elts if isinstance(node, ast.Tuple) else [node]
    if not nodes:
        raise InputError("an empty list of losses")
    found = []
    for item in nodes:
        parts = _terms(text, item)
        found.append(parts[0][1] if len(parts) == 1 and parts[0][0] == 1.0 else Sum(tuple(parts)))
    return found


def _terms(text: str, node: ast.expr) -> list[tuple[float, Loss]]:
    # `a + b + c` nests to the left: walked in a loop, so that a long sum cannot exhaust the stack.
    nodes: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        nodes.append(node.right)
        node = node.left
    return [_term(text, item) for item in (node, *reversed(nodes))]


def _term(text: str, node: ast.expr) -> tuple[float, Loss]:
    factor = 1.0
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factor = _factor(text, node.left)
        node = node.right
    name, keywords = _call(text, node)
    known = _by_any_name()
    if name.lower() not in known:
        raise unknown("loss", name, known)
    return factor, _made(loss_class(known[name.lower()]), keywords)


def _factor(text: str, node: ast.expr) -> float:
    value = _value(text, node)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
        hint = "; write the factor first, 0.5*center" if isinstance(value, str) else ""
        raise InputError(f"{short(text)!r}: the factor before * must be a number above 0{hint}")
    return float(value)


def _call(text: str, node: ast.expr) -> tuple[str, dict[str, Any]]:
    if isinstance(node, ast.Name):
        return node.id, {}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        if node.args:
            raise InputError(f"{short(text)!r}: options of {name} are given by name, such as {name}(s=10)")
        return name, _keywords(text, name, node.keywords)
    name = text.strip().replace("-", "_")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and name in _by_any_name():
        raise InputError(f"cannot read {short(text)!r}; did you mean {name!r}?")
    raise InputError(f"cannot read {_source(text, node)}; write name(option=value, …)")


def _keywords(text: str, name: str, pairs: list[ast.keyword]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        if pair.arg is None:
            raise InputError(f"{short(text)!r}: ** is not part of the language")
        if pair.arg in found:
            raise InputError(f"{name}: {pair.arg} is given twice")
        found[pair.arg] = _value(text, pair.value)
    return found


def _value(text: str, node: ast.expr) -> Any:
    from .schedule import SCHEDULES, build

    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        if name not in SCHEDULES:
            raise unknown("schedule", name, SCHEDULES)
        positional = [_value(text, item) for item in node.args]
        return build(name, positional, _keywords(text, name, node.keywords))
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise InputError(f"cannot read the value {_source(text, node)}") from None


def _made(kind: type[Loss], keywords: dict[str, Any]) -> Loss:
    allowed = kind.options()
    for key in keywords:
        if key not in allowed:
            raise unknown(f"option of {kind.name}", key, allowed)
    return kind(**keywords)
