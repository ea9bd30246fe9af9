"""Check for losses that accept several labels per sample: those with binary targets per label."""

from __future__ import annotations

from ..io.errors import InputError
from .base import Loss
from .criterion import Criterion
from .grammar import Sum


def is_multilabel_loss(loss: Sum | Loss) -> bool:
    """Return True if every part of a loss accepts multi-hot targets [N, C].

    >>> from widemargin.losses.grammar import parse
    >>> is_multilabel_loss(parse("focal + 0.5*bce")), is_multilabel_loss(parse("arcface"))
    (True, False)
    """
    return not _single_label_parts(loss)


def check_multilabel_loss(loss: Sum | Loss) -> None:
    """Raise an InputError for a loss with a part that needs exactly one label per sample."""
    if parts := _single_label_parts(loss):
        raise InputError(
            f"{parts[0].name} needs exactly one label per sample, but samples have several here; use bce or focal"
        )


def _single_label_parts(loss: Sum | Loss) -> list[Loss]:
    losses = [part for _, part in loss.parts] if isinstance(loss, Sum) else [loss]
    return [part for part in losses if not (isinstance(part, Criterion) and part.target_type == "answers")]
