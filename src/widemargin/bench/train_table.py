"""The figures of `widemargin bench train` as tables in the terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..results import versions


def print_train(
    models: Sequence[str] | None,
    loss: str,
    precisions: Sequence[str],
    rounds: int,
    batch: int | None,
    steps: int | None,
    repeats: int,
    data_dir: str | None,
    noise: bool,
    json_path: str | None,
) -> None:
    """Measure both, print both tables."""
    import torch

    from ..listing import check_writable, console
    from ..progress import progress_bar
    from ..training.allocator import keep_freed_memory
    from . import head_time, train

    numbers = {"--rounds": rounds, "--batch-size": batch, "--steps": steps, "--repeats": repeats}
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise InputError(f"{name} must be a whole number of at least 1, got {value}")
    if json_path:
        check_writable(json_path)
    keep_freed_memory()  # as `widemargin train` does; for the bare loop too
    sizes = {model: train.ROUND_SIZES.get(model, train.DEFAULT_ROUND_SIZE) for model in models or train.ROUND_SIZES}
    sizes = {model: (batch or size[0], steps or size[1]) for model, size in sizes.items()}
    most = max(size[0] * size[1] for size in sizes.values())
    cifar = nullcontext(train.ImageSource("cifar10", train.CIFAR_NUM_IMAGES))
    with train.generate_noise_images(most) if noise else cifar as source:
        total = (rounds + 1) * (len(sizes) * len(precisions) + 1)
        with progress_bar("training", total) as on_progress:
            runs = [
                train.make_round_config(model, loss, precision, source, rounds, size)
                for model, size in sizes.items()
                for precision in precisions
            ]
            loops = [train.measure_training_loop(run, data_dir, rounds, on_progress) for run in runs]
            heads = head_time.measure_head_overhead(batch or 128, rounds, repeats, on_progress)
    screen = console()
    screen.print(_loop_table(loops, rounds, torch.get_num_threads()))
    screen.print(_head_table(heads))
    screen.print(
        f"red: below {train.MIN_LOOP_RATIO:g} of the bare loop, above {head_time.MAX_EXTRA_PERCENT:g} % of a step"
        f" (the paper reports {head_time.PAPER_EXTRA_PERCENT:g} %)"
    )
    if json_path:
        facts: dict[str, Any] = {"versions": versions(), "threads": torch.get_num_threads(), "loss": loss}
        facts |= {"data": "generated" if noise else "cifar10", "rounds": rounds, "repeats": repeats}
        Path(json_path).write_text(json.dumps({**facts, "loop": loops, "head": heads}, indent=1) + "\n")


def _loop_table(rows: Sequence[dict[str, Any]], rounds: int, threads: int) -> Any:
    from rich.table import Table

    from .train import MIN_LOOP_RATIO

    title = f"widemargin train's loop against a bare one: images/s, median of {rounds} rounds, {threads} threads"
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("model", "precision", "batch × steps", "loop", "bare", "ratio", "from – to"):
        table.add_column(column, justify="left" if column in ("model", "precision") else "right")
    for row in rows:
        speed, ratio = row["images_per_second"], f"{row['ratio']:.3f}"
        table.add_row(
            row["model"],
            row["precision"],
            f"{row['batch']} × {row['steps']}",
            f"{speed['loop']:,.0f}",
            f"{speed['bare']:,.0f}",
            ratio if row["ratio"] >= MIN_LOOP_RATIO else f"[bold red]{ratio}[/]",
            f"{min(row['ratios']):.3f} – {max(row['ratios']):.3f}",
        )
    return table


def _head_table(rows: Sequence[dict[str, Any]]) -> Any:
    from rich.table import Table

    from .head_time import MAX_EXTRA_PERCENT, OVERHEAD_EMBEDDING_DIM, OVERHEAD_LOSSES

    title = f"Head forward and backward, N={rows[0]['batch']}, D={OVERHEAD_EMBEDDING_DIM}, beside a ResNet-18 step of the same N"
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("classes", *(f"{loss}, µs" for loss in OVERHEAD_LOSSES), "step, ms", "extra, % of the step"):
        table.add_column(column, justify="right")
    for row in rows:
        extra = f"{row['extra_percent']:.3f}"
        table.add_row(
            str(row["classes"]),
            *(f"{row['head_seconds'][loss] * 1e6:,.0f}" for loss in OVERHEAD_LOSSES),
            f"{row['step_seconds'] * 1e3:,.0f}",
            extra if row["extra_percent"] <= MAX_EXTRA_PERCENT else f"[bold red]{extra}[/]",
        )
    return table
