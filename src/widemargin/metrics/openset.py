"""Open sets: is this somebody we know, and who? Detection and identification at a rate of false alarms.

The gallery knows some classes. A probe is said to be the class of the nearest gallery image if that is near enough.
DIR at a FAR is the share of known probes that are both found near enough and named rightly, at the threshold that so
many unknown probes pass. Reference: Phillips, Grother, Micheals, Evaluation Methods in Face Recognition (2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..angle import direction
from ..errors import InputError, shown
from .retrieval import check_searched, nearest
from .verification import auc, roc_curve


@dataclass(frozen=True)
class OpenSet:
    """Figures of known and unknown probes."""

    dir: dict[float, float | None]
    """By FAR, percent; None where the number of unknown probes cannot support it."""
    auroc: float
    """Known against unknown, by the nearest similarity."""
    rank1: float
    """Percent of known probes named rightly when nobody may be refused."""
    known: int
    unknown: int


def open_set(
    probes: Tensor,
    labels: Tensor,
    gallery: Tensor,
    gallery_labels: Tensor,
    *,
    fars: Sequence[float] = (0.1, 0.01),
    batch: int = 1024,
) -> OpenSet:
    """Figures of probes [N, D]: those of a class in the gallery are known, the others are not."""
    check_searched(probes, labels, gallery, gallery_labels, batch)
    if not all(isinstance(far, int | float) and 0 < far <= 1 for far in fars):
        raise InputError(f"fars={shown(fars)} must be rates above 0 and at most 1")
    known = torch.isin(labels, gallery_labels)
    if bool(known.all()) or not bool(known.any()):
        raise InputError("an open set needs probes of known and of unknown classes")
    unit, others = direction(probes.float())[0], direction(gallery.float())[0]
    scores, named = [], []
    for start in range(0, len(unit), batch):
        best, place = nearest(unit[start : start + batch], others, 1)
        scores.append(best[:, 0])
        named.append(gallery_labels[place[:, 0]])
    score, right = torch.cat(scores), torch.cat(named) == labels
    strangers = score[~known].sort(descending=True).values
    found: dict[float, float | None] = {}
    for far in fars:
        passing = int(far * len(strangers))
        if passing < 1:
            found[far] = None
            continue
        threshold = strangers[passing] if passing < len(strangers) else -torch.inf
        found[far] = 100.0 * float((right & (score > threshold))[known].double().mean())
    roc = roc_curve(score.double().numpy(), known.numpy())
    return OpenSet(found, auc(roc), 100.0 * float(right[known].double().mean()), int(known.sum()), int((~known).sum()))
