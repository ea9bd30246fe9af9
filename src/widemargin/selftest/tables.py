"""A small table for checks to compare losses on."""

from __future__ import annotations

import random
from pathlib import Path


def draw_table(path: Path, rows: int = 120) -> Path:
    """Three classes in four columns of noise, as CSV."""
    draws = random.Random(0)
    lines = ["a,b,c,d,kind"]
    for row in range(rows):
        kind = row % 3
        values = [draws.gauss(1.5 * (kind == column), 1.0) for column in range(4)]
        lines.append(",".join([*(f"{value:.3f}" for value in values), ("one", "two", "three")[kind]]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
