"""Rates: Table VII under the paper's own conditions. Is ArcGrad's lead after 10 epochs a matter of the learning rate?

    widemargin reproduce rates                             six methods, five peak rates, 10 epochs, seed 0: 30 runs
    widemargin reproduce rates --rates 0.1 0.01 --seeds 3  two more seeds at the two rates that matter: 24 more runs
    widemargin reproduce rates --rates 0.1 --epochs 20 40 --methods soft arcface arcgrad   6 longer runs
    widemargin reproduce rates --full                      the whole ResNet-18 at 0.1, softmax, ArcFace and ArcGrad

Table III prints Adam at 0.1 with a one-cycle schedule, batches of 256 and a weight decay of 5e-4; the network is
ResNet-18 of quarter width. The page has Table VI's angles and Figure 4's histograms at the largest rate given. Every
call writes the records of its own runs to `rates/records.jsonl`; `--records FILE` keeps those of another call in it.
Cost: not measured; 500,000 images for 10 epochs with a sixteenth of the operations of ResNet-18, which does about 100
images a second here: of the order of 10 minutes a run on two cores; --full about 85 minutes each. Expected: not
measured yet; the paper has 72.84 % for softmax and 88.34 % for ArcGrad.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..training.config import TrainConfig
    from ..viz.svg import Chart
    from .parts.image_tables import MetricColumn
    from .parts.runs import Record

RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
PRINTED_RATE = 0.1
QUARTER = "resnet18(width=0.25)"
_FULL_METHODS = ("soft", "arcface", "arcgrad")


class Condition(NamedTuple):
    """What a column of the table shares."""

    lr: float
    epochs: int

    def __str__(self) -> str:
        return f"rate {self.lr:g}, {self.epochs} epochs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts import runs

    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES), metavar="LR", help="peak rates")
    parser.add_argument("--epochs", nargs="+", type=int, default=[10], metavar="N", help="epochs (default 10)")
    parser.add_argument("--methods", nargs="+", choices=tuple(runs.IMAGE_LOSSES), help="default: the paper's six")
    parser.add_argument("--full", action="store_true", help="the whole ResNet-18, three methods at the printed rate")
    runs.add_image_arguments(parser, seeds=None, sizes=False)
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="runs per method and rate (default 1)")


def rate_configs(options: argparse.Namespace) -> dict[tuple[str, Condition], list[TrainConfig]]:
    """The runs of every method, rate and length, one per seed."""
    from .parts.runs import IMAGE_LOSSES, make_image_config

    methods = options.methods or (_FULL_METHODS if options.full else tuple(IMAGE_LOSSES))
    # Without duplicates, the printed rate first: an interrupted list has compared all methods there.
    rates = (PRINTED_RATE,) if options.full else sorted(set(options.rates), reverse=True)
    model = "resnet18" if options.full else QUARTER
    how: dict[str, Any] = {"model": model, "augment": "paper", "precision": "bf16-mixed"}
    return {
        (IMAGE_LOSSES[method], Condition(lr, epochs)): [
            make_image_config("full", "cifar10", IMAGE_LOSSES[method], seed, lr=lr, epochs=epochs, **how)
            for seed in range(options.seeds)
        ]
        for epochs in sorted(set(options.epochs))
        for lr in rates
        for method in methods
    }


def run(options: argparse.Namespace) -> None:
    """Train missing runs, print the accuracies and angles, draw accuracy against rate and the angles by epoch."""
    from ..io.errors import InputError
    from ..viz import page
    from .figure4 import describe_target_angles
    from .parts.image_tables import MetricColumn, print_columns, render_columns, top1
    from .parts.runs import complete_image_runs, read_record

    for name in ("seeds", "epochs"):
        values = getattr(options, name)
        if (values if isinstance(values, int) else min(values)) < 1:
            raise InputError(f"--{name} must be at least 1")
    configs = rate_configs(options)
    by_seed = (config for together in zip(*configs.values(), strict=True) for config in together)
    out, runs_dir = complete_image_runs(by_seed, options, "rates"), Path(options.runs_dir)
    losses, conditions = list(dict.fromkeys(k for k, _ in configs)), list(dict.fromkeys(c for _, c in configs))
    records = {
        key: [record for config in own if (record := read_record(config, runs_dir)) is not None]
        for key, own in configs.items()
    }
    columns = [
        MetricColumn(str(c), {loss: [top1(record) for record in records[loss, c]] for loss in losses})
        for c in conditions
    ]
    title = "CIFAR-10+ by learning rate"
    print_columns(title, losses, columns)
    shown = next((c for c in conditions if any(records[loss, c] for loss in losses)), conditions[0])
    angles = angle_columns({loss: records[loss, shown] for loss in losses})
    print_columns(f"Angles in radians, {shown}", losses, angles)
    means: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for (loss, condition), found in records.items():
        if found:
            means.setdefault((loss, condition.epochs), []).append((condition.lr, statistics.fmean(map(top1, found))))
    chart = draw_rates(means)
    body = [] if chart is None else [page.figure(chart)]
    body.append(render_columns(losses, columns))
    body += [page.heading(f"Table VI: angles, {shown}"), render_columns(losses, angles)]
    body.append(page.heading(f"Figure 4: angles of training images to their class by epoch, {shown}, seed 0"))
    body += describe_target_angles({loss: configs[loss, shown][0] for loss in losses}, runs_dir)
    body.append(page.code(_command(options)))
    path = out / "report.html"
    path.write_text(page.html_page(title, "Adam, one cycle, as in the paper's Table III", body), encoding="utf-8")
    print(f"wrote {path} and {out / 'records.jsonl'}")


def _command(options: argparse.Namespace) -> str:
    words = ["widemargin reproduce rates", *(["--full"] if options.full else [])]
    if not options.full and list(options.rates) != list(RATES):
        words.append("--rates " + " ".join(f"{lr:g}" for lr in options.rates))
    if list(options.epochs) != [10]:
        words.append("--epochs " + " ".join(map(str, options.epochs)))
    words += [f"--methods {' '.join(options.methods)}"] if options.methods else []
    return " ".join([*words, *([f"--seeds {options.seeds}"] if options.seeds > 1 else [])])


def angle_columns(records: Mapping[str, Sequence[Record]]) -> list[MetricColumn]:
    """Table VI's angles of finished runs beside the paper's."""
    from .paper import read_paper_table
    from .parts.image_tables import MetricColumn, angle_metric
    from .parts.runs import IMAGE_LOSSES
    from .table6 import ANGLE_KINDS

    theirs = {row["metric"]: row for row in read_paper_table(6)}
    columns = []
    for kind, (title, best) in ANGLE_KINDS.items():
        metric = angle_metric(kind)
        values = {loss: [metric(record) for record in own] for loss, own in records.items()}
        paper = {loss: float(theirs[kind][method]) for method, loss in IMAGE_LOSSES.items()}
        columns.append(MetricColumn(title, values, paper, unit="radians", better_direction=best))
    return columns


def draw_rates(means: Mapping[tuple[str, int], Sequence[tuple[float, float]]]) -> Chart | None:
    """Mean accuracy against rate, a line per loss and length of training with at least two rates; None without."""
    from ..viz.charts import Line, draw_log_lines
    from ..viz.colours import loss_colours

    drawn = {key: sorted(points) for key, points in means.items() if len(points) > 1}
    if not drawn:
        return None
    losses, shortest = list(dict.fromkeys(loss for loss, _ in drawn)), min(epochs for _, epochs in drawn)
    colours = loss_colours(losses)
    lines = [
        Line(
            loss if epochs == shortest else f"{loss}, {epochs} epochs",
            points,
            colours[loss],
            dashed=epochs != shortest,
        )
        for (loss, epochs), points in drawn.items()
    ]
    title = f"Accuracy after {shortest} epochs by the peak rate"
    return draw_log_lines(lines, "peak rate of Adam", "accuracy in percent", title, log_y=False, from_zero=False)
