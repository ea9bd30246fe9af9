"""Declared settings: domain, meaning, default and flag of a field in one place.

`option(...)` declares a field of a frozen dataclass. `Config`, the base of such dataclasses, validates the fields,
converts to and from JSON, prints itself and returns the equivalent command line; `add_arguments` and `given_values`
connect it to `argparse`. A field added to the class appears in all of these.
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
from .errors import InputError, format_value, option_style, shorten, spell_option, unknown_name_error

MAX_COUNT = 2**31 - 1
"""Default upper bound of integer options; larger values overflow in code that uses 32-bit integers."""
MAX_FLOAT = 1e300
_METAVARS: dict[type, str] = {int: "N", float: "X", str: "NAME", tuple: "N", dict: "NAME=VALUE, …"}


@dataclass(frozen=True)
class Option:
    """Domain, meaning and spelling of one setting.

    Args:
        meaning: one line for the help and the documentation.
        default: the value if none is given.
        kind: `bool`, `int`, `float`, `str`, `tuple` (whole numbers) or `dict` (names with plain values).
        low, high, open_low, open_high: ends of the domain of numbers; an open end does not belong to it.
        choices: the allowed texts; empty allows any.
        optional: whether None is allowed.
        flag: option on the command line; by default the field's name with dashes.
        metavar: placeholder of the value in the help.
        positional: whether the value is a positional argument, without a flag.
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
        """Describe the domain for messages and help texts.

        >>> Option(low=0, open_low=True, high=1).domain(), Option(kind=int, low=1, optional=True).domain()
        ('a number above 0 and at most 1', 'a whole number of at least 1 or nothing')
        """
        return self._domain_words() + (" or nothing" if self.optional else "")

    def _domain_words(self) -> str:
        if self.choices:
            return " | ".join(self.choices)
        names: dict[type, str] = {bool: "true or false", str: "a string", dict: "names with values"}
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
        """Return `value` in normal form, or raise an InputError that begins with `where` and states the domain.

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
        if self.kind is bool and isinstance(value, bool):  # the string "false" would count as true
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
        """Return True if a number lies in the domain, or exceeds it by at most `slack`."""
        is_high_enough = self.low < value if self.open_low else self.low <= value
        limit = self._limit + slack if slack else self._limit  # adding 0.0 would round 2**63 - 1 up
        is_low_enough = value < limit if self.open_high else value <= limit
        return bool(is_high_enough and is_low_enough and abs(value) < MAX_FLOAT)

    @property
    def _limit(self) -> float:
        return MAX_COUNT if self.kind in (int, tuple) and self.high == math.inf else self.high

    @property
    def _states_high(self) -> bool:
        """True if the description of the domain includes the upper end, which is omitted for counters and seeds."""
        return self.high < (MAX_COUNT if self.kind in (int, tuple) else math.inf)

    def _is_number(self, value: Any) -> bool:
        return isinstance(value, Real if self.kind is float else Integral) and not isinstance(value, bool)

    def _check_number(self, where: str, value: Any) -> float | int:
        value = int(value) if isinstance(value, Integral) else float(value)  # NumPy scalars have other types
        if self.contains(value):
            return value if self.kind is int else float(value)
        if not self._states_high and value > (self._limit if self.kind is int else MAX_FLOAT / 2):
            most = f"at most {self._limit:,}" if self.kind is int else f"below {MAX_FLOAT:g}"
            raise InputError(f"{where} must be {most}, got {format_value(value)}")
        raise self._refusal(where, value)

    def _refusal(self, where: str, value: Any) -> InputError:
        return InputError(f"{where} must be {self.domain()}, got {format_value(value)}")

    def parse_text(self, text: str) -> Any:
        """Convert a command-line argument to this kind; `check_value` checks its domain later."""
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
        """Meaning, domain and default in one line."""
        facts = [] if self.kind in (bool, str, dict) and not self.choices else [self._domain_words()]
        if self.default not in (None, {}):
            facts.append(f"default {format_setting(self.default)}")
        return f"{self.meaning} ({'; '.join(facts)})" if facts else self.meaning


def option(default: Any, meaning: str, *, kind: type | None = None, **properties: Any) -> Any:
    """Declare a field of a `Config`; `kind` defaults to the type of `default`, unless that is None. See `Option`."""
    rule = Option(meaning, default, kind or type(default), optional=default is None, **properties)
    if rule.kind is dict:
        return field(default_factory=lambda: dict(default), metadata={"option": rule})
    return field(default=default, metadata={"option": rule})


def options_of(cls: Any) -> dict[str, Any]:
    """Return the `Option` of every field of a dataclass, by field name."""
    return {spec.name: spec.metadata["option"] for spec in fields(cls)}


def check_option_names(cls: Any, what: str, names: Collection[str]) -> None:
    """Raise an InputError for a name that is not a field of the dataclass, with the nearest one that is."""
    allowed = options_of(cls)
    for name in names:
        if name not in allowed:
            raise unknown_name_error(what, name, allowed)


def spell_field(name: str, rule: Option) -> str:
    """Write the name of a field as the caller does; positional arguments have no flag."""
    return name if rule.positional else spell_option(name)


def check_options(value: Any, where: str = "") -> None:
    """Normalise every field of a frozen dataclass in place; `where` is the template of field names in messages.

    Without it a field is named as the caller wrote it, in Python or on the command line.
    """
    for name, rule in options_of(value).items():
        place = where.format(name) if where else spell_field(name, rule)
        object.__setattr__(value, name, rule.check_value(place, getattr(value, name)))


class Config:
    """Base of frozen dataclasses with fields from `option`: validation, repr, JSON and command line.

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
    """Value of "kind" in the JSON."""
    command: ClassVar[tuple[str, ...]] = ()
    """The first words of `to_command`."""
    extra_keys: ClassVar[tuple[str, ...]] = ()
    """Names that the JSON may hold in addition to the fields; `from_json` ignores them."""

    def __new__(cls, *values: Any, **named: Any) -> Self:
        check_option_names(cls, f"field of {cls.__name__}", named)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_options(self)

    def changed_values(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        options = options_of(self)
        return {name: getattr(self, name) for name, rule in options.items() if getattr(self, name) != rule.default}

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.changed_values().items())
        return f"{type(self).__name__}({inside})"

    def to_json(self, **extra: Any) -> str:
        """Return the value as JSON, with its kind first and `extra` last; `from_json` restores an equal value."""
        return json.dumps({"kind": self.kind, **asdict(self), **extra}, indent=1, ensure_ascii=False)  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, text: str | bytes, where: str | None = None) -> Self:
        """Build the value from a JSON text; unknown fields are errors. `where` names the file in messages."""
        where = where or f"{cls.kind}.json"
        values = bounded.parse_json(text, where)
        if not isinstance(values, dict):
            raise InputError(f"{where}: not the settings of a {cls.kind}")
        kind = values.pop("kind", cls.kind)
        if kind != cls.kind:
            what = f"a {shorten(kind)}" if isinstance(kind, str) else format_value(kind)
            raise InputError(f"{where}: contains {what}, not a {cls.kind}")
        try:
            values = {name: value for name, value in values.items() if name not in cls.extra_keys}
            check_option_names(cls, f"field of a {cls.kind}", values)
            with option_style(command_line=False):  # the file has the names of Python
                return cls(**values)
        except (TypeError, ValueError) as error:
            raise InputError(f"{where}: {error}") from None

    def to_command(self) -> list[str]:
        """Return the command line that gives this value; defaults are omitted."""
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
    """Add an argument for every field of a dataclass to an `argparse` parser or group; `given_values` reads them."""
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
    """Return the fields that were set on the command line."""
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
    """Format a mapping as the command line accepts it.

    >>> format_mapping({"scale": (0.8, 1), "rand": "m9"}), format_mapping({"a b": 1})
    ("scale=(0.8, 1), rand='m9'", "{'a b': 1}")
    """
    if values and all(name.isascii() and name.isidentifier() and not iskeyword(name) for name in values):
        return ", ".join(f"{name}={value!r}" for name, value in values.items())
    return repr(dict(values))


