"""Data of the lab: its losses, the values of its sliders, and every curve for each of them.

All curves come from the definitions of the margins; the page's script only looks them up.
"""

from __future__ import annotations

import base64
import math
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..io.errors import InputError
from ..losses.base import Option
from ..losses.grammar import parse_margin
from ..losses.margin import Margin
from ..losses.registry import LOSS_GROUPS, list_losses, loss_class
from ..losses.schedule import Schedule
from ..theory import decision_function, loss_at_angles, suggest_scale, target_curve, theoretical_gap

SCALES = (1.0, 2.0, 5.0, 10.0, 16.0, 20.0, 30.0, 40.0, 64.0)
CLASS_COUNTS = (2, 3, 10, 100, 1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Family:
    """One loss of the lab, and how the sliders set its options."""

    name: str
    margins: tuple[float, ...] = ()
    scale_input: str = "s"
    """Target of the scale slider: `s`, `length` (‖x‖, if kept) or `nothing` (the loss sets its own scale)."""
    extra_options: str = ""
    """Further options of the loss, as text."""
    margin_option: str = "m"
    """The option that the margin slider sets."""
    group: str = ""

    @property
    def scales(self) -> tuple[float, ...]:
        return SCALES if self.scale_input != "nothing" else (1.0,)

    def loss_spec(self, scale: float, margin: float | None) -> str:
        """Return the loss as text for `losses.grammar`.

        >>> Family("arcface", (0.3,)).loss_spec(16.0, 0.3)
        'arcface(s=16, m=0.3)'
        """
        inside = [f"s={scale:g}"] if self.scale_input == "s" else []
        inside += [f"{self.margin_option}={margin:g}"] if margin is not None else []
        inside += [self.extra_options] if self.extra_options else []
        return f"{self.name}({', '.join(inside)})" if inside else self.name

    def x_norm(self, scale: float) -> float:
        """‖x‖ at this value of the slider."""
        return scale if self.scale_input == "length" else 1.0


_MARGIN_OPTIONS = ("m", "max_m", "m2", "u_m")
"""Options that the margin slider may set: the first one that a loss has and does not hide."""
_MARGIN_STEPS = {"m_softmax": 0.5}
"""Step of the margin slider if a fifth of the default is too small to be visible."""
_STEP_FROM_ZERO = 0.1
_MAX_INTEGER_MARGIN = 4
_NUM_MARGINS = 9


def make_family(loss_type: type[Margin]) -> Family:
    """Build a loss with the sliders that its options allow: scale or norm, and nine margins around the default.

    >>> from ..losses.registry import loss_class
    >>> make_family(loss_class("arcface")).margins
    (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    """
    loss, options = loss_type(), loss_type.options()
    scale_input = "s" if "s" in options and "s" not in loss.adaptive_fields else "nothing"
    scheduled = [name for name, value in loss.named_values() if isinstance(value, Schedule)]
    family = Family(
        loss.name,
        scale_input="length" if loss.uses_any_norm else scale_input,
        extra_options=", ".join(f"{name}={options[name][0].low:g}" for name in scheduled),  # λ = 0: without annealing
        group=loss.group,
    )
    own = [name for name in options if not options[name][0].hide_default or name in loss.adaptive_fields]
    option = next((name for name in _MARGIN_OPTIONS if name in own), None)
    if option is None:
        return family
    default = getattr(loss.for_num_classes(CLASS_COUNTS[-1]), option)
    family = replace(family, margin_option=option)
    return replace(family, margins=_margin_values(family, options[option][0], default))


def _margin_values(family: Family, rule: Option, default: float) -> tuple[float, ...]:
    """Values of the margin slider that are valid for the loss at every scale."""
    if rule.kind is int:
        values = [float(k) for k in range(int(rule.low), _MAX_INTEGER_MARGIN + 1)]
    else:
        low = max(rule.low, 0.0)
        step = _MARGIN_STEPS.get(family.name) or (default - low) / 5 or _STEP_FROM_ZERO
        values = [round(low + k * step, 6) for k in range(_NUM_MARGINS)]

    def is_allowed(margin: float) -> bool:
        try:
            return all(parse_margin(family.loss_spec(scale, margin)) for scale in family.scales)
        except InputError:
            return False

    return tuple(filter(is_allowed, values))


def list_families() -> list[Family]:
    """Return every margin of the package, in the order of their groups."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        names = [name for group in LOSS_GROUPS for name in list_losses("margins", group=group)]
        return [make_family(cast(type[Margin], loss_class(name))) for name in names]


ANGLES_DEG = tuple(range(0, 181, 3))
GAPS_DEG = tuple(range(-30, 151, 3))
CLASS_SEPARATIONS_DEG = (60, 90, 120, 180)
WANTED_GAPS_DEG = tuple(range(5, 121, 5))
CURVE_KINDS = ("loss", "pull", "gap_loss", "gap_pull")
_BISECTION_STEPS = 20  # bisection of half a circle to less than a thousandth of a degree


def compute_lab_data() -> dict[str, Any]:
    """Compute the data that the page embeds: values of the sliders, and compressed curves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a scale of 0 at two classes is shown instead of warned about
        return {
            "angles": ANGLES_DEG,
            "gaps": GAPS_DEG,
            "between": CLASS_SEPARATIONS_DEG,
            "scales": SCALES,
            "classes": CLASS_COUNTS,
            "kinds": CURVE_KINDS,
            "families": {family.name: compute_family_curves(family) for family in list_families()},
            "theory": [[theoretical_gap(c, s) for s in SCALES] for c in CLASS_COUNTS],
            "wanted": WANTED_GAPS_DEG,
            "suggested": [[suggest_scale(c, math.radians(g)) for g in WANTED_GAPS_DEG] for c in CLASS_COUNTS],
        }


def compute_family_curves(family: Family) -> dict[str, Any]:
    """Curves of one loss: targets [S, M, C', angles], the rest [S, M, C, kind, angles], edges [S, M, between]."""
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
        "group": family.group,
        "margin_option": family.margin_option,
        "margins": family.margins,
        "scale_input": family.scale_input,
        "extra_options": family.extra_options,
        "targets": encode_curves(torch.stack(targets)),
        "curves": encode_curves(torch.stack(curves)),
        "edges": [[[round(edge, 3) for edge in pair] for pair in row] for row in boundary_angles],
    }


