"""Dates and times of a column as numbers: year, month, weekday, hour and days since the earliest.

Read are `2024-12-31` (also with points or slashes), `31.12.2024`, `12/31/2024`, `31/12/2024`, `31-Dec-2024` and
`Dec 31, 2024`, each with or without a time (`18:30`, `18:30:05.25`, `6:30 PM`, then `Z` or `+01:00`), and times of day
alone. All dates of a column must be written in one way. `0000-00-00` is a missing date.

Whether the day or the month comes first is decided by the whole column: one `31` in it tells. Where nothing tells, days
come first between points and dashes; between slashes the other columns of the file decide, else months come first, as
in the United States and in pandas, and a note says so.

Year, month, weekday (0 is Monday) and hour are those that are written; days are counted from one instant, so offsets
such as `+01:00` are subtracted. Only parts that vary become columns. Days have fractions where there are times.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .table import is_missing

_TIME = (
    r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2}(?:[.,][0-9]{1,9})?))?"
    r"(?: ?(?P<half>[AaPp])\.?[Mm]\.?)?"
)
_ZONE = r"(?: ?(?P<zone>Z|UTC|[+-][0-9]{2}:?(?:[0-9]{2})?))?"
_REST = rf"(?:(?:[Tt]|,? +){_TIME}{_ZONE})?"
_DATE_PATTERNS = tuple(
    re.compile(day + _REST)
    for day in (
        r"(?P<year>[0-9]{4})(?P<sign>[-/.])(?P<month>[0-9]{1,2})(?P=sign)(?P<day>[0-9]{1,2})",
        r"(?P<first>[0-9]{1,2})(?P<sign>[-/.])(?P<then>[0-9]{1,2})(?P=sign)(?P<year>[0-9]{4}|[0-9]{2})",
        r"(?P<day>[0-9]{1,2})[-. ]+(?P<name>[A-Za-z]{3,9})\.?[-, ]+(?P<year>[0-9]{4})",
        r"(?P<name>[A-Za-z]{3,9})\.? +(?P<day>[0-9]{1,2}),? +(?P<year>[0-9]{4})",
    )
)
_TIME_PATTERN = re.compile(_TIME)
_PADDED_SHORT_DATE_PATTERN = re.compile(r"[0-9]{2}\.[0-9]{2}\.[0-9]{2}(?![0-9.])")
_MISSING_DATE_PATTERN = re.compile(r"0{4}-00-00([T ]00:00(:00(\.0+)?)?)?|00([./])00\4(0{4})")
_MAX_DATE_LENGTH = 60
_PROBED_WORDS = 20
_FIRST_SHORT_YEAR = 69  # 69 to 99 are of the last century, as in Python's strptime
_MONTHS = (
    "january february march april may june july august september october november december".split()  # noqa: SIM905
)
_MONTH_NUMBERS = {name[:end]: k for k, name in enumerate(_MONTHS, 1) for end in (3, 9)} | {"sept": 9}

_OPEN_SIGNS = ("-", "/", ".")  # between day and month, whose order is then open
DAY_FIRST, MONTH_FIRST, FIXED = "day first", "month first", ""
_SECONDS_PER_DAY = 86400.0
_WEEKDAY_OF_1970 = 3  # the first of January was a Thursday


class _WrittenDate(NamedTuple):
    """A date as it is written; where the order of day and month is open, `first` and `then` are in that of writing."""

    sign: str
    """What stands between day and month where their order is open, else the kind of date."""
    year: int
    first: int
    then: int
    seconds: float
    offset_seconds: int


def _parse_date(word: str) -> _WrittenDate | None:
    if len(word) > _MAX_DATE_LENGTH:
        return None
    for pattern in _DATE_PATTERNS:
        match = pattern.fullmatch(word)
        if match is None:
            continue
        parts = match.groupdict()
        seconds = 0.0 if parts["hour"] is None else _seconds_of_day(parts)
        if seconds is None:
            return None
        year, offset = int(parts["year"]), _offset_seconds(parts["zone"])
        if parts.get("name"):
            month = _MONTH_NUMBERS.get(parts["name"].lower(), 0)
            return _WrittenDate("name", year, month, int(parts["day"]), seconds, offset)
        if parts.get("month"):
            return _WrittenDate("year first", year, int(parts["month"]), int(parts["day"]), seconds, offset)
        sign = parts["sign"]
        if len(parts["year"]) == 2:
            if sign == "-" or (sign == "." and _PADDED_SHORT_DATE_PATTERN.match(word) is None):
                return None  # a number of a version or an article sooner than a date
            year += 1900 if year >= _FIRST_SHORT_YEAR else 2000
        return _WrittenDate(sign, year, int(parts["first"]), int(parts["then"]), seconds, offset)
    return None


def _seconds_of_day(parts: dict[str, str | None]) -> float | None:
    hour, minute = int(parts["hour"] or 0), int(parts["minute"] or 0)
    second = float((parts["second"] or "0").replace(",", "."))
    if parts["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (parts["half"] in "Pp")
    return 3600.0 * hour + 60.0 * minute + second if hour < 24 and minute < 60 and second < 60 else None


def _offset_seconds(zone: str | None) -> int:
    if not zone or zone in ("Z", "UTC"):
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    return (-1 if zone[0] == "-" else 1) * (3600 * int(digits[:2]) + 60 * int(digits[2:]))


@dataclass(frozen=True)
class DateReading:
    """A column of dates or times as numbers."""

    parts: dict[str, NDArray[np.float64]]
    """The columns that come of it, by what to add to the name; NaN where a date is missing."""
    unread: list[int]
    """Places of words that are no dates; without parts if there are any."""
    note: str = ""
    sign: str = ""
    """What stands between day and month where their order is open, else the kind of date."""
    order: str = ""
    start: tuple[float, float] = (0.0, 0.0)
    """What `_days` is counted from: the earliest day since 1970, and the earliest time since its beginning, in days."""
    is_time: bool = False


def read_dates(words: Sequence[str], other_columns: Iterable[Sequence[str]] = ()) -> DateReading | None:
    """The numbers of a column of dates or of times; None if it is a column of something else.

    With a few words that are no dates among them it is a column of dates with slips; these are `unread`.

    >>> reading = read_dates(["30.12.2024", "31.12.2024", "", "02.01.2025"])
    >>> {name: values.tolist() for name, values in reading.parts.items()}["_days"]
    [0.0, 1.0, nan, 3.0]
    >>> sorted(reading.parts), read_dates(["1.2", "x"]) is None
    (['_days', '_month', '_weekday', '_year'], True)
    """
    probed = list(islice((word for word in words if not _is_missing_date(word)), _PROBED_WORDS))
    if any(_TIME_PATTERN.fullmatch(word) for word in probed):
        return _read_times(words)
    if not any(_parse_date(word) for word in probed):
        return None
    dates = _survey_dates(words)
    if dates is None:
        return None
    order, remark = _choose_order(dates, other_columns)
    first, then = dates.numbers[:, 1], dates.numbers[:, 2]
    month, day = (then, first) if order == DAY_FIRST else (first, then)
    days = _days_since_1970(dates.numbers[:, 0], month, day)
    is_wrong = np.isnan(days) & ~dates.is_missing
    if is_wrong.any():
        return DateReading({}, np.flatnonzero(is_wrong).tolist())
    origin = _date_origin(dates.numbers, days)
    parts = _varying_parts(_date_parts(dates.numbers, month, days, origin))
    start = np.datetime64(int(np.nanmin(days)), "D")
    note = f"dates{remark} became {_join([f'days since {start}' if name == '_days' else name[1:] for name in parts])}"
    return DateReading(parts, [], note, dates.sign, order, origin)


def _read_times(words: Sequence[str]) -> DateReading | None:
    hours = array("d")
    for word in words:
        seconds = np.nan if _is_missing_date(word) else _parse_time(word)
        if seconds is None:
            return None
        hours.append(seconds / 3600.0)
    return DateReading({"": np.array(hours)}, [], "times of day became hours", is_time=True)


def read_new_times(words: Sequence[str]) -> DateReading:
    """Times of day of new rows, in hours."""
    parsed = [np.nan if _is_missing_date(word) else _parse_time(word) for word in words]
    unread = [place for place, seconds in enumerate(parsed) if seconds is None]
    hours = np.array([np.nan if seconds is None else seconds / 3600.0 for seconds in parsed])
    return DateReading({"": hours}, unread, is_time=True)


def read_new_dates(words: Sequence[str], sign: str, order: str, start: tuple[float, float]) -> DateReading:
    """Dates of new rows in the way that the dates of `read_dates` were written, or with the year or a name in them.

    >>> old = read_dates(["30.12.2024", "31.12.2024"])
    >>> read_new_dates(["02.01.2025", "2025-01-03", "1/2/2025"], old.sign, old.order, old.start).unread
    [2]
    """
    numbers = np.full((len(words), 5), np.nan)
    is_gap = np.zeros(len(words), dtype=bool)
    for place, word in enumerate(words):
        is_gap[place] = _is_missing_date(word)
        written = None if is_gap[place] else _parse_date(word)
        if written is None or (written.sign in _OPEN_SIGNS and written.sign != sign):
            continue
        swap = written.sign in _OPEN_SIGNS and order == DAY_FIRST
        month, day = (written.then, written.first) if swap else (written.first, written.then)
        numbers[place] = written.year, month, day, written.seconds, written.offset_seconds
    days = _days_since_1970(numbers[:, 0], numbers[:, 1], numbers[:, 2])
    unread = np.flatnonzero(np.isnan(days) & ~is_gap).tolist()
    return DateReading(_date_parts(numbers, numbers[:, 1], days, start), unread)


class _DateColumn(NamedTuple):
    """The dates of a column in the order of writing."""

    sign: str
    numbers: NDArray[np.float64]
    """[n, 5]: the numbers of `_WrittenDate`, NaN for missing dates and for words that are none."""
    is_missing: NDArray[np.bool_]

    def fitting_orders(self) -> list[str]:
        """The orders of day and month in which no month is above 12."""
        if self.sign not in _OPEN_SIGNS:
            return [FIXED]
        first, then = (np.nanmax(self.numbers[:, place]) for place in (1, 2))
        return [order for order, month in ((DAY_FIRST, then), (MONTH_FIRST, first)) if month <= 12]


def _survey_dates(words: Sequence[str]) -> _DateColumn | None:
    """All dates of a column; None if they are written in several ways, or if many words are none."""
    numbers, is_missing_date = array("d"), bytearray()
    signs: set[str] = set()
    num_wrong = 0
    for place, word in enumerate(words):
        is_gap = _is_missing_date(word)
        written = None if is_gap else _parse_date(word)
        is_missing_date.append(is_gap)
        if written is None:
            num_wrong += not is_gap
            numbers.extend((np.nan,) * 5)
        else:
            signs.add(written.sign)
            numbers.extend(written[1:])
        if len(signs) > 1 or num_wrong > max(_PROBED_WORDS, place // 2):
            return None
    if not signs:
        return None
    return _DateColumn(signs.pop(), np.array(numbers).reshape(-1, 5), np.array(is_missing_date, dtype=bool))


def _is_missing_date(word: str) -> bool:
    return is_missing(word) or _MISSING_DATE_PATTERN.fullmatch(word) is not None


def _parse_time(word: str) -> float | None:
    match = _TIME_PATTERN.fullmatch(word)
    return None if match is None else _seconds_of_day(match.groupdict())


def _choose_order(dates: _DateColumn, other_columns: Iterable[Sequence[str]]) -> tuple[str, str]:
    """The order of day and month, and a remark on it."""
    orders = dates.fitting_orders()
    if orders == [FIXED]:
        return FIXED, ""
    if len(orders) == 1:
        return orders[0], f" ({orders[0]})"
    if not orders or dates.sign != "/":
        return DAY_FIRST, f" ({DAY_FIRST})"
    for words in other_columns:
        other = _survey_dates(words)
        if other is not None and other.sign == dates.sign and len(other.fitting_orders()) == 1:
            order = other.fitting_orders()[0]
            return order, f" ({order}, as in another column)"
    return MONTH_FIRST, f" ({MONTH_FIRST}: no day above 12 tells; write 2024-12-31 if the day comes first)"


def _days_since_1970(
    year: NDArray[np.float64], month: NDArray[np.float64], day: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The number of each day; NaN where there is none in the calendar."""
    is_possible = (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1)
    months = np.where(is_possible, (year - 1970) * 12 + month - 1, 0).astype(np.int64).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + np.where(is_possible, day - 1, 0).astype(np.int64)
    is_possible &= days.astype("datetime64[M]") == months
    return np.where(is_possible, days.astype(np.int64), np.nan)


