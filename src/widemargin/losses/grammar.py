"""The grammar of loss strings such as `arcface(m=0.3) + 0.02*center`, and of the values in flags.

A loss is `name(option=value, …)`. Values are Python literals, bare words, lists (one number per class) or schedules;
`a + 0.5*b` is a sum; a comma outside parentheses separates losses of a list. A loss of another one names it first:
`xbm(supcon(tau=0.1), size=8192)`.

Values of other options, as in `fast(widths=(32, 96, 96))` and `model.patch_size=2`, are numbers, words, True,
False, None, and tuples, lists and dictionaries of these.

No text is ever evaluated: it is parsed to a syntax tree, and only these shapes are accepted.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..io.errors import InputError, shorten, unknown_name_error
from .registry import canonical_names, list_losses, loss_class

if TYPE_CHECKING:
    from .base import Loss
    from .margin import Margin

MAX_LITERAL_CHARS = 10_000  # characters; longer than any realistic value
_WORD_PATTERN = re.compile(r"[A-Za-z_][\w.:/+-]*")
_CALL_PATTERN = re.compile(r"([^\s()=,]+)\s*(?:\((.*)\))?", re.DOTALL)
_DASHED_VALUE_PATTERN = re.compile(r"(=\s*)([A-Za-z_][\w.:/+]*(?:-[\w.:/+]+)+)(?=\s*(?:,|$))")
_MAX_NAME_CHARS = 200
_MISSPELLED_CONSTANTS = {"true": "True", "false": "False", "none": "None", "null": "None"}


def is_number(value: Any) -> bool:
    """True for a number that a float can hold, including NaN; False for booleans."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 10**300)


def parse_literal(text: str, where: str) -> Any:
    """Parse the value `text`; `where` begins the error message.

    >>> parse_literal("(0.8, 1)", "scale"), parse_literal("deep", "stem_type"), parse_literal("rand-m9-mstd0.5", "rand")
    ((0.8, 1), 'deep', 'rand-m9-mstd0.5')
    """
    text = text.strip()
    if not text:
        raise InputError(f"{where}: no value after =")
    if _WORD_PATTERN.fullmatch(text) and text not in ("True", "False", "None"):
        return _check_word(text, where)
    return _evaluate_literal(_parse_literal_expression(text, where, text), where, text)


def parse_call(text: str, what: str) -> tuple[str, dict[str, Any]]:
    """Parse `name(option=value, …)` to name and options; `what` names the kind of text in the error message.

    >>> parse_call("fast(width=0.5)", "the model"), parse_call("paper", "the augmentation")
    (('fast', {'width': 0.5}), ('paper', {}))
    """
    match = _CALL_PATTERN.fullmatch(text.strip())
    if match is None or len(match[1]) > _MAX_NAME_CHARS:
        raise InputError(f"cannot read {what} {shorten(text)!r}; write name(option=value, …)")
    name, inside = match[1], match[2]
    return name, parse_keywords(inside, name) if inside and inside.strip() else {}


def parse_keywords(text: str, where: str) -> dict[str, Any]:
    """Parse `name=value, name=value`, the inside of the parentheses of a call.

    >>> parse_keywords("width=0.5, stem_type=deep", "fast")
    {'width': 0.5, 'stem_type': 'deep'}
    >>> parse_keywords("rand=rand-m9-mstd0.5-inc1, scale=(0.8, 1)", "timm")
    {'rand': 'rand-m9-mstd0.5-inc1', 'scale': (0.8, 1)}
    """
    if text.strip() and "=" not in text:
        raise _unnamed_error(where, text)
    call = _parse_literal_expression(f"f({_quote_words(text)})", where, text)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise _unnamed_error(where, text)
    options: dict[str, Any] = {}
    for pair in call.keywords:
        if pair.arg is None:
            raise InputError(f"{where}: ** is not supported; give options by name")
        if pair.arg in options:
            raise InputError(f"{where}: {pair.arg} is given twice")
        place = f"{where}: {pair.arg}"
        node = pair.value
        options[pair.arg] = (
            _check_word(node.id, place) if isinstance(node, ast.Name) else _evaluate_literal(node, place, text)
        )
    return options


def _unnamed_error(where: str, text: str) -> InputError:
    return InputError(f"{where}: cannot read {shorten(text)!r}; options are given by name, as in name(option=value)")


def _quote_words(text: str) -> str:
    """The text with quotes around values such as rand-m9-mstd0.5-inc1, which Python would read as differences."""
    return _DASHED_VALUE_PATTERN.sub(lambda found: f"{found[1]}'{found[2]}'", text)


