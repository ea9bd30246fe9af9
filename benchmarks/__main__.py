"""`python -m benchmarks NAME`: ours against peers and limits, measured in one run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from widemargin.cli.parser import CommandParser, run_command_line, select_subcommands

PROG = "python -m benchmarks"
BENCHMARKS = {
    "backward": "backward passes written by hand against autograd of their definitions",
    "numerics": "gradient errors against fp64, and what is finite",
    "crossval": "time per fit against plain PyTorch and scikit-learn",
    "tables": "compare's default settings on tables of many shapes, beside scikit-learn's classifiers",
    "table_verdicts": "whether compare's verdicts contradict each other under the default and under tuned settings",
    "table_settings": "MNIST as a table and 5,000 columns of 300 rows: losses under the rule and under other settings",
    "table_speed": "a table of 100,000 rows, against scikit-learn's network of the same sizes",
    "table_large": "a table of a million rows streamed from Parquet, against histogram gradient boosting",
    "protocol": "how compare's default MLPConfig was chosen, on inner folds",
    "coverage": "how often intervals of verification hold the truth",
    "head": "time, memory and gradients of heads, ours and others'",
    "pages": "how long lab, tour and report take to make, and how large they are",
    "retrieval": "exact retrieval against a matrix product and topk",
    "train": "the training loop against a bare one, ArcGrad's head against softmax's",
}


def build_parser(argv: Sequence[str] | None = None) -> CommandParser:
    """The parser; only the benchmark that `argv` names is imported."""
    top = CommandParser(prog=PROG, description="Benchmarks against peers, in one run.")
    subparsers = top.add_subparsers(dest="benchmark", metavar="BENCHMARK", parser_class=CommandParser)
    needed = select_subcommands(BENCHMARKS, argv)
    for name, summary in BENCHMARKS.items():
        parser = subparsers.add_parser(name, help=summary)
        if name in needed:
            importlib.import_module(f"benchmarks.{name}").add_arguments(parser)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark and return the exit code."""
    return run_command_line(build_parser, argv, PROG)


if __name__ == "__main__":
    sys.exit(main())
