"""The benchmark from end to end: shapes, figures, the table, the file, the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ...progress import bar
from .contestants import field
from .memory import beyond_gradient
from .timing import APART, count, times

SHAPES = (
    (256, 512, 10),
    (256, 128, 1000),
    (256, 512, 1000),
    (256, 512, 10_000),
    (256, 512, 100_000),
    (128, 512, 10**6),
)
SPLIT = (256, 512, 100_000)  # over two processes
LOSSES = ["arcface", "cosface", "adacos", "arcgrad"]


def measure(
    shapes: list[tuple[int, int, int]], losses: list[str], roads: list[str], rounds: int, *, peers: bool, memory: bool
) -> list[dict[str, Any]]:
    """All figures of all shapes."""
    found = []
    for shape in shapes:
        # A step of the largest eager heads takes half a minute and ten GiB: those of the first loss stand for all.
        rivals = losses if shape[2] < APART else losses[:1]
        contestants = field(losses, roads, shape[0] * shape[2], rivals if peers else [])
        with bar(f"heads {shape}", count(shape, contestants, rounds)) as told:
            row = times(shape, contestants, rounds, told)
        if memory:
            names = [c.name for c in contestants if not c.keep and not c.name.endswith("compiled")]
            with bar(f"memory {shape}", len(names)) as told:
                row["mebibytes"] = {}
                for name in names:
                    row["mebibytes"][name] = round(beyond_gradient(name, shape, torch.get_num_threads()), 2)
                    told(1.0)
        found.append(row)
    return found


def errors(losses: list[str], roads: list[str]) -> list[dict[str, Any]]:
    """Gradient errors in fp32 against fp64, at initialisation and at small losses; ours and the peer library's."""
    from .. import numerics

    rows = [numerics.measure(numerics.ours(loss, road)) for loss in losses for road in roads]
    rows += [numerics.measure(peer) for peer in numerics.peers() if peer.name in ("ArcFaceLoss", "CosFaceLoss")]
    return [
        {"name": row.name, "library": row.library, "initial": row.initial, "trained": list(row.trained)} for row in rows
    ]


def print_heads(
    shapes: list[tuple[int, int, int]],
    losses: list[str],
    roads: list[str],
    rounds: int,
    peers: bool,
    memory: bool,
    ranks: bool,
    json_path: str | None,
    page_path: str | None,
) -> None:
    """Measure, print, write."""
    from ...listing import check_writable
    from .page import heads_page
    from .rank_time import measure_ranks
    from .table import print_errors, print_ranks, print_times

    for path in filter(None, (json_path, page_path)):
        check_writable(path)  # before minutes of measuring, not after
    found = measure(shapes, losses, roads, rounds, peers=peers, memory=memory)
    wrong = errors(losses, [road for road in roads if road != "auto"] or ["stream"])
    for row in found:
        print_times(row)
    print_errors(wrong)
    figures: dict[str, Any] = {"torch": torch.__version__, "heads": found, "errors": wrong}
    if ranks:
        figures["ranks"] = measure_ranks(SPLIT, losses[0], rounds)
        print_ranks(figures["ranks"])
    if json_path:
        Path(json_path).write_text(json.dumps(figures, indent=1), encoding="utf-8")
    if page_path:
        Path(page_path).write_text(heads_page(figures), encoding="utf-8")
        print(f"wrote {page_path}")
