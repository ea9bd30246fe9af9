"""Formulas from docstrings (`z_y = s cos(θ_y + m)`) with real subscripts and exponents."""

from __future__ import annotations

import re
from html import escape

_LOW = re.compile(r"([\w\u0303)Σ]+?|\))_(\{(?:[^{}])*\}|[A-Za-z0-9]+)")
_HIGH = re.compile(r"\^(\((?:[^()]|\([^()]*\))*\)|\w+)")


def typeset(text: str) -> str:
    """Convert a formula, or text with formulas, to HTML; text in backticks is unchanged.

    >>> typeset("z_y = (−1)^k cos(mθ_y), `lam_0`")
    'z<sub>y</sub> = (−1)<sup>k</sup> cos(mθ<sub>y</sub>), `lam_0`'
    >>> typeset("Σ_{y_i=j} e^(−s C/(C−1))")
    'Σ<sub>y<sub>i</sub>=j</sub> e<sup>−s C/(C−1)</sup>'
    """
    pieces = text.split("`")
    return "`".join(
        _typeset_formula(escape(piece, quote=False)) if k % 2 == 0 else piece for k, piece in enumerate(pieces)
    )


def _typeset_formula(text: str) -> str:
    text = _HIGH.sub(lambda found: f"<sup>{_without_brackets(found[1], '()')}</sup>", text)
    return _LOW.sub(lambda found: f"{found[1]}<sub>{_typeset_formula(_without_brackets(found[2], '{}'))}</sub>", text)


def _without_brackets(text: str, around: str) -> str:
    return text[1:-1] if text[0] == around[0] else text
