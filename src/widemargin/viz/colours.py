"""Colours of losses: the usual one of a name, and those of one page, where each loss has its own.

Colours are compared in OKLab (B. Ottosson, 2020), where equal distances look about equally different, and keep a
luminance at which they can be seen on a light and on a dark page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache

# The first are colour-blind-safe (Tol's bright and muted); those after `triplet` are as far from all others as possible
# in OKLab. All are readable on light and dark.
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
    "aam_softmax": "#925400",
    "adaface": "#00A0E4",
    "circle": "#D15400",
    "curricularface": "#735684",
    "elasticface": "#2B59C8",
    "ldam": "#B369DD",
    "lm_softmax": "#36AA3D",
    "logit_adjusted": "#9E7848",
    "magface": "#00706F",
    "mv_softmax": "#9A5D65",
    "p2sgrad": "#008F8C",
    "proxy_nca": "#9072A3",
    "proxy_nca_pp": "#7480FA",
    "soft_triple": "#0081E7",
    "sphereface2": "#7A7600",
    "sphereface_r": "#D54563",
    "subcenter_arcface": "#A243AB",
    "uniface": "#BB7C77",
}
_FALLBACK_COLOURS = ("#888888", "#777744", "#667788", "#998877", "#556655", "#887799")


def loss_colour(loss: str) -> str:
    """The colour of a loss by its name; a sum takes the colour of its last part, to differ from the first alone.

    >>> loss_colour("arcgrad(s=5)") == loss_colour("arcgrad(s=30)")
    True
    >>> loss_colour("softmax") == loss_colour("softmax + 0.02*center")
    False
    """
    return assigned_loss_colour(loss) or _FALLBACK_COLOURS[sum(map(ord, loss)) % len(_FALLBACK_COLOURS)]


def assigned_loss_colour(loss: str) -> str | None:
    """The colour that is fixed for a loss; None for a loss without one."""
    for name in reversed(re.findall(r"[a-z_0-9]*[a-z][a-z_0-9]*(?=\(|\s|$)", loss)):
        if name in _LOSS_COLOURS:
            return _LOSS_COLOURS[name]
    return None


BASELINE_COLOUR = "#8a8f98"
"""Baselines have this one: no loss has it."""
_MIN_DISTANCE = 0.09  # in OKLab; nearer ones are taken for one another as dots and thin lines
_LUMINANCES = (0.115, 0.34)  # a contrast of at least 2.7 with a white page and with a dark one

_Triple = tuple[float, float, float]


def loss_colours(losses: Sequence[str], references: Sequence[str] = ()) -> dict[str, str]:
    """A colour for each loss: that of its name, and another for a loss whose colour is taken or hard to tell apart.

    The order of the losses does not matter, and the same losses always get the same colours. `references` (baselines)
    get colours that no loss has.

    >>> found = loss_colours(["softmax", "arcgrad(s=30)", "arcgrad(s=5)"])
    >>> len(set(found.values())), found == loss_colours(["arcgrad(s=5)", "softmax", "arcgrad(s=30)"])
    (3, True)
    """
    found: dict[str, str] = {}
    taken = [_oklab(BASELINE_COLOUR)]
    ordered = sorted(set(losses), key=lambda name: (len(name), name))
    for loss in ordered:
        usual = _readable(loss_colour(loss))
        if _distance_to_nearest(_oklab(usual), taken) >= _MIN_DISTANCE:
            found[loss] = usual
            taken.append(_oklab(usual))
    taken += [_oklab(_readable(colour)) for colour in _LOSS_COLOURS.values()]  # so that no loss has another's usual one
    for loss in [*ordered, *references]:
        if loss not in found:
            found[loss] = max(_candidates(), key=lambda colour: _distance_to_nearest(_oklab(colour), taken))
            taken.append(_oklab(found[loss]))
    return found


@cache
def _candidates() -> tuple[str, ...]:
    """Colours all around the circle, darker and lighter, that can be seen on both grounds."""
    shades = [
        _hex(lightness, chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue)))
        for lightness in (0.45, 0.5, 0.55, 0.6, 0.65)
        for chroma in (0.08, 0.13, 0.18)
        for hue in range(0, 360, 12)
    ]
    low, high = _LUMINANCES
    return tuple(dict.fromkeys(shade for shade in shades if low <= _luminance(shade) <= high))


def _readable(colour: str) -> str:
    """The colour itself, or a darker or lighter one of its hue that can be seen on both grounds."""
    lightness, a, b = _oklab(colour)
    low, high = _LUMINANCES
    for _ in range(100):
        if low <= _luminance(colour) <= high:
            break
        lightness += 0.01 if _luminance(colour) < low else -0.01
        colour = _hex(lightness, a, b)
    return colour


def _distance_to_nearest(colour: _Triple, others: Sequence[_Triple]) -> float:
    return min(math.dist(colour, other) for other in others)


def _linear_rgb(colour: str) -> _Triple:
    red, green, blue = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return _to_linear(red), _to_linear(green), _to_linear(blue)


def _to_linear(value: float) -> float:
    return float(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)


def _to_srgb(value: float) -> int:
    clipped = min(max(value, 0.0), 1.0)
    return round(255 * (12.92 * clipped if clipped <= 0.0031308 else 1.055 * clipped ** (1 / 2.4) - 0.055))


def _luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    red, green, blue = _linear_rgb(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _oklab(colour: str) -> _Triple:
    red, green, blue = _linear_rgb(colour)
    long = math.cbrt(0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue)
    medium = math.cbrt(0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue)
    short = math.cbrt(0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


def _hex(lightness: float, a: float, b: float) -> str:
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    red = 4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short
    green = -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short
    blue = -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short
    return f"#{_to_srgb(red):02X}{_to_srgb(green):02X}{_to_srgb(blue):02X}"
