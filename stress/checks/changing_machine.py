"""The machine changes during a run: the folder becomes read-only, the images vanish, the clock jumps."""

from __future__ import annotations

import random
import time
from pathlib import Path

from widemargin.cli.main import main

from ..check import CheckContext, Outcome
from ..commands import CommandProcess, error_line, run_command, wait_until
from ..mounts import mount_read_only
from ..trainings import Tally, difference, generate_image_folder, train_argv, training_unavailable_outcome

TITLE = "read-only folder, vanished images, a jumping clock; then --resume"
KIND = "fault"
LONG = False
_DECADE = 10 * 365 * 86400.0


def run(context: CheckContext) -> Outcome:
    """Test each of the three in the middle of a run."""
    if (missing := training_unavailable_outcome()) is not None:
        return missing
    data, whole, files, tally = (
        generate_image_folder(context.folder / "images"),
        context.folder / "whole",
        context.folder / "files",
        Tally(),
    )
    run_command(train_argv(data, whole), context.folder / "whole.txt")
    run_command(_file_reading_argv(data, files), context.folder / "files.txt")
    note = ""
    for number in range(5 if context.long else 1):
        out = context.folder / f"read-only{number}"
        wrong = _try_read_only_folder(train_argv(data, out), out)
        if wrong is None:
            note = "read-only was not tried: only root may mount"
        else:
            tally.add("read-only", wrong or difference(whole, out))
        out = context.folder / f"vanished{number}"
        tally.add(
            "vanished images", _try_vanished_images(_file_reading_argv(data, out), out, data) or difference(files, out)
        )
        out = context.folder / f"clock{number}"
        code, output = run_command(train_argv(data, out), out.with_suffix(".txt"), entry_point=run_with_jumping_clock)
        tally.add("clock", (f"ended with {code}: {output[-300:]}" if code else "") or difference(whole, out))
        context.on_progress(f"{tally.tried} tried")
    return tally.outcome(note, "nothing; at most the unfinished epoch, which is repeated")


def _file_reading_argv(data: Path, out: Path) -> list[str]:
    """A run that reads its images from files on every use: its crops need the full resolution."""
    return train_argv(data, out, "--augment", "paper(scale=(0.5, 1.0))", epochs=3, repeated_augmentation=10)


def _try_read_only_folder(command: list[str], out: Path) -> str | None:
    child = CommandProcess(command, out.with_suffix(".txt"))
    wait_until(lambda: (out / "checkpoints" / "last").exists() or not child.is_running())
    with mount_read_only(out) as done:
        code = child.wait()
        if not done:
            return None
        if code != 2 or "Read-only file system" not in error_line(child.read_output()):
            return f"ended with {code}: {error_line(child.read_output())}"
        code, output = run_command(command, out.with_suffix(".still.txt"))
        if code != 2 or "Read-only file system" not in error_line(output):
            return f"begun on it, ended with {code}: {error_line(output)}"
    code, output = run_command(command, out.with_suffix(".again.txt"))
    return "" if code == 0 else f"resumed, ended with {code}: {output[-300:]}"


def _try_vanished_images(command: list[str], out: Path, data: Path) -> str:
    child = CommandProcess(command, out.with_suffix(".txt"))
    wait_until(lambda: (out / "checkpoints" / "last").exists() or not child.is_running())
    away = data.with_name("away")
    data.rename(away)
    try:
        code = child.wait()
        if code != 2 or str(data) not in error_line(child.read_output()):
            return f"ended with {code}: {error_line(child.read_output())}"
        code, output = run_command(command, out.with_suffix(".still.txt"))
        if code != 2 or str(data) not in error_line(output):
            return f"begun without images, ended with {code}: {error_line(output)}"
    finally:
        away.rename(data)
    code, output = run_command(command, out.with_suffix(".again.txt"))
    return "" if code == 0 else f"resumed, ended with {code}: {output[-300:]}"


def run_with_jumping_clock(argv: list[str]) -> int:
    """Run the command with a clock that jumps by up to ten years in either direction at every call."""
    draws, right = random.Random(0), time.time

    def jumping_time() -> float:
        return right() + draws.uniform(-_DECADE, _DECADE)

    time.time = jumping_time
    time.time_ns = lambda: int(jumping_time() * 1e9)
    return main(argv)
