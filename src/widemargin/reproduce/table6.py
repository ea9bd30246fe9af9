"""Table VI: angles between class weights, between class centres, and between both, on CIFAR-10.

Cost: none beyond Table IV's runs with augmentation, which it shares. Expected: the paper has ArcGrad at the smallest
WC-Intra (0.24) and the largest W-Inter (1.68). Angles are measured on the test images.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .parts import image_tables


ANGLE_KINDS = {"w_inter": ("W-Inter", "high"), "c_inter": ("C-Inter", "high"), "wc_intra": ("WC-Intra", "low")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts import runs

    runs.add_image_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Train missing runs, print our results next to the paper's, write the page."""
    from .parts import image_tables

    image_tables.run_image_table(
        options,
        "table6",
        "Table VI of the ArcGrad paper, reproduced",
        angle_columns({"data": "cifar10", "augment": "paper"}, with_paper=True),
    )


def angle_columns(config_overrides: dict[str, object], *, with_paper: bool) -> list[image_tables.ColumnSpec]:
    """Columns of the three angles of runs, with the paper's values if it has them."""
    from .paper import read_paper_table
    from .parts import image_tables

    theirs = {row.pop("metric"): row for row in read_paper_table(6)} if with_paper else {}
    return [
        image_tables.ColumnSpec(
            title,
            config_overrides,
            image_tables.angle_metric(kind),
            {method: float(value) for method, value in theirs.get(kind, {}).items()},
            unit="radians",
            better_direction=best,
        )
        for kind, (title, best) in ANGLE_KINDS.items()
    ]
