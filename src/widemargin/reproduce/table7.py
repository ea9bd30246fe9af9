"""Table VII: accuracy on CIFAR-10+ after 10, 20, 40 and 90 epochs, six methods.

Cost: ResNet-18, 6 runs of each length per seed, for GPUs; not measured by us. In CPU size 10 epochs of the small fast
network, eight methods, 2 seeds: 4 to 5 minutes a run on two cores. Expected: in the paper ArcGrad is 15.5 points above
softmax after 10 epochs. In CPU size it is not (records/table7_cpu.jsonl): the fast network is close to its final
accuracy after 10 epochs with every loss but AdaAcos.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts import runs

    parser.add_argument("--epochs", nargs="+", type=int, metavar="N", help="default 10 20 40 90, in CPU size 10")
    runs.add_image_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Train missing runs, print our results next to the paper's, write the page."""
    from .paper import read_paper_table
    from .parts import image_tables
    from .table6 import angle_columns

    theirs = {int(row.pop("epochs")): row for row in read_paper_table(7)}
    lengths = options.epochs or ([10] if options.size == "cpu" else [10, 20, 40, 90])
    columns = [
        image_tables.ColumnSpec(
            f"{epochs} epochs",
            {"data": "cifar10", "augment": "paper", "epochs": epochs},
            image_tables.top1,
            {method: float(value) for method, value in theirs.get(epochs, {}).items()},
        )
        for epochs in lengths
    ]
    columns += angle_columns({"data": "cifar10", "augment": "paper", "epochs": lengths[-1]}, with_paper=False)
    image_tables.run_image_table(options, "table7", "Table VII of the ArcGrad paper, reproduced", columns)
