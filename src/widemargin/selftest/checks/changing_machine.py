"""The machine changes under a run: the folder becomes read-only, the images vanish, the clock jumps."""

from __future__ import annotations

import random
import time
from pathlib import Path

from ...cli import main
from ..check import Outcome, Size
from ..commands import Forked, complaint, forked, until
from ..mounts import read_only
from ..trainings import Tally, cannot, difference, draw, words

TITLE = "read-only folder, vanished images, a jumping clock; then --resume"
KIND = "fault"
LONG = False
_DECADE = 10 * 365 * 86400.0


def run(size: Size) -> Outcome:
    """Each of the three in the middle of a run."""
    if (missing := cannot()) is not None:
        return missing
    data, whole, files, tally = draw(size.folder / "images"), size.folder / "whole", size.folder / "files", Tally()
    forked(words(data, whole), size.folder / "whole.txt")
    forked(_from_files(data, files), size.folder / "files.txt")
    note = ""
    for number in range(5 if size.long else 1):
        out = size.folder / f"read-only{number}"
        wrong = _read_only(words(data, out), out)
        if wrong is None:
            note = "read-only was not tried: only root may mount"
        else:
            tally.add("read-only", wrong or difference(whole, out))
        out = size.folder / f"vanished{number}"
        tally.add("vanished images", _vanished(_from_files(data, out), out, data) or difference(files, out))
        out = size.folder / f"clock{number}"
        code, said = forked(words(data, out), out.with_suffix(".txt"), call=with_jumping_clock)
        tally.add("clock", (f"ended with {code}: {said[-300:]}" if code else "") or difference(whole, out))
        size.tell(f"{tally.tried} tried")
    return tally.outcome(note, "nothing; at most the epoch that was not finished, which is done again")


def _from_files(data: Path, out: Path) -> list[str]:
    """A run that reads its images from their files whenever it needs them: its crops want the full resolution."""
    return words(data, out, "--augment", "paper(scale=(0.5, 1.0))", epochs=3, repeats=10)


def _read_only(command: list[str], out: Path) -> str | None:
    child = Forked(command, out.with_suffix(".txt"))
    until(lambda: (out / "checkpoints" / "last").exists() or not child.running())
    with read_only(out) as done:
        code = child.end()
        if not done:
            return None
        if code != 2 or "Read-only file system" not in complaint(child.text()):
            return f"ended with {code}: {complaint(child.text())}"
        code, said = forked(command, out.with_suffix(".still.txt"))
        if code != 2 or "Read-only file system" not in complaint(said):
            return f"begun on it, ended with {code}: {complaint(said)}"
    code, said = forked(command, out.with_suffix(".again.txt"))
    return "" if code == 0 else f"resumed, ended with {code}: {said[-300:]}"


def _vanished(command: list[str], out: Path, data: Path) -> str:
    child = Forked(command, out.with_suffix(".txt"))
    until(lambda: (out / "checkpoints" / "last").exists() or not child.running())
    away = data.with_name("away")
    data.rename(away)
    try:
        code = child.end()
        if code != 2 or str(data) not in complaint(child.text()):
            return f"ended with {code}: {complaint(child.text())}"
        code, said = forked(command, out.with_suffix(".still.txt"))
        if code != 2 or str(data) not in complaint(said):
            return f"begun without images, ended with {code}: {complaint(said)}"
    finally:
        away.rename(data)
    code, said = forked(command, out.with_suffix(".again.txt"))
    return "" if code == 0 else f"resumed, ended with {code}: {said[-300:]}"


def with_jumping_clock(given: list[str]) -> int:
    """The command under a clock that jumps by up to ten years, forth and back, whenever somebody looks at it."""
    draws, right = random.Random(0), time.time

    def wrong() -> float:
        return right() + draws.uniform(-_DECADE, _DECADE)

    time.time = wrong
    time.time_ns = lambda: int(wrong() * 1e9)
    return main(given)
