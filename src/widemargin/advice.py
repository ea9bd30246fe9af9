"""`wm.suggest`: two or three losses to start with, from what is known of the data, with numbers, reason and source.

Each rule is a function that looks at a `Situation` and returns candidates, or nothing where it does not apply; the
first rule that applies decides. A source is a record of this repository (`records/…`), tested to say what the rule
says, or a cited result, which was not measured here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .io.errors import InputError, format_value
from .theory import USUAL_GAP, suggest_scale

# Where one rule ends and the next begins was not measured: these bounds lie between the sizes of the data sets that the
# sources are about.
MANY_CLASSES = 10_000
"""From here on the settings of face recognition are taken (the sets of its papers have 10,000 classes and more)."""
STREAMED_CLASSES = 100_000
"""From here on a head of all logits takes more memory than its weights."""
IMBALANCED = 10.0
"""Largest class over smallest one from which on losses for long tails are suggested (the record has 100)."""
FEW_IMAGES = 30
"""Images per class below which the record on Omniglot, which has 20 of each character, is nearest."""
SMALL_BATCH = 64
"""Samples of a batch below which a pair loss gets a memory (XBM's own experiments have batches of 64)."""
MEMORY_SIZE = 8192
_ARCGRAD = "ArcGrad (doi 10.1109/IJCNN48605.2020.9207251), Eq. 19 with a gap of 0.5 rad"
_ADACOS = "scale √2 log(C − 1) of AdaCos (arXiv 1905.00292)"
_FACES = "records/openset_faces_settings.json"


@dataclass(frozen=True)
class Situation:
    """Known properties of the data; see `suggest`."""

    num_classes: int
    images_per_class: float
    imbalance: float
    open_set: bool
    batch_size: int


@dataclass(frozen=True)
class Suggestion:
    """A loss to try: its parse string, why, on whose word, and settings of `train` that belong to it."""

    loss: str
    reason: str
    source: str
    settings: dict[str, Any] = field(default_factory=dict)


def suggest(
    num_classes: int,
    images_per_class: float,
    *,
    imbalance: float = 1.0,
    open_set: bool = False,
    batch_size: int = 128,
) -> list[Suggestion]:
    """Two or three losses with their numbers, best known first, each with its reason and the source of its rule.

    Args:
        num_classes: classes in training.
        images_per_class: samples of a class, on average.
        imbalance: samples of the largest class over those of the smallest.
        open_set: whether the classes to recognise are others than those in training.
        batch_size: samples of a training step, of all processes together.

    >>> [each.loss for each in suggest(10, 5000)]
    ['arcgrad(s=4.2)', 'softmax', 'arcface(s=5, m=0.1)']
    >>> suggest(100, 50, imbalance=100)[0].source
    'records/longtail.jsonl'
    """
    situation = Situation(
        _check("num_classes", num_classes, 2, whole=True),
        _check("images_per_class", images_per_class, 1),
        float(_check("imbalance", imbalance, 1)),
        _check_bool("open_set", open_set),
        _check("batch_size", batch_size, 1, whole=True),
    )
    found = next(found for rule in RULES if (found := rule(situation)))
    if situation.open_set and situation.imbalance >= IMBALANCED:
        found = [_with_imbalance(each) for each in found]
    if situation.num_classes >= STREAMED_CLASSES:
        found = [_with_streaming(each) if "arcface" in each.loss or "cosface" in each.loss else each for each in found]
    return found


def _long_tail(given: Situation) -> list[Suggestion] | None:
    """Closed sets in which some classes are rare."""
    if given.open_set or given.imbalance < IMBALANCED:
        return None
    late = {"class_weight": "effective", "class_weight_start": 0.8}
    record = "records/longtail.jsonl"
    return [
        Suggestion("logit_adjusted(tau=1)", "rare classes: best balanced accuracy without class weights", record),
        Suggestion("softmax", "rare classes: class weights in the last fifth bring most of the gain", record, late),
        Suggestion(
            "ldam(s=30, max_m=0.5)",
            "wider margins for rare classes help only together with late class weights",
            record,
            late,
        ),
    ]


def _many_classes(given: Situation) -> list[Suggestion] | None:
    """Faces and the like."""
    if given.num_classes < MANY_CLASSES:
        return None
    return [
        Suggestion("arcface(s=64, m=0.5)", "tens of thousands of classes", "ArcFace (arXiv 1801.07698)"),
        Suggestion("cosface(s=64, m=0.35)", "the same, easier to start", "CosFace (arXiv 1801.09414)"),
        Suggestion(
            f"arcgrad(s={_arcgrad_scale(given.num_classes)})", "one number, and a rule for it; not measured", _ARCGRAD
        ),
    ]


def _few_images_of_open_sets(given: Situation) -> list[Suggestion] | None:
    """Characters, people, products of which a handful of images is known."""
    if not given.open_set or given.images_per_class >= FEW_IMAGES or given.images_per_class < 2:
        return None
    record = "records/openset_omniglot_families_compared.json"
    per_class = _per_class(given)
    found = [
        Suggestion(
            "multi_similarity(alpha=2, beta=40, lam=0.8)",
            "classes not in training, few images of each: better than softmax by recall@1 and MAP@R",
            record,
            per_class,
        ),
        Suggestion(
            "arcgrad(s=4)",
            "class weights, so no batches by class are needed: better than softmax by recall@1 and than ArcFace by "
            "MAP@R; s was chosen on held-out classes",
            record,
        ),
    ]
    if given.batch_size < SMALL_BATCH:
        found.append(_memory(given))
    else:
        found.append(
            Suggestion("contrastive(m=0.7)", "pairs alone: better than softmax, as the first", record, per_class)
        )
    return found


def _open_sets(given: Situation) -> list[Suggestion] | None:
    """Open sets with images enough."""
    if not given.open_set:
        return None
    scale = _adacos_scale(given.num_classes)
    found = [
        Suggestion(
            f"arcface(s={scale}, m=0.3)",
            "class weights see every class often enough",
            f"{_ADACOS}; m = 0.3 is the best of three settings on held-out people, {_FACES}",
        )
    ]
    if given.images_per_class < 2:
        source = f"{_ADACOS}; m = 0.2 as in records/openset_omniglot.jsonl"
        found.append(Suggestion(f"cosface(s={scale}, m=0.2)", "no pairs of one class to learn from", source))
        return found
    found.append(
        Suggestion(
            "multi_similarity",
            "pairs; under equal settings the losses of retrieval are close to each other, so compare",
            "Musgrave et al., A metric learning reality check (arXiv 2003.08505)",
            _per_class(given),
        )
    )
    if given.batch_size < SMALL_BATCH:
        found.append(_memory(given))
    return found


def _closed_sets(given: Situation) -> list[Suggestion] | None:
    """Rules for plain classification."""
    return [
        Suggestion(
            f"arcgrad(s={_arcgrad_scale(given.num_classes)})",
            "one number, and a rule for it; on small tables scales do not differ significantly (records/table1.jsonl)",
            _ARCGRAD,
        ),
        Suggestion("softmax", "the baseline; most margins are close to it", "records/table7_cpu.jsonl"),
        Suggestion(
            f"arcface(s={_adacos_scale(given.num_classes)}, m=0.1)",
            "a small margin",
            f"{_ADACOS}; m = 0.1 for CIFAR in the ArcGrad paper, Table III",
        ),
    ]


RULES: tuple[Callable[[Situation], list[Suggestion] | None], ...] = (
    _long_tail,
    _many_classes,
    _few_images_of_open_sets,
    _open_sets,
    _closed_sets,
)


def _memory(given: Situation) -> Suggestion:
    size = min(MEMORY_SIZE, max(2 * given.batch_size, round(given.num_classes * given.images_per_class)))
    return Suggestion(
        f"xbm(supcon, size={size})",
        f"a memory of earlier batches, where {given.batch_size} samples hold few pairs of one class",
        "XBM (arXiv 1912.06798)",
        _per_class(given),
    )


def _per_class(given: Situation) -> dict[str, Any]:
    """Number of samples per class in a batch: four, or as many as there are."""
    return {"per_class": max(2, min(4, int(given.images_per_class), given.batch_size // 2))}


def _with_imbalance(each: Suggestion) -> Suggestion:
    reason = f"{each.reason}; the imbalance is not used: losses for long tails were measured on closed sets alone"
    return Suggestion(each.loss, reason, each.source, each.settings)


def _with_streaming(each: Suggestion) -> Suggestion:
    reason = f'{each.reason}; backend="stream" or "sharded" for the memory (records/heads.json)'
    return Suggestion(each.loss, reason, each.source, each.settings)


def _adacos_scale(num_classes: int) -> str:
    """√2 log(C − 1), not below 5."""
    return f"{max(5.0, math.sqrt(2.0) * math.log(num_classes - 1)):.2g}"


def _arcgrad_scale(num_classes: int) -> str:
    return f"{suggest_scale(num_classes, USUAL_GAP):.2g}"


def _check(name: str, value: Any, low: int, whole: bool = False) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value < 1e15 or (whole and value != int(value)):
        raise InputError(f"{name}={format_value(value)} must be a {'whole ' * whole}number of at least {low}")
    return int(value) if whole else value


def _check_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{name}={format_value(value)} must be True or False")
    return value
