"""Mutations of valid input: a seeded generator that corrupts bytes, text and JSON, in plain Python.

The result depends only on the seed and the previous calls: a failed case can be generated again from the seed, and is
then stored in `corpus/`.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

MAX_CASE_LENGTH = 1 << 16  # bytes or characters of a case; larger inputs are separate cases

_TOKEN = re.compile(r"\w+|\s+|.", re.DOTALL)
_BYTES = (0x00, 0x01, 0x09, 0x0A, 0x0D, 0x1A, 0x22, 0x2C, 0x7F, 0x80, 0xC0, 0xED, 0xFE, 0xFF)
NUMBERS = (
    *("0", "-0", "-1", "1", "0.5", "1e-320", "1e308", "-1e308", "1e400", "nan", "-nan", "inf", "-inf", "1_0", "0x7f"),
    *("9" * 25, "0x" + "f" * 4000, "9" * 5000, "1j", "1e", "１２", "٣", "2147483648", "9223372036854775808", "1,5"),
)
WORDS = (
    *(
        "",
        " ",
        "\0",
        "\n",
        "\r\n",
        "\t",
        "\x1b[31m",
        "\x7f",
        "\u202e",
        "\ufeff",
        "\ud800",
        "é",
        "ß",
        "名",
        "🂡",
        "a\u0301",
    ),
    *('"', "'", "''", '"""', "\\", "\\d", "\\N{x}", "`", "$(x)", "%s", "{0}", "#", "../", "/dev/null", "-", "--", "="),
    *("(", ")", "((((", "[", "]", "{", "}", ",", ",,", ";", ":", "*", "**", "+", "@", "lambda: 0", "__import__", "f''"),
    *("True", "False", "None", "null", "x" * 3000, "(" * 300, "[" * 2000, "-" * 3000, "a." * 500, "not " * 300),
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        10**6,
        10**20,
        10**400,
        0.5,
        -0.5,
        1e308,
        float("inf"),
        float("nan"),
        "",
        " ",
        "a",
    ),
    *("1", "../..", "\0", "\n", "\ud800", "x" * 3000, [], {}, [[]], [None], {"": None}, [1, 2, 3], {"a": {"b": []}}),
)