def _parse_literal_expression(text: str, where: str, source: str) -> ast.expr:
    if len(text) > MAX_LITERAL_CHARS:
        raise InputError(f"{where}: a value of {len(text)} characters is too long (at most {MAX_LITERAL_CHARS})")
    try:
        with warnings.catch_warnings():  # Python warns about odd spellings; the error below is enough
            warnings.simplefilter("ignore")
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _unreadable_error(where, source) from None


def _check_word(text: str, where: str) -> str:
    if text.lower() in _MISSPELLED_CONSTANTS:  # as a plain word it would count as true
        raise InputError(f"{where}={text}: write {_MISSPELLED_CONSTANTS[text.lower()]}")
    return text


def _evaluate_literal(node: ast.expr, where: str, source: str) -> Any:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise _unreadable_error(where, source) from None
    if not _is_plain(value):
        raise _unreadable_error(where, source)
    return value


def _is_plain(value: Any) -> bool:
    if value is None or isinstance(value, bool | str):
        return True
    if isinstance(value, int | float):
        return abs(value) < 1e300 and not math.isnan(value)
    if isinstance(value, tuple | list):
        return all(_is_plain(item) for item in value)
    return isinstance(value, dict) and all(isinstance(k, str) and _is_plain(v) for k, v in value.items())


def _unreadable_error(where: str, source: str) -> InputError:
    return InputError(f"{where}: cannot read {shorten(source)!r}; a value is a number, a word, True, False or a list")


# Longer than any realistic loss except one number per class for very many classes.
_MAX_SPEC_CHARS = 4_000_000


@dataclass(frozen=True, repr=False)
class Sum:
    """A weighted sum of losses, `arcface + 0.02*center`; its repr is its loss string."""

    parts: tuple[tuple[float, Loss], ...]

    def __repr__(self) -> str:
        from .schedule import format_number

        return " + ".join(
            repr(loss) if factor == 1.0 else f"{format_number(factor)}*{loss!r}" for factor, loss in self.parts
        )


def loss_options(loss: Sum | Loss) -> dict[str, Any]:
    """Every option of a loss with its value; of a sum each option of the first part that has it.

    >>> loss_options(parse("cosface(s=20, m=0.1) + 0.02*center"))["m"]
    0.1
    """
    parts = [part for _, part in loss.parts] if isinstance(loss, Sum) else [loss]
    return {name: value for part in reversed(parts) for name, value in part.named_values()}


def replace_options(loss: Sum | Loss, **values: Any) -> Sum | Loss:
    """Return the loss with other options, checked; in a sum, those of the first term that has them.

    >>> replace_options(parse("arcface(s=20, m=0.1)"), m=0.3)
    arcface(s=20, m=0.3)
    """
    if not isinstance(loss, Sum):
        for name in values:
            if name not in loss.options():
                raise unknown_name_error(f"option of {loss.name}", name, loss.options())
        return replace(loss, **values)  # type: ignore[type-var]
    parts, rest = [], dict(values)
    for factor, part in loss.parts:
        own = {name: rest.pop(name) for name in list(rest) if name in part.options()}
        parts.append((factor, replace(part, **own) if own else part))  # type: ignore[type-var]
    if rest:
        raise unknown_name_error(f"option of {loss!r}", next(iter(rest)), loss_options(loss))
    return Sum(tuple(parts))


def parse(text: str) -> Any:
    """Parse a loss, or a `Sum` of losses.

    >>> parse("arcface(m=0.3)")
    arcface(s=64, m=0.3)
    >>> parse("softmax + 0.02*center")
    softmax + 0.02*center(alpha=0.5)
    >>> parse("arcface(s=64, m=warmup(0, 0.5, steps=1000))").m
    warmup(start=0, end=0.5, steps=1000)
    """
    losses = _read_losses(text, _parse_loss_expression(text))
    if len(losses) > 1:
        raise InputError(f"{shorten(text)!r} is a list of {len(losses)} losses; give one")
    return losses[0]


def parse_list(text: str) -> list[Any]:
    """Parse a comma-separated list of losses; commas inside parentheses do not split it.

    >>> parse_list("softmax, arcgrad(s=5), arcface(s=20, m=0.1)")
    [softmax, arcgrad(s=5), arcface(s=20, m=0.1)]
    """
    return _read_losses(text, _parse_loss_expression(text))


def parse_margin(text: str) -> Margin:
    """Parse a margin; any other loss is an error that lists the margins."""
    from .margin import Margin

    value = parse(text)
    if not isinstance(value, Margin):
        raise InputError(f"{shorten(text)!r} is not a margin; margins are {', '.join(list_losses('margins'))}")
    return value


