"""Two commands at once in one folder: the second is refused; the lock of a killed process is released."""

from __future__ import annotations

import signal
from pathlib import Path

from widemargin.io.locks import LOCK_FILE_NAME

from ..check import CheckContext, Outcome
from ..commands import CommandProcess, error_line, run_command, wait_until
from ..trainings import Tally, difference, draw_table, generate_image_folder, train_argv, training_unavailable_outcome

TITLE = "two train, compare or reproduce at once in one folder"
KIND = "fault"
LONG = False


def run(context: CheckContext) -> Outcome:
    """Run each command twice at once, and after one that was killed."""
    if (missing := training_unavailable_outcome()) is not None:
        return missing
    data, whole, tally = generate_image_folder(context.folder / "images"), context.folder / "whole", Tally()
    run_command(train_argv(data, whole), context.folder / "whole.txt")
    table = draw_table(context.folder / "table.csv")
    for number in range(5 if context.long else 1):
        out = context.folder / f"train{number}"
        wrong = _run_concurrently(train_argv(data, out), train_argv(data, out), out)
        tally.add("train", wrong or difference(whole, out))
        out = context.folder / f"compare{number}"
        compare = ["compare", str(table), "--out", str(out), "--jobs", "1"]
        tally.add("compare", _run_concurrently(compare, compare, out))
        out = context.folder / f"reproduce{number}"
        compare = ["compare", str(table), "--out", str(out), "--jobs", "1"]
        reproduce = ["reproduce", "headline", "--out", str(out), "--runs-dir", str(out / "runs")]
        tally.add("reproduce", _run_concurrently(compare, reproduce, out))
        context.on_progress(f"{tally.tried} tried")
    return tally.outcome()


def _run_concurrently(first: list[str], second: list[str], out: Path) -> str:
    """The second is refused while the first runs; after a kill the first can be restarted."""
    child = CommandProcess(first, out.with_suffix(".txt"))
    wait_until(lambda: _has_lock_owner(out / LOCK_FILE_NAME) or not child.is_running(), poll_interval=0.0)
    child.send_signal(signal.SIGSTOP)  # it must not finish before the second starts
    code, output = run_command(second, out.with_suffix(".second.txt"))
    pid = child.pid
    child.send_signal(signal.SIGKILL)
    child.wait()
    if code != 2 or f"process {pid} on" not in error_line(output):
        return f"the second ended with {code}: {error_line(output)}"
    code, output = run_command(first, out.with_suffix(".again.txt"))
    return "" if code == 0 else f"after a kill it ended with {code}: {output[-300:]}"


def _has_lock_owner(lock: Path) -> bool:
    try:
        return lock.stat().st_size > 0
    except OSError:
        return False
