"""Variables of the environment that are set for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def temporary_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """These variables inside, for this process and those it starts; afterwards all are as they were.

    >>> with changed_environment({"WIDEMARGIN_EXAMPLE": "1"}):
    ...     os.environ["WIDEMARGIN_EXAMPLE"]
    '1'
    >>> "WIDEMARGIN_EXAMPLE" in os.environ
    False
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
