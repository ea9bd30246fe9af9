"""How long the pages take to make, after the imports, and how large they are: each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS, MEBIBYTES = 10.0, 6.0  # what is wanted of each page
EPOCHS = 100

_TIMED = """
import contextlib, io, json, sys, time
import torch, widemargin.cli, widemargin.training.finished
begun = time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()):
    code = widemargin.cli.main(sys.argv[1:])
print(json.dumps([code, time.perf_counter() - begun]))
"""


def measure(run: Path | None) -> list[dict[str, Any]]:
    """A line per page: what it is, seconds and MiB."""
    from ..progress import bar

    with tempfile.TemporaryDirectory(prefix="widemargin-pages-") as scratch, bar("pages", 4.0) as told:
        place = Path(scratch)
        of_a_run = run or _trained(place)
        told(1.0)
        lines = []
        for name, words in (("lab", []), ("tour", []), ("report", [str(of_a_run)])):
            lines.append({"page": name, **_made([name, *words], place / f"{name}.html")})
            told(1.0)
    return lines


def _trained(place: Path) -> Path:
    """A run of a hundred epochs on small drawn images."""
    from ..selftest.trainings import draw, words

    _main(words(draw(place / "images"), place / "run", epochs=EPOCHS, repeats=2))
    return place / "run"


def _main(words: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "widemargin", *words], check=True, stdout=subprocess.DEVNULL)


def _made(words: list[str], out: Path) -> dict[str, float]:
    command = [sys.executable, "-c", _TIMED, *words, "--out", str(out)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    code, seconds = json.loads(said.splitlines()[-1])
    if code:
        raise RuntimeError(f"widemargin {' '.join(words)} ended with {code}")
    return {"seconds": seconds, "mebibytes": out.stat().st_size / 2**20}


def print_pages(run: str | None, json_path: str | None) -> None:
    """Measure and print."""
    from ..errors import InputError
    from ..listing import check_writable

    if run and not (Path(run) / "run.json").is_file():
        raise InputError(f"{run}: not the folder of a run (it has no run.json)")
    if json_path:
        check_writable(json_path)
    lines = measure(Path(run) if run else None)
    for line in lines:
        of = f" of {run or f'{EPOCHS} epochs'}" if line["page"] == "report" else ""
        print(
            f"{line['page']}{of}: {line['seconds']:.1f} s after the imports (wanted: at most {SECONDS:g}), "
            f"{line['mebibytes']:.2f} MiB (at most {MEBIBYTES:g})"
        )
    if json_path:
        Path(json_path).write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
