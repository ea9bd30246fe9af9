"""Settings to try where those of a comparison fit a table badly, as an `MLPConfig` and as options of the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..io.errors import InputError, spell_option, writes_flags
from .config import MLPConfig

CONFIG_AGAINST_UNDERFITTING = MLPConfig(
    hidden=(256, 64), epochs=20.0, batch=64, lr=0.005, weight_decay=0.01, dropout=0.0
)
"""Ordinary settings for tables of thousands of rows: a wider network that is held back less and trained for longer."""
CONFIG_AGAINST_OVERFITTING = MLPConfig(epochs=4.0, weight_decay=1.0, dropout=0.5)

_UNDERFITTING_OPTIONS = ("hidden", "batch", "lr", "weight_decay", "dropout", "epochs")
_OVERFITTING_OPTIONS = ("dropout", "weight_decay", "epochs")


def config_against_underfitting(settings: Mapping[str, Any]) -> MLPConfig:
    """Settings with which models fit their training rows better than with those of a result.

    >>> config_against_underfitting({}) == CONFIG_AGAINST_UNDERFITTING
    True
    """
    current, wanted = mlp_config_from_settings(settings), CONFIG_AGAINST_UNDERFITTING
    if (
        current.dropout > wanted.dropout
        or current.weight_decay > wanted.weight_decay
        or current.hidden[0] < wanted.hidden[0]
        or current.epochs < wanted.epochs
    ):
        wide, last = wanted.hidden
        inner = [max(width, wide) for width in current.hidden[:-1]] or [wide]
        return replace(
            current,
            hidden=(*inner, max(current.hidden[-1], last)),
            batch=wanted.batch,
            lr=wanted.lr,
            weight_decay=wanted.weight_decay,
            dropout=wanted.dropout,
            epochs=max(current.epochs, wanted.epochs),
        )
    # These were tried: more of the same.
    return replace(current, hidden=tuple(2 * width for width in current.hidden), epochs=2 * current.epochs)


def config_against_overfitting(settings: Mapping[str, Any]) -> MLPConfig:
    """Settings with which models fit their training rows less closely than with those of a result."""
    current, wanted = mlp_config_from_settings(settings), CONFIG_AGAINST_OVERFITTING
    return replace(
        current,
        dropout=max(current.dropout, wanted.dropout),
        weight_decay=max(wanted.weight_decay, 3 * current.weight_decay),
        epochs=min(current.epochs, wanted.epochs),
    )


def suggest_options_against_underfitting(settings: Mapping[str, Any]) -> str:
    """`config_against_underfitting` as options, spelled as the caller does.

    >>> suggest_options_against_underfitting({})
    'mlp_config=dict(hidden=(256, 64), batch=64, lr=0.005, weight_decay=0.01, dropout=0, epochs=20)'
    """
    return _format_options(config_against_underfitting(settings), _UNDERFITTING_OPTIONS)


def suggest_options_against_overfitting(settings: Mapping[str, Any]) -> str:
    """`config_against_overfitting` as options, spelled as the caller does.

    >>> from widemargin.io.errors import option_style
    >>> with option_style(command_line=True):
    ...     suggest_options_against_overfitting({})
    '--dropout 0.5 --weight-decay 1 --epochs 4'
    """
    return _format_options(config_against_overfitting(settings), _OVERFITTING_OPTIONS)


def _format_options(config: MLPConfig, names: Sequence[str]) -> str:
    values = {name: getattr(config, name) for name in names}
    if not writes_flags():
        return f"mlp_config=dict({', '.join(spell_option(name, value) for name, value in values.items())})"
    plain = {name: value if isinstance(value, tuple) else f"{value:g}" for name, value in values.items()}
    return " ".join(spell_option(name, value) for name, value in plain.items())


def mlp_config_from_settings(settings: Mapping[str, Any]) -> MLPConfig:
    """The `MLPConfig` of a result; the default one where a line of a file holds none, or something else."""
    values = settings.get("mlp_config", {})
    try:
        return MLPConfig(**{**values, "hidden": tuple(values.get("hidden", MLPConfig().hidden))})
    except (InputError, TypeError):
        return MLPConfig()
