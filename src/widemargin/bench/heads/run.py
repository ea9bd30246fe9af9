"""The benchmark from end to end: shapes, figures, the table, the file, the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ...progress import progress_bar
from .contestants import list_head_implementations
from .memory import measure_extra_memory
from .timing import MIN_CLASSES_TIMED_SEPARATELY, count_progress_calls, time_heads

SHAPES = (
    (256, 512, 10),
    (256, 128, 1000),
    (256, 512, 1000),
    (256, 512, 10_000),
    (256, 512, 100_000),
    (128, 512, 10**6),
)
SHARDED_SHAPE = (256, 512, 100_000)  # over two processes
BENCHMARK_LOSSES = ["arcface", "cosface", "adacos", "arcgrad"]


def measure_heads(
    shapes: list[tuple[int, int, int]],
    losses: list[str],
    backends: list[str],
    rounds: int,
    *,
    peers: bool,
    memory: bool,
) -> list[dict[str, Any]]:
    """All figures of all shapes."""
    found = []
    for shape in shapes:
        # A step of the largest eager heads takes half a minute and ten GiB: those of the first loss stand for all.
        baseline_losses = losses if shape[2] < MIN_CLASSES_TIMED_SEPARATELY else losses[:1]
        implementations = list_head_implementations(
            losses, backends, shape[0] * shape[2], baseline_losses if peers else []
        )
        with progress_bar(f"heads {shape}", count_progress_calls(shape, implementations, rounds)) as on_progress:
            row = time_heads(shape, implementations, rounds, on_progress)
        if memory:
            names = [c.name for c in implementations if not c.keep_grad and not c.name.endswith("compiled")]
            with progress_bar(f"memory {shape}", len(names)) as on_progress:
                row["mebibytes"] = {}
                for name in names:
                    row["mebibytes"][name] = round(measure_extra_memory(name, shape, torch.get_num_threads()), 2)
                    on_progress(1.0)
        found.append(row)
    return found


def measure_gradient_errors(losses: list[str], backends: list[str]) -> list[dict[str, Any]]:
    """Gradient errors in fp32 against fp64, at initialisation and at small losses; ours and the peer library's."""
    from .. import numerics

    rows = [
        numerics.measure_gradient_accuracy(numerics.widemargin_loss(loss, road)) for loss in losses for road in backends
    ]
    rows += [
        numerics.measure_gradient_accuracy(peer)
        for peer in numerics.metric_learning_losses()
        if peer.name in ("ArcFaceLoss", "CosFaceLoss")
    ]
    return [
        {"name": row.name, "library": row.library, "initial": row.initial, "trained": list(row.trained)} for row in rows
    ]


def print_heads(
    shapes: list[tuple[int, int, int]],
    losses: list[str],
    backends: list[str],
    rounds: int,
    peers: bool,
    memory: bool,
    sharded: bool,
    json_path: str | None,
    page_path: str | None,
) -> None:
    """Measure, print, write."""
    from ...listing import check_writable
    from .page import heads_page
    from .rank_time import measure_sharded_head
    from .table import print_errors, print_sharded_head, print_times

    for path in filter(None, (json_path, page_path)):
        check_writable(path)  # before minutes of measuring, not after
    found = measure_heads(shapes, losses, backends, rounds, peers=peers, memory=memory)
    wrong = measure_gradient_errors(losses, [road for road in backends if road != "auto"] or ["stream"])
    for row in found:
        print_times(row)
    print_errors(wrong)
    figures: dict[str, Any] = {"torch": torch.__version__, "heads": found, "errors": wrong}
    if sharded:
        figures["ranks"] = measure_sharded_head(SHARDED_SHAPE, losses[0], rounds)
        print_sharded_head(figures["ranks"])
    if json_path:
        Path(json_path).write_text(json.dumps(figures, indent=1), encoding="utf-8")
    if page_path:
        Path(page_path).write_text(heads_page(figures), encoding="utf-8")
        print(f"wrote {page_path}")
