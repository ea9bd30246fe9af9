"""The last section: all margins of the package by group, each against the plain cosine softmax."""

from __future__ import annotations

import warnings

from torch import Tensor

from ..losses.grammar import parse_margin
from ..losses.registry import LOSS_GROUPS, list_losses
from ..viz.colours import loss_colour
from ..viz.curves import relative_pull
from .live import Frame, Section, make_slider_figure
from .margins import angle_curve, angle_grid
from .xy_chart import AxesSpec, draw_xy_chart

_NUM_CLASSES = 10


def groups() -> Section:
    """Section with one slider position for each group that has margins."""
    shown = [group for group in LOSS_GROUPS if list_losses("margins", group=group)]

    def make_frame(place: float) -> Frame:
        group = shown[int(place)]
        names = list_losses("margins", group=group)
        curves = [angle_curve(name, _pull(name), loss_colour(name)) for name in names]
        if "normface" not in names:
            curves.insert(0, angle_curve("normface", _pull("normface"), "#888888", dashed=True))
        high = 1.1 * max(value for curve in curves for _, value in curve.points)
        axes = AxesSpec((0, 180), (0, high), "angle of the target", "gradient, in units of its scale", "°")
        picture = draw_xy_chart(curves, axes, f"Gradients of the group {group}")
        return Frame(group, picture, f"{LOSS_GROUPS[group]}: {', '.join(names)}")

    return Section(
        "groups",
        "After ArcFace: losses by the difficulty of the data",
        (
            "Later losses mostly change one thing each: the margin of a sample or a class, which other classes count, "
            "the number of weights per class, or whether classes compete. So choose by the difficulty of your data. "
            "The gradient of each is drawn at its defaults, with ten classes and the others at 90°. Effects of the "
            "norm of an embedding or of class counts are not visible here.",
        ),
        make_slider_figure("group", tuple(map(float, range(len(shown)))), make_frame, 1),
        commands=("widemargin losses --group long-tail", "widemargin lab"),
    )


def _pull(name: str) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # warnings about missing class counts
        return relative_pull(parse_margin(name), angle_grid(), _NUM_CLASSES).abs()
