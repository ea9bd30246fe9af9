"""Figure 3: accuracy on CIFAR-10+ with 100, 50, 20 and 10 % of the training images, four methods.

Cost: ResNet-18 for 20 epochs, five seeds; in CPU size 10 epochs of the small fast network: the runs on the whole set
are those of Table VII, the others take 4 minutes per method and seed on two cores. Expected: in the paper ArcGrad loses
least with fewer images. In CPU size (seed 0, records/figure3_cpu.jsonl) this holds only with a tenth of the images;
with more, the methods are within a point.
"""

from __future__ import annotations

import argparse

TRAIN_FRACTIONS = (1.0, 0.5, 0.2, 0.1)
FIGURE3_METHODS = ("arcgrad", "arcface", "soft", "adacos")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts import runs

    runs.add_image_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Train missing runs, print the table, draw the figure."""
    from pathlib import Path

    from ..viz import page
    from ..viz.charts import Line, draw_line_chart
    from ..viz.colours import loss_colour
    from .parts.image_tables import ColumnSpec, MetricColumn, column_configs, print_columns, render_columns, top1
    from .parts.runs import IMAGE_LOSSES, complete_image_runs, read_record

    epochs = 10 if options.size == "cpu" else 20
    losses = [IMAGE_LOSSES[method] for method in FIGURE3_METHODS]
    configs = {
        (fraction, loss): column_configs(
            options,
            ColumnSpec("", {"data": "cifar10", "augment": "paper", "epochs": epochs, "train_fraction": fraction}, top1),
            loss,
        )
        for fraction in TRAIN_FRACTIONS
        for loss in losses
    }
    out = complete_image_runs(
        (config for together in zip(*configs.values(), strict=True) for config in together), options, "figure3"
    )
    runs_dir = Path(options.runs_dir)
    columns = [
        MetricColumn(
            f"{100 * fraction:g} %",
            {
                loss: [
                    top1(record)
                    for config in configs[fraction, loss]
                    if (record := read_record(config, runs_dir)) is not None
                ]
                for loss in losses
            },
        )
        for fraction in TRAIN_FRACTIONS
    ]
    title = "Figure 3 of the ArcGrad paper, reproduced"
    print_columns(title, losses, columns)
    parts = []
    whole = [loss for loss in losses if all(column.seed_values[loss] for column in columns)]
    if whole:
        rising = columns[::-1]  # names at the right end of each line
        percents = [100 * fraction for fraction in reversed(TRAIN_FRACTIONS)]
        means = {loss: [column.mean(loss) or 0.0 for column in rising] for loss in whole}
        picture = draw_line_chart(
            [Line(loss, list(zip(percents, means[loss], strict=True)), loss_colour(loss)) for loss in whole],
            "percent of the training images",
            "accuracy in percent",
            "Accuracy by the fraction of the training images",
        )
        parts.append(page.figure(picture))
    parts += [render_columns(losses, columns), page.code(f"widemargin reproduce figure3 --size {options.size}")]
    path = out / "report.html"
    sub = f"CIFAR-10+, {epochs} epochs, mean over seeds"
    path.write_text(page.html_page(title, sub, parts), encoding="utf-8")
    print(f"wrote {path} and {out / 'records.jsonl'}")
