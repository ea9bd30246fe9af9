"""`compare` and a recipe's list of runs, killed at random moments: the same command goes on from what is on disk."""

from __future__ import annotations

import argparse
import json
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...cli import main
from ..check import Outcome, Size
from ..commands import Forked, forked, until
from ..tables import draw_table
from ..trainings import Tally, cannot, difference, draw

TITLE = "kill -9 in compare and in a recipe's runs; the same command again"
KIND = "fault"
LONG = False
_CLOCK = ("seconds", "versions")


def run(size: Size) -> Outcome:
    """Several kills for each, then to the end; the results must be those of an undisturbed one."""
    if (missing := cannot()) is not None:
        return missing
    tally, draws, kills = Tally(), random.Random(size.seed), 10 if size.long else 2
    table = draw_table(size.folder / "table.csv")
    for jobs in ("1", "2"):
        options = ["--jobs", jobs, "--runs", "3", "--losses", "softmax, arcgrad(s=5), cosface(s=8), adacos"]
        whole, out = size.folder / f"whole{jobs}", size.folder / f"compare{jobs}"
        command = ["compare", str(table), *options, "--out", str(whole)]
        begun = time.perf_counter()
        forked(command, whole.with_suffix(".txt"))
        lasts = time.perf_counter() - begun
        done, wrong = _killed([*command[:-1], str(out)], out, lasts, draws, kills)
        tally.add(f"compare --jobs {jobs}", wrong or _results(whole, out), done)
        size.tell(f"{tally.tried} kills")
    data, place = draw(size.folder / "images"), size.folder / "recipe"
    whole = size.folder / "whole"
    begun = time.perf_counter()
    forked([str(data), str(whole)], whole.with_suffix(".txt"), call=work_through)
    lasts = time.perf_counter() - begun
    done, wrong = _killed([str(data), str(place)], place, lasts, draws, kills, work_through)
    tally.add("recipe", wrong or _runs(whole, place), done)
    return tally.outcome()


def _killed(
    command: list[str],
    out: Path,
    lasts: float,
    draws: random.Random,
    most: int,
    call: Callable[[list[str]], int] = main,
) -> tuple[int, str]:
    """Kills, and what was wrong in the end; also when a worker has outlived its first process."""
    for kills in range(most + 1):
        child = Forked(command, out.with_suffix(".txt"), call=call)
        if kills < most:
            time.sleep(draws.uniform(0.0, lasts))
            child.send(signal.SIGKILL)
        code = child.end()
        if not until(lambda: not _alive(str(out)), 20.0, pause=0.1):
            return max(kills, 1), "a worker has outlived its first process"
        if code != -signal.SIGKILL:
            return max(kills, 1), "" if code == 0 else f"ended with {code}: {child.text()[-300:]}"
    return most, "never came to its end"


def _alive(word: str) -> bool:
    """Whether a process still has a file of that name open, be it the one that it prints to."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if any(word in str(handle.readlink()) for handle in (place / "fd").iterdir()):
                return True
        except OSError:
            continue
    return False


def _results(whole: Path, out: Path) -> str:
    """Whether both hold the same results, each once, in whatever order."""
    found = []
    for folder in (whole, out):
        lines = [json.loads(text) for text in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()]
        plain = [{name: value for name, value in line.items() if name not in _CLOCK} for line in lines]
        found.append(sorted(plain, key=lambda line: str(line["loss"])))
    return "" if found[0] == found[1] else f"results.jsonl holds {len(found[1])} results, or others than undisturbed"


def _runs(whole: Path, out: Path) -> str:
    """Whether all runs of a list came to the same bits."""
    names = sorted(path.name for path in (whole / "runs").iterdir())
    if names != sorted(path.name for path in (out / "runs").iterdir()):
        return "other runs than undisturbed"
    return next(filter(None, (difference(whole / "runs" / name, out / "runs" / name) for name in names)), "")


def work_through(given: list[str]) -> int:
    """What a recipe does with its list: two runs, those that are finished never again."""
    from ...recipes.parts.image_options import carried_out
    from ...run import Run

    data, out = given
    common: dict[str, Any] = {"data": data, "model": "fast(width=0.125)", "input_size": 16, "batch_size": 12}
    common |= {"opt": "sgd", "lr": 0.05, "hold_out": 0.2, "epochs": 3, "repeats": 15, "augment": "fast"}
    options = argparse.Namespace(runs=f"{out}/runs", out=out, list=False, executor="local", data_dir=None)
    carried_out([Run(**common), Run(**common, loss="softmax")], options, "selftest")
    return 0
