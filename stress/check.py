"""Definition of a check: cases tried, cases survived, and what was lost; and the list of all checks.

Every module in `checks/` is one check with the name of its file. It has `TITLE` (one line for users), `KIND` (one of
`KINDS`), `LONG` (True: only with --long) and `run(context) -> Outcome`. A failure of the tested feature is counted and
reported in the outcome's note, never raised.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from widemargin.io.errors import InputError, unknown_name_error

KINDS = ("fault", "input", "attack")


def _ignore_progress(_: str) -> None:
    """Discard progress messages."""


@dataclass(frozen=True)
class CheckContext:
    """Size of a check, and its folder."""

    long: bool
    folder: Path
    """An empty scratch folder for this check; the caller removes it."""
    seed: int = 0
    on_progress: Callable[[str], None] = field(default=_ignore_progress, compare=False)
    """Progress callback: `on_progress(message)`."""


@dataclass(frozen=True)
class Outcome:
    """Result of a check; with no cases it could not run here, and the note says why."""

    tried: int
    survived: int
    lost: str
    """Largest loss: "nothing", or a description."""
    note: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.survived <= self.tried:
            raise InputError(f"{self.survived} survived of {self.tried} tried: not possible")

    @property
    def has_passed(self) -> bool:
        """True if every case survived."""
        return self.survived == self.tried


@dataclass(frozen=True)
class Check:
    """One check as a row of the table."""

    name: str
    title: str
    kind: str
    long: bool
    run: Callable[[CheckContext], Outcome]


def list_check_names() -> list[str]:
    """Return the names of all checks, from the file names alone."""
    here = Path(__file__).parent / "checks"
    return sorted(found.name for found in pkgutil.iter_modules([str(here)]) if not found.name.startswith("_"))


def load_check(name: str) -> Check:
    """Import and return a check by name."""
    if name not in list_check_names():
        raise unknown_name_error("check", name, list_check_names())
    module = importlib.import_module(f"{__package__}.checks.{name}")
    if module.KIND not in KINDS:
        raise InputError(f"{module.__name__}: {unknown_name_error('kind of check', str(module.KIND), KINDS)}")
    return Check(name, module.TITLE, module.KIND, module.LONG, module.run)


def load_checks(only: Iterable[str] | None = None) -> list[Check]:
    """Return all checks, or the named ones: faults, then input, then attacks."""
    names = list_check_names() if only is None else list(dict.fromkeys(only))
    return sorted((load_check(name) for name in names), key=lambda check: (KINDS.index(check.kind), check.name))
