"""Evaluation of a model on images: by its predicted classes, or by its embeddings if it predicts no classes.

Predictions give top-1 and top-5, with and without flips, balanced accuracy, angles and a confusion matrix; embeddings
give the figures of `recognition.evaluation`; images with several labels give mean average precision. Several processes
share the batches of one and put together what they found before a figure is computed; the batches stay whole, so that
every image gives the same bits as in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ..head.head import Head
from ..io.errors import InputError
from ..metrics.angles import AngleMeter, mean_angle
from ..metrics.confusion import Confusion
from ..metrics.intervals import MIN_EVENTS
from ..metrics.multilabel import multilabel_metrics
from ..models.attach import MarginModel, check_finite_outputs, to_model_input
from ..numerics import distributed
from ..numerics.precision import widest_float_dtype
from ..recognition.evaluation import evaluate_embeddings
from .config import TrainConfig

if TYPE_CHECKING:
    from .image_inputs import Inputs, Samples

EVAL_BATCH_SIZE = 500
_MAX_LOGITS = 1 << 26  # logits of a batch: of very many classes fewer images are evaluated at once
_MAX_CENTRE_VALUES = 1 << 25  # numbers of all class centres, above which angles are not computed


def evaluate(
    model: MarginModel,
    config: TrainConfig,
    inputs: Inputs,
    images: Samples,
    *,
    flips: bool = True,
    intervals: bool = True,
    over_ranks: bool = False,
) -> dict[str, Any]:
    """Metrics on some images: of the classifier, or of embeddings for unseen classes and for losses that only embed.

    A run that is tested on unseen classes is evaluated by embeddings on held-out images of seen classes too. Flips are
    averaged only where training flipped images: a mirrored digit is no digit. With `over_ranks` all ranks call this
    with the same model, buffers included: each evaluates its part of the batches, and all return the same metrics.
    """
    parts = model.objective.parts.values()
    if any(isinstance(part, Head) and part.shard is not None for part in parts):
        over_ranks = False  # logits of a split head are computed by all ranks together, so each needs all batches
    over_ranks = over_ranks and distributed.has_multiple_ranks()
    like = next(model.parameters())
    collected: AnswerCounts | LabelScores | CollectedEmbeddings
    if inputs.is_multilabel:
        collected = LabelScores(model, inputs.class_names, like.device, flips and inputs.augment.flip != "none")
    elif model.objective.has_logits and not _is_evaluated_by_embeddings(config, inputs, images):
        num_classes = len(inputs.class_names)
        collected = AnswerCounts(model, num_classes, like.device, flips and inputs.augment.flip != "none")
    else:
        collected = CollectedEmbeddings(model, like.device, config.seed, intervals)
    own_batches = {"rank": dist.get_rank(), "world_size": dist.get_world_size()} if over_ranks else {}
    if isinstance(collected, AnswerCounts) and len(inputs.class_names) > _MAX_LOGITS // EVAL_BATCH_SIZE:
        own_batches["batch_size"] = max(1, _MAX_LOGITS // len(inputs.class_names))
    was_training = model.training
    model.eval()
    try:
        with distributed.raise_on_all_ranks(like.device) if over_ranks else nullcontext(), torch.no_grad():
            for x, y in inputs.eval_batches(images, **own_batches):
                collected.add(to_model_input(x, like), y.to(like.device))
    finally:
        model.train(was_training)
    if not over_ranks:
        return collected.metrics()
    collected.merge_ranks()
    return distributed.compute_on_rank_zero(collected.metrics, like.device)


def _is_evaluated_by_embeddings(config: TrainConfig, inputs: Inputs, images: Samples) -> bool:
    """Whether the classes of the images are not those of the head, or pairs of images are what selects `best`."""
    if images is inputs.val and config.select_by in ("recall1", "tar"):
        return True
    return inputs.is_open_set or tuple(images.class_names) != inputs.class_names


class AnswerCounts:
    """Losses and predictions of a classifier, accumulated over batches, and the centres of the classes.

    With flips an image's logits are averaged with those of its mirror image.
    """

    def __init__(self, model: MarginModel, num_classes: int, device: torch.device, flips: bool) -> None:
        self.objective, self.embed, self.num_classes, self.flips = model.objective, model.embed, num_classes, flips
        head = model.objective.head
        has_angles = head is not None and num_classes * head.embedding_dim <= _MAX_CENTRE_VALUES
        self.meter = AngleMeter(num_classes, head.embedding_dim, device) if head is not None and has_angles else None
        self.class_weights = head.gather_weight() if head is not None and has_angles else None
        self.losses = [torch.zeros(0, dtype=widest_float_dtype(device), device=device)]
        self.correct = [torch.zeros(0, 3, dtype=torch.int64, device=device)]  # top-1, top-5, top-1 with flips
        self.labels, self.answers = ([torch.zeros(0, dtype=torch.int64, device=device)] for _ in range(2))

    def add(self, images: Tensor, labels: Tensor) -> None:
        """Evaluate a batch, without waiting for the device."""
        embedded = self.embed(images)
        logits = self.objective.logits(embedded)
        answers = logits.argmax(1)
        top5 = (logits.topk(min(5, self.num_classes), 1).indices == labels.unsqueeze(1)).any(1)
        both = logits + self.objective.logits(self.embed(images.flip(-1))) if self.flips else logits
        loss = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
        self.losses.append(loss.to(self.losses[0].dtype).unsqueeze(0))
        is_correct = (answers == labels, top5, both.argmax(1) == labels)
        self.correct.append(torch.stack([right.sum() for right in is_correct]).unsqueeze(0))
        self.labels.append(labels)
        self.answers.append(answers)
        if self.meter is not None:
            self.meter.update(embedded, labels)

    def merge_ranks(self) -> None:
        """Add the batches of all other ranks."""
        self.losses, self.correct = [gather_batches(self.losses)], [gather_batches(self.correct)]
        self.labels, self.answers = [gather_batches(self.labels)], [gather_batches(self.answers)]
        if self.meter is not None:
            self.meter.merge_ranks()

    def metrics(self) -> dict[str, Any]:
        """Metrics in percent and radians."""
        labels, answers = torch.cat(self.labels), torch.cat(self.answers)
        if not len(labels):
            raise InputError("there are no images to evaluate on")
        counts = zip(("top1", "top5", "top1_flip"), torch.cat(self.correct).sum(0).tolist(), strict=True)
        found: dict[str, Any] = {name: 100.0 * count / len(labels) for name, count in counts}
        if not self.flips:
            del found["top1_flip"]
        found["loss"] = sum(torch.cat(self.losses).tolist()) / len(labels)
        if self.meter is not None and self.class_weights is not None:
            angles = self.meter.compute(self.class_weights, over_ranks=False)
            found["angles"] = {"wc_intra": angles.wc_intra, "w_inter": angles.w_inter, "c_inter": angles.c_inter}
        confusion = Confusion.from_predictions(labels, answers, self.num_classes)
        found |= {"balanced_accuracy": confusion.balanced_accuracy, "confusion": confusion.to_json()}
        return found


class LabelScores:
    """Logits and labels [N, C] of images with several labels each, batch by batch; with flips also those of mirrors."""

    def __init__(self, model: MarginModel, class_names: Sequence[str], device: torch.device, flips: bool) -> None:
        if not model.objective.has_logits:
            raise InputError(
                f"{model.objective.spec!r} has no logits, which are needed to evaluate several labels per image"
            )
        self.objective, self.embed, self.class_names, self.flips = model.objective, model.embed, class_names, flips
        self.device, num_labels = device, len(class_names)
        self.scores, self.mirrored = ([torch.zeros(0, num_labels)] for _ in range(2))
        self.labels = [torch.zeros(0, num_labels, dtype=torch.uint8)]  # a dtype that every collective supports

    def add(self, images: Tensor, labels: Tensor) -> None:
        """Score a batch; kept on the CPU, as there may be many."""
        logits = self.objective.logits(self.embed(images))
        self.scores.append(logits.float().cpu())
        self.labels.append(labels.to("cpu", torch.uint8))
        if self.flips:
            both = logits + self.objective.logits(self.embed(images.flip(-1)))
            self.mirrored.append(0.5 * both.float().cpu())

    def merge_ranks(self) -> None:
        """Add the batches of all other ranks."""
        for name in ("scores", "mirrored", "labels"):
            setattr(self, name, [gather_batches(getattr(self, name), self.device)])

    def metrics(self) -> dict[str, Any]:
        """Figures in percent; `loss` is the binary cross-entropy, whatever loss was trained with."""
        labels, scores = torch.cat(self.labels).bool(), check_finite_outputs(torch.cat(self.scores))
        if not len(labels):
            raise InputError("there are no images to evaluate on")
        if not bool(labels.any()):
            raise InputError("none of the images has a label, so average precision is undefined")
        figures = multilabel_metrics(labels, scores)
        found: dict[str, Any] = {
            "map": figures.mean_average_precision,
            "f1_micro": figures.f1_micro,
            "f1_macro": figures.f1_macro,
            "exact_match": figures.exact_match,
            "loss": float(F.binary_cross_entropy_with_logits(scores.double(), labels.double())),
            "images": len(labels),
        }
        if self.flips:
            found["map_flip"] = multilabel_metrics(labels, torch.cat(self.mirrored)).mean_average_precision
        found["average_precision"] = dict(zip(self.class_names, figures.average_precision, strict=True))
        return found


class CollectedEmbeddings:
    """Embeddings and labels, batch by batch."""

    def __init__(self, model: MarginModel, device: torch.device, seed: int, intervals: bool) -> None:
        self.embed, self.device, self.seed, self.intervals = model.embed, device, seed, intervals
        head = model.objective.head
        self.class_weights = None if head is None else head.gather_weight()
        self.embeddings: list[Tensor] = []
        self.labels = [torch.zeros(0, dtype=torch.int64)]

    def add(self, images: Tensor, labels: Tensor) -> None:
        """Embed a batch; kept on the CPU, as there may be many."""
        self.embeddings.append(self.embed(images).float().cpu())
        self.labels.append(labels.cpu())

    def merge_ranks(self) -> None:
        """Add the batches of all other ranks."""
        own_dim = self.embeddings[0].shape[1] if self.embeddings else 0  # unknown if this rank has no batch
        dim = int(distributed.gather_rows(torch.tensor([own_dim], device=self.device)).max())
        empty = torch.zeros(0, dim)
        self.embeddings = [gather_batches([empty, *self.embeddings], self.device)]
        self.labels = [gather_batches(self.labels, self.device)]

    def metrics(self) -> dict[str, Any]:
        """Metrics of `recognition.evaluation.evaluate_embeddings`, and W-Inter if there are class weights."""
        labels = torch.cat(self.labels)
        if not len(labels):
            raise InputError("there are no images to evaluate on")
        x = check_finite_outputs(torch.cat(self.embeddings))
        found = evaluate_embeddings(x, labels, seed=self.seed, intervals=self.intervals)
        if (weight := self.class_weights) is not None:
            found["angles"]["w_inter"] = mean_angle(weight, torch.arange(len(weight), device=weight.device))[0]
        return found


def gather_batches(batches: list[Tensor], device: torch.device | None = None) -> Tensor:
    """The rows of all ranks' batches in the order of one process; the first of `batches` is an empty one.

    Rank r has the batches r, r + R, … of R ranks. `device` is the one that can communicate, if not that of the rows.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    rows = torch.cat(batches)
    sizes = torch.tensor([len(batch) for batch in batches[1:]], dtype=torch.int64)
    numbers = torch.arange(rank, rank + world_size * len(sizes), world_size).repeat_interleave(sizes)
    where = rows.device if device is None else device
    gathered, order = (distributed.gather_rows(part.to(where)) for part in (rows, numbers))
    return gathered[order.argsort(stable=True)].to(rows.device)


