"""Judging a model on images: top-1 and top-5, with and without flips, angles, confusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..classifier import MarginModel
from ..metrics.angles import AngleMeter


@torch.no_grad()
def evaluate(
    model: MarginModel,
    x: Tensor,
    y: Tensor,
    prepare: Callable[[Tensor], Tensor],
    *,
    batch: int = 500,
    flips: bool = True,
    told: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Figures in percent and radians on uint8 images x [N, C, H, W]; `prepare` makes network inputs of them.

    With flips an image's logits are averaged with those of its mirror image.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    head = model.head
    classes = model.objective.logits(model.embed(prepare(x[:1]).to(device))).shape[1]
    meter = None if head is None else AngleMeter(classes, head.dim, device)
    confusion = torch.zeros(classes, classes, dtype=torch.int64)
    right = {"top1": 0, "top5": 0, "top1_flip": 0}
    total = 0.0
    for start in range(0, len(x), batch):
        images, labels = prepare(x[start : start + batch]).to(device), y[start : start + batch].to(device)
        embedded = model.embed(images)
        logits = model.objective.logits(embedded)
        total += float(torch.nn.functional.cross_entropy(logits.float(), labels, reduction="sum"))
        answers = logits.argmax(1)
        right["top1"] += int((answers == labels).sum())
        right["top5"] += int((logits.topk(min(5, classes), 1).indices == labels.unsqueeze(1)).any(1).sum())
        confusion.view(-1).index_add_(0, (labels * classes + answers).cpu(), torch.ones(len(labels), dtype=torch.int64))
        if flips:
            mirrored = model.objective.logits(model.embed(images.flip(-1)))
            right["top1_flip"] += int(((logits + mirrored).argmax(1) == labels).sum())
        if meter is not None:
            meter.update(embedded.float(), labels)
        if told is not None:
            told(len(labels) / len(x))
    model.train(was_training)
    found: dict[str, Any] = {name: 100.0 * count / len(x) for name, count in right.items()}
    if not flips:
        del found["top1_flip"]
    found["loss"] = total / len(x)
    if meter is not None and head is not None:
        angles = meter.compute(head.weight.detach(), over_ranks=False)
        found["angles"] = {"wc_intra": angles.wc_intra, "w_inter": angles.w_inter, "c_inter": angles.c_inter}
    found["confusion"] = confusion.tolist()
    return found
