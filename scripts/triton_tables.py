"""Write the tables of docs/triton.md from records/triton_accuracy.json and records/triton_compiled.json.

python -m benchmarks triton_accuracy --json records/triton_accuracy.json
python -m benchmarks triton_compiled --json records/triton_compiled.json
python scripts/triton_tables.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for benchmarks, which is not installed

from pages.blocks import write_block

from benchmarks.triton_accuracy import largest_errors
from benchmarks.triton_compiled import SHARED_MEMORY
from widemargin.io import bounded


def format_table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; the first two columns are text, the others numbers."""
    rule = ["---", "---", *("---:" for _ in head[2:])]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows)) + "\n"


def tabulate_accuracy(record: dict[str, Any]) -> str:
    """Largest errors of losses and gradients, and the degenerate points with finite results."""
    rows = []
    for row in record["rows"]:
        cases = [row["initial"], *([case] if case else [] for case in row["trained"].values())]
        errors = ["{:.1e}, {:.1e}".format(*largest_errors(case)) if case else "–" for case in cases]
        errors = [text.replace("-", "\N{NON-BREAKING HYPHEN}") for text in errors]  # a line ends after the comma only
        edges = row["degenerate"].values()
        finite = f"{sum(case['finite'] for case in edges)} of {len(edges)}"
        rows.append([f"`{row['loss']}`", row["dtype"], *errors, finite])
    losses = [f"loss {target}" for target in record["rows"][0]["trained"]]
    return format_table(["loss", "dtype", "at initialisation", *losses, "finite at degenerate points"], rows)


def tabulate_kernels(record: dict[str, Any]) -> str:
    """The largest needs of a kernel over losses and kinds of sizes, for each GPU."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in record["kernels"]:
        groups.setdefault((row["kernel"], row["dtype"]), []).append(row)
    table = []
    for (kernel, dtype), rows in groups.items():
        cells = []
        for sm in SHARED_MEMORY:
            of_gpu = [row for row in rows if row["sm"] == sm]
            registers, shared = (max(row[name] for row in of_gpu) for name in ("registers", "shared"))
            cells.append(f"{registers} / {shared / 1024:.0f}")
        products = sorted({name.split(".")[0] for row in rows for name in row["matrix"]})
        spills = str(sum(row["spill_bytes"] for row in rows))
        table.append([f"`{kernel}`", dtype, *cells, ", ".join(products) or "–", spills])
    gpus = [f"sm_{sm}" for sm in SHARED_MEMORY]
    return format_table(["kernel", "dtype", *gpus, "products", "bytes of spills"], table)


def tabulate_roofline(record: dict[str, Any]) -> str:
    """Operations, bytes and the lower bounds of their times."""
    rows = [
        [
            row["gpu"],
            row["dtype"],
            f"{row['flops'] / 1e9:.0f}",
            f"{row['bytes'] / 1e6:.0f}",
            *(f"{row['milliseconds'][name]:.2f}" for name in ("operations", "bytes", "step")),
            f"{row['over_three_products']:.2f}",
        ]
        for row in record["roofline"]
    ]
    times = ["ms of operations", "ms of bytes", "ms at least", "over three products"]
    return format_table(["GPU", "dtype", "GFLOP", "MB", *times], rows)


if __name__ == "__main__":
    page = ROOT / "docs" / "triton.md"
    compiled = bounded.read_json(ROOT / "records" / "triton_compiled.json")
    write_block(page, "accuracy", tabulate_accuracy(bounded.read_json(ROOT / "records" / "triton_accuracy.json")))
    write_block(page, "compiled", tabulate_kernels(compiled))
    write_block(page, "roofline", tabulate_roofline(compiled))
