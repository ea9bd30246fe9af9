"""Judging a model on images: top-1 and top-5, with and without flips, angles, confusion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..classifier import MarginModel
from ..errors import InputError
from ..metrics.angles import AngleMeter
from ..metrics.confusion import Confusion


@torch.no_grad()
def evaluate_classifier(
    model: MarginModel, batches: Iterable[tuple[Tensor, Tensor]], num_classes: int, *, flips: bool = True
) -> dict[str, Any]:
    """Figures in percent and radians over batches of images as the network sees them, and labels.

    With flips an image's logits are averaged with those of its mirror image.
    """
    like = next(model.parameters())
    was_training = model.training
    model.eval()
    head = model.objective.head
    meter = None if head is None else AngleMeter(num_classes, head.embedding_dim, like.device)
    true_labels, predicted_labels = [], []
    correct_counts = {"top1": 0, "top5": 0, "top1_flip": 0}
    total, seen = 0.0, 0
    for x, y in batches:
        images, labels = x.to(like.device, like.dtype), y.to(like.device)
        embedded = model.embed(images)
        logits = model.objective.logits(embedded)
        total += float(torch.nn.functional.cross_entropy(logits.float(), labels, reduction="sum"))
        seen += len(labels)
        answers = logits.argmax(1)
        correct_counts["top1"] += int((answers == labels).sum())
        correct_counts["top5"] += int((logits.topk(min(5, num_classes), 1).indices == labels.unsqueeze(1)).any(1).sum())
        true_labels.append(labels.cpu())
        predicted_labels.append(answers.cpu())
        if flips:
            mirrored = model.objective.logits(model.embed(images.flip(-1)))
            correct_counts["top1_flip"] += int(((logits + mirrored).argmax(1) == labels).sum())
        if meter is not None:
            meter.update(embedded, labels)
    model.train(was_training)
    if not seen:
        raise InputError("there are no images to judge on")
    found: dict[str, Any] = {name: 100.0 * count / seen for name, count in correct_counts.items()}
    if not flips:
        del found["top1_flip"]
    found["loss"] = total / seen
    if meter is not None and head is not None:
        angles = meter.compute(head.weight.detach(), over_ranks=False)
        found["angles"] = {"wc_intra": angles.wc_intra, "w_inter": angles.w_inter, "c_inter": angles.c_inter}
    found["confusion"] = Confusion.from_predictions(
        torch.cat(true_labels), torch.cat(predicted_labels), num_classes
    ).to_json()
    return found