def _date_origin(numbers: NDArray[np.float64], days: NDArray[np.float64]) -> tuple[float, float]:
    """The earliest day, and the earliest time since its beginning, in days."""
    first_day = float(np.nanmin(days))
    return first_day, float(np.nanmin(_elapsed_days(numbers, days, first_day)))


def _elapsed_days(numbers: NDArray[np.float64], days: NDArray[np.float64], first_day: float) -> NDArray[np.float64]:
    seconds, offsets = numbers[:, 3], numbers[:, 4]
    return (days - first_day) + (seconds - offsets) / _SECONDS_PER_DAY


def _date_parts(
    numbers: NDArray[np.float64],
    month: NDArray[np.float64],
    days: NDArray[np.float64],
    origin: tuple[float, float],
) -> dict[str, NDArray[np.float64]]:
    """All parts of all dates, by what to add to the column's name."""
    return {
        "_year": numbers[:, 0].copy(),
        "_month": month.copy(),
        "_weekday": (days + _WEEKDAY_OF_1970) % 7,
        "_hour": numbers[:, 3] / 3600.0,
        "_days": _elapsed_days(numbers, days, origin[0]) - origin[1],
    }


def _varying_parts(parts: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    return {name: values for name, values in parts.items() if _varies(values)} or {"_days": parts["_days"]}


def _varies(values: NDArray[np.float64]) -> bool:
    known = values[~np.isnan(values)]
    return bool(len(known)) and bool((known != known[0]).any())


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
