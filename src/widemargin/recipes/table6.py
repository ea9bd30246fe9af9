"""Table VI: angles between class weights, between class centres, and between both, on CIFAR-10.

Cost: none beyond Table IV's runs with augmentation, which it shares. Expected: the paper has ArcGrad at the smallest
WC-Intra (0.24) and the largest W-Inter (1.68). Angles are measured on the test images.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .parts import image_table

KINDS = {"w_inter": ("W-Inter", "high"), "c_inter": ("C-Inter", "high"), "wc_intra": ("WC-Intra", "low")}


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts import image_options

    image_options.add(parser)


def run(options: argparse.Namespace) -> None:
    """Train what is missing, print ours beside theirs, write the page."""
    from .parts import image_table

    image_table.run(
        options,
        "table6",
        "Table VI of the ArcGrad paper, made again",
        angle_columns({"data": "cifar10", "augment": "paper"}, beside=True),
    )


def angle_columns(fixed: dict[str, object], *, beside: bool) -> list[image_table.Wanted]:
    """The three angles of runs, with the paper's where it has measured the same."""
    from ..data.paper import rows
    from .parts import image_table

    theirs = {row.pop("metric"): row for row in rows(6)} if beside else {}
    return [
        image_table.Wanted(
            title,
            fixed,
            image_table.angle(kind),
            {method: float(value) for method, value in theirs.get(kind, {}).items()},
            unit="radians",
            best=best,
        )
        for kind, (title, best) in KINDS.items()
    ]
