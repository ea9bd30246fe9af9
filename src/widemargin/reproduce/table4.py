"""Table IV: accuracy on CIFAR-10 without (10) and with augmentation (10+), six methods, five seeds.

Cost: ResNet-18 for 120 epochs, 60 runs, for GPUs; not measured by us. In CPU size (the small fast network, 10 epochs, 2
seeds, also CosFace and AdaAcos) 4 to 5 minutes each on two cores. Expected: the paper's 94.36 and 87.83 for ArcGrad; in
CPU size with augmentation the results in records/table7_cpu.jsonl; without augmentation it was not measured.
"""

from __future__ import annotations

import argparse

COLUMNS = {"paper": "cifar10_plus", "none": "cifar10"}  # our augmentation → the paper's column
TITLES = {"paper": "CIFAR-10+", "none": "CIFAR-10"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts import runs

    parser.add_argument("--augment", nargs="+", choices=tuple(COLUMNS), default=list(COLUMNS), help="default: both")
    runs.add_image_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Train missing runs, print our results next to the paper's, write the page."""
    from .paper import read_paper_table
    from .parts import image_tables

    theirs = {row["method"]: row for row in read_paper_table(4)}
    image_tables.run_image_table(
        options,
        "table4",
        "Table IV of the ArcGrad paper, reproduced",
        [
            image_tables.ColumnSpec(
                TITLES[augment],
                {"data": "cifar10", "augment": augment},
                image_tables.top1,
                {method: float(row[COLUMNS[augment]]) for method, row in theirs.items()},
            )
            for augment in options.augment
        ],
    )
