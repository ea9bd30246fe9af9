"""`widemargin bench coverage`: how often intervals of verification hold the truth."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(benchmarks: Any) -> None:
    """The command and its options."""
    parser = benchmarks.add_parser("coverage", help="how often 95 % intervals of verification hold the truth")
    parser.add_argument("--trials", type=int, default=1000, metavar="N", help="of each size (default 1,000)")
    parser.add_argument(
        "--identities", type=int, nargs="+", default=[20, 50, 200], metavar="N", help="sizes (default 20 50 200)"
    )
    parser.add_argument(
        "--populations", nargs="+", metavar="NAME", help="of families, uneven and even (default: all three)"
    )
    parser.add_argument(
        "--compared", type=int, default=200, metavar="N", help="trials with two bootstraps beside (default 200)"
    )
    parser.add_argument(
        "--truth-pairs", type=int, default=10_000_000, metavar="N", help="pairs for the truth (default 10,000,000)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file, and go on from what it holds")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from ..bench.coverage import POPULATIONS, CoverageSettings
    from ..bench.coverage_table import print_coverage

    settings = CoverageSettings(
        trials=options.trials,
        identities=tuple(options.identities),
        populations=tuple(options.populations or POPULATIONS),
        bootstrap_trials=options.compared,
        truth_pairs=options.truth_pairs,
        seed=options.seed,
    )
    print_coverage(settings, options.json)
