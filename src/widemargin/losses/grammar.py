"""Values as people write them in a flag: Python literals and bare words, read and never evaluated.

`fast(widths=(32, 96, 96))` and `build_model.patch_size=2` carry values for options that are checked elsewhere.
Here the text becomes plain data, or one line that says why not: numbers, words, True, False, None, and tuples,
lists and dictionaries of these.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from typing import Any

from ..io.errors import InputError, shorten

MAX_LITERAL_CHARS = 10_000  # characters; longer than any honest value
_WORD_PATTERN = re.compile(r"[A-Za-z_][\w.:/+-]*")
_CALL_PATTERN = re.compile(r"([^\s()=,]+)\s*(?:\((.*)\))?", re.DOTALL)
_MAX_NAME_CHARS = 200
_MISSPELLED_CONSTANTS = {"true": "True", "false": "False", "none": "None", "null": "None"}


def is_number(value: Any) -> bool:
    """Whether a value is a number that a float can hold; NaN is one, true and false are none."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 10**300)


def parse_literal(text: str, where: str) -> Any:
    """The value of `text`; `where` begins the message if it has none.

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
    """Name and options of `name(option=value, …)`; `what` it is begins the message if it cannot be read.

    >>> parse_call("fast(width=0.5)", "the model"), parse_call("paper", "the augmentation")
    (('fast', {'width': 0.5}), ('paper', {}))
    """
    found = _CALL_PATTERN.fullmatch(text.strip())
    if found is None or len(found[1]) > _MAX_NAME_CHARS:
        raise InputError(f"cannot read {what} {shorten(text)!r}; write name(option=value, …)")
    name, inside = found[1], found[2]
    return name, parse_keywords(inside, name) if inside and inside.strip() else {}


def parse_keywords(text: str, where: str) -> dict[str, Any]:
    """The options of `name=value, name=value`, the inside of the parentheses of a call.

    >>> parse_keywords("width=0.5, stem_type=deep", "fast")
    {'width': 0.5, 'stem_type': 'deep'}
    """
    call = _parse_literal_expression(f"f({text})", where, text)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise InputError(f"{where}: cannot read {shorten(text)!r}; options are given by name, as in name(option=value)")
    found: dict[str, Any] = {}
    for pair in call.keywords:
        if pair.arg is None:
            raise InputError(f"{where}: ** is not part of the language")
        if pair.arg in found:
            raise InputError(f"{where}: {pair.arg} is given twice")
        place = f"{where}: {pair.arg}"
        node = pair.value
        found[pair.arg] = (
            _check_word(node.id, place) if isinstance(node, ast.Name) else _evaluate_literal(node, place, text)
        )
    return found


def _parse_literal_expression(text: str, where: str, source: str) -> ast.expr:
    if len(text) > MAX_LITERAL_CHARS:
        raise InputError(f"{where}: a value of {len(text)} characters is too long (at most {MAX_LITERAL_CHARS})")
    try:
        with warnings.catch_warnings():  # Python remarks on odd spellings; the line below says enough
            warnings.simplefilter("ignore")
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _unreadable_error(where, source) from None


def _check_word(text: str, where: str) -> str:
    if text.lower() in _MISSPELLED_CONSTANTS:  # as a word it would count as true wherever it goes
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
