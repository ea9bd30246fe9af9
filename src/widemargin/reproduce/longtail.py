"""Long-tailed CIFAR-10: balanced accuracy of losses that depend on class counts, compared with softmax and ArcGrad.

5,000 images of the first class down to 50 of the last one (imbalance 100, 12,406 images drawn per seed), the whole test
set, a small fast network, 10 epochs, seeds 0 to 2. Cost: 27 runs, about a minute of one core each. Expected: the
results in records/longtail.jsonl: logit adjustment and deferred re-weighting (DRW) help, margins from counts without
DRW do not. No setting was chosen on this data: rate and decay are those of the other CPU
recipes, the losses' numbers those of their papers (LDAM s=30, max_m=0.5; logit adjustment τ=1; class weights β=0.9999
in the last fifth of the training, DRW), ArcGrad's scale is `suggest_scale(10, 0.5)`; margins from counts are ArcFace
with the GLD form at LDAM's scale and the Happywhale form at its own. Groups: classes with at least 1,000, at least 100,
and fewer training images.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..training.config import TrainConfig

IMBALANCE = 100
SEEDS = 3
GROUPS = {"many": 1000, "medium": 100, "few": 1}
"""Groups of classes, with the smallest number of training images per class."""
_DRW = {"class_weight": "effective", "class_weight_start": 0.8}


def methods() -> dict[str, dict[str, Any]]:
    """Settings of each method that differ from the common ones, by title."""
    from ..losses.class_counts import margins_from_counts
    from ..theory import suggest_scale

    counts = class_counts()
    gld, happywhale = ([round(m, 4) for m in margins_from_counts(counts, form)] for form in ("gld", "happywhale"))
    arcgrad = f"arcgrad(s={suggest_scale(len(counts), 0.5):.2g})"
    return {
        "softmax": {"loss": "softmax"},
        "softmax, DRW": {"loss": "softmax", **_DRW},
        "ldam": {"loss": "ldam(s=30, max_m=0.5)"},
        "ldam, DRW": {"loss": "ldam(s=30, max_m=0.5)", **_DRW},
        "logit_adjusted": {"loss": "logit_adjusted(tau=1)"},
        "arcface, GLD margins": {"loss": f"arcface(s=30, m={gld})"},
        "arcface, Happywhale margins": {"loss": f"arcface(s=20.96, m={happywhale})"},
        arcgrad: {"loss": arcgrad},
        f"{arcgrad}, DRW": {"loss": arcgrad, **_DRW},
    }


def class_counts() -> list[int]:
    """Training images of each class."""
    from ..data.images.long_tail import long_tailed_counts

    return long_tailed_counts([5000] * 10, IMBALANCE)


def runs(seeds: int = SEEDS) -> dict[str, list[TrainConfig]]:
    """The runs of every method, one per seed."""
    from dataclasses import replace

    from .parts.runs import make_image_config

    base = replace(
        make_image_config("cpu", "cifar10", "softmax", 0),
        model="fast(widths=(16, 48, 48), bias=False)",
        batch_size=125,
        imbalance=float(IMBALANCE),
    )
    return {
        title: [replace(base, seed=seed, **changes) for seed in range(seeds)] for title, changes in methods().items()
    }


def group_accuracy(class_accuracy: Sequence[float | None], group: str) -> float:
    """Mean accuracy in percent of the classes of a group, from the accuracies of all classes."""
    low = GROUPS[group]
    high = min((n for n in GROUPS.values() if n > low), default=float("inf"))
    pairs = zip(class_accuracy, class_counts(), strict=True)
    values = [value for value, n in pairs if low <= n < high and value is not None]
    return sum(values) / len(values)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts.runs import add_image_arguments

    parser.add_argument(
        "--seeds", type=int, default=SEEDS, metavar="N", help=f"runs per method, seeds 0, 1, … (default {SEEDS})"
    )
    add_image_arguments(parser, seeds=None, sizes=False)


def run(options: argparse.Namespace) -> None:
    """Train missing runs, print the table, write the page."""
    from pathlib import Path

    from ..io.errors import InputError
    from ..metrics.confusion import Confusion
    from ..viz import page
    from .parts.image_tables import MetricColumn, print_columns, render_columns
    from .parts.runs import complete_image_runs, read_record

    if options.seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {options.seeds}")
    configs = runs(options.seeds)
    # Seed by seed, so that an interrupted list has compared all methods equally often.
    by_seed = (config for together in zip(*configs.values(), strict=True) for config in together)
    out = complete_image_runs(by_seed, options, "longtail")
    records = {
        title: [record for config in own if (record := read_record(config, Path(options.runs_dir))) is not None]
        for title, own in configs.items()
    }
    accuracy = {
        title: [Confusion.from_json(record["confusion"]).class_accuracy for record in own]
        for title, own in records.items()
    }
    balanced = {title: [record["test"]["balanced_accuracy"] for record in own] for title, own in records.items()}
    columns = [MetricColumn("balanced accuracy", balanced)]
    columns += [
        MetricColumn(group, {title: [group_accuracy(one, group) for one in own] for title, own in accuracy.items()})
        for group in GROUPS
    ]
    title = f"Long-tailed CIFAR-10, imbalance {IMBALANCE}"
    print_columns(title, list(configs), columns)
    sub = "Balanced accuracy in percent, and that of classes with at least 1,000, at least 100 and fewer images; "
    sub += "mean and standard deviation over seeds, each dot is a seed, the bar is their mean"
    body = [render_columns(list(configs), columns), page.heading("Command"), page.code("widemargin reproduce longtail")]
    path = out / "report.html"
    path.write_text(page.html_page(title, sub, body), encoding="utf-8")
    print(f"wrote {path} and {out / 'records.jsonl'}")
