"""Description of a loss as data: its page, options, group, training state and requirements.

Summary, formula, domain and reference are read from the loss's file. State and requirements are derived from what the
class declares, so that no list has to be maintained.
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

_CLASSES = 3  # of the inspected module; no other size is as small
_TARGETS = {"values": "numbers as targets", "answers": "binary targets", "classes": "class numbers as targets"}


def describe_loss(loss_type: type[Loss]) -> dict[str, Any]:
    """Return name, docstring parts, reference, options, group, state and requirements of a loss as plain data."""
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
    """List what changes during training besides class weights.

    >>> from .grammar import parse
    >>> [describe_state(parse(spec)) for spec in ("arcface", "adaface", "sphereface2", "arcface(m=warmup(0, 0.5, 9))")]
    [[], ['from batches: mean, std', 'per sample: quality'], ['learnt: b'], ['warmup: m']]
    """
    state: dict[str, list[str]] = {}
    for name, value in loss.named_values():
        if isinstance(value, Schedule):
            state.setdefault("learnt" if isinstance(value, Learnable) else value.name, []).append(name)
    if isinstance(loss, Margin):
        state["from batches"] = list(loss.adaptive_fields)
        state["per sample"] = list(loss.sample_fields)
        state.setdefault("learnt", []).extend(loss.learnt_fields)
    elif isinstance(loss, PairLoss):
        module = loss.build(2, _CLASSES)
        state["learnt"] = [name for name, _ in module.named_parameters()]
        for name, buffer in module.named_buffers():
            state.setdefault("per class" if buffer.shape[:1] == (_CLASSES,) else "from batches", []).append(name)
    return [f"{what}: {', '.join(names)}" for what, names in state.items() if names]


def describe_needs(loss: Loss) -> list[str]:
    """List what a loss needs besides embeddings, class weights and labels; conditional needs name their setting.

    >>> from .grammar import parse
    >>> [describe_needs(parse(spec)) for spec in ("arcface", "ldam", "subcenter_arcface", "softmax", "triplet")]
    [[], ['class counts'], ['3 weights per class'], ['norms of x and w'], ['several of a class in a batch']]
    """
    if isinstance(loss, PairLoss):
        return ["several of a class in a batch"] if loss.needs_positives else []
    if isinstance(loss, Regularizer):
        return ["a loss with class weights"]
    if isinstance(loss, Criterion):
        return [_TARGETS[loss.target_type]]
    if not isinstance(loss, Margin):
        return []
    needs = []
    if type(loss).with_class_counts is not Margin.with_class_counts:
        needs.append("class counts")
    lengths = [name for name, kept in (("x", loss.uses_x_norm), ("w", loss.uses_w_norm)) if kept]
    if lengths:
        needs.append(f"norms of {' and '.join(lengths)}")
    if loss.subcenters is not None:
        needs.append(f"{loss.subcenters.count} weights per class")
    elif type(loss).subcenters is not Margin.subcenters:
        needs.append("k weights per class, where k > 1")
    return needs


def _json_default(default: Any) -> Any:
    return default if default is None or isinstance(default, bool | int | float | str) else repr(default)


def _format_also_accepts(rule: Option) -> str:
    kinds = {"a schedule": rule.allows_schedule, "learnable": rule.allows_learnable, "one per class": rule.per_class}
    return ", ".join(kind for kind, possible in kinds.items() if possible)
