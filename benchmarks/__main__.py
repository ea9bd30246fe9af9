"""`python -m benchmarks NAME`: comparisons with other implementations and with limits, within one run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from widemargin.cli.parser import CommandParser, run_command_line, select_subcommands

PROG = "python -m benchmarks"
BENCHMARKS = {
    "attach": "how many models of timm, torchvision and transformers attach works on",
    "backward": "hand-written backward passes against autograd of their definitions",
    "data": "images per second from folders, records and shards, against torchvision and DataLoader",
    "numerics": "gradient errors against fp64, and finiteness at degenerate points",
    "crossval": "time per fit against plain PyTorch and scikit-learn",
    "tables": "compare's default settings on tables of many shapes, compared with scikit-learn's classifiers",
    "table_verdicts": "contradictions between compare's verdicts with default and with tuned settings",
    "table_reading": "reading a CSV file of 200,000 rows, compared with Python's csv, pandas and pyarrow",
    "table_settings": "MNIST as a table and 5,000 columns of 300 rows: losses with the rule and with other settings",
    "shortcuts": "what branches on tensor values save on a CPU, one by one",
    "serve": "requests per second of `widemargin serve` against the bare model",
    "table_speed": "a table of 100,000 rows, against scikit-learn's network of the same sizes",
    "table_large": "a table of a million rows streamed from Parquet, against histogram gradient boosting",
    "protocol": "selection of compare's default MLPConfig on inner folds",
    "estimator_checks": "scikit-learn's own checks of MarginClassifier with every loss",
    "coverage": "coverage of the intervals of verification",
    "gallery": "search in a gallery on disk against a bare matrix product and topk",
    "head": "time, memory and gradients of our heads and others",
    "head_runs": "time of heads over the limit in several processes, beside the goals",
    "outliers": "AUROC of outlier scores for planted wrong labels and foreign images",
    "pages": "time and size of the pages of lab, tour and report",
    "pairs": "pair losses against pytorch-metric-learning: time and memory of a step",
    "retrieval": "exact retrieval against a matrix product and topk",
    "triton_accuracy": "the Triton backend in Triton's interpreter against fp64, without a GPU",
    "triton_compiled": "registers and shared memory of the Triton kernels for three GPUs, and a roofline on paper",
    "train": "the training loop against a minimal one, ArcGrad's head against softmax's",
}


def build_parser(argv: Sequence[str] | None = None) -> CommandParser:
    """Build the parser; only the benchmark named in `argv` is imported."""
    top = CommandParser(prog=PROG, description="Comparisons with other implementations, within one run.")
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
