"""`widemargin bench retrieval`: exact retrieval against a bare matrix product and topk."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(benchmarks: Any) -> None:
    """The command and its options."""
    parser = benchmarks.add_parser("retrieval", help="exact retrieval against a bare matrix product and topk")
    for name, usual, meaning in (
        ("queries", 10_000, "images that look"),
        ("gallery", 100_000, "images that are looked through"),
        ("dim", 512, "length of the embeddings"),
        ("per-class", 20, "images of each class in the gallery"),
        ("rounds", 3, "turns of each"),
        ("batch", 1024, "queries at a time"),
    ):
        parser.add_argument(f"--{name}", type=int, default=usual, metavar="N", help=f"{meaning} (default {usual:,})")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from ..bench.retrieval import print_retrieval

    print_retrieval(
        options.queries,
        options.gallery,
        options.dim,
        options.per_class,
        options.rounds,
        options.batch,
        options.json,
    )
