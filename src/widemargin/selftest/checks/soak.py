"""A soak: many resumes and evaluations in one process; memory stays flat and nothing is left lying about."""

from __future__ import annotations

import json
from pathlib import Path

from ..check import Outcome, Size
from ..commands import Forked
from ..soaking import growth, soak
from ..trainings import cannot, draw

TITLE = "a soak: resumes and evaluations in one process, memory flat"
KIND = "fault"
LONG = False
MINUTES = {False: 1.0, True: 40.0}  # by whether it may take long
_CYCLES = 20
_MOST = 1.0  # percent that memory may grow


def run(size: Size) -> Outcome:
    """As many minutes as it may take; on Linux, where a process can be looked into."""
    if (missing := cannot()) is not None:
        return missing
    if not Path("/proc/self/statm").exists():
        return Outcome(0, 0, "nothing", "not tried: this system does not say what a process holds")
    minutes = MINUTES[size.long]
    data, result, scratch = draw(size.folder / "images"), size.folder / "result.json", size.folder / "scratch"
    scratch.mkdir()
    shared = _shared()
    size.tell(f"{minutes:g} minutes")
    given = [str(data), str(size.folder / "run"), str(minutes), str(_CYCLES), str(result)]
    child = Forked(given, size.folder / "said.txt", {"TMPDIR": str(scratch)}, soak)
    code = child.end(60.0 * minutes + 900.0)
    if code != 0:
        return Outcome(1, 0, "everything", f"ended with {code}: {child.text()[-300:]}")
    found = json.loads(result.read_text(encoding="utf-8"))
    more, cycles = growth(found["seen"]), len(found["seen"])
    wrong = [f"{name} +{more[name]}" for name in ("handles", "threads", "children") if more[name] > 0]
    wrong += [f"memory +{more['memory']:.2f} %"] if more["memory"] > _MOST else []
    wrong += [f"left in the temporary folder: {path.name}" for path in scratch.iterdir()]
    wrong += [f"left in shared memory: {name}" for name in sorted(_shared() - shared) if name.startswith("torch_")]
    wrong += [f"left in the run's folder: {path.name}" for path in (size.folder / "run").rglob("*.new")]
    last = found["seen"][-1]
    note = (
        f"{minutes:g} minutes, {found['epochs']} epochs each resumed, {cycles} evaluations, memory "
        f"{more['memory']:+.2f} % at {last['memory'] / 1024:.0f} MiB, {last['handles']} file handles"
    )
    return Outcome(cycles, 0 if wrong else cycles, "see the note" if wrong else "nothing", "; ".join([note, *wrong]))


def _shared() -> set[str]:
    place = Path("/dev/shm")
    return {path.name for path in place.iterdir()} if place.is_dir() else set()
