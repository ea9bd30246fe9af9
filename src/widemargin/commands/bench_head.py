"""`widemargin bench head`: time, memory and gradients of heads, ours beside others'."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(benchmarks: Any) -> None:
    """The command and its options."""
    parser = benchmarks.add_parser("head", help="time over three bare matrix products, memory, gradient errors")
    parser.add_argument(
        "--shapes", nargs="+", metavar="N,D,C", help="samples, dimensions, classes (default: six of them)"
    )
    parser.add_argument("--losses", nargs="+", metavar="LOSS", help="default arcface cosface adacos arcgrad")
    parser.add_argument(
        "--roads", nargs="+", choices=("auto", "dense", "stream"), default=["auto"], help="of our heads"
    )
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="turns of each head (default 7)")
    parser.add_argument("--no-peers", action="store_true", help="only ours and the limit")
    parser.add_argument("--no-memory", action="store_true", help="leave out memory, which takes a process per head")
    parser.add_argument("--ranks", action="store_true", help="also a head split over two processes")
    parser.add_argument("--threads", type=int, metavar="N", help="threads (default: torch's)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    parser.add_argument("--page", metavar="FILE", help="also write a page with pictures and a calculator")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    import torch

    from ..bench.heads.run import BENCHMARK_LOSSES, SHAPES, print_heads

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    shapes = [_parse_shape(text) for text in options.shapes] if options.shapes else list(SHAPES)
    print_heads(
        shapes,
        options.losses or BENCHMARK_LOSSES,
        options.roads,
        options.rounds,
        not options.no_peers,
        not options.no_memory,
        options.ranks,
        options.json,
        options.page,
    )


def _parse_shape(text: str) -> tuple[int, int, int]:
    from ..errors import InputError

    try:
        samples, dim, classes = (int(float(word)) for word in text.split(","))
    except ValueError:
        raise InputError(f"--shapes {text!r}: write samples,dimensions,classes such as 256,512,100000") from None
    if min(samples, dim) < 1 or classes < 2:
        raise InputError(f"--shapes {text!r}: at least one sample, one dimension and two classes")
    return samples, dim, classes