def format_metrics(metrics: dict[str, Any]) -> str:
    """The metrics in one line, with their 95 % `intervals` if there are any."""
    if "map" in metrics:
        flips = f", with flips {metrics['map_flip']:.2f} %" if "map_flip" in metrics else ""
        rest = f"F1 {metrics['f1_micro']:.2f} %, exact match {metrics['exact_match']:.2f} %"
        return f"mAP {metrics['map']:.2f} %{flips}, {rest}"
    if "top1" in metrics:
        flips = f", with flips {metrics['top1_flip']:.2f} %" if "top1_flip" in metrics else ""
        balanced = metrics.get("balanced_accuracy", metrics["top1"])  # equal to top-1 for balanced classes
        end = f", balanced {balanced:.2f} %" if f"{balanced:.2f}" != f"{metrics['top1']:.2f}" else ""
        return f"top-1 {metrics['top1']:.2f} %{flips}, top-5 {metrics['top5']:.2f} %{end}"
    names = {"recall1": "recall@1", "map_at_r": "MAP@R", "auc": "AUC", "eer": "EER", "pair_accuracy": "pairs right"}
    few = metrics["images"] < MIN_EVENTS
    said = []
    for name, title in names.items():
        ends = (metrics.get("intervals") or {}).get(name)
        value = "–" if few or metrics[name] is None else f"{metrics[name]:.2f} %"
        said.append(f"{title} {value}" + ("" if ends is None or value == "–" else f" ({ends[0]:.2f} to {ends[1]:.2f})"))
    return ", ".join(said)
