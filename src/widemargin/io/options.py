"""Settings as values: a field with its domain, meaning, default and flag in one place, and all that follows from them.

`option(...)` declares a field of a frozen dataclass. `Config`, the base of such dataclasses, checks the fields when a
value is built, writes and reads it as JSON, prints it and spells it as a command line; `add_arguments` and
`given_values` are its command-line options. A field that is added to the class appears in all of these.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from keyword import iskeyword
from numbers import Integral, Real
from typing import Any, ClassVar, Self, TypeVar

from . import bounded
from .errors import InputError, format_value, shorten, unknown_name_error

MAX_COUNT = 2**31 - 1
"""Largest whole number of an option that states no other: beyond it something deep inside would give up."""
MAX_FLOAT = 1e300
_METAVARS: dict[type, str] = {int: "N", float: "X", str: "NAME", tuple: "N", dict: "NAME=VALUE, …"}


@dataclass(frozen=True)
class Option:
    """Domain, meaning and spelling of one setting.

    Args:
        meaning: one line for the help and the documentation.
        default: the value where none is given.
        kind: `bool`, `int`, `float`, `str`, `tuple` (whole numbers) or `dict` (names with plain values).
        low, high, open_low, open_high: ends of the domain of numbers; an open end does not belong to it.
        choices: the texts that are possible, if not all are.
        optional: whether None is a value.
        flag: option on the command line, if another than the field's name with dashes.
        metavar: what the help calls the value.
        positional: whether the value stands in its place on the command line, without a flag.
        parse: reads the text of a `dict` from the command line.
    """

    meaning: str = ""
    default: Any = None
    kind: type = float
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    choices: tuple[str, ...] = ()
    optional: bool = False
    flag: str = ""
    metavar: str = ""
    positional: bool = False
    parse: Callable[[str, str], Any] | None = None

    def domain(self) -> str:
        """The domain in words, as messages and the help state it.

        >>> Option(low=0, open_low=True, high=1).domain(), Option(kind=int, low=1, optional=True).domain()
        ('a number above 0 and at most 1', 'a whole number of at least 1 or nothing')
        """
        return self._domain_words() + (" or nothing" if self.optional else "")

    def _domain_words(self) -> str:
        if self.choices:
            return " | ".join(self.choices)
        names: dict[type, str] = {bool: "true or false", str: "a text", dict: "names with values"}
        if self.kind in names:
            return names[self.kind]
        noun = {int: "a whole number", tuple: "whole numbers"}.get(self.kind, "a number")
        return f"{noun} {self._range_words()}".strip()

    def _range_words(self) -> str:
        low = f"{'above' if self.open_low else 'of at least'} {self.low:,g}" if self.low > -math.inf else ""
        high = f"{'below' if self.open_high else 'at most'} {self.high:,g}" if self._states_high else ""
        if low and high:
            is_closed = not self.open_low and not self.open_high
            return f"from {self.low:,g} to {self.high:,g}" if is_closed else f"{low} and {high}"
        return low or high

    def check_value(self, where: str, value: Any) -> Any:
        """`value` in its normal form, or an InputError that begins with `where` and states the domain.

        >>> Option(kind=float, low=0).check_value("lr", 1), Option(kind=tuple, low=1).check_value("hidden", [64, 24])
        (1.0, (64, 24))
        """
        if value is None and self.optional:
            return None
        if self.choices:
            if isinstance(value, str) and value in self.choices:
                return value
            raise unknown_name_error(where, value, self.choices)
        if self.kind in (int, float) and self._is_number(value):
            return self._check_number(where, value)
        if self.kind is bool and isinstance(value, bool):  # the word "false" would count as true
            return value
        if self.kind is str and isinstance(value, str) and value.strip():
            return check_utf8(value)
        if self.kind is dict and isinstance(value, Mapping):
            return normalize_plain(value, where)
        is_sequence = isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value) > 0
        if self.kind is tuple and is_sequence and all(self._is_number(item) and self.contains(item) for item in value):
            return tuple(int(item) for item in value)
        raise self._refusal(where, value)

    def contains(self, value: float, slack: float = 0.0) -> bool:
        """Whether a number lies in the domain, or above it by no more than `slack`."""
        is_high_enough = self.low < value if self.open_low else self.low <= value
        limit = self._limit + slack if slack else self._limit  # adding 0.0 would round 2**63 - 1 up
        is_low_enough = value < limit if self.open_high else value <= limit
        return bool(is_high_enough and is_low_enough and abs(value) < MAX_FLOAT)

    @property
    def _limit(self) -> float:
        return MAX_COUNT if self.kind in (int, tuple) and self.high == math.inf else self.high

    @property
    def _states_high(self) -> bool:
        """Whether the upper end is part of the domain's words; that of a counter or a seed is far away."""
        return self.high < (MAX_COUNT if self.kind in (int, tuple) else math.inf)

    def _is_number(self, value: Any) -> bool:
        return isinstance(value, Real if self.kind is float else Integral) and not isinstance(value, bool)

    def _check_number(self, where: str, value: Any) -> float | int:
        value = int(value) if isinstance(value, Integral) else float(value)  # NumPy's numbers are of other types
        if self.contains(value):
            return value if self.kind is int else float(value)
        if not self._states_high and value > (self._limit if self.kind is int else MAX_FLOAT / 2):
            most = f"at most {self._limit:,}" if self.kind is int else f"below {MAX_FLOAT:g}"
            raise InputError(f"{where} must be {most}, got {format_value(value)}")
        raise self._refusal(where, value)

    def _refusal(self, where: str, value: Any) -> InputError:
        return InputError(f"{where} must be {self.domain()}, got {format_value(value)}")

    def parse_text(self, text: str) -> Any:
        """A word of the command line as a value of this kind; `check_value` looks at its domain later."""
        if self.kind not in (int, float, tuple, dict):
            return text
        try:
            if self.kind is dict:
                assert self.parse is not None
                return self.parse(text, "the value")
            return float(text) if self.kind is float else int(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {self.domain()}, got {format_value(text)}") from None

    def help_text(self) -> str:
        """Meaning, domain and default, on one line."""
        facts = [] if self.kind in (bool, str, dict) and not self.choices else [self._domain_words()]
        if self.default not in (None, {}):
            facts.append(f"default {format_setting(self.default)}")
        return f"{self.meaning} ({'; '.join(facts)})" if facts else self.meaning


def option(default: Any, meaning: str, *, kind: type | None = None, **properties: Any) -> Any:
    """A field of a `Config`; its kind is that of its default, which None does not tell. See `Option`."""
    rule = Option(meaning, default, kind or type(default), optional=default is None, **properties)
    if rule.kind is dict:
        return field(default_factory=lambda: dict(default), metadata={"option": rule})
    return field(default=default, metadata={"option": rule})


def options_of(cls: Any) -> dict[str, Any]:
    """The option behind every field of a dataclass, by the field's name."""
    return {spec.name: spec.metadata["option"] for spec in fields(cls)}


def check_option_names(cls: Any, what: str, names: Collection[str]) -> None:
    """Refuse a name that is no field of the dataclass, with the nearest one that is."""
    allowed = options_of(cls)
    for name in names:
        if name not in allowed:
            raise unknown_name_error(what, name, allowed)


def check_options(value: Any, where: str = "{}") -> None:
    """Bring every field of a frozen dataclass to its normal form; `where` names a field in messages."""
    for name, rule in options_of(value).items():
        object.__setattr__(value, name, rule.check_value(where.format(name), getattr(value, name)))


class Config:
    """Base of frozen dataclasses whose fields are made by `option`: checked, printable, as JSON, as a command.

    >>> @document_options
    ... @dataclass(frozen=True, repr=False)
    ... class Walk(Config):
    ...     kind = "walk"
    ...     command = ("walk",)
    ...     place: str = option("park", "where to", positional=True)
    ...     miles: float = option(2.0, "how far", low=0)
    >>> Walk(miles=3), Walk(miles=3).to_command(), Walk.from_json('{"miles": 5}')
    (Walk(miles=3.0), ['walk', 'park', '--miles', '3.0'], Walk(miles=5.0))
    """

    kind: ClassVar[str] = "config"
    """What the JSON says it holds."""
    command: ClassVar[tuple[str, ...]] = ()
    """The words that `to_command` begins with."""
    extra_keys: ClassVar[tuple[str, ...]] = ()
    """Names beside the fields that the JSON may hold; `from_json` leaves them out."""

    def __new__(cls, *values: Any, **named: Any) -> Self:
        check_option_names(cls, f"field of {cls.__name__}", named)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_options(self)

    def changed_values(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        options = options_of(self)
        return {name: getattr(self, name) for name, rule in options.items() if getattr(self, name) != rule.default}

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.changed_values().items())
        return f"{type(self).__name__}({inside})"

    def to_json(self, **extra: Any) -> str:
        """The value as JSON, its kind first, `extra` last; `from_json` reads it back to an equal one."""
        return json.dumps({"kind": self.kind, **asdict(self), **extra}, indent=1, ensure_ascii=False)  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, text: str | bytes, where: str | None = None) -> Self:
        """The value in a JSON text; a field that does not exist is an error. `where` names the file in messages."""
        where = where or f"{cls.kind}.json"
        values = bounded.parse_json(text, where)
        if not isinstance(values, dict):
            raise InputError(f"{where}: holds no {cls.kind}")
        kind = values.pop("kind", cls.kind)
        if kind != cls.kind:
            what = f"a {shorten(kind)}" if isinstance(kind, str) else format_value(kind)
            raise InputError(f"{where}: holds {what}, not a {cls.kind}")
        try:
            values = {name: value for name, value in values.items() if name not in cls.extra_keys}
            check_option_names(cls, f"field of a {cls.kind}", values)
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise InputError(f"{where}: {error}") from None

    def to_command(self) -> list[str]:
        """The words that describe this value when they are typed again; what is as by default is left out."""
        options, changed = options_of(self), self.changed_values()
        positional = [str(getattr(self, name)) for name, rule in options.items() if rule.positional]
        flags = [_format_flag(name, options[name], value) for name, value in changed.items()]
        return [*self.command, *positional, *(word for words in flags for word in words)]


