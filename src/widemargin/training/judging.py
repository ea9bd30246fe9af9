"""How a run is judged: by its answers, or where it has none for these images by how their embeddings lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..classifier import MarginModel
from ..metrics.angles import mean_angle
from ..metrics.identity_intervals import LEAST_EVENTS
from ..run import Run
from .evaluate import evaluate
from .unseen import embed, judge_embeddings

if TYPE_CHECKING:
    from .inputs import Inputs, Samples


def judge(
    model: MarginModel, run: Run, inputs: Inputs, images: Samples, *, flips: bool = True, intervals: bool = True
) -> dict[str, Any]:
    """Figures on some images; unseen classes have no weights to answer with, nor have losses that only embed.

    Where unseen classes are the aim, held-out images of seen ones are judged by their neighbours too. Mirror images
    are asked for where training made some: a mirrored digit is none.
    """
    batches = inputs.judged(images)
    if model.objective.classifies and not run.unseen:
        return evaluate(model, batches, len(inputs.classes), flips=flips and inputs.augment.flip != "none")
    found = judge_embeddings(*embed(model, batches), seed=run.seed, intervals=intervals)
    if (head := model.objective.head) is not None:
        weight = head.weight.detach()
        found["angles"]["w_inter"] = mean_angle(weight, torch.arange(len(weight), device=weight.device))[0]
    return found


def headline(found: dict[str, Any]) -> str:
    """The figures in a line, with their 95 % `intervals` where they are there."""
    if "top1" in found:
        flips = f", with flips {found['top1_flip']:.2f} %" if "top1_flip" in found else ""
        return f"top-1 {found['top1']:.2f} %{flips}, top-5 {found['top5']:.2f} %"
    names = {"recall1": "recall@1", "map_at_r": "MAP@R", "auc": "AUC", "eer": "EER", "pair_accuracy": "pairs right"}
    few = found["images"] < LEAST_EVENTS
    said = []
    for name, title in names.items():
        ends = (found.get("intervals") or {}).get(name)
        value = "–" if few or found[name] is None else f"{found[name]:.2f} %"
        said.append(f"{title} {value}" + ("" if ends is None or value == "–" else f" ({ends[0]:.2f} to {ends[1]:.2f})"))
    return ", ".join(said)


def choosing(found: dict[str, Any]) -> float:
    """The figure that `best` is chosen by."""
    return float(found["top1"] if "top1" in found else found["recall1"])
