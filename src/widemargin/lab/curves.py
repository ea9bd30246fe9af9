"""The lab's data: which losses it shows, the values of its sliders, and every curve at each of them.

All curves come from the margins' own definitions; the page's script only looks them up.
"""

from __future__ import annotations

import base64
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..losses.grammar import parse_margin
from ..losses.margin import Margin, split_softmax
from ..theory import decision_function, suggest_scale, target_curve, theoretical_gap

SCALES = (1.0, 2.0, 5.0, 10.0, 16.0, 20.0, 30.0, 40.0, 64.0)
CLASS_COUNTS = (2, 3, 10, 100, 1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Family:
    """One loss of the lab, and how the values of the sliders become its options."""

    name: str
    margins: tuple[float, ...] = ()
    scale_input: str = "s"
    """What the scale slider sets: `s`, `length` (‖x‖, where it is kept) or `nothing` (the loss sets its scale)."""
    extra_options: str = ""
    """Further options of the loss, as text."""

    @property
    def scales(self) -> tuple[float, ...]:
        return SCALES if self.scale_input != "nothing" else (1.0,)

    def loss_spec(self, scale: float, margin: float | None) -> str:
        """The loss as text that `losses.grammar` parses.

        >>> Family("arcface", (0.3,)).loss_spec(16.0, 0.3)
        'arcface(s=16, m=0.3)'
        """
        inside = [f"s={scale:g}"] if self.scale_input == "s" else []
        inside += [f"m={margin:g}"] if margin is not None else []
        inside += [self.extra_options] if self.extra_options else []
        return f"{self.name}({', '.join(inside)})" if inside else self.name

    def x_norm(self, scale: float) -> float:
        """‖x‖ at this value of the slider."""
        return scale if self.scale_input == "length" else 1.0


_ANGULAR_MARGINS = tuple(round(0.1 * k, 1) for k in range(9))
FAMILIES = (
    Family("softmax", scale_input="length"),
    Family("modified_softmax", scale_input="length"),
    Family("normface"),
    Family("m_softmax", (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0), "length"),
    Family("l_softmax", (1.0, 2.0, 3.0, 4.0), "length", "lam=0"),
    Family("a_softmax", (1.0, 2.0, 3.0, 4.0), "length", "lam=0"),
    Family("cosface", tuple(round(0.06 * k, 2) for k in range(9))),
    Family("arcface", _ANGULAR_MARGINS),
    Family("adacos", scale_input="nothing"),
    Family("adaacos", _ANGULAR_MARGINS),
    Family("arcgrad"),
)


ANGLES_DEG = tuple(range(0, 181, 3))
GAPS_DEG = tuple(range(-30, 151, 3))
CLASS_SEPARATIONS_DEG = (60, 90, 120, 180)
WANTED_GAPS_DEG = tuple(range(5, 121, 5))
CURVE_KINDS = ("loss", "pull", "gap_loss", "gap_pull")
_BISECTION_STEPS = 20  # of half a circle: to less than a thousandth of a degree


def compute_lab_data() -> dict[str, Any]:
    """What the page embeds: values of the sliders, and curves as base64 of half-precision numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a scale of 0 at two classes is shown, not warned of
        return {
            "angles": ANGLES_DEG,
            "gaps": GAPS_DEG,
            "between": CLASS_SEPARATIONS_DEG,
            "scales": SCALES,
            "classes": CLASS_COUNTS,
            "kinds": CURVE_KINDS,
            "families": {family.name: compute_family_curves(family) for family in FAMILIES},
            "theory": [[theoretical_gap(c, s) for s in SCALES] for c in CLASS_COUNTS],
            "wanted": WANTED_GAPS_DEG,
            "suggested": [[suggest_scale(c, math.radians(g)) for g in WANTED_GAPS_DEG] for c in CLASS_COUNTS],
        }


def compute_family_curves(family: Family) -> dict[str, Any]:
    """The curves of one loss: targets [S, M, C', angles], the rest [S, M, C, kind, angles], edges [S, M, between]."""
    targets, curves, boundary_angles = [], [], []
    for scale in family.scales:
        for margin in family.margins or (None,):
            spec, x_norm = parse_margin(family.loss_spec(scale, margin)), family.x_norm(scale)
            targets += [
                target_logit_curve(spec, x_norm, c)
                for c in (CLASS_COUNTS if family.scale_input == "nothing" else CLASS_COUNTS[:1])
            ]
            curves.append(loss_curves(spec, x_norm))
            boundary_angles.append(class_boundary_angles(spec, x_norm))
    return {
        "margins": family.margins,
        "scale_input": family.scale_input,
        "extra_options": family.extra_options,
        "targets": encode_float16(torch.stack(targets)),
        "curves": encode_float16(torch.stack(curves)),
        "edges": [[[round(edge, 3) for edge in pair] for pair in row] for row in boundary_angles],
    }


def _to_radians(degrees: Sequence[int]) -> Tensor:
    return torch.tensor(degrees, dtype=torch.float64).deg2rad()


def target_logit_curve(margin: Margin, x_norm: float, num_classes: int) -> Tensor:
    """Target logit over the angles: `decision_function` against a class at 90°, plus the logit of that class."""
    theta = _to_radians(ANGLES_DEG)
    at_zero = decision_function(
        margin, theta, torch.full_like(theta, math.pi / 2), x_norm=x_norm, num_classes=num_classes
    )
    return at_zero + target_curve(margin, torch.full_like(theta, math.pi / 2), num_classes)[1]


def loss_curves(margin: Margin, x_norm: float) -> Tensor:
    """Loss and pull over the target's angle, the others at 90°, and over the gap between both, [C, 4, angles]."""
    curves = []
    for num_classes in CLASS_COUNTS:
        target_angle = _to_radians(ANGLES_DEG).requires_grad_()
        by_angle = _loss_and_gradient(
            margin, x_norm, num_classes, target_angle, torch.full_like(target_angle, math.pi / 2), target_angle
        )
        gap = _to_radians(GAPS_DEG).requires_grad_()
        by_gap = _loss_and_gradient(margin, x_norm, num_classes, (math.pi - gap) / 2, (math.pi + gap) / 2, gap)
        curves.append(torch.stack((*by_angle, *by_gap)))
    return torch.stack(curves)


def _loss_and_gradient(
    margin: Margin, x_norm: float, num_classes: int, target_angle: Tensor, other_angle: Tensor, wrt: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss with all other classes at one angle, and the size of its gradient with respect to `wrt`."""
    logit_difference = decision_function(margin, target_angle, other_angle, x_norm=x_norm, num_classes=num_classes)
    loss = split_softmax(logit_difference, torch.full_like(logit_difference, math.log(num_classes - 1)))
    (slope,) = torch.autograd.grad(loss.sum(), wrt)
    return loss.detach(), slope.abs()


def class_boundary_angles(margin: Margin, x_norm: float) -> list[list[float]]:
    """Degrees from a class weight to its training boundary, towards the other class and away from it.

    For two classes of each separation on a circle, by bisection. Evaluated with ten classes, because an adaptive scale
    has no value for two, and the scale does not move a boundary.
    """
    separations = _to_radians(CLASS_SEPARATIONS_DEG)
    low, high = (
        torch.zeros(2, len(CLASS_SEPARATIONS_DEG), dtype=separations.dtype),
        torch.stack((separations, math.pi - separations / 2)),
    )
    for _ in range(_BISECTION_STEPS):
        middle = (low + high) / 2
        towards, away = separations - middle[0], separations + middle[1]
        other = torch.stack((towards, torch.minimum(away, 2 * math.pi - away)))
        inside = decision_function(margin, middle, other, x_norm=x_norm, num_classes=10) > 0
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    boundaries: list[list[float]] = ((low + high) / 2).rad2deg().T.tolist()
    return boundaries


def encode_float16(values: Tensor) -> str:
    """Numbers as base64 of little-endian half precision, whose three digits are enough for a picture."""
    return base64.b64encode(values.to(torch.float16).numpy().astype("<f2").tobytes()).decode()
