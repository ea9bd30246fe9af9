"""Which settings to try next where the ones of a comparison fit a table badly, as options of the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import InputError
from ..stack.protocol import MLPConfig

CONFIG_AGAINST_UNDERFITTING = MLPConfig(
    hidden=(256, 64), epochs=20.0, batch=64, lr=0.005, weight_decay=0.01, dropout=0.0
)
"""Ordinary settings for tables of thousands of rows: a wider network that is held back less and trained for longer."""
CONFIG_AGAINST_OVERFITTING = MLPConfig(epochs=4.0, weight_decay=1.0, dropout=0.5)


def suggest_options_against_underfitting(settings: Mapping[str, Any]) -> str:
    """Options with which models fit their training rows better than with the settings of a result.

    >>> to_fit_more({})
    '--hidden 256 64 --batch 64 --lr 0.005 --weight-decay 0.01 --dropout 0 --epochs 20'
    """
    current = _mlp_config_from_settings(settings)
    is_regularized_more = (
        current.dropout > CONFIG_AGAINST_UNDERFITTING.dropout
        or current.weight_decay > CONFIG_AGAINST_UNDERFITTING.weight_decay
    )
    if (
        is_regularized_more
        or current.hidden[0] < CONFIG_AGAINST_UNDERFITTING.hidden[0]
        or current.epochs < CONFIG_AGAINST_UNDERFITTING.epochs
    ):
        wide, last = CONFIG_AGAINST_UNDERFITTING.hidden
        inner = [max(width, wide) for width in current.hidden[:-1]] or [wide]
        hidden = (*inner, max(current.hidden[-1], last))
        better = replace(
            CONFIG_AGAINST_UNDERFITTING, hidden=hidden, epochs=max(current.epochs, CONFIG_AGAINST_UNDERFITTING.epochs)
        )
    else:  # these were tried: more of the same
        better = replace(current, hidden=tuple(2 * width for width in current.hidden), epochs=2 * current.epochs)
    return (
        f"--hidden {' '.join(map(str, better.hidden))} --batch {better.batch} --lr {better.lr:g} "
        f"--weight-decay {better.weight_decay:g} --dropout {better.dropout:g} --epochs {better.epochs:g}"
    )


def suggest_options_against_overfitting(settings: Mapping[str, Any]) -> str:
    """Options with which models fit their training rows less closely than with the settings of a result.

    >>> to_fit_less({})
    '--dropout 0.5 --weight-decay 1 --epochs 4'
    """
    current = _mlp_config_from_settings(settings)
    decay = max(CONFIG_AGAINST_OVERFITTING.weight_decay, 3 * current.weight_decay)
    dropout, epochs = (
        max(current.dropout, CONFIG_AGAINST_OVERFITTING.dropout),
        min(current.epochs, CONFIG_AGAINST_OVERFITTING.epochs),
    )
    return f"--dropout {dropout:g} --weight-decay {decay:g} --epochs {epochs:g}"


def _mlp_config_from_settings(settings: Mapping[str, Any]) -> MLPConfig:
    """The protocol of a result; the default one where a line of a file holds none, or something else."""
    values = settings.get("protocol", {})
    try:
        return MLPConfig(**{**values, "hidden": tuple(values.get("hidden", MLPConfig().hidden))})
    except (InputError, TypeError):
        return MLPConfig()
