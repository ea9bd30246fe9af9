"""SIGTERM and SIGINT: one saves everything and exits with code 75, a second one exits at once."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from widemargin.io.errors import StoppedError

from ..check import CheckContext, Outcome
from ..commands import CommandProcess, run_command, wait_until
from ..trainings import Tally, difference, generate_image_folder, train_argv, training_unavailable_outcome

TITLE = "SIGTERM or SIGINT once (saved, code 75) and twice (exits at once)"
KIND = "fault"
LONG = False
_MAX_EXIT_SECONDS = 1.0  # seconds; a step of this network takes some tenths of one
_SLOW_TRAINING = {"model": "fast(width=1)", "epochs": 2, "repeated_augmentation": 2}


def run(context: CheckContext) -> Outcome:
    """Send both signals, once and twice, in the middle of an epoch; then resume."""
    if (missing := training_unavailable_outcome()) is not None:
        return missing
    data, draws, tally, slowest = (
        generate_image_folder(context.folder / "images"),
        random.Random(context.seed),
        Tally(),
        0.0,
    )
    whole, plain = context.folder / "whole", context.folder / "plain"
    run_command(train_argv(data, plain), context.folder / "plain.txt")
    run_command(train_argv(data, whole, **_SLOW_TRAINING), context.folder / "whole.txt")  # type: ignore[arg-type]
    for number in range(5 if context.long else 1):
        for stop_signal in (signal.SIGTERM, signal.SIGINT):
            out = context.folder / f"once{number}-{stop_signal.name}"
            tally.add(
                f"{stop_signal.name} once",
                _signal_once(train_argv(data, out), out, stop_signal, draws) or difference(plain, out),
            )
            out = context.folder / f"twice{number}-{stop_signal.name}"
            slow = train_argv(data, out, **_SLOW_TRAINING)  # type: ignore[arg-type]
            seconds, wrong = _signal_twice(slow, out, stop_signal)
            slowest = max(slowest, seconds)
            tally.add(f"{stop_signal.name} twice", wrong or difference(whole, out))
            context.on_progress(f"{tally.tried} tried")
    lost = "nothing; after two, at most the unfinished epoch, which is repeated"
    return tally.outcome(f"after a second signal gone within {slowest:.2f} s", lost)


def _signal_once(command: list[str], out: Path, stop_signal: signal.Signals, rng: random.Random) -> str:
    child = CommandProcess(command, out.with_suffix(".txt"))
    wait_until(lambda: (out / "metrics.jsonl").exists() or not child.is_running())
    time.sleep(rng.uniform(0.0, 0.4))
    child.send_signal(stop_signal)
    code = child.wait()
    if code != StoppedError.exit_code:
        return f"ended with {code}, not {StoppedError.exit_code}: {child.read_output()[-300:]}"
    code, output = run_command(command, out.with_suffix(".txt"))
    return "" if code == 0 else f"resumed, ended with {code}: {output[-300:]}"


def _signal_twice(command: list[str], out: Path, stop_signal: signal.Signals) -> tuple[float, str]:
    child = CommandProcess(command, out.with_suffix(".txt"))
    wait_until(lambda: (out / "metrics.jsonl").exists() or not child.is_running())
    child.send_signal(stop_signal)
    wait_until(lambda: "once more leaves at once" in child.read_output() or not child.is_running())
    start = time.monotonic()
    child.send_signal(stop_signal)
    code = child.wait()
    seconds = time.monotonic() - start
    if code != -stop_signal:
        return seconds, f"ended with {code}, not by the signal: {child.read_output()[-300:]}"
    if seconds > _MAX_EXIT_SECONDS:
        return seconds, f"left after {seconds:.1f} s"
    code, output = run_command(command, out.with_suffix(".txt"))
    return seconds, "" if code == 0 else f"resumed, ended with {code}: {output[-300:]}"
