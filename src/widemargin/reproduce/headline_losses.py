"""Headline by loss: the hour of `headline` for ArcGrad, softmax and ArcFace with the same settings, seeds 1, 2 and 3.

    widemargin reproduce headline_losses --list

The settings are those of the headline's second attempt (shifts of 4 pixels, erasing in half of the images, 31 epochs);
seeds are fixed beforehand, the last epoch counts, and every run is evaluated once on the test images. Cost: nine runs
of just under an hour on two cores with bfloat16 instructions. Expected: not measured yet; the goal is 95.0 % with flips
and 94.36 % without. ArcGrad's lead is real if its seeds are above the others' in a t-test, which is printed.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..training.config import TrainConfig

SEEDS = (1, 2, 3)
METHODS = ("arcgrad", "soft", "arcface")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts import runs

    runs.add_image_arguments(parser, seeds=None, sizes=False)


def headline_configs() -> dict[str, list[TrainConfig]]:
    """The runs of every loss, one per seed."""
    from dataclasses import replace

    from .parts.runs import HEADLINE_CONFIG, IMAGE_LOSSES

    base = replace(HEADLINE_CONFIG, augment="fast(pad=4, erase=0.5)", epochs=31)
    losses = [IMAGE_LOSSES[method] for method in METHODS]
    return {loss: [replace(base, loss=loss, seed=seed) for seed in SEEDS] for loss in losses}


def run(options: argparse.Namespace) -> None:
    """Train missing runs, print the accuracies and the test of ArcGrad's lead."""
    from pathlib import Path

    from scipy.stats import ttest_ind

    from .parts.image_tables import MetricColumn, print_columns
    from .parts.runs import complete_image_runs, read_record

    configs = headline_configs()
    by_seed = (config for together in zip(*configs.values(), strict=True) for config in together)
    out = complete_image_runs(by_seed, options, "headline_losses")
    records = {
        loss: [record for config in own if (record := read_record(config, Path(options.runs_dir))) is not None]
        for loss, own in configs.items()
    }
    print(f"{sum(map(len, records.values()))} evaluations on the test images")
    columns = [
        MetricColumn(title, {loss: [record["test"][key] for record in own] for loss, own in records.items()})
        for title, key in (("with flips", "top1_flip"), ("without", "top1"))
    ]
    print_columns("CIFAR-10 within an hour on two cores", list(configs), columns)
    first, *others = configs
    for loss in others:
        pair = [columns[0].seed_values[name] for name in (first, loss)]
        if min(map(len, pair)) > 1:
            print(
                f"{first} against {loss}, with flips: Welch's t-test p = {ttest_ind(*pair, equal_var=False).pvalue:.3g}"
            )
    print(f"wrote {out / 'records.jsonl'}")
