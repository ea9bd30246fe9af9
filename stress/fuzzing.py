"""Fuzzing: cases of the corpus and generated ones against their readers, with limits on time and memory.

A case survives if it succeeds or raises `InputError` whose text is one printable line of bounded length that names the
place. Anything else is a failure: another exception; a case that computes for longer than `MAX_CPU_SECONDS`, or takes
longer than `MAX_WALL_SECONDS` (a busy machine may delay a process for a while); cases that make the process grow by
more than their limit (peak resident memory; the address space is limited above it).

The corpus, the folder `corpus/`, holds small valid inputs of every kind to be mutated, and every case that once failed.
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
"""Limits of CPU time and wall time of a case; a slower case counts as hanging."""
MAX_GROWTH_MEGABYTES = 256
"""Growth of the process over all cases of a reader, unless it sets another limit."""
# Address space above that limit: a case that reaches it fails instead of filling the machine.
_ADDRESS_SPACE_MARGIN_BYTES = 4 << 30
_MAX_MESSAGE_CHARS = 1000
_MAX_REPORTED_FAILURES = 3


def load_corpus_cases(name: str) -> list[Any]:
    """Return the cases of `NAME.jsonl`, one JSON value per line."""
    text = (CORPUS_DIR / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def load_corpus_files(name: str) -> dict[str, bytes]:
    """Return the files of the folder NAME by name."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS_DIR / name).iterdir())}


class TooLongError(BaseException):
    """The alarm; not an Exception, so that no reader treats it as a damaged file."""


@dataclass
class FuzzTally:
    """Runs the cases of one reader and counts their results."""

    name: str
    max_megabytes: int = MAX_GROWTH_MEGABYTES
    tried: int = 0
    refused: int = 0
    slowest: float = 0.0
    failures: list[str] = field(default_factory=list)
    failed: int = 0
    growth_megabytes: float = 0.0

    def run_case(self, description: Any, attempt: Callable[[], Any], expected_text: str = "") -> None:
        """Run one case; `description` is quoted if it fails, `expected_text` must be part of its message."""
        self.tried += 1
        begun = time.process_time()
        wrong = self._case_problem(attempt, expected_text)
        self.slowest = max(self.slowest, time.process_time() - begun)
        if wrong:
            self.failed += 1
            if len(self.failures) < _MAX_REPORTED_FAILURES:
                self.failures.append(f"{_shorten(description)} → {wrong}")

    def _case_problem(self, attempt: Callable[[], Any], expected_text: str) -> str:
        """Return what is wrong with the result of a case, or ""."""
        try:
            with _limit_time(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                attempt()
        except InputError as error:
            self.refused += 1
            return message_problem(str(error), expected_text)
        except TooLongError:
            return f"hangs for more than {MAX_CPU_SECONDS:g} s"
        except BaseException as error:  # any error here would reach the user
            return f"{type(error).__name__}: {_shorten(error)}"
        return ""

    def outcome(self) -> Outcome:
        """Return the result of all cases."""
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
    """Return what is wrong with an error message, or ""."""
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
    """Run the cases of a corpus, then `counts` (few, and many with --long) generated ones with `attempt`."""
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
    """Raise `TooLongError` after `MAX_CPU_SECONDS`, if the system has such signals and this is the main thread."""

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
    """Measure the peak of the resident memory, and limit the address space, on Linux."""
    status = Path("/proc/self/status")
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = _kilobytes(status, "VmRSS")
    address_space = _kilobytes(status, "VmSize") * 1024
    with (
        _limit_address_space(address_space + (tally.max_megabytes << 20) + _ADDRESS_SPACE_MARGIN_BYTES)
        if address_space
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
        match = re.search(rf"^{name}:\s+(\d+) kB", status.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) if match else 0


def _shorten(what: Any) -> str:
    text = ascii(what) if not isinstance(what, BaseException) else ascii(str(what))
    return text if len(text) <= 160 else f"{text[:120]}…{text[-30:]}"