def _parse_loss_expression(text: str) -> ast.expr:
    if not isinstance(text, str):
        raise InputError(f"a loss must be a string such as 'arcface(m=0.3)', got {type(text).__name__}")
    if not text.strip():
        raise InputError("an empty loss; write a name such as 'arcface(m=0.3)'")
    if len(text) > _MAX_SPEC_CHARS:
        raise InputError(f"a loss of {len(text)} characters is too long (at most {_MAX_SPEC_CHARS})")
    try:
        with warnings.catch_warnings():  # Python warns about odd spellings such as 0.5if; the error below is enough
            warnings.simplefilter("ignore")
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        how = "write name(option=value, …) + factor*name(…), and commas between several losses"
        raise InputError(f"cannot read {shorten(text)!r}; {how}") from None


def _quote_source(text: str, node: ast.expr) -> str:
    part, whole = shorten(ast.get_source_segment(text.strip(), node) or ""), shorten(text)
    return repr(whole) if part == whole else f"{part!r} in {whole!r}"


def _read_losses(text: str, node: ast.expr) -> list[Any]:
    nodes = node.elts if isinstance(node, ast.Tuple) else [node]
    if not nodes:
        raise InputError("an empty list of losses")
    losses = []
    for item in nodes:
        parts = _read_sum(text, item)
        losses.append(parts[0][1] if len(parts) == 1 and parts[0][0] == 1.0 else Sum(tuple(parts)))
    return losses


def _read_sum(text: str, node: ast.expr) -> list[tuple[float, Loss]]:
    # `a + b + c` nests to the left: iterated, so that a long sum cannot exhaust the stack.
    nodes: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        nodes.append(node.right)
        node = node.left
    return [_read_weighted_loss(text, item) for item in (node, *reversed(nodes))]


def _read_weighted_loss(text: str, node: ast.expr) -> tuple[float, Loss]:
    factor = 1.0
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factor = _read_factor(text, node.left)
        node = node.right
    name = _read_name(text, node)
    known = canonical_names()
    if name.lower() not in known:
        raise unknown_name_error("loss", name, known)
    kind = loss_class(known[name.lower()])
    return factor, _build_loss(kind, _read_loss_options(text, node, kind) if isinstance(node, ast.Call) else {})


def _read_factor(text: str, node: ast.expr) -> float:
    value = _read_value(text, node)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
        hint = "; write the factor first, 0.5*center" if isinstance(value, str) else ""
        raise InputError(f"{shorten(text)!r}: the factor before * must be a number above 0{hint}")
    return float(value)


def _read_name(text: str, node: ast.expr) -> str:
    """The name of a loss that is written with or without parentheses."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id
    name = text.strip().replace("-", "_")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and name in canonical_names():
        raise InputError(f"cannot read {shorten(text)!r}; did you mean {name!r}?")
    raise InputError(f"cannot read {_quote_source(text, node)}; write name(option=value, …)")


def _read_loss_options(text: str, node: ast.Call, kind: type[Loss]) -> dict[str, Any]:
    """The options in the parentheses; only another loss may stand there without a name, once and first."""
    inner = next((name for name, (rule, _) in kind.options().items() if rule.holds_loss), None)
    if inner is None:
        if node.args:
            raise InputError(f"{shorten(text)!r}: options of {kind.name} are given by name, such as {kind.name}(s=10)")
        return _read_keywords(text, kind.name, node.keywords)
    named = [pair.value for pair in node.keywords if pair.arg == inner]
    given = [*node.args, *named]
    if len(given) > 1:
        raise InputError(f"{shorten(text)!r}: {kind.name} takes one loss, such as {kind.name}(supcon)")
    found = _read_keywords(text, kind.name, [pair for pair in node.keywords if pair.arg != inner])
    if given and _read_name(text, given[0]).lower() == kind.name:
        raise InputError(f"{shorten(text)!r}: {kind.name} of {kind.name} is not possible")
    if given:
        factor, found[inner] = _read_weighted_loss(text, given[0])
        if factor != 1.0:
            raise InputError(f"{shorten(text)!r}: write the factor before {kind.name}")
    return found


def _read_keywords(text: str, name: str, pairs: list[ast.keyword]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in pairs:
        if pair.arg is None:
            raise InputError(f"{shorten(text)!r}: ** is not supported; give options by name")
        if pair.arg in options:
            raise InputError(f"{name}: {pair.arg} is given twice")
        options[pair.arg] = _read_value(text, pair.value)
    return options


def _read_value(text: str, node: ast.expr) -> Any:
    from .schedule import SCHEDULES, build_schedule

    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        if name not in SCHEDULES:
            raise unknown_name_error("schedule", name, SCHEDULES)
        positional = [_read_value(text, item) for item in node.args]
        return build_schedule(name, positional, _read_keywords(text, name, node.keywords))
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise InputError(f"cannot read the value {_quote_source(text, node)}") from None


def _build_loss(kind: type[Loss], keywords: dict[str, Any]) -> Loss:
    allowed = kind.options()
    for key in keywords:
        if key not in allowed:
            raise unknown_name_error(f"option of {kind.name}", key, allowed)
    return kind(**keywords)
