"""Numbers as people write them, decided for a whole column: `12.345,67`, `1,234.5`, `1 234,5`, `$1,234`, `45.3 %`.

A comma and a point each may be the decimal sign or stand between thousands. A column is read in the one way that fits
all of its values: `12,5` has a decimal comma, for between thousands three digits follow, and `1,234.5`, `0,125` and
`1.234.567` can be read in one way only. Where both ways fit and give different numbers, as for a column of nothing but
`1,234`, then

1. `decimal` decides, if it is given;
2. a column of plain `1.234` has decimal points, as everywhere in computing (unless another column has decimal commas);
3. in a file separated by commas, the comma in a quoted `"1,234"` stands between thousands, since who has decimal commas
   separates fields by something else;
4. else the column is refused.

Between thousands may also be blanks and apostrophes. Taken out: currency signs, one currency in a column; percent
signs, if all values but zeros have one. `(5)` is −5 if some numbers of the column are without parentheses.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...io.errors import InputError, format_value, spell_option
from .table import find_missing, is_missing, parse_number, quote_cell

DECIMAL_SIGNS = (".", ",")

_CURRENCY_CODES = "AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HUF|INR|JPY|MXN|NOK|PLN|SEK|USD|TRY|ZAR"
_CURRENCY = rf"(?:US|R)?[$\u00a2-\u00a5\u0e3f\u20a0-\u20c0]|(?:{_CURRENCY_CODES})(?![A-Za-z])|kr\.?|zł|Kč|Fr\.|Ft"
_BLANKS = " \u00a0\u2009\u202f"
_MINUS_SIGNS = "\u2212-"  # the dash last: elsewhere in a class of characters it makes a range
_NUMBER_PATTERN = re.compile(
    rf"(?P<open>\()?(?P<sign>[+{_MINUS_SIGNS}]?)(?P<before>{_CURRENCY})?[{_BLANKS}]*(?P<inner_sign>[+{_MINUS_SIGNS}]?)"
    rf"(?P<body>[.,]?[0-9](?:[0-9.,'’{_BLANKS}]*[0-9.,])?(?:[eE][+-]?[0-9]+)?)"
    rf"[{_BLANKS}]*(?P<after>{_CURRENCY}|%)?(?P<close>\))?"
)
_MAX_NUMBER_LENGTH = 100
_MAX_CACHED_WORDS = 10_000
_MAX_PROBED_WORDS = 1000  # without a number among so many, a column has none or hardly any
_EXPONENT = r"(?:[eE][+-]?[0-9]+)?"


def _body_pattern(decimal: str, other: str) -> re.Pattern[str]:
    grouped = (
        rf"[1-9][0-9]{{0,2}}(?P<group>[{other}'’{_BLANKS}])[0-9]{{3}}(?:(?P=group)[0-9]{{3}})*(?:[{decimal}][0-9]*)?"
    )
    return re.compile(rf"{grouped}|[0-9]+(?:[{decimal}][0-9]*)?{_EXPONENT}|[{decimal}][0-9]+{_EXPONENT}")


_BODY_PATTERNS = {".": _body_pattern(".", ","), ",": _body_pattern(",", ".")}
_GROUP_NAMES = {",": "commas", ".": "points", "'": "apostrophes", "’": "apostrophes"}


class FormattedNumber(NamedTuple):
    """A word that is a number: its value for each decimal sign that fits, and what stands around and in it."""

    values: dict[str, float]
    groups: dict[str, str]
    """What stands between thousands, for each decimal sign with which something does."""
    currency: str = ""
    has_percent: bool = False
    has_parentheses: bool = False

    @property
    def is_ambiguous(self) -> bool:
        """Whether both decimal signs fit and give different numbers."""
        return len(set(self.values.values())) > 1


def parse_formatted(word: str) -> FormattedNumber | None:
    """A word as a number in each way that fits; None for other words.

    >>> parse_formatted("1,234").values, parse_formatted("€ 5,20").values, parse_formatted("1,2,3")
    ({'.': 1234.0, ',': 1.234}, {',': 5.2}, None)
    """
    plain = parse_number(word)
    if plain is not None and not np.isfinite(plain):
        return FormattedNumber(dict.fromkeys(DECIMAL_SIGNS, plain), {})
    match = _NUMBER_PATTERN.fullmatch(word) if len(word) <= _MAX_NUMBER_LENGTH else None
    if match is None or bool(match["open"]) != bool(match["close"]):
        return None if plain is None else FormattedNumber({".": plain}, {})  # digits of other scripts, or many of them
    signs, tail = match["sign"] + match["inner_sign"], match["after"] or ""
    if len(signs) > 1 or (signs and match["open"]) or (match["before"] and tail):
        return None
    factor = -1.0 if match["open"] or (signs and signs in _MINUS_SIGNS) else 1.0
    values, groups = {}, {}
    for decimal, pattern in _BODY_PATTERNS.items():
        body = pattern.fullmatch(match["body"])
        if body is not None:
            group = body["group"]
            digits = match["body"] if group is None else match["body"].replace(group, "")
            values[decimal] = factor * float(digits.replace(",", "."))
            if group is not None:
                groups[decimal] = _GROUP_NAMES.get(group, "blanks")
    if not values:
        return None
    currency = match["before"] or (tail if tail != "%" else "")
    return FormattedNumber(values, groups, currency, tail == "%", bool(match["open"]))


def looks_like_number(word: str) -> bool:
    """Whether a cell holds a number in some way of writing; a percentage may as well be the name of a column.

    >>> [looks_like_number(word) for word in ("1.5", "1,5", "$1,200", "50%", "x1", "")]
    [True, True, True, False, False, False]
    """
    return parse_number(word) is not None or (not word.endswith("%") and parse_formatted(word) is not None)


def check_decimal(decimal: str | None) -> str | None:
    """The decimal sign, if it is one."""
    if decimal is not None and decimal not in DECIMAL_SIGNS:
        raise InputError(f'decimal must be "," or ".", got {format_value(decimal)}')
    return decimal


@dataclass(frozen=True)
class NumberReading:
    """The words of a column as numbers."""

    values: list[float]
    """NaN where nothing stands or no number."""
    unread: list[int]
    """Places of words that are not numbers; a column of numbers has none."""
    notes: tuple[str, ...] = ()
    """What was taken out."""
    problem: str = ""
    """Why numbers are read as words."""
    shown_decimal: str = ""
    """The decimal sign if the column itself shows which it is."""
    decimal: str = "."
    """The decimal sign that the numbers were read with."""
    marks: tuple[str, ...] = ()
    """Currency and percent signs that were taken out."""


def read_numbers(
    words: Sequence[str], where: str = "", *, decimal: str | None = None, separator: str = ""
) -> NumberReading:
    """The numbers of a column; an error that begins with `where` if they could be others just as well.

    Args:
        words: its cells.
        where: file and column, for the error.
        decimal: the decimal sign of columns that can be read both ways.
        separator: what stands between the fields of the file, if it is one of text.

    >>> read_numbers(["12.345,67", "5", "1,5", ""]).values
    [12345.67, 5.0, 1.5, nan]
    >>> read_numbers(["1,234", "5"], decimal=",").values, read_numbers(["1,234", "5"], separator=",").values
    ([1.234, 5.0], [1234.0, 5.0])
    """
    values, unread = _parse_plain_numbers(words)
    if not unread and (decimal != "," or not any("." in word for word in words)):
        return NumberReading(values, unread, decimal=decimal or ".")
    survey = _survey_column(words)
    if survey is None:
        return NumberReading(values, unread)
    signs = [sign for sign in DECIMAL_SIGNS if survey.num_fitting[sign] == survey.num_known]
    problem = "" if survey.num_numbers < survey.num_known else _find_problem(survey, mixes_signs=not signs)
    if problem:
        return NumberReading(values, unread, problem=problem)
    if not signs:
        best = max(DECIMAL_SIGNS, key=survey.num_fitting.__getitem__)
        return NumberReading(list(survey.values[best]), survey.unread_places(best, words))
    chosen = signs[0] if len(signs) == 1 else _choose_decimal(survey, where, decimal, separator, plain=not unread)
    shown = chosen if any(survey.words_fitting_only.values()) else ""
    marks = (*sorted(survey.currencies), *(("%",) if True in survey.percent else ()))
    return NumberReading(
        list(survey.values[chosen]), [], _describe_reading(survey, chosen), "", shown, decimal=chosen, marks=marks
    )


def read_new_number(word: str, decimal: str, marks: Sequence[str]) -> float | None:
    """The number of a cell of a column whose decimal sign, currency and percent sign are known; None for other words.

    >>> read_new_number("1.234,5", ",", ()), read_new_number("45 %", ".", ()), read_new_number("45 %", ".", ("%",))
    (1234.5, None, 45.0)
    """
    number = parse_formatted(word)
    if number is None or decimal not in number.values:
        return None
    strange = {number.currency, "%" if number.has_percent else ""} - {"", *marks}
    return None if strange else number.values[decimal]


@dataclass
class _ColumnSurvey:
    """What the words of a column are with each decimal sign; a few bytes for each, since a table may have millions."""

    values: dict[str, array[float]] = field(default_factory=lambda: {sign: array("d") for sign in DECIMAL_SIGNS})
    """NaN where a word is not a number."""
    num_fitting: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DECIMAL_SIGNS, 0))
    num_known: int = 0
    num_numbers: int = 0
    words_fitting_only: dict[str, str] = field(default_factory=lambda: dict.fromkeys(DECIMAL_SIGNS, ""))
    """An example for each decimal sign, if there is one."""
    groups: dict[str, set[str]] = field(default_factory=lambda: {sign: set() for sign in DECIMAL_SIGNS})
    ambiguous_words: dict[str, str] = field(default_factory=dict)
    """An example for each sign that stands in one."""
    currencies: set[str] = field(default_factory=set)
    percent: set[bool] = field(default_factory=set)
    """Whether numbers other than 0 have a percent sign."""
    parentheses: set[bool] = field(default_factory=set)
    has_comma: bool = False

    def add_number(self, word: str, number: FormattedNumber) -> None:
        """Count a number and what stands in it."""
        self.num_numbers += 1
        for sign in number.values:
            self.num_fitting[sign] += 1
        for sign, group in number.groups.items():
            self.groups[sign].add(group)
        if len(number.values) == 1:
            only = next(iter(number.values))
            self.words_fitting_only[only] = self.words_fitting_only[only] or word
        elif number.is_ambiguous:
            self.ambiguous_words.setdefault("," if "," in word else ".", word)
        if number.currency:
            self.currencies.add(number.currency)
        if any(number.values.values()):
            self.percent.add(number.has_percent)
        self.parentheses.add(number.has_parentheses)
        self.has_comma = self.has_comma or "," in word

    def unread_places(self, decimal: str, words: Sequence[str]) -> list[int]:
        """Places of words that are not numbers with this decimal sign."""
        values = self.values[decimal]
        return [place for place, word in enumerate(words) if math.isnan(values[place]) and not is_missing(word)]


def _survey_column(words: Sequence[str]) -> _ColumnSurvey | None:
    """All words of a column in both readings; None if there are hardly any numbers."""
    survey = _ColumnSurvey()
    cache: dict[str, FormattedNumber | None] = {}
    for word in words:
        number = None
        if not is_missing(word):
            survey.num_known += 1
            number = cache[word] if word in cache else parse_formatted(word)
            if len(cache) < _MAX_CACHED_WORDS:
                cache[word] = number
            if number is not None:
                survey.add_number(word, number)
            elif survey.num_known == _MAX_PROBED_WORDS and not survey.num_numbers:
                return None
        for sign, values in survey.values.items():
            values.append(number.values.get(sign, np.nan) if number is not None else np.nan)
    return survey if survey.num_numbers else None


def find_thousands_points(words: Sequence[str]) -> str:
    """The first word such as `1.234` of a column of plain numbers whose points all may stand between thousands."""
    first = ""
    for word in words:
        if is_missing(word):
            continue
        found = parse_formatted(word)
        if found is None or "," not in found.values:
            return ""
        first = first or (word if found.is_ambiguous else "")
    return first


def ambiguous_number_error(where: str, word: str, why: str = "") -> InputError:
    """The error for a column that can be read with decimal commas and with decimal points."""
    found = parse_formatted(word)
    values = sorted(found.values.values(), key=abs) if found is not None else []
    may_be = " or ".join(f"{value:.15g}" for value in values)
    say = f"{spell_option('decimal', ',')} or {spell_option('decimal', '.')}"
    return InputError(f"{where}: {quote_cell(word)} may be {may_be}{why}; set the decimal separator with {say}")


def _parse_plain_numbers(words: Sequence[str]) -> tuple[list[float], list[int]]:
    """Every word as a number, NaN where there is none, and the places of words that are neither."""
    try:
        numbers = list(map(float, words))
        if "_" not in "".join(words):
            return numbers, []
    except ValueError:
        pass
    # Each word once: an exception is slow, and a column of words has far more rows than words.
    parsed = {word: parse_number(word) for word in set(words)}
    missing = find_missing(parsed)
    non_numeric = {word for word, number in parsed.items() if number is None and word not in missing}
    by_word = {word: np.nan if number is None else number for word, number in parsed.items()}
    unread = [place for place, word in enumerate(words) if word in non_numeric] if non_numeric else []
    return [by_word[word] for word in words], unread


def _choose_decimal(survey: _ColumnSurvey, where: str, decimal: str | None, separator: str, *, plain: bool) -> str:
    """The decimal sign of a column that fits both."""
    if not survey.ambiguous_words:
        return "."
    if decimal is not None:
        return decimal
    if plain or (separator == "," and "," in survey.ambiguous_words):
        return "."
    raise ambiguous_number_error(where, next(iter(survey.ambiguous_words.values())))


def _find_problem(survey: _ColumnSurvey, *, mixes_signs: bool) -> str:
    """Why the numbers of a column cannot be compared with each other."""
    if mixes_signs:
        comma, point = (quote_cell(survey.words_fitting_only[sign]) for sign in (",", "."))
        return f"decimal commas and decimal points in one column, such as {comma} and {point}"
    if len(survey.currencies) > 1:
        return f"several currencies, such as {' and '.join(sorted(survey.currencies)[:2])}"
    if len(survey.percent) > 1:
        return "percent signs in some of its numbers only"
    return "all of its numbers in parentheses" if survey.parentheses == {True} else ""


def _describe_reading(survey: _ColumnSurvey, decimal: str) -> tuple[str, ...]:
    """What was taken out of the numbers of a column."""
    notes = [f"{group} between thousands were taken out" for group in sorted(survey.groups[decimal])]
    if decimal == "," and survey.has_comma:
        notes.append("decimal commas were read as decimal points")
    notes += [f"the currency sign {currency} was taken out" for currency in survey.currencies]
    if True in survey.percent:
        notes.append("percent signs were taken out (5 % is 5)")
    if True in survey.parentheses:
        notes.append("numbers in parentheses were read as negative")
    return tuple(notes)
