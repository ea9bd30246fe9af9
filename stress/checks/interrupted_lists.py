"""`compare` and a recipe's list of runs, killed at random times: the same command continues from the saved state."""

from __future__ import annotations

import argparse
import json
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from widemargin.cli.main import main

from ..check import CheckContext, Outcome
from ..commands import CommandProcess, run_command, wait_until
from ..trainings import Tally, difference, draw_table, generate_image_folder, training_unavailable_outcome

TITLE = "kill -9 in compare and in a recipe's runs; the same command again"
KIND = "fault"
LONG = False
_VARYING_FIELDS = ("seconds", "versions")


def run(context: CheckContext) -> Outcome:
    """Kill each several times, then finish; the results must equal those of an uninterrupted run."""
    if (missing := training_unavailable_outcome()) is not None:
        return missing
    tally, draws, kills = Tally(), random.Random(context.seed), 10 if context.long else 2
    table = draw_table(context.folder / "table.csv")
    for jobs in ("1", "2"):
        options = ["--jobs", jobs, "--cv-repeats", "3", "--losses", "softmax, arcgrad(s=5), cosface(s=8), adacos"]
        whole, out = context.folder / f"whole{jobs}", context.folder / f"compare{jobs}"
        command = ["compare", str(table), *options, "--out", str(whole)]
        start = time.perf_counter()
        run_command(command, whole.with_suffix(".txt"))
        lasts = time.perf_counter() - start
        done, wrong = _kill_and_restart([*command[:-1], str(out)], out, lasts, draws, kills)
        tally.add(f"compare --jobs {jobs}", wrong or _results_difference(whole, out), done)
        context.on_progress(f"{tally.tried} kills")
    data, place = generate_image_folder(context.folder / "images"), context.folder / "recipe"
    whole = context.folder / "whole"
    start = time.perf_counter()
    run_command([str(data), str(whole)], whole.with_suffix(".txt"), entry_point=run_recipe_list)
    lasts = time.perf_counter() - start
    done, wrong = _kill_and_restart([str(data), str(place)], place, lasts, draws, kills, run_recipe_list)
    tally.add("recipe", wrong or _runs_difference(whole, place), done)
    return tally.outcome()


def _kill_and_restart(
    command: list[str],
    out: Path,
    duration: float,
    rng: random.Random,
    max_kills: int,
    entry_point: Callable[[list[str]], int] = main,
) -> tuple[int, str]:
    """Return the number of kills and what was wrong, including workers that outlived the first process."""
    for kills in range(max_kills + 1):
        child = CommandProcess(command, out.with_suffix(".txt"), entry_point=entry_point)
        if kills < max_kills:
            time.sleep(rng.uniform(0.0, duration))
            child.send_signal(signal.SIGKILL)
        code = child.wait()
        if not wait_until(lambda: not _has_open_file(str(out)), 20.0, poll_interval=0.1):
            return max(kills, 1), "a worker has outlived its first process"
        if code != -signal.SIGKILL:
            return max(kills, 1), "" if code == 0 else f"ended with {code}: {child.read_output()[-300:]}"
    return max_kills, "never came to its end"


def _has_open_file(path_part: str) -> bool:
    """True if a process still has a file with this name open, including its output file."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if any(path_part in str(handle.readlink()) for handle in (place / "fd").iterdir()):
                return True
        except OSError:
            continue
    return False


def _results_difference(reference: Path, out: Path) -> str:
    """Return "" if both hold the same results, each once, in any order."""
    results = []
    for folder in (reference, out):
        lines = [json.loads(text) for text in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()]
        plain = [{name: value for name, value in line.items() if name not in _VARYING_FIELDS} for line in lines]
        results.append(sorted(plain, key=lambda line: str(line["loss"])))
    return (
        "" if results[0] == results[1] else f"results.jsonl holds {len(results[1])} results, or others than undisturbed"
    )


def _runs_difference(reference: Path, out: Path) -> str:
    """Return "" if all runs of a list are bit-identical."""
    names = sorted(path.name for path in (reference / "runs").iterdir())
    if names != sorted(path.name for path in (out / "runs").iterdir()):
        return "other runs than undisturbed"
    return next(filter(None, (difference(reference / "runs" / name, out / "runs" / name) for name in names)), "")


def run_recipe_list(argv: list[str]) -> int:
    """Run a recipe's list of two runs; finished ones are not repeated."""
    from widemargin.reproduce.parts.runs import complete_image_runs
    from widemargin.training.config import TrainConfig

    data, out = argv
    common: dict[str, Any] = {"data": data, "model": "fast(width=0.125)", "input_size": 16, "batch_size": 12}
    common |= {
        "opt": "sgd",
        "lr": 0.05,
        "val_fraction": 0.2,
        "epochs": 3,
        "repeated_augmentation": 15,
        "augment": "fast",
    }
    options = argparse.Namespace(runs_dir=f"{out}/runs", out=out, list=False, executor="local", data_dir=None)
    complete_image_runs([TrainConfig(**common), TrainConfig(**common, loss="softmax")], options, "stress")
    return 0