class Mutator:
    """Draws cases from one seed; `vocabulary` are tokens with a meaning for the reader."""

    def __init__(self, seed: int, vocabulary: Sequence[str] = ()) -> None:
        self.rng = random.Random(seed)
        self.vocabulary = tuple(vocabulary)

    # ---------------------------------------------------------------- bytes

    def mutate_bytes(self, examples: Sequence[bytes]) -> bytes:
        """Return one of the examples after one to four changes, or two of them spliced."""
        data = bytearray(self.rng.choice(examples))
        for _ in range(self.rng.choice((1, 1, 1, 2, 3, 4))):
            data = bytearray(self.rng.choice(self._byte_mutations)(self, data, examples))[:MAX_CASE_LENGTH]
        return bytes(data)

    def _flip(self, data: bytearray, examples: Sequence[bytes]) -> bytes:
        for _ in range(self.rng.choice((1, 1, 2, 8))):
            if data:
                data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        return bytes(data)

    def _overwrite(self, data: bytearray, _: Sequence[bytes]) -> bytes:
        start, end = self._draw_span(len(data))
        data[start : min(end, start + 8)] = bytes([self.rng.choice(_BYTES)]) * (min(end, start + 8) - start)
        return bytes(data)

    def _drop(self, data: bytearray, _: Sequence[bytes]) -> bytes:
        start, end = self._draw_span(len(data))
        return bytes(data[:start] + data[end:])

    def _truncate(self, data: bytearray, _: Sequence[bytes]) -> bytes:
        return bytes(data[: self.rng.randrange(len(data) + 1)])

    def _duplicate(self, data: bytearray, _: Sequence[bytes]) -> bytes:
        start, end = self._draw_span(len(data))
        times = self.rng.choice((2, 2, 3, 50, 1000))
        return bytes(data[:start] + (data[start:end] * times)[:MAX_CASE_LENGTH] + data[end:])

    def _splice(self, data: bytearray, examples: Sequence[bytes]) -> bytes:
        other = self.rng.choice(examples)
        return bytes(data[: self.rng.randrange(len(data) + 1)]) + other[self.rng.randrange(len(other) + 1) :]

    def _insert(self, data: bytearray, _: Sequence[bytes]) -> bytes:
        start = self.rng.randrange(len(data) + 1)
        what = self.odd_word().encode("utf-8", "surrogatepass")
        return bytes(data[:start] + what + data[start:])

    _byte_mutations: tuple[Callable[..., bytes], ...] = (
        *(_flip, _flip, _overwrite, _drop, _truncate, _duplicate, _splice, _insert),
    )

    def _draw_span(self, length: int) -> tuple[int, int]:
        """Return a random span of a sequence of this length; mostly a short one."""
        start = self.rng.randrange(length + 1)
        longest = length - start if self.rng.random() < 0.1 else min(length - start, 40)
        return start, start + self.rng.randrange(longest + 1)

    # ---------------------------------------------------------------- text

    def odd_word(self) -> str:
        """Return a random token: meaningful, a number, or garbage."""
        kinds = (self.vocabulary, NUMBERS, WORDS) if self.vocabulary else (NUMBERS, WORDS)
        return self.rng.choice(self.rng.choice(kinds))

    def mutate_text(self, examples: Sequence[str]) -> str:
        """Return one of the examples with some tokens swapped, dropped, doubled or replaced."""
        tokens = _TOKEN.findall(self.rng.choice(examples))
        for _ in range(self.rng.choice((1, 1, 2, 2, 3, 6))):
            place = self.rng.randrange(len(tokens) + 1)
            what = self.rng.randrange(7)
            if what == 0:
                tokens[place : place + self.rng.choice((1, 1, 2, 5))] = []
            elif what == 1:
                tokens.insert(place, self.odd_word())
            elif what in (2, 3):
                tokens[place : place + 1] = [self.odd_word()]
            elif what == 4:
                other = _TOKEN.findall(self.rng.choice(examples))
                tokens = tokens[:place] + other[self.rng.randrange(len(other) + 1) :]
            elif what == 5 and tokens:
                a, b = self.rng.randrange(len(tokens)), self.rng.randrange(len(tokens))
                tokens[a], tokens[b] = tokens[b], tokens[a]
            else:
                start, end = self._draw_span(len(tokens))
                tokens[start:end] = tokens[start:end] * self.rng.choice((2, 3, 30))
        return "".join(tokens)[:MAX_CASE_LENGTH]

    # ---------------------------------------------------------------- JSON

    def mutate_json(self, example: Any) -> Any:
        """Return a copy of a JSON value with one to three inner values replaced, removed, renamed or added."""
        value = copy.deepcopy(example)
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            value = self._mutate_json_once(value)
        return value

    def _mutate_json_once(self, value: Any) -> Any:
        places = _list_places(value)
        if not places or self.rng.random() < 0.02:
            return copy.deepcopy(self.rng.choice(VALUES))
        holder, key = self.rng.choice(places)
        what = self.rng.randrange(8)
        if what == 0:
            del holder[key]
        elif what == 1 and isinstance(holder, dict):
            holder[self.rng.choice((*WORDS[:20], *holder))] = holder.pop(key)
        elif what == 2:
            holder[key] = [holder[key]]
        elif what == 3:
            other, inner = self.rng.choice(places)
            holder[key] = copy.deepcopy(other[inner])
        elif what == 4 and isinstance(holder[key], str):
            holder[key] = self.mutate_text([holder[key]])
        else:
            holder[key] = copy.deepcopy(self.rng.choice(VALUES))
        return value


def _list_places(value: Any) -> list[tuple[Any, Any]]:
    """Return every container and key inside a JSON value."""
    places: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        holder = todo.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            places.append((holder, key))
            todo.append(holder[key])
    return places