_ConfigClass = TypeVar("_ConfigClass", bound=type)


def document_options(cls: _ConfigClass) -> _ConfigClass:
    """Add every field with its meaning, domain and default to the docstring of a dataclass, before its examples."""
    entries = [
        f"        {name}: {rule.meaning} ({rule.domain()}; default {rule.default!r})."
        for name, rule in options_of(cls).items()
    ]
    prose, prompt, example = (cls.__doc__ or cls.__name__).partition("\n    >>> ")
    cls.__doc__ = "\n".join((prose.rstrip(), "", "    Args:", *entries, "")) + prompt + example
    return cls


# ---------------------------------------------------------------- the command line


def add_arguments(parser: Any, cls: Any) -> None:
    """Add every field of a dataclass to an `argparse` parser or group; `given_values` reads them."""
    for name, rule in options_of(cls).items():
        keywords: dict[str, Any] = {"help": rule.help_text()}
        if rule.kind is bool:
            parser.add_argument(_flag(name, rule), dest=name, action=argparse.BooleanOptionalAction, **keywords)
            continue
        keywords |= {"type": rule.parse_text, "metavar": rule.metavar or _METAVARS[rule.kind]}
        if rule.positional:
            parser.add_argument(name, nargs="?", **keywords)
        else:
            nargs = {"nargs": "+"} if rule.kind is tuple else {}
            parser.add_argument(_flag(name, rule), dest=name, **nargs, **keywords)


