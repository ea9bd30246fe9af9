"""One of two processes of a training is killed or hangs: the other names it and exits; the run can be resumed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from ..check import CheckContext, Outcome
from ..commands import DEFAULT_TIMEOUT_SECONDS, error_line, start_ranks, start_subprocess, wait_until
from ..trainings import Tally, difference, generate_image_folder, train_argv, training_unavailable_outcome

TITLE = "one of two ranks killed or hanging; torchrun --max-restarts"
KIND = "fault"
LONG = False
_SILENT_RANK_TIMEOUT_SECONDS = 5.0  # seconds, as --timeout
_EXIT_TIMEOUT_SECONDS = 30.0  # seconds in which the other rank must exit


def run(context: CheckContext) -> Outcome:
    """Kill each rank in turn, stop one without killing it, and let torchrun restart them."""
    if (missing := training_unavailable_outcome()) is not None:
        return missing
    data, whole, tally, draws = (
        generate_image_folder(context.folder / "images"),
        context.folder / "whole",
        Tally(),
        random.Random(context.seed),
    )
    slowest = 0.0
    start = time.perf_counter()
    if wrong := _run_both_ranks(train_argv(data, whole), whole):
        return Outcome(1, 0, "everything", f"an undisturbed run of two: {wrong}")
    lasts = time.perf_counter() - start
    for number in range(10 if context.long else 2):
        out = context.folder / f"killed{number}"
        seconds, wrong = _lose_rank(
            train_argv(data, out), out, number % 2, signal.SIGKILL, draws.uniform(0.0, 0.5 * lasts)
        )
        slowest = max(slowest, seconds)
        tally.add(f"rank {number % 2} killed", wrong or difference(whole, out))
        context.on_progress(f"{tally.tried} tried")
    for number in range(4 if context.long else 2):
        out = context.folder / f"silent{number}"
        silent = train_argv(data, out, "--timeout", f"{_SILENT_RANK_TIMEOUT_SECONDS:g}")
        _, wrong = _lose_rank(silent, out, (number + 1) % 2, signal.SIGSTOP, draws.uniform(0.0, 0.3 * lasts))
        tally.add(f"rank {(number + 1) % 2} silent", wrong or difference(whole, out))
        context.on_progress(f"{tally.tried} tried")
    for number in range(3 if context.long else 1):
        out = context.folder / f"again{number}"
        tally.add(
            "torchrun --max-restarts", _kill_under_torchrun(train_argv(data, out), out, draws) or difference(whole, out)
        )
        context.on_progress(f"{tally.tried} tried")
    lost = "nothing; at most the unfinished epoch, which is repeated"
    return tally.outcome(f"after a kill the other had left within {slowest:.1f} s", lost)


def _run_both_ranks(command: list[str], out: Path) -> str:
    """Run both ranks to the end."""
    children = start_ranks(command, out.with_suffix(".said"))
    codes = [child.wait() for child in children]
    return "" if codes == [0, 0] else f"ended with {codes}: {children[0].read_output()[-300:]}"


def _lose_rank(command: list[str], out: Path, victim: int, signal_number: int, delay: float) -> tuple[float, str]:
    """Return the seconds until the other rank exits, and what was wrong with its exit or with resuming."""
    children = start_ranks(command, out.with_suffix(".said"))
    try:
        wait_until(lambda: (out / "metrics.jsonl").exists() or not children[0].is_running())
        time.sleep(delay)
        children[victim].send_signal(signal_number)
        start = time.monotonic()
        code = children[1 - victim].wait(_EXIT_TIMEOUT_SECONDS)
        seconds = time.monotonic() - start
    finally:
        for child in children:
            child.send_signal(signal.SIGKILL)
            child.wait()
    if code == 0 and (out / "record.json").exists() and delay > 0.05:
        # They had finished already, on a faster machine: not a valid trial. Repeat it earlier.
        shutil.rmtree(out)
        return _lose_rank(command, out, victim, signal_number, delay / 2)
    line = error_line(children[1 - victim].read_output())
    if code != 2 or f"rank {victim} " not in line:
        return seconds, f"the other ended with {code}: {line}"
    return seconds, _run_both_ranks(command, out)


def _kill_under_torchrun(command: list[str], out: Path, rng: random.Random) -> str:
    """Kill one rank under torchrun after the first checkpoint; torchrun itself must finish the run."""
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    start += ["--max-restarts", "2", "-m", "widemargin", *command]
    output_path = out.with_suffix(".txt")
    with start_subprocess(start, output_path) as process:
        if not wait_until(lambda: (out / "checkpoints" / "last").exists() or process.poll() is not None):
            return "no checkpoint came"
        time.sleep(rng.uniform(0.0, 0.2))
        workers = _child_pids(process.pid)
        if not workers:
            return "torchrun has no workers"
        os.kill(rng.choice(workers), signal.SIGKILL)
        if not wait_until(lambda: process.poll() is not None, 3 * DEFAULT_TIMEOUT_SECONDS, poll_interval=0.05):
            return "torchrun did not come to its end"
    if process.returncode != 0:
        return f"torchrun ended with {process.returncode}: {output_path.read_text(errors='replace')[-500:]}"
    return ""


def _child_pids(parent: int) -> list[int]:
    """Return the child processes of a process."""
    pids = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            pids.append(int(place.name))
    return pids