# ---------------------------------------------------------------- plain values


def format_setting(value: Any) -> str:
    """Format a setting for help texts.

    >>> format_setting((64, 24)), format_setting(5e-4), format_setting(True), format_setting("adam")
    ('64 24', '0.0005', 'yes', 'adam')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def check_utf8(text: Any) -> str:
    """Return the text if it can be encoded as UTF-8; a path with other bytes cannot."""
    string = str(text)
    try:
        string.encode()
    except UnicodeEncodeError:
        raise InputError(f"{format_value(string)} is not valid UTF-8; rename it") from None
    return string


def normalize_plain(value: Any, where: str) -> Any:
    """Normalise a value of numbers, texts, lists and mappings to what JSON returns, with tuples for lists.

    JSON has neither tuples nor NaN, and a value that is written and read back must be equal.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return check_utf8(value)
    if isinstance(value, Real):
        number = int(value) if isinstance(value, Integral) else float(value)
        if not abs(number) < MAX_FLOAT:
            raise InputError(f"{where}: {format_value(value)} must be a finite number")
        return number
    if isinstance(value, Mapping):
        return {check_utf8(key): normalize_plain(inner, where) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(normalize_plain(inner, where) for inner in value)
    raise InputError(f"{where}: {format_value(value)} must be a number, a string, or a list or mapping of these")
