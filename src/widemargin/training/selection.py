"""What selects the checkpoint `best`: the metric, and checks before the first step that the run will have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..io.errors import InputError, spell_option
from ..metrics.intervals import MIN_EVENTS

if TYPE_CHECKING:
    from .config import TrainConfig
    from .image_inputs import Inputs, Samples

SELECTION_FARS = ("0.001", "0.01")
"""False accept rates of the true accept rate that selects `best`: the first one that the number of pairs resolves."""


def check_images_to_select_by(config: TrainConfig, inputs: Inputs) -> None:
    """Refuse a `select_by` that the held-out images cannot have."""
    if config.select_by == "auto":
        return
    given = spell_option("select_by", config.select_by)
    if inputs.val is None:
        raise InputError(
            f"{given} needs held-out images: give {spell_option('val_classes')}, {spell_option('val_fraction')}, "
            "or val in Python"
        )
    if inputs.is_multilabel:
        if config.select_by not in ("map", "knn"):
            raise InputError(f"{given}: images with several labels are measured by map; use it, or leave it out")
        return
    if config.select_by == "map":
        raise InputError(f"{given} is for images with several labels; use top1, recall1 or tar")
    if config.select_by not in ("recall1", "tar"):
        return
    same, different = _count_pairs(inputs.val)
    if not same:
        raise InputError(f"{given} needs pairs of one class, but no class has two held-out images")
    far = SELECTION_FARS[-1]
    needed = round(MIN_EVENTS / float(far))
    if config.select_by == "tar" and (different < needed or same < MIN_EVENTS):
        raise InputError(
            f"{given} needs {needed:,} pairs of different classes (false accept rate {far}) and {MIN_EVENTS} of one "
            f"class, but the held-out images have {different:,} and {same:,}; hold out more, or use "
            f"{spell_option('select_by', 'recall1')}"
        )


def selection_far(val: Samples) -> str:
    """The false accept rate of `select_by="tar"`, by the number of pairs, so that it is the same in every epoch."""
    different = _count_pairs(val)[1]
    return next((far for far in SELECTION_FARS if different * float(far) >= MIN_EVENTS - 1e-9), SELECTION_FARS[-1])


def _count_pairs(val: Samples) -> tuple[int, int]:
    """How many pairs of held-out images have the same class, and how many have not."""
    counts = torch.bincount(val.y.cpu())
    images, same = int(counts.sum()), int((counts * (counts - 1)).sum()) // 2
    return same, images * (images - 1) // 2 - same


def check_metric_to_select_by(config: TrainConfig, inputs: Inputs, has_logits: bool) -> None:
    """Refuse `select_by="top1"` where held-out images are compared by their embeddings."""
    if config.select_by != "top1" or inputs.val is None:
        return
    given, instead = spell_option("select_by", "top1"), "use recall1 or tar"
    if not has_logits:
        raise InputError(f"{given} needs a loss with class weights, which {config.loss} has not; {instead}")
    if inputs.is_open_set or tuple(inputs.val.class_names) != tuple(inputs.class_names):
        raise InputError(
            f"{given} needs images of training classes, but those of other classes are evaluated; {instead}"
        )


def selection_metric(metrics: dict[str, Any], select_by: str = "auto", far: str = SELECTION_FARS[0]) -> float:
    """The metric that selects the checkpoint `best`; a TAR that so few pairs reach that it is not reported counts as 0.

    >>> tar = {"0.1": 99.0, "0.01": 95.0, "0.001": None}
    >>> selection_metric({"recall1": 80.0, "tar": tar}), selection_metric({"recall1": 80.0, "tar": tar}, "tar", "0.01")
    (80.0, 95.0)
    >>> selection_metric({"recall1": 80.0, "tar": tar}, "tar", "0.001")
    0.0
    """
    if select_by == "tar":
        return float(metrics["tar"].get(far) or 0.0)
    return float(metrics[selection_metric_name(metrics) if select_by == "auto" else select_by])


def selection_metric_name(metrics: dict[str, Any]) -> str:
    """The metric that selects by default: accuracy, mAP of several labels, or recall@1 of unseen classes."""
    return next(name for name in ("top1", "map", "recall1") if name in metrics)
