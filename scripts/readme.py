"""Write README's table of measured differences from records/numerics.json and records/heads.json.

    python scripts/readme.py

tests/docs/test_readme.py compares the table with the records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pages.blocks import write_block

ROOT = Path(__file__).resolve().parents[1]
# Columns of the table: title, name in heads.json, library in numerics.json (the copied layer is not measured there).
COLUMNS = (
    ("widemargin", "arcface, auto", "widemargin, dense"),
    ("pytorch-metric-learning", "ArcFaceLoss", "pytorch-metric-learning"),
    ("usual copy in eager PyTorch", "arcface, eager", None),
)
NUM_CLASSES = (1_000, 100_000, 1_000_000)
EMBEDDING_DIM = 512


def render_figures(records: Path) -> str:
    """Return the table in Markdown: precision of the gradient, time and memory of a step by the number of classes."""
    heads, precision = (json.loads((records / f"{name}.json").read_text()) for name in ("heads", "numerics"))
    lines = ["| | " + " | ".join(title for title, *_ in COLUMNS) + " |", "|---" + "|---:" * len(COLUMNS) + "|"]
    rows = {
        "error of the fp32 gradient at a loss of 1e-6": _gradient_errors(precision),
        "NaN or infinity where x is ±w, another class's weight, or 0": _non_finite_dtypes(precision),
    }
    for count in NUM_CLASSES:
        timing = next(entry for entry in heads["heads"] if entry["shape"][1:] == [EMBEDDING_DIM, count])
        seconds, mebibytes = timing["seconds"], timing["mebibytes"]
        rows[f"{count:,} classes, batch of {timing['shape'][0]}: time, memory"] = [
            f"{_format_seconds(seconds[name])}, {mebibytes[name]:,.0f} MiB" for _, name, _ in COLUMNS
        ]
    lines += [f"| {title} | {' | '.join(cells)} |" for title, cells in rows.items()]
    return "\n".join(lines)


def _arcface_row(precision: Mapping[str, Any], library: str) -> Mapping[str, Any]:
    return next(
        row for row in precision["rows"] if row["library"] == library and row["name"].lower().startswith("arcface")
    )


def _gradient_errors(precision: Mapping[str, Any]) -> list[str]:
    return [
        "not measured" if library is None else f"{100 * _arcface_row(precision, library)['trained'][-1]:.2g} %"
        for *_, library in COLUMNS
    ]


def _non_finite_dtypes(precision: Mapping[str, Any]) -> list[str]:
    cells = []
    for *_, library in COLUMNS:
        finite = {} if library is None else _arcface_row(precision, library)["finite"]
        failing = ", ".join(dtype for dtype, is_finite in finite.items() if not is_finite)
        cells.append("not measured" if library is None else f"in {failing}" if failing else "in no dtype")
    return cells


def _format_seconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


if __name__ == "__main__":
    write_block(ROOT / "README.md", "figures", render_figures(ROOT / "records"))
