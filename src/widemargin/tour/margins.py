"""Sections on the margins: from softmax and the norms of its weights to ArcGrad."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch

from ..losses.grammar import parse_margin
from ..losses.margin import BatchStatistics
from ..theory import (
    angular_margin,
    boundary_angle,
    gap_gradient,
    gradient_curve,
    suggest_scale,
    target_curve,
    theoretical_gap,
)
from ..viz.colours import loss_colour
from .classical import BLUE, RED
from .live import Frame, Section, make_slider_figure
from .xy_chart import AxesSpec, Curve, Marks, draw_xy_chart

_ANGLES_DEG = tuple(range(0, 181, 3))


def angle_grid() -> torch.Tensor:
    """Return the angles at which curves are computed, in radians."""
    return torch.tensor(_ANGLES_DEG, dtype=torch.float64).deg2rad()


def angle_curve(name: str, values: torch.Tensor, colour: str, dashed: bool = False) -> Curve:
    """Return a curve over these angles."""
    return Curve(name, list(zip(map(float, _ANGLES_DEG), values.tolist(), strict=True)), colour, dashed)


def _draw_class_sectors(
    class_angle: float, boundary_angles: tuple[float, float], norms: tuple[float, float], title: str
) -> str:
    """Draw two class weights and the sectors in which samples are correct in training."""
    parts: list[str] = []

    def to_pixel(radius: float, degrees: float) -> tuple[float, float]:
        return 150 + radius * math.cos(math.radians(degrees)), 150 - radius * math.sin(math.radians(degrees))

    for sign, edge, length, colour, name in (
        (1, boundary_angles[0], norms[0], BLUE, "W₁"),
        (-1, boundary_angles[1], norms[1], RED, "W₂"),
    ):
        weight = 90 + sign * class_angle / 2
        inner, outer = weight - sign * edge, weight + sign * (90 - class_angle / 2)
        (x1, y1), (x2, y2) = to_pixel(120, outer), to_pixel(120, inner)
        sweep_flag = 1 if sign > 0 else 0  # of an SVG arc
        parts.append(
            f'<path d="M150,150 L{x1:.1f},{y1:.1f} A120,120 0 0 {sweep_flag} {x2:.1f},{y2:.1f} Z" fill="{colour}" '
            f'fill-opacity=".25" stroke="{colour}"/>'
        )
        x, y = to_pixel(min(135.0, 60 * length), weight)
        parts.append(f'<line x1="150" y1="150" x2="{x:.1f}" y2="{y:.1f}" stroke="{colour}" stroke-width="4"/>')
        tx, ty = to_pixel(min(135.0, 60 * length) + 14, weight)
        parts.append(f'<text x="{tx:.1f}" y="{ty + 4:.1f}" text-anchor="middle">{name}</text>')
    return f'<svg viewBox="0 0 300 160" role="img" aria-label="{title}" class="small">{"".join(parts)}</svg>'


def weight_norms() -> Section:
    """Softmax and the norms of its weights."""

    def make_frame(ratio: float) -> Frame:
        edge = math.degrees(boundary_angle("softmax", math.pi / 2, w_norms=(ratio, 1.0)))
        picture = _draw_class_sectors(
            90.0, (edge, 90.0 - edge), (ratio, 1.0), "Two classes with weights of different norms"
        )
        return Frame(
            f"{ratio:g}", picture, f"class 1 has {edge:.1f}° of the 90° between them, class 2 {90 - edge:.1f}°"
        )

    return Section(
        "lengths",
        "The longer weight gets more room",
        (
            "Softmax compares ‖W‖ ‖x‖ cos θ. A class with a longer weight takes more of the space between two "
            "classes; with unbalanced data frequent classes gain, and the angle alone does not decide.",
        ),
        make_slider_figure("‖W₁‖ / ‖W₂‖", (0.5, 0.7, 0.9, 1.0, 1.1, 1.4, 1.8, 2.2), make_frame, 5),
    )


def bisector() -> Section:
    """Modified softmax: unit weights, so that the boundary is the bisector."""

    def make_frame(between: float) -> Frame:
        edge = math.degrees(boundary_angle("modified_softmax", math.radians(between)))
        picture = _draw_class_sectors(between, (edge, between - edge), (1.6, 1.6), "Two classes with unit weights")
        return Frame(f"{between:g}°", picture, f"the boundary lies {edge:.1f}° from each: on the bisector")

    return Section(
        "bisector",
        "Unit weights, and the bisector",
        (
            "Modified softmax normalises every weight. Then only the angle counts, and the boundary is the bisector. "
            "But there is no margin: a sample just on the right side counts as right.",
        ),
        make_slider_figure("angle between the classes", (40.0, 60.0, 90.0, 120.0, 150.0), make_frame, 2),
    )


def l_softmax() -> Section:
    """L-Softmax and its curve."""

    def make_frame(m: float) -> Frame:
        theta = angle_grid()
        own, plain = target_curve(f"l_softmax(m={m:g}, lam=0)", theta)
        curves = [
            angle_curve("cos θ, the others", plain, BLUE, True),
            angle_curve(f"ψ(θ), m = {m:g}", own, loss_colour("l_softmax")),
        ]
        picture = draw_xy_chart(
            curves, AxesSpec((0, 180), (-7.5, 1.2), "angle of the target", "logit at unit norms", "°"), "L-Softmax"
        )
        at = float(target_curve(f"l_softmax(m={m:g}, lam=0)", torch.tensor([math.pi / 3], dtype=torch.float64))[0])
        return Frame(f"{m:g}", picture, f"at 60° the target's cosine 0.5 counts as {at:.2f}")

    return Section(
        "psi",
        "L-Softmax: the target's angle is multiplied by m",
        (
            "To be right, a sample must be right even with its angle to its own class multiplied by an integer m. "
            "Past π/m the cosine would rise again; ψ keeps decreasing instead. Training with it is hard to start: λ "
            "mixes in the plain cosine at first and then decreases.",
        ),
        make_slider_figure("m", (1.0, 2.0, 3.0, 4.0), make_frame, 1),
    )


def _margin_band(
    key: str, title: str, text: tuple[str, ...], make_spec: Callable[[float], str], margin_values: tuple[float, ...]
) -> Section:
    """Width of a margin's band between two classes, by the angle between them."""
    class_angles = tuple(range(5, 181, 5))
    bands = {
        m: [math.degrees(angular_margin(make_spec(m), math.radians(b))) for b in class_angles] for m in margin_values
    }
    high = 30 * math.ceil(max(map(max, bands.values())) / 30)  # one height for all positions of the slider

    def make_frame(m: float) -> Frame:
        widths = bands[m]
        name = make_spec(m).partition("(")[0]
        curve = Curve("the band", list(zip(map(float, class_angles), widths, strict=True)), loss_colour(name))
        axes = AxesSpec(
            (0, 180), (0, high), "angle between the two classes", "degrees that belong to neither class", "°"
        )
        chosen = {b: widths[class_angles.index(b)] for b in (30, 90, 150)}
        caption = "; ".join(f"{width:.1f}° between classes {b}° apart" for b, width in chosen.items())
        return Frame(f"{m:g}", draw_xy_chart([curve], axes, title), caption)

    return Section(key, title, text, make_slider_figure("m", margin_values, make_frame, len(margin_values) // 2))


def a_softmax() -> Section:
    return _margin_band(
        "a_softmax",
        "A-Softmax (SphereFace): a margin that depends on the neighbours",
        (
            "L-Softmax's curve with unit weights. Between two classes θ₁₂ apart lies a band of (m−1)/(m+1) · θ₁₂ in "
            "which neither class is right: wide if classes are far apart anyway, narrow if they are close and it is "
            "needed.",
        ),
        lambda m: f"a_softmax(m={m:g}, lam=0)",
        (1.0, 2.0, 3.0, 4.0),
    )


def cosface() -> Section:
    return _margin_band(
        "cosface",
        "CosFace: a margin on the cosine",
        (
            "The margin m is subtracted from the target's cosine: simple, smooth, easy to train. In angles the band "
            "still changes with the distance of the classes, because a step of the cosine is a wide angle near 0° and "
            "a narrow one near 90°.",
        ),
        lambda m: f"cosface(m={m:g})",
        (0.0, 0.1, 0.2, 0.35, 0.5),
    )


def arcface() -> Section:
    return _margin_band(
        "arcface",
        "ArcFace: a margin on the angle",
        (
            "The margin m is added to the target's angle. The band is m radians for classes that are farther apart "
            "than that. How to choose s and m remains open.",
        ),
        lambda m: f"arcface(m={m:g})",
        (0.0, 0.1, 0.3, 0.5, 0.8),
    )


def adacos() -> Section:
    """AdaCos sets its own scale, which is 0 for two classes."""
    counts = (2, 3, 4, 5, 10, 30, 100, 1000, 10_000, 100_000)

    def make_frame(classes: float) -> Frame:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            start = {c: float(parse_margin("adacos").for_num_classes(c).s) for c in counts}
            pull = gradient_curve("adacos", angle_grid(), int(classes)).abs()
        curve = angle_curve(f"adacos, {int(classes):,} classes", pull, loss_colour("adacos"))
        high = max(1.0, math.ceil(float(pull.max())))
        picture = draw_xy_chart(
            [curve], AxesSpec((0, 180), (0, high), "angle of the target", "gradient", "°"), "Gradient of AdaCos"
        )
        return Frame(f"{int(classes):,}", picture, f"starts with s = √2 log(C−1) = {start[int(classes)]:.2f}")

    return Section(
        "adacos",
        "AdaCos: an adaptive scale s",
        (
            "A small scale cannot reach a small loss, and with a large one the gradient vanishes too early. AdaCos "
            "starts with √2 log(C−1) and then adapts to each batch. With two classes that is log 1 = 0: no gradient, "
            "and nothing is learned; `adacos(floor=1)` is the remedy.",
        ),
        make_slider_figure("classes", tuple(map(float, counts)), make_frame, 4),
    )


def adaacos() -> Section:
    """AdaAcos sets its own margin."""

    def make_frame(spread: float) -> Frame:
        draw = torch.Generator().manual_seed(0)
        own = (torch.randn(200, generator=draw, dtype=torch.float64).abs() * spread).deg2rad()
        nearest = (90 + 6 * torch.randn(200, generator=draw, dtype=torch.float64)).deg2rad()
        batch = BatchStatistics.from_batch(
            own, torch.ones_like(own), torch.tensor(0), lambda margin: torch.zeros_like(own), lambda: torch.cos(nearest)
        )
        m = float(dict(parse_margin("adaacos(s=6)").adapt_to_batch(batch).named_values())["m"])
        theta = angle_grid()
        curves = [
            angle_curve("without a margin", target_curve("normface(s=6)", theta)[0], BLUE, True),
            angle_curve(f"m = {m:.2f}", target_curve(f"adaacos(s=6, m={m:.6f})", theta)[0], loss_colour("adaacos")),
        ]
        picture = draw_xy_chart(
            curves, AxesSpec((0, 180), (-16, 7), "angle of the target", "target logit", "°"), "AdaAcos"
        )
        return Frame(
            f"{spread:g}°", picture, f"the median gap of this batch is {math.degrees(m):.1f}°: that is its margin"
        )

    return Section(
        "adaacos",
        "AdaAcos: an adaptive margin m",
        (
            "The margin of each batch is the median of its gaps: by how much samples are nearer to their own class "
            "than to the nearest other. At the start it is 0; as classes become compact, it grows.",
        ),
        make_slider_figure("spread of samples around their class", (90.0, 70.0, 50.0, 35.0, 20.0, 10.0), make_frame, 3),
    )


def arcgrad() -> Section:
    """ArcGrad: the scale creates a gradient margin."""

    def make_frame(s: float) -> Frame:
        gaps = tuple(range(0, 91, 3))
        values = [gap_gradient(math.radians(g), s, 10) for g in gaps]
        best = [gap_gradient(math.radians(g), suggest_scale(10, math.radians(g)), 10) for g in gaps[1:]]
        curves = [
            Curve("best s per gap", list(zip(map(float, gaps[1:]), best, strict=True)), "#888888", True),
            Curve(f"s = {s:g}", list(zip(map(float, gaps), values, strict=True)), loss_colour("arcgrad")),
        ]
        gap = math.degrees(theoretical_gap(10, s))
        lines = [(gap, loss_colour("arcgrad"), f"Eq. 19: {gap:.1f}°")] if gap <= 90 else []
        axes = AxesSpec((0, 90), (0, 40), "mean gap", "|∂ loss / ∂ gap|", "°")
        picture = draw_xy_chart(
            curves, axes, "Gradient of the gap under ArcGrad, ten classes", Marks(vertical_lines=lines)
        )
        return Frame(f"{s:g}", picture, f"with ten classes s = {s:g} is optimal at a gap of {gap:.1f}°")

    return Section(
        "arcgrad",
        "ArcGrad: a margin from the gradient",
        (
            "The logit is −s θ itself. The gradient is s wherever a sample is wrong, at 1° as at 179°, where that of "
            "the cosine vanishes. There is no m: how far classes move apart follows from s alone, and s follows from "
            "the number of classes and the desired gap, with Lambert's W (Eq. 19).",
        ),
        make_slider_figure("s", (2.0, 3.0, 5.0, 10.0, 20.0, 40.0), make_frame, 3),
        commands=("widemargin theory --num-classes 1000", "widemargin lab"),
    )


MARGIN_SECTIONS = (weight_norms, bisector, l_softmax, a_softmax, cosface, arcface, adacos, adaacos, arcgrad)
