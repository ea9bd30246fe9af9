"""`widemargin bench pages`: how long lab, tour and report take to make."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(benchmarks: Any) -> None:
    """The command and its options."""
    parser = benchmarks.add_parser("pages", help="seconds and size of lab, tour and the report of 100 epochs")
    parser.add_argument("--run", dest="of", metavar="DIR", help="report this run (default: trains a small one)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from ..bench.pages import print_pages

    print_pages(options.of, options.json)
