"""SIGTERM and SIGINT: one keeps everything and leaves with code 75, a second one leaves at once."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from ...errors import StoppedError
from ..check import Outcome, Size
from ..commands import Forked, forked, until
from ..trainings import Tally, cannot, difference, draw, words

TITLE = "SIGTERM or SIGINT once (saved, code 75) and twice (leaves at once)"
KIND = "fault"
LONG = False
_AT_ONCE = 1.0  # seconds; a step of this network takes some tenths of one
_SLOW = {"model": "fast(width=1)", "epochs": 2, "repeats": 2}


def run(size: Size) -> Outcome:
    """Both signals, once and twice, in the middle of an epoch; then resume."""
    if (missing := cannot()) is not None:
        return missing
    data, draws, tally, slowest = draw(size.folder / "images"), random.Random(size.seed), Tally(), 0.0
    whole, plain = size.folder / "whole", size.folder / "plain"
    forked(words(data, plain), size.folder / "plain.txt")
    forked(words(data, whole, **_SLOW), size.folder / "whole.txt")  # type: ignore[arg-type]
    for number in range(5 if size.long else 1):
        for asked in (signal.SIGTERM, signal.SIGINT):
            out = size.folder / f"once{number}-{asked.name}"
            tally.add(f"{asked.name} once", _once(words(data, out), out, asked, draws) or difference(plain, out))
            out = size.folder / f"twice{number}-{asked.name}"
            slow = words(data, out, **_SLOW)  # type: ignore[arg-type]
            seconds, wrong = _twice(slow, out, asked)
            slowest = max(slowest, seconds)
            tally.add(f"{asked.name} twice", wrong or difference(whole, out))
            size.tell(f"{tally.tried} tried")
    lost = "nothing; after two, at most the epoch that was not finished, which is done again"
    return tally.outcome(f"after a second signal gone within {slowest:.2f} s", lost)


def _once(command: list[str], out: Path, asked: signal.Signals, draws: random.Random) -> str:
    child = Forked(command, out.with_suffix(".txt"))
    until(lambda: (out / "metrics.jsonl").exists() or not child.running())
    time.sleep(draws.uniform(0.0, 0.4))
    child.send(asked)
    code = child.end()
    if code != StoppedError.code:
        return f"ended with {code}, not {StoppedError.code}: {child.text()[-300:]}"
    code, said = forked(command, out.with_suffix(".txt"))
    return "" if code == 0 else f"resumed, ended with {code}: {said[-300:]}"


def _twice(command: list[str], out: Path, asked: signal.Signals) -> tuple[float, str]:
    child = Forked(command, out.with_suffix(".txt"))
    until(lambda: (out / "metrics.jsonl").exists() or not child.running())
    child.send(asked)
    until(lambda: "once more leaves at once" in child.text() or not child.running())
    begun = time.monotonic()
    child.send(asked)
    code = child.end()
    seconds = time.monotonic() - begun
    if code != -asked:
        return seconds, f"ended with {code}, not by the signal: {child.text()[-300:]}"
    if seconds > _AT_ONCE:
        return seconds, f"left after {seconds:.1f} s"
    code, said = forked(command, out.with_suffix(".txt"))
    return seconds, "" if code == 0 else f"resumed, ended with {code}: {said[-300:]}"
