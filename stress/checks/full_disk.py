"""A disk that fills up during a run: one line, everything before is intact, and with more space it continues."""

from __future__ import annotations

import random
from pathlib import Path

from ..check import CheckContext, Outcome
from ..commands import error_line, run_command
from ..mounts import enlarge_disk, small_disk
from ..trainings import Tally, difference, generate_image_folder, train_argv, training_unavailable_outcome

TITLE = "a full disk in training; more space, and --resume"
KIND = "fault"
LONG = False
_ENLARGED_DISK_BYTES = 256 << 20


def run(context: CheckContext) -> Outcome:
    """Test disks of many sizes, each too small for the run."""
    if (missing := training_unavailable_outcome()) is not None:
        return missing
    data, whole, tally = generate_image_folder(context.folder / "images"), context.folder / "whole", Tally()
    run_command(train_argv(data, whole), context.folder / "whole.txt")
    needs = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())
    draws, num_disks = random.Random(context.seed), 20 if context.long else 2
    for number in range(4 * num_disks):
        if tally.tried >= num_disks:
            break
        size = int(draws.uniform(0.02, 1.2) * needs)  # at its peak a run holds one checkpoint more than at its end
        place = context.folder / f"disk{number}"
        with small_disk(place, size) as mounted:
            if not mounted:
                return Outcome(0, 0, "nothing", "not tried: only root may mount a small disk")
            wrong = _try_full_disk(train_argv(data, place / "run"), place, context.folder / f"{number}.txt")
            if wrong is not None:
                tally.add(f"{size} bytes", wrong or difference(whole, place / "run"))
        context.on_progress(f"{tally.tried} of {num_disks} disks filled")
    return tally.outcome(f"disks of 2 to 120 % of the {needs / 1024:.0f} KiB that the run leaves")


def _try_full_disk(command: list[str], disk: Path, output_path: Path) -> str | None:
    """Return what went wrong; None if the disk was large enough."""
    code, text = run_command(command, output_path)
    if code == 0:
        return None
    line = error_line(text)
    if code != 2 or "No space left on device" not in line:
        return f"ended with {code}: {line}"
    if remaining := [path.name for path in disk.rglob("*.new")]:
        return f"left {', '.join(remaining)}"
    if not enlarge_disk(disk, _ENLARGED_DISK_BYTES):
        return "the disk could not be made larger"
    output_path.unlink()
    code, text = run_command(command, output_path)
    return "" if code == 0 else f"resumed, ended with {code}: {text[-300:]}"
