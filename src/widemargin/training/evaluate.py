"""Evaluation of a model on images: by its predicted classes, or by its embeddings where it has no such classes.

Predictions give top-1 and top-5, with and without flips, angles and a confusion matrix; embeddings give the figures of
`recognition.evaluation`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..io.errors import InputError
from ..metrics.angles import AngleMeter, mean_angle
from ..metrics.confusion import Confusion
from ..metrics.intervals import MIN_EVENTS
from ..models.attach import MarginModel, embed
from ..recognition.evaluation import evaluate_embeddings
from .config import TrainConfig

if TYPE_CHECKING:
    from .inputs import Inputs, Samples


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
        raise InputError("there are no images to evaluate on")
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


def evaluate(
    model: MarginModel,
    config: TrainConfig,
    inputs: Inputs,
    images: Samples,
    *,
    flips: bool = True,
    intervals: bool = True,
) -> dict[str, Any]:
    """Metrics on some images: of the classifier, or of embeddings for unseen classes and for losses that only embed.

    A run with unseen classes is evaluated by embeddings on held-out images of seen classes too. Flips are averaged only
    where training flipped images: a mirrored digit is no digit.
    """
    batches = inputs.eval_batches(images)
    if model.objective.has_logits and not config.unseen_classes:
        return evaluate_classifier(
            model, batches, len(inputs.class_names), flips=flips and inputs.augment.flip != "none"
        )
    found = evaluate_embeddings(*embed(model, batches), seed=config.seed, intervals=intervals)
    if (head := model.objective.head) is not None:
        weight = head.weight.detach()
        found["angles"]["w_inter"] = mean_angle(weight, torch.arange(len(weight), device=weight.device))[0]
    return found


def format_metrics(metrics: dict[str, Any]) -> str:
    """The figures in a line, with their 95 % `intervals` where they are there."""
    if "top1" in metrics:
        flips = f", with flips {metrics['top1_flip']:.2f} %" if "top1_flip" in metrics else ""
        return f"top-1 {metrics['top1']:.2f} %{flips}, top-5 {metrics['top5']:.2f} %"
    names = {"recall1": "recall@1", "map_at_r": "MAP@R", "auc": "AUC", "eer": "EER", "pair_accuracy": "pairs right"}
    few = metrics["images"] < MIN_EVENTS
    said = []
    for name, title in names.items():
        ends = (metrics.get("intervals") or {}).get(name)
        value = "–" if few or metrics[name] is None else f"{metrics[name]:.2f} %"
        said.append(f"{title} {value}" + ("" if ends is None or value == "–" else f" ({ends[0]:.2f} to {ends[1]:.2f})"))
    return ", ".join(said)


def selection_metric(metrics: dict[str, Any]) -> float:
    """The metric that the checkpoint `best` is chosen by."""
    return float(metrics["top1"] if "top1" in metrics else metrics["recall1"])
