"""`retrieve` against a bare matrix product and topk, batch by batch, by turns in one run; and the memory it takes.

The bare one finds the same neighbours of the same unit vectors and makes nothing of them; `retrieve` also takes the
directions, checks what it is given, works in blocks of bounded memory, and computes all its figures.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..angle import direction
from ..metrics.retrieval import retrieve
from ..progress import bar

TARGET = 1.3


def bare(queries: Tensor, gallery: Tensor, depth: int, batch: int) -> Tensor:
    """Places [N, depth] of the nearest."""
    return torch.cat(
        [(queries[i : i + batch] @ gallery.T).topk(depth, 1).indices for i in range(0, len(queries), batch)]
    )


def measure(queries: int, gallery: int, dim: int, per_class: int, rounds: int, batch: int) -> dict[str, Any]:
    """Seconds of both, the smallest of the rounds; MiB at most during `retrieve`."""
    from .heads.memory import high_water, reset_high_water

    draw = torch.Generator().manual_seed(0)
    everything = torch.randn(gallery, dim, generator=draw)
    labels = torch.arange(gallery) // per_class
    asked = torch.randperm(gallery, generator=draw)[:queries]
    x = everything[asked] + 0.5 * torch.randn(queries, dim, generator=draw)
    depth = max(per_class, 10)
    spent: dict[str, list[float]] = {"bare": [], "retrieve": []}
    with bar("retrieval", 2.0 * rounds) as told:
        for _ in range(rounds):
            unit, units = direction(x)[0], direction(everything)[0]
            begun = time.perf_counter()
            bare(unit, units, depth, batch)
            spent["bare"].append(time.perf_counter() - begun)
            del unit, units
            told(1.0)
            begun = time.perf_counter()
            found = retrieve(x, labels[asked], everything, labels, batch=batch)
            spent["retrieve"].append(time.perf_counter() - begun)
            told(1.0)
    memory = None
    if Path("/proc/self/clear_refs").exists():
        reset_high_water()
        retrieve(x, labels[asked], everything, labels, batch=batch)
        memory = high_water() / 1024
    best = {name: min(values) for name, values in spent.items()}
    return {
        "queries": queries,
        "gallery": gallery,
        "dim": dim,
        "per_class": per_class,
        "batch": batch,
        "threads": torch.get_num_threads(),
        "seconds": best,
        "ratio": best["retrieve"] / best["bare"],
        "mebibytes": memory,
        "recall1": found.recall[1],
        "map_at_r": found.map_at_r,
    }


def print_retrieval(
    queries: int, gallery: int, dim: int, per_class: int, rounds: int, batch: int, json_path: str | None
) -> None:
    """Measure and print."""
    from ..errors import InputError
    from ..listing import check_writable

    numbers = {"--queries": queries, "--gallery": gallery, "--dim": dim, "--per-class": per_class}
    numbers |= {"--rounds": rounds, "--batch": batch}
    for name, value in numbers.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if queries > gallery or max(per_class, 10) > gallery:
        raise InputError(f"--gallery {gallery} is too small for {queries} queries and {per_class} images of a class")
    if json_path:
        check_writable(json_path)
    found = measure(queries, gallery, dim, per_class, rounds, batch)
    seconds = found["seconds"]
    held = "" if found["mebibytes"] is None else f", {found['mebibytes']:,.0f} MiB of the process at most"
    print(
        f"{queries:,} queries in a gallery of {gallery:,}, {dim} dimensions, {found['threads']} threads: "
        f"retrieve {seconds['retrieve']:.2f} s, matmul + topk {seconds['bare']:.2f} s, "
        f"ratio {found['ratio']:.2f} (wanted: at most {TARGET}){held}"
    )
    if json_path:
        Path(json_path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
