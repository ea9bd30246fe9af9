"""Fuzzing: cases of the corpus and made ones against what reads them, within a time and a memory bound.

A case survives if it succeeds or raises `InputError` whose text is one printable line of bearable length that names the
place. Anything else is a failure: another exception; a case that computes for longer than `MAX_CPU_SECONDS`, or lasts
longer than `MAX_WALL_SECONDS` (a busy machine may hold a process up for a while, which is no fault of it); cases that
make the process grow by more than their bound (peak resident memory; the address space is limited above it).

The corpus, the folder `corpus/`, holds small good inputs of every kind to make bad ones from, and every case that once
failed.
"""

from __future__ import annotations

import io
import json
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from widemargin.io.errors import InputError
from widemargin.io.text import escape_unprintable

from .check import CheckContext, Outcome

CORPUS_DIR = Path(__file__).parent / "corpus"
MAX_CPU_SECONDS, MAX_WALL_SECONDS = 10.0, 600.0
"""A case that takes longer hangs, for all a user knows: of the processor's time, and by the clock."""
MAX_GROWTH_MEGABYTES = 256
"""Growth of the process over all cases of a surface, unless the surface says otherwise."""
# Address space above that bound: what runs into it fails instead of filling the machine.
_ADDRESS_SPACE_MARGIN_BYTES = 4 << 30
_MAX_MESSAGE_CHARS = 1000
_MAX_REPORTED_FAILURES = 3


def load_corpus_cases(name: str) -> list[Any]:
    """The cases of `NAME.jsonl`, one JSON value per line."""
    text = (CORPUS_DIR / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def load_corpus_files(name: str) -> dict[str, bytes]:
    """The files of the folder NAME by their names."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS_DIR / name).iterdir())}


class TooLongError(BaseException):
    """The alarm; not an Exception, so that no reader takes it for a damaged file."""


@dataclass
class FuzzTally:
    """Runs the cases of one surface and counts how they ended."""

    name: str
    max_megabytes: int = MAX_GROWTH_MEGABYTES
    tried: int = 0
    refused: int = 0
    slowest: float = 0.0
    failures: list[str] = field(default_factory=list)
    failed: int = 0
    growth_megabytes: float = 0.0

    def run_case(self, description: Any, attempt: Callable[[], Any], expected_text: str = "") -> None:
        """Try one case; `description` is quoted if it fails, `expected_text` is what its message must contain."""
        self.tried += 1
        begun = time.process_time()
        wrong = self._case_problem(attempt, expected_text)
        self.slowest = max(self.slowest, time.process_time() - begun)
        if wrong:
            self.failed += 1
            if len(self.failures) < _MAX_REPORTED_FAILURES:
                self.failures.append(f"{_shorten(description)} → {wrong}")

    def _case_problem(self, attempt: Callable[[], Any], expected_text: str) -> str:
        """What is wrong with how a case ended, if anything is."""
        try:
            with _limit_time(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                attempt()
        except InputError as error:
            self.refused += 1
            return message_problem(str(error), expected_text)
        except TooLongError:
            return f"hangs for more than {MAX_CPU_SECONDS:g} s"
        except BaseException as error:  # whatever it is, it is what a user would see
            return f"{type(error).__name__}: {_shorten(error)}"
        return ""

    def outcome(self) -> Outcome:
        """All cases together."""
        bound = f"at most {MAX_CPU_SECONDS:g} s and {self.max_megabytes} MB"
        note = f"{self.refused:,} refused in one line; slowest {self.slowest:.2f} s, "
        note += f"grew by {self.growth_megabytes:.0f} MB ({bound})"
        if self.growth_megabytes > self.max_megabytes:
            self.failed += 1
            self.failures.append("grew beyond the bound")
        if self.failed:
            note = f"{self.failed:,} failed: {'; '.join(self.failures)}. {note}"
        survived = max(0, self.tried - self.failed)
        return Outcome(self.tried, survived, "nothing" if not self.failed else "a clear line", f"{note}.")


def message_problem(message: str, expected_text: str = "") -> str:
    """What is wrong with an error's message, if anything is."""
    if not message.strip():
        return "an error without words"
    if escape_unprintable(message) != message:
        return f"not one printable line: {_shorten(message)}"
    if len(message) > _MAX_MESSAGE_CHARS:
        return f"a message of {len(message):,} characters: {_shorten(message)}"
    if expected_text not in message:
        return f"{expected_text!r} is not named: {_shorten(message)}"
    return ""


def run_fuzz_cases(
    context: CheckContext,
    name: str,
    corpus_cases: Iterable[Any],
    make_case: Callable[[], Any],
    attempt: Callable[[Any], Any],
    counts: tuple[int, int],
    *,
    expected_text: str = "",
    max_megabytes: int = MAX_GROWTH_MEGABYTES,
) -> Outcome:
    """The cases of a corpus, then `counts` (few, and many with --long) made ones, each given to `attempt`."""
    tally = FuzzTally(name, max_megabytes)
    with limit_memory(tally), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in corpus_cases:
            tally.run_case(case, lambda case=case: attempt(case), expected_text)  # type: ignore[misc]
        count = counts[context.long]
        for number in range(count):
            case = make_case()
            tally.run_case(case, lambda case=case: attempt(case), expected_text)  # type: ignore[misc]
            if number % 1000 == 999:
                context.on_progress(f"{name}: {number + 1:,} of {count:,}")
    return tally.outcome()


@contextmanager
def _limit_time() -> Iterator[None]:
    """Raise `TooLongError` after `MAX_CPU_SECONDS`, where there are such signals and this thread gets them."""

    def raise_too_long(number: int, frame: FrameType | None) -> None:
        raise TooLongError

    try:
        kinds = (
            (signal.ITIMER_PROF, signal.SIGPROF, MAX_CPU_SECONDS),
            (signal.ITIMER_REAL, signal.SIGALRM, MAX_WALL_SECONDS),
        )
        before = [signal.signal(number, raise_too_long) for _, number, _ in kinds]
    except (AttributeError, ValueError):  # no such signal, or not the main thread: no limit, but the time is reported
        yield
        return
    for kind, _, seconds in kinds:
        signal.setitimer(kind, seconds)
    try:
        yield
    finally:
        for (kind, number, _), handler in zip(kinds, before, strict=True):
            signal.setitimer(kind, 0.0)
            signal.signal(number, handler)


@contextmanager
def limit_memory(tally: FuzzTally) -> Iterator[None]:
    """Watch the peak of the resident memory, and limit the address space, where Linux can do both."""
    status = Path("/proc/self/status")
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _kilobytes(status, "VmRSS")
    taken = _kilobytes(status, "VmSize") * 1024
    with (
        _limit_address_space(taken + (tally.max_megabytes << 20) + _ADDRESS_SPACE_MARGIN_BYTES)
        if taken
        else nullcontext()
    ):
        yield
    tally.growth_megabytes = max(0.0, (_kilobytes(status, "VmHWM") - before) / 1024)


@contextmanager
def _limit_address_space(max_bytes: int) -> Iterator[None]:
    try:
        import resource
    except ImportError:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = max_bytes if hard == resource.RLIM_INFINITY else min(max_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _kilobytes(status: Path, name: str) -> int:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", status.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _shorten(what: Any) -> str:
    text = ascii(what) if not isinstance(what, BaseException) else ascii(str(what))
    return text if len(text) <= 160 else f"{text[:120]}…{text[-30:]}"
