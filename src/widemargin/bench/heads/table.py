"""Figures of heads in the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ...listing import console
from ..numerics import TARGET_LOSSES


def print_times(row: dict[str, Any]) -> None:
    """One shape: times as ratios, memory beyond the gradient."""
    samples, dim, classes = row["shape"]
    seconds, memory = row["seconds"], row.get("mebibytes", {})
    title = f"{samples} samples, {dim} dimensions, {classes:,} classes; {row['threads']} threads"
    grid = Table(title=title, title_justify="left", title_style="bold")
    for name in ("head", "ms", "/ limit", "/ linear + cross_entropy", "MiB beyond the gradient"):
        grid.add_column(name, justify="left" if name == "head" else "right")
    plain = seconds.get("linear + cross_entropy")
    for name, spent in seconds.items():
        beside = f"{spent / plain:.2f}" if plain else "–"
        held = f"{memory[name]:.1f}" if name in memory else "–"
        grid.add_row(name, f"{1e3 * spent:.2f}", f"{spent / seconds['limit']:.2f}", beside, held)
    console().print(grid)


def print_errors(rows: list[dict[str, Any]]) -> None:
    """Gradient errors against fp64."""
    grid = Table(title="Error of fp32 gradients against fp64", title_justify="left", title_style="bold")
    for name in ("head", "library", "initial", *(f"loss {target:g}" for target in TARGET_LOSSES)):
        grid.add_column(name, justify="left" if name in ("head", "library") else "right")
    for row in rows:
        cells = [row["initial"], *row["trained"]]
        grid.add_row(row["name"], row["library"], *("–" if cell is None else f"{cell:.1e}" for cell in cells))
    console().print(grid)


def print_sharded_head(row: dict[str, Any]) -> None:
    """A head over several processes."""
    samples, dim, classes = row["shape"]
    seconds = {name: f"{1e3 * value:.0f} ms" for name, value in row["seconds"].items()}
    console().print(
        f"{row['loss']} over {row['ranks']} processes of one thread, {samples} samples, {dim} dimensions, "
        f"{classes:,} classes: {seconds['full']} a step, {row['full_over_alone']:.2f} of one process's "
        f"{seconds['alone']}; {row['mebibytes']:.1f} MiB beyond a rank's own gradient; with rate {row['rate']:g} "
        f"{seconds['sampled']}, {row['sampled_over_full']:.2f} of that"
    )
