"""What a loss says of itself: its page, options, group, what it keeps while training, and what it needs.

Sentence, formula, domain and reference are read from the loss's file. State and needs are derived from what the class
declares, so that nobody has to keep a list of them.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from .base import Loss, Option
from .criterion import Criterion
from .margin import Margin
from .pair_loss import PairLoss
from .regularizer import Regularizer
from .schedule import Learnable, Schedule

_CLASSES = 3  # of the module that is looked at; no other size is as small
_TARGETS = {"values": "numbers as targets", "answers": "yes or no as targets", "classes": "class numbers as targets"}


def describe_loss(loss_type: type[Loss]) -> dict[str, Any]:
    """Name, docstring parts, reference, options, group, state and needs of a loss, as plain data."""
    text = inspect.getdoc(sys.modules[loss_type.__module__]) or ""
    head, _, example = text.partition("\n>>> ")
    sentence, _, body = head.partition("\n\n")
    default = loss_type()
    return {
        "name": loss_type.name,
        "class": loss_type.__name__,
        "kind": loss_type.kind,
        "group": loss_type.group,
        "aliases": list(loss_type.aliases),
        "sentence": " ".join(sentence.split()),
        "body": body.strip(),
        "example": ">>> " + example.strip() if example else "",
        "reference": loss_type.reference,
        "default": repr(default),
        "state": describe_state(default),
        "needs": describe_needs(default),
        "options": {
            name: {
                "default": _json_default(value),
                "domain": rule.domain(),
                "meaning": rule.meaning,
                "may_be": _format_also_accepts(rule),
                "rarely_set": rule.hide_default,
            }
            for name, (rule, value) in loss_type.options().items()
        },
    }


def describe_state(loss: Loss) -> list[str]:
    """What changes while the loss trains, beside class weights.

    >>> from .grammar import parse
    >>> [describe_state(parse(spec)) for spec in ("arcface", "adaface", "sphereface2", "arcface(m=warmup(0, 0.5, 9))")]
    [[], ['from batches: mean, std', 'per sample: quality'], ['learnt: b'], ['warmup: m']]
    """
    found: dict[str, list[str]] = {}
    for name, value in loss.named_values():
        if isinstance(value, Schedule):
            found.setdefault("learnt" if isinstance(value, Learnable) else value.name, []).append(name)
    if isinstance(loss, Margin):
        found["from batches"] = list(loss.adaptive_fields)
        found["per sample"] = list(loss.sample_fields)
        found.setdefault("learnt", []).extend(loss.learnt_fields)
    elif isinstance(loss, PairLoss):
        module = loss.build(2, _CLASSES)
        found["learnt"] = [name for name, _ in module.named_parameters()]
        for name, buffer in module.named_buffers():
            found.setdefault("per class" if buffer.shape[:1] == (_CLASSES,) else "from batches", []).append(name)
    return [f"{what}: {', '.join(names)}" for what, names in found.items() if names]


def describe_needs(loss: Loss) -> list[str]:
    """What a loss needs beside embeddings, class weights and labels; what only some settings need is said so.

    >>> from .grammar import parse
    >>> [describe_needs(parse(spec)) for spec in ("arcface", "ldam", "subcenter_arcface", "softmax", "triplet")]
    [[], ['class counts'], ['3 weights per class'], ['lengths of x and w'], ['several of a class in a batch']]
    """
    if isinstance(loss, PairLoss):
        return ["several of a class in a batch"] if loss.needs_positives else []
    if isinstance(loss, Regularizer):
        return ["a loss with class weights"]
    if isinstance(loss, Criterion):
        return [_TARGETS[loss.target_type]]
    if not isinstance(loss, Margin):
        return []
    found = []
    if type(loss).with_class_counts is not Margin.with_class_counts:
        found.append("class counts")
    lengths = [name for name, kept in (("x", loss.uses_x_norm), ("w", loss.uses_w_norm)) if kept]
    if lengths:
        found.append(f"lengths of {' and '.join(lengths)}")
    if loss.subcenters is not None:
        found.append(f"{loss.subcenters.count} weights per class")
    elif type(loss).subcenters is not Margin.subcenters:
        found.append("k weights per class, where k > 1")
    return found


def _json_default(default: Any) -> Any:
    return default if default is None or isinstance(default, bool | int | float | str) else repr(default)


def _format_also_accepts(rule: Option) -> str:
    kinds = {"a schedule": rule.allows_schedule, "learnable": rule.allows_learnable, "one per class": rule.per_class}
    return ", ".join(kind for kind, possible in kinds.items() if possible)