def _to_radians(degrees: Sequence[int]) -> Tensor:
    return torch.tensor(degrees, dtype=torch.float64).deg2rad()


def target_logit_curve(margin: Margin, x_norm: float, num_classes: int) -> Tensor:
    """Target logit over the angles."""
    return target_curve(margin, _to_radians(ANGLES_DEG), num_classes, x_norm=x_norm)[0]


def loss_curves(margin: Margin, x_norm: float) -> Tensor:
    """Loss and gradient over the target's angle, others at 90°, and over the gap between both, [C, 4, angles]."""
    by_margin: dict[Margin, list[int]] = {}
    for num_classes in CLASS_COUNTS:  # most margins do not depend on the number of classes: then one call suffices
        by_margin.setdefault(margin.for_num_classes(num_classes), []).append(num_classes)
    curves: dict[int, Tensor] = {}
    for resolved, class_counts in by_margin.items():
        counts = torch.tensor(class_counts, dtype=torch.float64).unsqueeze(1)
        target_angle = _to_radians(ANGLES_DEG).expand(len(counts), -1).clone().requires_grad_()
        other_angle = torch.full_like(target_angle, math.pi / 2)
        by_angle = _loss_and_gradient(resolved, x_norm, counts, target_angle, other_angle, target_angle)
        gap = _to_radians(GAPS_DEG).expand(len(counts), -1).clone().requires_grad_()
        by_gap = _loss_and_gradient(resolved, x_norm, counts, (math.pi - gap) / 2, (math.pi + gap) / 2, gap)
        curves |= dict(zip(class_counts, torch.stack((*by_angle, *by_gap), 1), strict=True))
    return torch.stack([curves[num_classes] for num_classes in CLASS_COUNTS])


def _loss_and_gradient(
    margin: Margin, x_norm: float, num_classes: Tensor, target_angle: Tensor, other_angle: Tensor, wrt: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss with all other classes at one angle, and the size of its gradient with respect to `wrt`."""
    loss = loss_at_angles(margin, target_angle, other_angle, num_classes, x_norm)
    (slope,) = torch.autograd.grad(loss.sum(), wrt)
    return loss.detach(), slope.abs()


def class_boundary_angles(margin: Margin, x_norm: float) -> list[list[float]]:
    """Degrees from a class weight to its training boundary, towards the other class and away from it.

    For two classes of each separation on a circle, by bisection. Evaluated with ten classes, because an adaptive scale
    is undefined for two, and the scale does not move a boundary.
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


def encode_curves(values: Tensor) -> str:
    """Encode curves [..., angles] as base64 of half-precision numbers, whose three digits are enough for a plot.

    Neighbouring points are similar: the differences of their bits are compressed, upper bytes before lower.
    """
    bits = values.to(torch.float16).numpy().astype("<f2").view("<u2")
    differences = np.diff(bits, axis=-1, prepend=np.uint16(0)).reshape(-1)
    planes = differences.view("u1").reshape(-1, 2)[:, ::-1].T.tobytes()
    return base64.b64encode(zlib.compress(planes, 9)).decode()
