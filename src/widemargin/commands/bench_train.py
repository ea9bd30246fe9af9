"""`widemargin bench train`: the loop against a bare one, ArcGrad's head against softmax's."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(benchmarks: Any) -> None:
    """The command and its options."""
    parser = benchmarks.add_parser(
        "train", help="the training loop against a bare one, ArcGrad's head beside softmax's"
    )
    parser.add_argument(
        "--models", nargs="+", metavar="MODEL", help="networks to train (default: two of fast, and resnet18)"
    )
    parser.add_argument("--loss", default="arcgrad(s=10)", help='loss of the loops (default "arcgrad(s=10)")')
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=("32-true", "bf16-mixed"),
        default=["32-true"],
        help="one or both (default 32-true)",
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each loop (default 5)")
    parser.add_argument("--batch-size", type=int, metavar="N", help="images of a batch (default: by model; heads 128)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of a round (default: by model)")
    parser.add_argument("--repeats", type=int, default=200, metavar="N", help="of each head in a round (default 200)")
    parser.add_argument("--generated", action="store_true", help="noise of CIFAR-10's shape instead of CIFAR-10")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from ..bench.train_table import print_train

    print_train(
        options.models,
        options.loss,
        list(dict.fromkeys(options.precision)),
        options.rounds,
        options.batch_size,
        options.steps,
        options.repeats,
        options.data_dir,
        options.generated,
        options.json,
    )
