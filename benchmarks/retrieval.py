"""`retrieval_metrics` against a matrix product and topk, batch by batch, alternating in one run; and its memory.

The matrix product and topk find the same neighbours of the same unit vectors and compute nothing else;
`retrieval_metrics` also normalises, validates its arguments, works in blocks of bounded memory, and computes all its
metrics.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from widemargin.io.progress import progress_bar
from widemargin.metrics.retrieval import retrieval_metrics
from widemargin.numerics.angles import unit_and_norm

MAX_RETRIEVAL_RATIO = 1.3


def matmul_topk(queries: Tensor, gallery: Tensor, k: int, batch: int) -> Tensor:
    """Indices [N, k] of the nearest gallery entries."""
    return torch.cat([(queries[i : i + batch] @ gallery.T).topk(k, 1).indices for i in range(0, len(queries), batch)])


def measure_retrieval(
    queries: int, gallery: int, embedding_dim: int, per_class: int, rounds: int, batch: int
) -> dict[str, Any]:
    """Seconds of both, the minimum over the rounds; peak MiB during `retrieval_metrics`."""
    from .head_timing import peak_resident_kib, reset_peak_resident

    draw = torch.Generator().manual_seed(0)
    everything = torch.randn(gallery, embedding_dim, generator=draw)
    labels = torch.arange(gallery) // per_class
    query_indices = torch.randperm(gallery, generator=draw)[:queries]
    x = everything[query_indices] + 0.5 * torch.randn(queries, embedding_dim, generator=draw)
    depth = max(per_class, 10)
    spent: dict[str, list[float]] = {"matmul_topk": [], "retrieve": []}
    with progress_bar("retrieval", 2.0 * rounds) as on_progress:
        for _ in range(rounds):
            unit, units = unit_and_norm(x)[0], unit_and_norm(everything)[0]
            start = time.perf_counter()
            matmul_topk(unit, units, depth, batch)
            spent["matmul_topk"].append(time.perf_counter() - start)
            del unit, units
            on_progress(1.0)
            start = time.perf_counter()
            metrics = retrieval_metrics(x, labels[query_indices], everything, labels, batch_size=batch)
            spent["retrieve"].append(time.perf_counter() - start)
            on_progress(1.0)
    memory = None
    if Path("/proc/self/clear_refs").exists():
        reset_peak_resident()
        retrieval_metrics(x, labels[query_indices], everything, labels, batch_size=batch)
        memory = peak_resident_kib() / 1024
    best = {name: min(values) for name, values in spent.items()}
    return {
        "queries": queries,
        "gallery": gallery,
        "embedding_dim": embedding_dim,
        "per_class": per_class,
        "batch": batch,
        "threads": torch.get_num_threads(),
        "seconds": best,
        "ratio": best["retrieve"] / best["matmul_topk"],
        "mebibytes": memory,
        "recall1": metrics.recall[1],
        "map_at_r": metrics.map_at_r,
    }


def print_retrieval(
    queries: int, gallery: int, embedding_dim: int, per_class: int, rounds: int, batch: int, json_path: str | None
) -> None:
    """Measure and print."""
    from widemargin.io.errors import InputError
    from widemargin.viz.terminal import check_writable

    numbers = {"--queries": queries, "--gallery": gallery, "--embedding-dim": embedding_dim, "--per-class": per_class}
    numbers |= {"--rounds": rounds, "--batch": batch}
    for name, value in numbers.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if queries > gallery or max(per_class, 10) > gallery:
        raise InputError(f"--gallery {gallery} is too small for {queries} queries and {per_class} images of a class")
    if json_path:
        check_writable(json_path)
    result = measure_retrieval(queries, gallery, embedding_dim, per_class, rounds, batch)
    seconds = result["seconds"]
    memory_text = "" if result["mebibytes"] is None else f", {result['mebibytes']:,.0f} MiB peak memory of the process"
    print(
        f"{queries:,} queries in a gallery of {gallery:,}, {embedding_dim} dimensions, {result['threads']} threads: "
        f"retrieve {seconds['retrieve']:.2f} s, matmul + topk {seconds['matmul_topk']:.2f} s, "
        f"ratio {result['ratio']:.2f} (limit {MAX_RETRIEVAL_RATIO}){memory_text}"
    )
    if json_path:
        Path(json_path).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    for name, usual, meaning in (
        ("queries", 10_000, "number of query images"),
        ("gallery", 100_000, "number of gallery images"),
        ("embedding-dim", 512, "dimension of the embeddings"),
        ("per-class", 20, "images of each class in the gallery"),
        ("rounds", 3, "rounds of each"),
        ("batch", 1024, "queries at a time"),
    ):
        parser.add_argument(f"--{name}", type=int, default=usual, metavar="N", help=f"{meaning} (default {usual:,})")
    parser.add_argument("--json", metavar="FILE", help="also write the results to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    print_retrieval(
        options.queries,
        options.gallery,
        options.embedding_dim,
        options.per_class,
        options.rounds,
        options.batch,
        options.json,
    )
