"""`widemargin curves`: what every loss does, as one picture from the losses' own definitions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import InputError
from .listing import check_writable, checked_suffix
from .report.dark_svg import follow_the_page
from .report.palette import own_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

    from .criterion import Criterion
    from .margin import Margin
    from .option import Loss
    from .term import Term

FORMATS = (".svg", ".png", ".pdf")
# Colour-blind-safe (Tol's bright and muted).
_COLOURS = (
    "#4477AA",
    "#EE6677",
    "#228833",
    "#CCBB44",
    "#66CCEE",
    "#AA3377",
    "#222222",
    "#CC6633",
    "#44AA99",
    "#882255",
)
_DASHES = ("-", (0, (5, 2)), (0, (1, 1)))


def draw(out: str, wanted: str | None = None, classes: int = 10) -> tuple[Path, list[str]]:
    """Write the picture of the losses `wanted` (all by default) to `out`; what there is to note beside it."""
    import matplotlib as mpl

    from .catalogue import Sum, losses, parse, parse_list
    from .criterion import Criterion
    from .margin import Margin
    from .term import Term

    path = Path(checked_suffix(out, FORMATS))
    check_writable(out)
    if not 2 <= classes <= 10**15:
        raise InputError("--classes must be a whole number from 2 to 10^15")
    chosen: list[Loss] = []
    for value in map(parse, losses()) if wanted is None else parse_list(wanted):
        chosen += [part for _, part in value.parts] if isinstance(value, Sum) else [value]

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    margins = [loss for loss in chosen if isinstance(loss, Margin)]
    terms = [loss for loss in chosen if isinstance(loss, Term)]
    criteria = [loss for loss in chosen if isinstance(loss, Criterion)]
    panels: list[tuple[Callable[[Axes, Any, int], None], Sequence[Loss]]]
    panels = [(_targets, margins), (_pulls, margins), (_gap, [m for m in margins if m.name == "arcgrad"])]
    panels += [(_terms, terms)]
    panels += [(_criteria, [c for c in criteria if (c.takes == "values") is values]) for values in (True, False)]
    shown = [(panel, items) for panel, items in panels if items]
    rows = math.ceil(len(shown) / 3)
    look: Any = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "widemargin"}
    with plt.rc_context(look), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure, axes = plt.subplots(
            rows,
            min(3, len(shown)),
            figsize=(4.4 * min(3, len(shown)), 3.7 * rows),
            squeeze=False,
            layout="constrained",
        )
        for place, (panel, items) in zip(axes.flat, shown, strict=False):
            panel(place, items, classes)
            place.grid(alpha=0.25, linewidth=0.5)
        for place in axes.flat[len(shown) :]:
            place.set_visible(False)
        try:
            drawn = path.suffix.lower() == ".svg"
            figure.savefig(path, dpi=120, metadata={"Date": None} if drawn else None)
            if drawn:
                follow_the_page(path)
        except OSError as error:
            raise InputError(f"{out}: cannot be written ({error.strerror or error})") from None
        finally:
            plt.close(figure)
    return path, sorted({str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)})


def _style(label: str, index: int) -> dict[str, Any]:
    # Dashes change from line to line as well: where two lines coincide, both stay visible.
    return {"color": own_colour(label) or _COLOURS[index % len(_COLOURS)], "linestyle": _DASHES[index % len(_DASHES)]}


def _angles() -> Tensor:
    import torch

    return torch.linspace(0.0, math.pi, 721, dtype=torch.float64)


def _lines(axes: Axes, at: Tensor, curves: list[tuple[str, Tensor]]) -> None:
    """One line per curve; losses that share a curve share the line and its label."""
    import torch

    drawn: list[tuple[list[str], Tensor, int]] = []
    for index, (label, curve) in enumerate(curves):
        twin = next((labels for labels, other, _ in drawn if torch.allclose(other, curve, atol=1e-6)), None)
        if twin is None:
            drawn.append(([label], curve, index))
        else:
            twin.append(label)
    for labels, curve, index in drawn:
        axes.plot(at, curve, label=",\n".join(labels), linewidth=1.6, **_style(labels[0], index))
    axes.legend(fontsize=8 if len(drawn) <= 6 else 6, frameon=False)


def _targets(axes: Axes, margins: list[Margin], classes: int) -> None:
    from .theory import target_curve

    theta = _angles()
    curves = [(repr(m), target_curve(m, theta, classes)[0] / _scale(m, classes)) for m in margins]
    _lines(axes, theta * 180 / math.pi, curves)
    axes.set(title="Target logit / s against the target's angle", xlabel="θ of the target (°)", ylabel="ψ(θ)")


def _pulls(axes: Axes, margins: list[Margin], classes: int) -> None:
    from .theory import pull_curve

    theta = _angles()[1:-1]
    curves = []
    several = len({margin.name for margin in margins}) < len(margins)
    for margin in margins:
        keeps_lengths = margin.keeps_x or margin.keeps_w
        scale = 10.0 if keeps_lengths else _scale(margin, classes)
        pull = pull_curve(margin, theta, classes, x_length=scale if keeps_lengths else 1.0) / scale
        curves.append((repr(margin) if several else margin.name, pull))
    _lines(axes, theta * 180 / math.pi, curves)
    axes.set(
        title=f"Pull / s towards the target, {classes - 1} other(s) at 90°",
        xlabel="θ of the target (°)",
        ylabel="∂ loss / ∂θ / s  (‖x‖ = 10 where kept)",
    )


def _gap(axes: Axes, margins: list[Margin], classes: int) -> None:
    from .theory import gap_gradient, suggest_scale, theoretical_gap

    gaps = [i * math.pi / 2 / 300 for i in range(301)]
    for index, scale in enumerate((3.0, 5.0, 10.0, 20.0, 40.0)):
        curve = [gap_gradient(gap, scale, classes) for gap in gaps]
        axes.plot([math.degrees(g) for g in gaps], curve, label=f"s = {scale:g}", linewidth=1.6, color=_COLOURS[index])
        marked = theoretical_gap(classes, scale)
        if marked <= gaps[-1]:
            axes.plot(math.degrees(marked), gap_gradient(marked, scale, classes), "o", color=_COLOURS[index])
    best = [gap_gradient(gap, suggest_scale(classes, gap), classes) for gap in gaps[6:]]
    axes.plot([math.degrees(g) for g in gaps[6:]], best, "--", color="0.5", linewidth=1, label="the best s (Eq. 19)")
    axes.set_ylim(0, gap_gradient(0.0, 40.0, classes) * 1.05)
    axes.set(
        title=f"ArcGrad: how fast a gap grows, {classes} classes",
        xlabel="angular gap (°)",
        ylabel="|∂L″/∂gap|",
    )
    axes.legend(fontsize=8, frameon=False)


def _terms(axes: Axes, terms: list[Term], classes: int) -> None:
    theta = _angles()[::6]
    _lines(axes, theta * 180 / math.pi, [(repr(term), term_curve(term, theta)) for term in terms])
    axes.set(
        title="Terms: an anchor's loss, its own class at 20°",
        xlabel="angle to a sample of another class (°)",
        ylabel="loss",
    )


def term_curve(term: Term, theta: Tensor) -> Tensor:
    """Loss of an anchor whose own class has a sample 20° away and another class one at each of these angles."""
    import torch

    from .objective import Objective

    part = Objective(term, 2, 2).eval()
    heights = []
    for t in theta.tolist():
        angles = torch.tensor([0.0, -math.pi / 9, t])
        x = torch.stack([torch.cos(angles), torch.sin(angles)], 1)
        heights.append(part(x, torch.tensor([0, 0, 1]))[0].item())
    return torch.tensor(heights)


def _criteria(axes: Axes, criteria: list[Criterion], classes: int) -> None:
    import torch

    grid = torch.linspace(-4.0, 4.0, 401)
    _lines(axes, grid, [(repr(criterion), criterion_curve(criterion, grid)) for criterion in criteria])
    if criteria[0].takes == "values":
        axes.set(title="Classical: loss against the error", xlabel="ŷ − y", ylabel="loss")
    else:
        axes.set(title="Classical: loss against the logit of the truth", xlabel="logit", ylabel="loss")


def criterion_curve(criterion: Criterion, grid: Tensor) -> Tensor:
    """Loss over the error where numbers are predicted, else over the logit of the truth (another class has 0)."""
    import torch

    if criterion.takes == "values":
        return criterion(grid, torch.zeros_like(grid))
    if criterion.takes == "classes":
        pair = torch.stack([grid, torch.zeros_like(grid)], 1)
        return criterion(pair, torch.zeros(len(grid), dtype=torch.int64))
    return criterion(grid, torch.ones_like(grid))


def _scale(margin: Margin, classes: int) -> float:
    """The scale a margin ends with: what its curves are divided by in the picture (1 where it is 0)."""
    import torch

    return float(margin.sized(classes).at(torch.tensor(10**9), None, torch.float64).s) or 1.0
