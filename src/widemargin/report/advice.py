"""Which settings to try next where the ones of a comparison fit a table badly, as options of the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import InputError
from ..stack.protocol import Protocol

FITS_MORE = Protocol(hidden=(256, 64), epochs=20.0, batch=64, lr=0.005, weight_decay=0.01, dropout=0.0)
"""Ordinary settings for tables of thousands of rows: a wider network that is held back less and trained for longer."""
FITS_LESS = Protocol(epochs=4.0, weight_decay=1.0, dropout=0.5)


def to_fit_more(settings: Mapping[str, Any]) -> str:
    """Options with which models fit their training rows better than with the settings of a result.

    >>> to_fit_more({})
    '--hidden 256 64 --batch 64 --lr 0.005 --weight-decay 0.01 --dropout 0 --epochs 20'
    """
    now = _protocol(settings)
    held_back = now.dropout > FITS_MORE.dropout or now.weight_decay > FITS_MORE.weight_decay
    if held_back or now.hidden[0] < FITS_MORE.hidden[0] or now.epochs < FITS_MORE.epochs:
        wide, last = FITS_MORE.hidden
        inner = [max(width, wide) for width in now.hidden[:-1]] or [wide]
        hidden = (*inner, max(now.hidden[-1], last))
        better = replace(FITS_MORE, hidden=hidden, epochs=max(now.epochs, FITS_MORE.epochs))
    else:  # these were tried: more of the same
        better = replace(now, hidden=tuple(2 * width for width in now.hidden), epochs=2 * now.epochs)
    return (
        f"--hidden {' '.join(map(str, better.hidden))} --batch {better.batch} --lr {better.lr:g} "
        f"--weight-decay {better.weight_decay:g} --dropout {better.dropout:g} --epochs {better.epochs:g}"
    )


def to_fit_less(settings: Mapping[str, Any]) -> str:
    """Options with which models fit their training rows less closely than with the settings of a result.

    >>> to_fit_less({})
    '--dropout 0.5 --weight-decay 1 --epochs 4'
    """
    now = _protocol(settings)
    decay = max(FITS_LESS.weight_decay, 3 * now.weight_decay)
    dropout, epochs = max(now.dropout, FITS_LESS.dropout), min(now.epochs, FITS_LESS.epochs)
    return f"--dropout {dropout:g} --weight-decay {decay:g} --epochs {epochs:g}"


def _protocol(settings: Mapping[str, Any]) -> Protocol:
    """The protocol of a result; the default one where a line of a file holds none, or something else."""
    values = settings.get("protocol", {})
    try:
        return Protocol(**{**values, "hidden": tuple(values.get("hidden", Protocol().hidden))})
    except (InputError, TypeError):
        return Protocol()
