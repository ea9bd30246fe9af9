"""Headline: ArcGrad on CIFAR-10 on two CPU cores within an hour; the paper has 94.36 % (ResNet-18, 120 epochs).

Cost: just under an hour on two cores with bfloat16 instructions. Expected: the results in records/headline.jsonl.
Learning rate and weight decay were compared on a held-out tenth of the training images, with a smaller network, fewer
epochs and another seed; the other settings were not tuned. The seed, 0, was fixed beforehand, and the last epoch
counts. The record's second attempt has wider shifts and erasing (`--augment "fast(pad=4, erase=0.5)" --epochs 31`).
"""

from __future__ import annotations

import argparse

PAPER_TOP1 = 94.36


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts import runs

    runs.add_image_arguments(parser, seeds=None, sizes=False)


def run(options: argparse.Namespace) -> None:
    """Train if missing, and print our results next to the paper's."""
    from pathlib import Path

    from .parts.runs import HEADLINE_CONFIG, complete_image_runs, read_record

    out = complete_image_runs([HEADLINE_CONFIG], options, "headline")
    record = read_record(HEADLINE_CONFIG, Path(options.runs_dir))
    if record is None:
        return
    test, minutes = record["test"], record["seconds"] / 60
    config = HEADLINE_CONFIG
    print(f"{config.loss}, {config.epochs} epochs of {config.model}: {minutes:.1f} min on {record['cores']} cores")
    print(f"top-1 {test['top1']:.2f} %, with flips {test['top1_flip']:.2f} % (paper {PAPER_TOP1:.2f} %)")
    print(f"wrote {out / 'records.jsonl'}")
