"""JSON from files that others may have written: bounded in size and depth, and one line for whatever it is instead.

Python's own reader stops at some depth with an error that is no ValueError, and values that pass it can exhaust the
stack later, when they are copied or shown. Everything the package reads as JSON comes through here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .bounded_files import TooLargeError, read_file
from .errors import InputError

MAX_JSON_BYTES = 64 << 20  # bytes; a million class names are half of that
MAX_JSON_DEPTH = 64  # levels; ours have six
MAX_JSON_CONTAINERS = 1 << 20  # lists and objects, each of which takes up to 230 bytes where the text has two


class NotJSONError(InputError):
    """A text or file that is no JSON, or none that anybody wrote in good faith."""


def parse_json(text: str | bytes, where: str) -> Any:
    """The value that a text holds; `where` begins the message if it holds none."""
    if len(text) > MAX_JSON_BYTES:
        raise NotJSONError(f"{where}: more than {MAX_JSON_BYTES >> 20} MiB of JSON")
    if _count_containers(text) > MAX_JSON_CONTAINERS:
        raise NotJSONError(f"{where}: more than {MAX_JSON_CONTAINERS:,} lists and objects of JSON")
    try:
        value = json.loads(text)
    except RecursionError:
        raise NotJSONError(f"{where}: not JSON that can be read (nested more than {MAX_JSON_DEPTH} levels)") from None
    except ValueError as error:  # also bytes that are no text, and numbers of thousands of digits
        raise NotJSONError(f"{where}: not JSON ({error})") from None
    if _is_deeper_than(value, MAX_JSON_DEPTH):
        raise NotJSONError(f"{where}: not JSON that can be read (nested more than {MAX_JSON_DEPTH} levels)")
    return value


def read_json(path: Path) -> Any:
    """The value in a file; a file that cannot be opened raises OSError, as always."""
    try:
        data = read_file(path, MAX_JSON_BYTES)
    except TooLargeError:
        raise NotJSONError(f"{path}: more than {MAX_JSON_BYTES >> 20} MiB of JSON") from None
    return parse_json(data, str(path))


def _count_containers(text: str | bytes) -> int:
    """How many lists and objects a text has at the most: brackets inside words count too."""
    if isinstance(text, bytes):
        return text.count(b"[") + text.count(b"{")
    return text.count("[") + text.count("{")


def dumps_one_line_per_key(values: dict[str, Any], *, ensure_ascii: bool = True) -> str:
    """The text of names with values, each on one line: long columns of numbers are a line, not a line per number.

    >>> print(line_per_name({"loss": "arcgrad", "counts": [3, 1]}))
    {
     "loss": "arcgrad",
     "counts": [3, 1]
    }
    """
    lines = (f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=ensure_ascii)}" for name, value in values.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def _is_deeper_than(value: Any, max_depth: int) -> bool:
    """Whether containers stand in each other more than so many levels deep; level by level, so without a stack."""
    found = [value]
    for _ in range(max_depth + 1):
        found = [inner for one in found if isinstance(one, dict | list) for inner in _child_containers(one)]
        if not found:
            return False
    return True


def _child_containers(container: dict[str, Any] | list[Any]) -> list[Any]:
    values = container.values() if isinstance(container, dict) else container
    return [value for value in values if isinstance(value, dict | list)]
