"""Every curve of the lab at every place of its sliders, from the margins' own definitions."""

from __future__ import annotations

import base64
import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..catalogue import parse_margin
from ..margin import Margin, split_softmax
from ..theory import boundary, suggest_scale, target_curve, theoretical_gap
from .families import CLASSES, FAMILIES, SCALES, Family

ANGLES = tuple(range(0, 181, 3))
GAPS = tuple(range(-30, 151, 3))
BETWEEN = (60, 90, 120, 180)
WANTED_GAPS = tuple(range(5, 121, 5))
KINDS = ("loss", "pull", "gap_loss", "gap_pull")
_HALVINGS = 20  # of half a circle: to less than a thousandth of a degree


def everything() -> dict[str, Any]:
    """What the page embeds: places of the sliders, and curves as base64 of half-precision numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a scale of 0 at two classes is shown, not warned of
        return {
            "angles": ANGLES,
            "gaps": GAPS,
            "between": BETWEEN,
            "scales": SCALES,
            "classes": CLASSES,
            "kinds": KINDS,
            "families": {family.name: of_family(family) for family in FAMILIES},
            "theory": [[theoretical_gap(c, s) for s in SCALES] for c in CLASSES],
            "wanted": WANTED_GAPS,
            "suggested": [[suggest_scale(c, math.radians(g)) for g in WANTED_GAPS] for c in CLASSES],
        }


def of_family(family: Family) -> dict[str, Any]:
    """The curves of one loss: targets [S, M, C', angles], the rest [S, M, C, kind, angles], edges [S, M, between]."""
    targets, curves, edges = [], [], []
    for scale in family.scales:
        for margin in family.margins or (None,):
            spec, length = parse_margin(family.spelled(scale, margin)), family.length(scale)
            targets += [target(spec, length, c) for c in (CLASSES if family.takes == "nothing" else CLASSES[:1])]
            curves.append(loss_curves(spec, length))
            edges.append(class_edges(spec, length))
    return {
        "margins": family.margins,
        "takes": family.takes,
        "rest": family.rest,
        "targets": packed(torch.stack(targets)),
        "curves": packed(torch.stack(curves)),
        "edges": [[[round(edge, 3) for edge in pair] for pair in row] for row in edges],
    }


def _radians(degrees: Sequence[int]) -> Tensor:
    return torch.tensor(degrees, dtype=torch.float64).deg2rad()


def target(spec: Margin, length: float, classes: int) -> Tensor:
    """Target logit over the angles: what `boundary` has of class 1 where class 2 stands at 90° and so at 0."""
    theta = _radians(ANGLES)
    at_zero = boundary(spec, theta, torch.full_like(theta, math.pi / 2), x_length=length, classes=classes)
    return at_zero + target_curve(spec, torch.full_like(theta, math.pi / 2), classes)[1]


def loss_curves(spec: Margin, length: float) -> Tensor:
    """Loss and pull over the target's angle, the others at 90°, and over the gap between both, [C, 4, angles]."""
    found = []
    for classes in CLASSES:
        own = _radians(ANGLES).requires_grad_()
        by_angle = _sloped(spec, length, classes, own, torch.full_like(own, math.pi / 2), own)
        gap = _radians(GAPS).requires_grad_()
        by_gap = _sloped(spec, length, classes, (math.pi - gap) / 2, (math.pi + gap) / 2, gap)
        found.append(torch.stack((*by_angle, *by_gap)))
    return torch.stack(found)


def _sloped(
    spec: Margin, length: float, classes: int, own: Tensor, other: Tensor, over: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss with all other classes at one angle, and how steep it is over something."""
    lead = boundary(spec, own, other, x_length=length, classes=classes)
    loss = split_softmax(lead, torch.full_like(lead, math.log(classes - 1)))
    (slope,) = torch.autograd.grad(loss.sum(), over)
    return loss.detach(), slope.abs()


def class_edges(margin: Margin, length: float) -> list[list[float]]:
    """Degrees from a class weight to its training boundary, towards the other class and away from it.

    For two classes so far apart on a circle; halved until it is there. Ten classes, because an adaptive scale has no
    value for two, and the scale does not move an edge.
    """
    between = _radians(BETWEEN)
    low, high = torch.zeros(2, len(BETWEEN), dtype=between.dtype), torch.stack((between, math.pi - between / 2))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        towards, away = between - middle[0], between + middle[1]
        other = torch.stack((towards, torch.minimum(away, 2 * math.pi - away)))
        inside = boundary(margin, middle, other, x_length=length, classes=10) > 0
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    found: list[list[float]] = ((low + high) / 2).rad2deg().T.tolist()
    return found


def packed(values: Tensor) -> str:
    """Numbers as base64 of little-endian half precision: three digits, which a picture does not outrun."""
    return base64.b64encode(values.to(torch.float16).numpy().astype("<f2").tobytes()).decode()
