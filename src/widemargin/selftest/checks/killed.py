"""`kill -9` at random moments of a training, several times in a run, also inside the write of a checkpoint."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from ..check import Outcome, Size
from ..commands import Forked, forked, until
from ..trainings import Tally, cannot, difference, draw, words

TITLE = "kill -9 in training, also inside a checkpoint's write"
KIND = "fault"
LONG = False
KILLS = {False: 5, True: 50}  # by whether it may take long
_MOST = 6  # kills of one run, so that some of them fall late


def run(size: Size) -> Outcome:
    """Kill, resume, kill again; at the end every run must be the uninterrupted one."""
    if (missing := cannot()) is not None:
        return missing
    data, whole, draws = draw(size.folder / "images"), size.folder / "whole", random.Random(size.seed)
    forked(words(data, size.folder / "warm", epochs=1), size.folder / "warm.txt")  # loads what the others share
    begun = time.perf_counter()
    code, said = forked(words(data, whole), size.folder / "whole.txt")
    lasts = time.perf_counter() - begun
    if code != 0:
        return Outcome(1, 0, "everything", f"an undisturbed run ended with {code}: {said[-300:]}")
    wanted, tally, inside, number = KILLS[size.long], Tally(), 0, 0
    while tally.tried < wanted and number < 10 * wanted:
        number += 1
        out = size.folder / f"run{number}"
        most = min(_MOST, wanted - tally.tried)
        kills, written, wrong = _killed(data, out, lasts, draws, most, writes=number % 2 == 1)
        wrong = wrong or difference(whole, out)
        tally.add(f"run {number}", wrong, max(kills, 1) if wrong else kills)
        inside += written
        size.tell(f"{tally.tried} of {wanted} kills, runs of {lasts:.1f} s")
    return tally.outcome(f"{inside} of {tally.tried} kills fell into the write of a checkpoint; runs of {lasts:.1f} s")


def _killed(data: Path, out: Path, lasts: float, draws: random.Random, most: int, writes: bool) -> tuple[int, int, str]:
    """Kills of one run, how many of them fell into a write, and what was wrong."""
    kills = inside = 0
    places = out / "checkpoints"
    while True:
        child = Forked(words(data, out), out.with_suffix(".txt"))
        if kills < most:
            if writes:
                _await_write(child, places)
                time.sleep(draws.uniform(0.0, 0.004))
            else:
                time.sleep(draws.uniform(0.0, 1.1 * lasts))
            child.send(signal.SIGKILL)
        code = child.end()
        if code != -signal.SIGKILL:
            return kills, inside, "" if code == 0 else f"ended with {code}: {child.text()[-300:]}"
        kills += 1
        inside += _half(places)


def _await_write(child: Forked, places: Path) -> None:
    """Until a checkpoint is under its temporary name."""
    until(lambda: not child.running() or _writing(places), pause=0.0)


def _writing(places: Path) -> bool:
    return (places / "last.new").exists() or (places / "best.new").exists()


def _half(places: Path) -> bool:
    """Whether the kill has left a write undone: a temporary name, or a spare without its checkpoint."""
    gone = any((places / f"{name}.old").exists() and not (places / name).exists() for name in ("last", "best"))
    return gone or _writing(places)
