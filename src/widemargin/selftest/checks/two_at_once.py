"""Two commands at once in one folder: the second is refused; a lock that was held by a killed one is free."""

from __future__ import annotations

import signal
from pathlib import Path

from ...folder_lock import NAME
from ..check import Outcome, Size
from ..commands import Forked, complaint, forked, until
from ..tables import draw_table
from ..trainings import Tally, cannot, difference, draw, words

TITLE = "two train, compare or reproduce at once in one folder"
KIND = "fault"
LONG = False


def run(size: Size) -> Outcome:
    """Each command beside itself, and after one that was killed."""
    if (missing := cannot()) is not None:
        return missing
    data, whole, tally = draw(size.folder / "images"), size.folder / "whole", Tally()
    forked(words(data, whole), size.folder / "whole.txt")
    table = draw_table(size.folder / "table.csv")
    for number in range(5 if size.long else 1):
        out = size.folder / f"train{number}"
        wrong = _beside(words(data, out), words(data, out), out)
        tally.add("train", wrong or difference(whole, out))
        out = size.folder / f"compare{number}"
        compare = ["compare", str(table), "--out", str(out), "--jobs", "1"]
        tally.add("compare", _beside(compare, compare, out))
        out = size.folder / f"reproduce{number}"
        compare = ["compare", str(table), "--out", str(out), "--jobs", "1"]
        reproduce = ["reproduce", "headline", "--out", str(out), "--runs", str(out / "runs")]
        tally.add("reproduce", _beside(compare, reproduce, out))
        size.tell(f"{tally.tried} tried")
    return tally.outcome()


def _beside(first: list[str], second: list[str], out: Path) -> str:
    """The second is refused while the first works; the first, killed and begun again, is not."""
    child = Forked(first, out.with_suffix(".txt"))
    until(lambda: _signed(out / NAME) or not child.running(), pause=0.0)
    child.send(signal.SIGSTOP)  # it shall not be done before the other has come
    code, said = forked(second, out.with_suffix(".second.txt"))
    pid = child.pid
    child.send(signal.SIGKILL)
    child.end()
    if code != 2 or f"process {pid} on" not in complaint(said):
        return f"the second ended with {code}: {complaint(said)}"
    code, said = forked(first, out.with_suffix(".again.txt"))
    return "" if code == 0 else f"after a kill it ended with {code}: {said[-300:]}"


def _signed(lock: Path) -> bool:
    try:
        return lock.stat().st_size > 0
    except OSError:
        return False
