"""How a run is judged: by its answers, or where it has none for these images by how their embeddings lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..classifier import MarginModel
from ..metrics.angles import mean_angle
from ..metrics.identity_intervals import MIN_EVENTS
from ..run import TrainConfig
from .evaluate import evaluate_classifier
from .unseen import embed, evaluate_embeddings

if TYPE_CHECKING:
    from .inputs import Inputs, Samples


def evaluate(
    model: MarginModel,
    config: TrainConfig,
    inputs: Inputs,
    images: Samples,
    *,
    flips: bool = True,
    intervals: bool = True,
) -> dict[str, Any]:
    """Figures on some images; unseen classes have no weights to answer with, nor have losses that only embed.

    Where unseen classes are the aim, held-out images of seen ones are judged by their neighbours too. Mirror images
    are asked for where training made some: a mirrored digit is none.
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
    """The figure that `best` is chosen by."""
    return float(metrics["top1"] if "top1" in metrics else metrics["recall1"])
