"""Soak test: many resumes and evaluations in one process; memory stays constant and no files are left behind."""

from __future__ import annotations

import json
from pathlib import Path

from ..check import CheckContext, Outcome
from ..commands import CommandProcess
from ..soak_training import growth, soak
from ..trainings import generate_image_folder, training_unavailable_outcome

TITLE = "soak test: resumes and evaluations in one process, constant memory"
KIND = "fault"
LONG = False
MINUTES = {False: 1.0, True: 40.0}  # without and with --long
_MIN_CYCLES = 20
_MAX_MEMORY_GROWTH_PERCENT = 1.0  # percent by which memory may grow


def run(context: CheckContext) -> Outcome:
    """Run for the given minutes; on Linux, where process usage can be read."""
    if (missing := training_unavailable_outcome()) is not None:
        return missing
    if not Path("/proc/self/statm").exists():
        return Outcome(0, 0, "nothing", "not tried: this system does not say what a process holds")
    minutes = MINUTES[context.long]
    data, result, scratch = (
        generate_image_folder(context.folder / "images"),
        context.folder / "result.json",
        context.folder / "scratch",
    )
    scratch.mkdir()
    shared = _shared_memory_files()
    context.on_progress(f"{minutes:g} minutes")
    arguments = [str(data), str(context.folder / "run"), str(minutes), str(_MIN_CYCLES), str(result)]
    child = CommandProcess(arguments, context.folder / "said.txt", {"TMPDIR": str(scratch)}, soak)
    code = child.wait(60.0 * minutes + 900.0)
    if code != 0:
        return Outcome(1, 0, "everything", f"ended with {code}: {child.read_output()[-300:]}")
    result_values = json.loads(result.read_text(encoding="utf-8"))
    more, cycles = growth(result_values["usage_samples"]), len(result_values["usage_samples"])
    wrong = [f"{name} +{more[name]}" for name in ("handles", "threads", "children") if more[name] > 0]
    wrong += [f"memory +{more['memory']:.2f} %"] if more["memory"] > _MAX_MEMORY_GROWTH_PERCENT else []
    wrong += [f"left in the temporary folder: {path.name}" for path in scratch.iterdir()]
    wrong += [
        f"left in shared memory: {name}"
        for name in sorted(_shared_memory_files() - shared)
        if name.startswith("torch_")
    ]
    wrong += [f"left in the run's folder: {path.name}" for path in (context.folder / "run").rglob("*.new")]
    last = result_values["usage_samples"][-1]
    note = (
        f"{minutes:g} minutes, {result_values['epochs']} epochs each resumed, {cycles} evaluations, memory "
        f"{more['memory']:+.2f} % at {last['memory'] / 1024:.0f} MiB, {last['handles']} file handles"
    )
    return Outcome(cycles, 0 if wrong else cycles, "see the note" if wrong else "nothing", "; ".join([note, *wrong]))


def _shared_memory_files() -> set[str]:
    place = Path("/dev/shm")
    return {path.name for path in place.iterdir()} if place.is_dir() else set()
