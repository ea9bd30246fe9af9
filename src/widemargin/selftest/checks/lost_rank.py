"""One of two processes of a training is killed or falls silent: the other names it and leaves; all goes on after."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from ..check import Outcome, Size
from ..commands import PATIENCE, complaint, fresh, ranks, until
from ..trainings import Tally, cannot, difference, draw, words

TITLE = "one of two ranks killed or silent; torchrun --max-restarts"
KIND = "fault"
LONG = False
_SILENCE = 5.0  # seconds, as --timeout
_GONE = 30.0  # seconds in which the other one must have left


def run(size: Size) -> Outcome:
    """Kill each rank in turn, stop one without killing it, and let torchrun start them again."""
    if (missing := cannot()) is not None:
        return missing
    data, whole, tally, draws = draw(size.folder / "images"), size.folder / "whole", Tally(), random.Random(size.seed)
    slowest = 0.0
    begun = time.perf_counter()
    if wrong := _together(words(data, whole), whole):
        return Outcome(1, 0, "everything", f"an undisturbed run of two: {wrong}")
    lasts = time.perf_counter() - begun
    for number in range(10 if size.long else 2):
        out = size.folder / f"killed{number}"
        seconds, wrong = _lost(words(data, out), out, number % 2, signal.SIGKILL, draws.uniform(0.0, 0.5 * lasts))
        slowest = max(slowest, seconds)
        tally.add(f"rank {number % 2} killed", wrong or difference(whole, out))
        size.tell(f"{tally.tried} tried")
    for number in range(4 if size.long else 2):
        out = size.folder / f"silent{number}"
        silent = words(data, out, "--timeout", f"{_SILENCE:g}")
        _, wrong = _lost(silent, out, (number + 1) % 2, signal.SIGSTOP, draws.uniform(0.0, 0.3 * lasts))
        tally.add(f"rank {(number + 1) % 2} silent", wrong or difference(whole, out))
        size.tell(f"{tally.tried} tried")
    for number in range(3 if size.long else 1):
        out = size.folder / f"again{number}"
        tally.add("torchrun --max-restarts", _again(words(data, out), out, draws) or difference(whole, out))
        size.tell(f"{tally.tried} tried")
    lost = "nothing; at most the epoch that was not finished, which is done again"
    return tally.outcome(f"after a kill the other had left within {slowest:.1f} s", lost)


def _together(command: list[str], out: Path) -> str:
    """Both ranks to their end."""
    children = ranks(command, out.with_suffix(".said"))
    codes = [child.end() for child in children]
    return "" if codes == [0, 0] else f"ended with {codes}: {children[0].text()[-300:]}"


def _lost(command: list[str], out: Path, victim: int, number: int, moment: float) -> tuple[float, str]:
    """Seconds until the other has left, and what was wrong with its leaving or with going on."""
    children = ranks(command, out.with_suffix(".said"))
    try:
        until(lambda: (out / "metrics.jsonl").exists() or not children[0].running())
        time.sleep(moment)
        children[victim].send(number)
        begun = time.monotonic()
        code = children[1 - victim].end(_GONE)
        seconds = time.monotonic() - begun
    finally:
        for child in children:
            child.send(signal.SIGKILL)
            child.end()
    if code == 0 and (out / "record.json").exists() and moment > 0.05:
        # They had come to their end already, on a machine that is faster by now: no trial. Again, and sooner.
        shutil.rmtree(out)
        return _lost(command, out, victim, number, moment / 2)
    line = complaint(children[1 - victim].text())
    if code != 2 or f"rank {victim} " not in line:
        return seconds, f"the other ended with {code}: {line}"
    return seconds, _together(command, out)


def _again(command: list[str], out: Path, draws: random.Random) -> str:
    """Under torchrun one rank is killed after the first checkpoint; torchrun itself must bring the run to its end."""
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    start += ["--max-restarts", "2", "-m", "widemargin", *command]
    said = out.with_suffix(".txt")
    with fresh(start, said) as process:
        if not until(lambda: (out / "checkpoints" / "last").exists() or process.poll() is not None):
            return "no checkpoint came"
        time.sleep(draws.uniform(0.0, 0.2))
        workers = _children(process.pid)
        if not workers:
            return "torchrun has no workers"
        os.kill(draws.choice(workers), signal.SIGKILL)
        if not until(lambda: process.poll() is not None, 3 * PATIENCE, pause=0.05):
            return "torchrun did not come to its end"
    if process.returncode != 0:
        return f"torchrun ended with {process.returncode}: {said.read_text(errors='replace')[-500:]}"
    return ""


def _children(parent: int) -> list[int]:
    """Processes that a process has started."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(place.name))
    return found
