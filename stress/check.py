"""A check: how often something was tried, how often it was survived, what was lost; and the list of all checks.

Every module in `checks/` is one check, named like its file. It has `TITLE` (one line that a user understands), `KIND`
(one of `KINDS`), `LONG` (True: only with --long) and `run(context) -> Outcome`. A failure of what is checked is counted
and reported in the outcome's note, never raised.
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
    """Progress that nobody looks at."""


@dataclass(frozen=True)
class CheckContext:
    """How much a check may do, and where."""

    long: bool
    folder: Path
    """An empty scratch folder of this check alone; whoever runs the check removes it."""
    seed: int = 0
    on_progress: Callable[[str], None] = field(default=_ignore_progress, compare=False)
    """Progress callback: `on_progress(message)`."""


@dataclass(frozen=True)
class Outcome:
    """What a check has found; nothing tried means that it could not run here, and the note says why."""

    tried: int
    survived: int
    lost: str
    """What was lost at most: "nothing", or what."""
    note: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.survived <= self.tried:
            raise InputError(f"{self.survived} survived of {self.tried} tried: not possible")

    @property
    def has_passed(self) -> bool:
        """Whether everything that was tried was survived."""
        return self.survived == self.tried


@dataclass(frozen=True)
class Check:
    """One check as the table shows it."""

    name: str
    title: str
    kind: str
    long: bool
    run: Callable[[CheckContext], Outcome]


def list_check_names() -> list[str]:
    """Names of all checks, from the file names alone."""
    here = Path(__file__).parent / "checks"
    return sorted(found.name for found in pkgutil.iter_modules([str(here)]) if not found.name.startswith("_"))


def load_check(name: str) -> Check:
    """A check by its name; its module is imported here."""
    if name not in list_check_names():
        raise unknown_name_error("check", name, list_check_names())
    module = importlib.import_module(f"{__package__}.checks.{name}")
    if module.KIND not in KINDS:
        raise InputError(f"{module.__name__}: {unknown_name_error('kind of check', str(module.KIND), KINDS)}")
    return Check(name, module.TITLE, module.KIND, module.LONG, module.run)


def load_checks(only: Iterable[str] | None = None) -> list[Check]:
    """All checks, or those that are named, faults before input before attacks."""
    wanted = list_check_names() if only is None else list(dict.fromkeys(only))
    return sorted((load_check(name) for name in wanted), key=lambda check: (KINDS.index(check.kind), check.name))
