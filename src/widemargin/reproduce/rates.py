"""Rates: Table VII under the paper's own conditions. Is ArcGrad's lead after 10 epochs a matter of the learning rate?

    widemargin reproduce rates              six methods, five peak rates, 10 epochs, ResNet-18 of quarter width
    widemargin reproduce rates --rates 0.1 0.001 --seeds 3
    widemargin reproduce rates --full       the whole ResNet-18 at the printed rate, softmax, ArcFace and ArcGrad

Table III prints Adam at 0.1 with a one-cycle schedule, batches of 256 and a weight decay of 5e-4. Cost: not measured; a
sixteenth of the operations of ResNet-18, which does about 100 images per second here, so of the order of 10 minutes a
run on two cores, 30 runs; --full about 85 minutes each. Expected: not measured yet; the paper has 72.84 % for softmax
and 88.34 % for ArcGrad.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..training.config import TrainConfig

RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
_FULL_METHODS = ("soft", "arcface", "arcgrad")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts import runs

    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES), metavar="LR", help="peak rates")
    parser.add_argument("--epochs", type=int, default=10, metavar="N", help="epochs (default 10)")
    parser.add_argument("--methods", nargs="+", choices=tuple(runs.IMAGE_LOSSES), help="default: the paper's six")
    parser.add_argument("--full", action="store_true", help="the whole ResNet-18, three methods at the printed rate")
    runs.add_image_arguments(parser, seeds=None, sizes=False)
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="runs per method and rate (default 1)")


def rate_configs(options: argparse.Namespace) -> dict[tuple[str, float], list[TrainConfig]]:
    """The runs of every method and rate, one per seed."""
    from .parts.runs import IMAGE_LOSSES, make_image_config

    methods = options.methods or (_FULL_METHODS if options.full else tuple(IMAGE_LOSSES))
    rates = (0.1,) if options.full else tuple(options.rates)
    model = "resnet18" if options.full else "resnet18(width=0.25)"
    how = {"model": model, "augment": "paper", "epochs": options.epochs, "precision": "bf16-mixed"}
    return {
        (IMAGE_LOSSES[method], lr): [
            make_image_config("full", "cifar10", IMAGE_LOSSES[method], seed, lr=lr, **how)
            for seed in range(options.seeds)
        ]
        for lr in rates
        for method in methods
    }


def run(options: argparse.Namespace) -> None:
    """Train missing runs, print the accuracies, draw accuracy against rate."""
    from pathlib import Path

    from ..io.errors import InputError
    from ..viz import page
    from ..viz.charts import Line, draw_log_lines
    from ..viz.colours import loss_colours
    from .parts.image_tables import MetricColumn, print_columns, render_columns, top1
    from .parts.runs import complete_image_runs, read_record

    if options.seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {options.seeds}")
    configs = rate_configs(options)
    by_seed = (config for together in zip(*configs.values(), strict=True) for config in together)
    out = complete_image_runs(by_seed, options, "rates")
    losses, rates = list(dict.fromkeys(k for k, _ in configs)), list(dict.fromkeys(lr for _, lr in configs))
    columns = [
        MetricColumn(
            f"rate {lr:g}",
            {
                loss: [
                    top1(record)
                    for config in configs[loss, lr]
                    if (record := read_record(config, Path(options.runs_dir))) is not None
                ]
                for loss in losses
            },
        )
        for lr in rates
    ]
    title = f"CIFAR-10+ after {options.epochs} epochs by learning rate"
    print_columns(title, losses, columns)
    body = [render_columns(losses, columns), page.code("widemargin reproduce rates" + " --full" * options.full)]
    finished = [loss for loss in losses if all(column.seed_values[loss] for column in columns)]
    if finished and len(rates) > 1:
        colours = loss_colours(finished)
        lines = [
            Line(
                loss, sorted((lr, column.mean(loss) or 0.0) for lr, column in zip(rates, columns, strict=True)), colour
            )
            for loss, colour in ((loss, colours[loss]) for loss in finished)
        ]
        chart = draw_log_lines(lines, "peak rate of Adam", "accuracy in percent", title, log_y=False)
        body.insert(0, page.figure(chart))
    path = out / "report.html"
    path.write_text(page.html_page(title, "Adam, one cycle, as in the paper's Table III", body), encoding="utf-8")
    print(f"wrote {path} and {out / 'records.jsonl'}")
