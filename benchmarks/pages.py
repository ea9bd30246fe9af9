"""Time to generate the pages, after the imports, and their size, each in a separate process."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAX_PAGE_SECONDS, MAX_PAGE_MEBIBYTES = 10.0, 6.0  # limits of each page
RUN_EPOCHS = 100

_TIMED_SCRIPT = """
import contextlib, io, json, sys, time
import torch, widemargin.cli.main, widemargin.training.run
begun = time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()):
    code = widemargin.cli.main.main(sys.argv[1:])
print(json.dumps([code, time.perf_counter() - begun]))
"""


def measure_pages(run_dir: Path | None) -> list[dict[str, Any]]:
    """Return a line per page: its name, seconds and MiB."""
    from widemargin.io.progress import progress_bar

    with tempfile.TemporaryDirectory(prefix="widemargin-pages-") as scratch, progress_bar("pages", 4.0) as on_progress:
        place = Path(scratch)
        reported_run = run_dir or _train_small_run(place)
        on_progress(1.0)
        lines = []
        for name, words in (("lab", []), ("tour", []), ("report", [str(reported_run)])):
            lines.append({"page": name, **_time_page([name, *words], place / f"{name}.html")})
            on_progress(1.0)
    return lines


def _train_small_run(folder: Path) -> Path:
    """Train a run of a hundred epochs on small generated images."""
    from stress.trainings import generate_image_folder, train_argv

    _run_command(
        train_argv(generate_image_folder(folder / "images"), folder / "run", epochs=RUN_EPOCHS, repeated_augmentation=2)
    )
    return folder / "run"


def _run_command(argv: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "widemargin", *argv], check=True, stdout=subprocess.DEVNULL)


def _time_page(argv: list[str], out: Path) -> dict[str, float]:
    command = [sys.executable, "-c", _TIMED_SCRIPT, *argv, "--out", str(out)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    code, seconds = json.loads(output.splitlines()[-1])
    if code:
        raise RuntimeError(f"widemargin {' '.join(argv)} ended with {code}")
    return {"seconds": seconds, "mebibytes": out.stat().st_size / 2**20}


def print_pages(run_dir: str | None, json_path: str | None) -> None:
    """Measure and print."""
    from widemargin.io.errors import InputError
    from widemargin.viz.terminal import check_writable

    if run_dir and not (Path(run_dir) / "run.json").is_file():
        raise InputError(f"{run_dir}: not the folder of a run (it has no run.json)")
    if json_path:
        check_writable(json_path)
    lines = measure_pages(Path(run_dir) if run_dir else None)
    for line in lines:
        of = f" of {run_dir or f'{RUN_EPOCHS} epochs'}" if line["page"] == "report" else ""
        print(
            f"{line['page']}{of}: {line['seconds']:.1f} s after the imports (limit {MAX_PAGE_SECONDS:g}), "
            f"{line['mebibytes']:.2f} MiB (limit {MAX_PAGE_MEBIBYTES:g})"
        )
    if json_path:
        Path(json_path).write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--run", dest="run_dir", metavar="DIR", help="report this run (default: trains a small one)")
    parser.add_argument("--json", metavar="FILE", help="also write the results to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    print_pages(options.run_dir, options.json)
