"""`kill -9` at random times of a training, several times per run, also during the write of a checkpoint."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from ..check import CheckContext, Outcome
from ..commands import CommandProcess, run_command, wait_until
from ..trainings import Tally, difference, generate_image_folder, train_argv, training_unavailable_outcome

TITLE = "kill -9 in training, also during the write of a checkpoint"
KIND = "fault"
LONG = False
KILLS = {False: 5, True: 50}  # without and with --long
_MAX_KILLS_PER_RUN = 6  # kills of one run, so that some happen late


def run(context: CheckContext) -> Outcome:
    """Kill, resume, kill again; finally every run must equal the uninterrupted one."""
    if (missing := training_unavailable_outcome()) is not None:
        return missing
    data, whole, draws = (
        generate_image_folder(context.folder / "images"),
        context.folder / "whole",
        random.Random(context.seed),
    )
    run_command(
        train_argv(data, context.folder / "warm", epochs=1), context.folder / "warm.txt"
    )  # loads what the others share
    start = time.perf_counter()
    code, output = run_command(train_argv(data, whole), context.folder / "whole.txt")
    lasts = time.perf_counter() - start
    if code != 0:
        return Outcome(1, 0, "everything", f"an undisturbed run ended with {code}: {output[-300:]}")
    num_kills, tally, inside, number = KILLS[context.long], Tally(), 0, 0
    while tally.tried < num_kills and number < 10 * num_kills:
        number += 1
        out = context.folder / f"run{number}"
        most = min(_MAX_KILLS_PER_RUN, num_kills - tally.tried)
        kills, written, wrong = _kill_and_resume(data, out, lasts, draws, most, during_write=number % 2 == 1)
        wrong = wrong or difference(whole, out)
        tally.add(f"run {number}", wrong, max(kills, 1) if wrong else kills)
        inside += written
        context.on_progress(f"{tally.tried} of {num_kills} kills, runs of {lasts:.1f} s")
    return tally.outcome(f"{inside} of {tally.tried} kills fell into the write of a checkpoint; runs of {lasts:.1f} s")


def _kill_and_resume(
    data: Path, out: Path, duration: float, rng: random.Random, max_kills: int, during_write: bool
) -> tuple[int, int, str]:
    """Return the kills of one run, how many of them happened during a write, and what was wrong."""
    kills = inside = 0
    places = out / "checkpoints"
    while True:
        child = CommandProcess(train_argv(data, out), out.with_suffix(".txt"))
        if kills < max_kills:
            if during_write:
                _await_write(child, places)
                time.sleep(rng.uniform(0.0, 0.004))
            else:
                time.sleep(rng.uniform(0.0, 1.1 * duration))
            child.send_signal(signal.SIGKILL)
        code = child.wait()
        if code != -signal.SIGKILL:
            return kills, inside, "" if code == 0 else f"ended with {code}: {child.read_output()[-300:]}"
        kills += 1
        inside += _is_half_written(places)


def _await_write(child: CommandProcess, checkpoints_dir: Path) -> None:
    """Wait until a checkpoint has its temporary name."""
    wait_until(lambda: not child.is_running() or _is_writing(checkpoints_dir), poll_interval=0.0)


def _is_writing(checkpoints_dir: Path) -> bool:
    return (checkpoints_dir / "last.new").exists() or (checkpoints_dir / "best.new").exists()


def _is_half_written(checkpoints_dir: Path) -> bool:
    """True if the kill interrupted a write: a temporary name, or a backup without its checkpoint."""
    gone = any(
        (checkpoints_dir / f"{name}.old").exists() and not (checkpoints_dir / name).exists()
        for name in ("last", "best")
    )
    return gone or _is_writing(checkpoints_dir)
