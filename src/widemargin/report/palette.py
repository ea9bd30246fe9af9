"""One colour for the same loss everywhere; colour-blind-safe (Tol's bright and muted), readable on light and dark."""

from __future__ import annotations

import re

_LOSS_COLOURS = {
    "softmax": "#4477AA",
    "modified_softmax": "#66CCEE",
    "normface": "#88CCEE",
    "m_softmax": "#CCBB44",
    "l_softmax": "#999933",
    "a_softmax": "#DDAA77",
    "cosface": "#44AA99",
    "arcface": "#228833",
    "combined": "#117733",
    "adacos": "#AA3377",
    "adaacos": "#CC6699",
    "arcgrad": "#EE6677",
    "center": "#7766CC",
    "contrastive": "#DDCC77",
    "triplet": "#882255",
}
_FALLBACK_COLOURS = ("#888888", "#777744", "#667788", "#998877", "#556655", "#887799")


def loss_colour(loss: str) -> str:
    """The colour of a loss by its first name; a sum with a term takes the term's, so that both can be told apart.

    >>> colour("arcgrad(s=5)") == colour("arcgrad(s=30)"), colour("softmax") == colour("softmax + 0.02*center")
    (True, False)
    """
    return assigned_loss_colour(loss) or _FALLBACK_COLOURS[sum(map(ord, loss)) % len(_FALLBACK_COLOURS)]


def assigned_loss_colour(loss: str) -> str | None:
    """The same, for losses that have one of their own."""
    for name in reversed(re.findall(r"[a-z_0-9]*[a-z][a-z_0-9]*(?=\(|\s|$)", loss)):
        if name in _LOSS_COLOURS:
            return _LOSS_COLOURS[name]
    return None
