"""Table V: top-1 and top-5 accuracy on CIFAR-100+, six methods, five seeds.

Cost: ResNet-34 for 160 epochs, 30 runs, for GPUs; not measured by us, nor is the CPU size (the small fast network, 10
epochs, 2 seeds), which should be that of CIFAR-10.
Expected: the paper's 75.12 and 90.98 for ArcGrad. CIFAR-100 is downloaded on first use; there is no record of this
table, because the data was not available.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts import runs

    runs.add_image_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Train missing runs, print our results next to the paper's, write the page."""
    from .paper import read_paper_table
    from .parts import image_tables

    theirs = {row["method"]: row for row in read_paper_table(5)}
    fixed = {"data": "cifar100", "augment": "paper"}
    image_tables.run_image_table(
        options,
        "table5",
        "Table V of the ArcGrad paper, reproduced",
        [
            image_tables.ColumnSpec(
                title, fixed, figure, {method: float(row[column]) for method, row in theirs.items()}
            )
            for title, column, figure in (("top-1", "top1", image_tables.top1), ("top-5", "top5", image_tables.top5))
        ],
    )
