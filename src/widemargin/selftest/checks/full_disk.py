"""A disk that fills up while a run writes: one line, everything before is whole, more room and it goes on."""

from __future__ import annotations

import random
from pathlib import Path

from ..check import Outcome, Size
from ..commands import complaint, forked
from ..mounts import enlarge, small_disk
from ..trainings import Tally, cannot, difference, draw, words

TITLE = "a full disk in training; more room, and --resume"
KIND = "fault"
LONG = False
_ROOM = 256 << 20


def run(size: Size) -> Outcome:
    """Disks of many sizes, each too small for the run."""
    if (missing := cannot()) is not None:
        return missing
    data, whole, tally = draw(size.folder / "images"), size.folder / "whole", Tally()
    forked(words(data, whole), size.folder / "whole.txt")
    needs = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())
    draws, wanted = random.Random(size.seed), 20 if size.long else 2
    for number in range(4 * wanted):
        if tally.tried >= wanted:
            break
        room = int(draws.uniform(0.02, 1.2) * needs)  # at its largest a run holds one checkpoint more than at its end
        place = size.folder / f"disk{number}"
        with small_disk(place, room) as mounted:
            if not mounted:
                return Outcome(0, 0, "nothing", "not tried: only root may mount a small disk")
            wrong = _filled(words(data, place / "run"), place, size.folder / f"{number}.txt")
            if wrong is not None:
                tally.add(f"{room} bytes", wrong or difference(whole, place / "run"))
        size.tell(f"{tally.tried} of {wanted} disks filled")
    return tally.outcome(f"disks of 2 to 120 % of the {needs / 1024:.0f} KiB that the run leaves")


def _filled(command: list[str], place: Path, said: Path) -> str | None:
    """What went wrong; None where the disk was large enough."""
    code, text = forked(command, said)
    if code == 0:
        return None
    line = complaint(text)
    if code != 2 or "No space left on device" not in line:
        return f"ended with {code}: {line}"
    if left := [path.name for path in place.rglob("*.new")]:
        return f"left {', '.join(left)}"
    if not enlarge(place, _ROOM):
        return "the disk could not be made larger"
    said.unlink()
    code, text = forked(command, said)
    return "" if code == 0 else f"resumed, ended with {code}: {text[-300:]}"