def given_values(namespace: argparse.Namespace, cls: Any) -> dict[str, Any]:
    """The fields that the command line gave."""
    return {name: value for name in options_of(cls) if (value := getattr(namespace, name)) is not None}


def _flag(name: str, rule: Option) -> str:
    return rule.flag or f"--{name.replace('_', '-')}"


def _format_flag(name: str, rule: Option, value: Any) -> list[str]:
    flag = _flag(name, rule)
    if rule.positional:
        return []
    if rule.kind is bool:
        return [flag if value else f"--no-{flag[2:]}"]
    if rule.kind is tuple:
        return [flag, *map(str, value)]
    text = format_mapping(value) if rule.kind is dict else str(value)
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def format_mapping(values: Mapping[str, Any]) -> str:
    """Names with values as the command line takes them.

    >>> format_mapping({"scale": (0.8, 1), "rand": "m9"}), format_mapping({"a b": 1})
    ("scale=(0.8, 1), rand='m9'", "{'a b': 1}")
    """
    if values and all(name.isascii() and name.isidentifier() and not iskeyword(name) for name in values):
        return ", ".join(f"{name}={value!r}" for name, value in values.items())
    return repr(dict(values))


# ---------------------------------------------------------------- plain values


def format_setting(value: Any) -> str:
    """A setting as the help shows it.

    >>> format_setting((64, 24)), format_setting(5e-4), format_setting(True), format_setting("adam")
    ('64 24', '0.0005', 'yes', 'adam')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def check_utf8(text: Any) -> str:
    """A text that can be written to a file; bytes of a path that are no UTF-8 cannot."""
    found = str(text)
    try:
        found.encode()
    except UnicodeEncodeError:
        raise InputError(f"{format_value(found)} is no text in UTF-8; rename it") from None
    return found


def normalize_plain(value: Any, where: str) -> Any:
    """A value of numbers, texts, lists and mappings as JSON gives it back, with tuples for lists.

    JSON has no tuples and no NaN, and a value that was read back must equal the one written.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return check_utf8(value)
    if isinstance(value, Real):
        number = int(value) if isinstance(value, Integral) else float(value)
        if not abs(number) < MAX_FLOAT:
            raise InputError(f"{where}: {format_value(value)} is no value of an option; write a finite number")
        return number
    if isinstance(value, Mapping):
        return {check_utf8(key): normalize_plain(inner, where) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(normalize_plain(inner, where) for inner in value)
    raise InputError(f"{where}: {format_value(value)} is no number, text, list or mapping of these")
