"""`widemargin curves`: what every loss does, as one picture from the losses' own definitions."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..io.errors import InputError, spell_option
from .colours import assigned_loss_colour
from .svg import figure_to_svg
from .terminal import check_suffix, check_writable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

    from ..losses.base import Loss
    from ..losses.criterion import Criterion
    from ..losses.margin import Margin
    from ..losses.pair_loss import PairLoss
    from ..losses.regularizer import Regularizer


FIGURE_FORMATS = (".svg", ".png", ".pdf")
# Colour-blind-safe (Tol's bright and muted).
_CURVE_COLOURS = (
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
KEPT_NORM = 10.0
"""‖x‖ in the pictures, where a loss keeps it."""
_MAX_MARGINS_PER_PANEL = 12
_MAX_PAIR_LOSSES_PER_PANEL = 7
_MAX_PANELS_IN_THREES = 9
_MAX_LINES_BEHIND_LEGEND = 8
_MAX_LABEL_LENGTH = 34
_CURVE_LINE_STYLES = ("-", (0, (5, 2)), (0, (1, 1)))


def draw_loss_curves(out: str, loss_specs: str | None = None, num_classes: int = 10) -> tuple[Path, list[str]]:
    """Write the picture of the losses `loss_specs` (all by default) to `out`; returns its path and warnings."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from ..losses.criterion import Criterion
    from ..losses.grammar import Sum, parse, parse_list
    from ..losses.margin import Margin
    from ..losses.pair_loss import PairLoss
    from ..losses.registry import list_losses
    from ..losses.regularizer import Regularizer

    path = Path(check_suffix(out, FIGURE_FORMATS))
    check_writable(out)
    if not 2 <= num_classes <= 10**15:
        raise InputError(f"{spell_option('num_classes')} must be a whole number from 2 to 10^15, got {num_classes}")
    chosen: list[Loss] = []
    for value in map(parse, list_losses()) if loss_specs is None else parse_list(loss_specs):
        chosen += [part for _, part in value.parts] if isinstance(value, Sum) else [value]

    margins = [loss for loss in chosen if isinstance(loss, Margin)]
    pair_losses = [loss for loss in chosen if isinstance(loss, PairLoss)]
    criteria = [loss for loss in chosen if isinstance(loss, Criterion)]
    panels: list[tuple[Callable[[Axes, Any, int], None], Sequence[Loss]]] = []
    for group in _panel_groups(margins):
        panels += [(_plot_target_logits, group), (_plot_target_gradients, group)]
    panels += [(_plot_gap_gradients, [m for m in margins if m.name == "arcgrad"])]
    panels += [
        (_plot_pair_losses, pair_losses[first : first + _MAX_PAIR_LOSSES_PER_PANEL])
        for first in range(0, len(pair_losses), _MAX_PAIR_LOSSES_PER_PANEL)
    ]
    panels += [(_plot_regularizers, [loss for loss in chosen if isinstance(loss, Regularizer)])]
    panels += [
        (_plot_criteria, [c for c in criteria if (c.target_type == "values") is values]) for values in (True, False)
    ]
    shown = [(panel, items) for panel, items in panels if items]
    columns = min(len(shown), 3 if len(shown) <= _MAX_PANELS_IN_THREES else 4)
    rows = math.ceil(len(shown) / columns)
    rc_params: Any = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "widemargin",
    }
    with mpl.rc_context(rc_params), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure = Figure((4.4 * columns, 3.7 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        for place, (panel, items) in zip(axes.flat, shown, strict=False):
            panel(place, items, num_classes)
            place.grid(alpha=0.25, linewidth=0.5)
        for place in axes.flat[len(shown) :]:
            place.set_visible(False)
        try:
            if path.suffix.lower() == ".svg":
                path.write_text(figure_to_svg(figure, "Curves of losses", standalone=True), encoding="utf-8")
            else:
                figure.savefig(path, dpi=120)
        except OSError as error:
            raise InputError(f"{out}: cannot be written ({error.strerror or error})") from None
    return path, sorted({str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)})


def _panel_groups(margins: list[Margin]) -> list[list[Margin]]:
    """The margins that share a panel: all of them where they are few, else those of each group."""
    from ..losses.registry import LOSS_GROUPS

    if len(margins) <= _MAX_MARGINS_PER_PANEL:
        return [margins]
    return [[margin for margin in margins if margin.group == group] for group in LOSS_GROUPS]


def _style(label: str, index: int) -> dict[str, Any]:
    # Dashes change from line to line as well: where two lines coincide, both stay visible.
    return {
        "color": assigned_loss_colour(label) or _CURVE_COLOURS[index % len(_CURVE_COLOURS)],
        "linestyle": _CURVE_LINE_STYLES[index % len(_CURVE_LINE_STYLES)],
    }


def _angle_grid() -> Tensor:
    import torch

    return torch.linspace(0.0, math.pi, 721, dtype=torch.float64)


def _plot_curves(axes: Axes, x: Tensor, curves: list[tuple[str, Tensor]]) -> None:
    """One line per curve; losses that share a curve share the line and its label."""
    import torch

    drawn: list[tuple[list[str], Tensor, int]] = []
    for index, (label, curve) in enumerate(curves):
        shared_labels = next((labels for labels, other, _ in drawn if torch.allclose(other, curve, atol=1e-6)), None)
        if shared_labels is None:
            drawn.append(([label], curve, index))
        else:
            shared_labels.append(label)
    for labels, curve, index in drawn:
        label = ",\n".join(textwrap.fill(one, _MAX_LABEL_LENGTH) for one in labels)
        axes.plot(x, curve, label=label, linewidth=1.6, **_style(labels[0], index))
    if len(drawn) > _MAX_LINES_BEHIND_LEGEND:
        axes.legend(fontsize=7, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    else:
        axes.legend(fontsize=8 if len(drawn) <= 6 else 6, frameon=False)


def _plot_target_logits(axes: Axes, margins: list[Margin], num_classes: int) -> None:
    from ..theory import target_curve

    theta = _angle_grid()
    curves = [(repr(m), target_curve(m, theta, num_classes)[0] / _final_scale(m, num_classes)) for m in margins]
    _plot_curves(axes, theta * 180 / math.pi, curves)
    axes.set(
        title=_panel_title(margins, "target logit / s against its angle"),
        xlabel="θ of the target (°)",
        ylabel="ψ(θ)",
    )


def _plot_target_gradients(axes: Axes, margins: list[Margin], num_classes: int) -> None:
    theta = _angle_grid()[1:-1]
    several = len({margin.name for margin in margins}) < len(margins)
    curves = [(repr(m) if several else m.name, relative_pull(m, theta, num_classes)) for m in margins]
    _plot_curves(axes, theta * 180 / math.pi, curves)
    lengths = f"  (‖x‖ = {KEPT_NORM:g} where kept)" if any(margin.uses_any_norm for margin in margins) else ""
    axes.set(
        title=_panel_title(margins, f"pull / s, {num_classes - 1} other(s) at 90°"),
        xlabel="θ of the target (°)",
        ylabel=f"∂ loss / ∂θ / s{lengths}",
    )


def relative_pull(margin: Margin, theta: Tensor, num_classes: int) -> Tensor:
    """`∂ loss / ∂θ` in units of the scale and of the loss's own factor, others at 90°; ‖x‖ is the scale where kept."""
    from ..theory import gradient_curve

    scale = KEPT_NORM if margin.uses_any_norm else _final_scale(margin, num_classes)
    pull = gradient_curve(margin, theta, num_classes, x_norm=KEPT_NORM if margin.uses_any_norm else 1.0)
    return pull / (scale * float(margin.for_num_classes(num_classes).loss_weight()))


def _panel_title(margins: list[Margin], title: str) -> str:
    """The title of a panel, with the group in front where it shows margins of one group."""
    groups = {margin.group for margin in margins}
    return f"{groups.pop()}: {title}" if len(groups) == 1 else title[0].upper() + title[1:]


def _plot_gap_gradients(axes: Axes, margins: list[Margin], num_classes: int) -> None:
    from ..theory import gap_gradient, suggest_scale, theoretical_gap

    gaps = [i * math.pi / 2 / 300 for i in range(301)]
    for index, scale in enumerate((3.0, 5.0, 10.0, 20.0, 40.0)):
        curve = [gap_gradient(gap, scale, num_classes) for gap in gaps]
        axes.plot(
            [math.degrees(g) for g in gaps], curve, label=f"s = {scale:g}", linewidth=1.6, color=_CURVE_COLOURS[index]
        )
        marked = theoretical_gap(num_classes, scale)
        if marked <= gaps[-1]:
            axes.plot(math.degrees(marked), gap_gradient(marked, scale, num_classes), "o", color=_CURVE_COLOURS[index])
    top = gap_gradient(0.0, 40.0, num_classes) * 1.05
    best = [gap_gradient(gap, suggest_scale(num_classes, gap), num_classes) for gap in gaps[6:]]
    best = [value if value <= top else math.nan for value in best]
    axes.plot([math.degrees(g) for g in gaps[6:]], best, "--", color="0.5", linewidth=1, label="the best s (Eq. 19)")
    axes.set_ylim(0, top)
    axes.set(
        title=f"ArcGrad: how fast a gap grows, {num_classes} classes",
        xlabel="angular gap (°)",
        ylabel="|∂L″/∂gap|",
    )
    axes.legend(fontsize=8, frameon=False)


def _plot_pair_losses(axes: Axes, pair_losses: list[PairLoss], num_classes: int) -> None:
    theta = _angle_grid()[::6]
    _plot_curves(axes, theta * 180 / math.pi, [(repr(loss), pair_loss_curve(loss, theta)) for loss in pair_losses])
    axes.set(
        title="Pair losses: an anchor's loss, its own class at 20°",
        xlabel="angle to a sample of another class (°)",
        ylabel="loss",
    )


def pair_loss_curve(loss: PairLoss, theta: Tensor) -> Tensor:
    """Loss of an anchor whose own class has a sample 20° away and another class one at each of these angles."""
    import torch

    from ..head.objective import Objective

    with torch.random.fork_rng(devices=[]):  # proxies and draws are the same in every picture
        torch.manual_seed(0)
        objective = Objective(loss, 2, 2).eval()
    values = []
    for t in theta.tolist():
        angles = torch.tensor([0.0, -math.pi / 9, t])
        x = torch.stack([torch.cos(angles), torch.sin(angles)], 1)
        values.append(objective(x, torch.tensor([0, 0, 1]))[0].item())
    return torch.tensor(values)


def _plot_regularizers(axes: Axes, regularizers: list[Regularizer], num_classes: int) -> None:
    theta = _angle_grid()[6:]
    curves = [(repr(one), regularizer_curve(one, theta)) for one in regularizers]
    _plot_curves(axes, theta * 180 / math.pi, curves)
    axes.set(
        title="Regularizers: penalty of one of two classes",
        xlabel="angle between the class weights (°)",
        ylabel="penalty",
        yscale="symlog",
    )


def regularizer_curve(regularizer: Regularizer, theta: Tensor) -> Tensor:
    """Penalty of the weight of one class where that of the only other class is at each of these angles."""
    import torch

    cos = torch.cos(theta.double())
    is_other = torch.tensor([False, True]).expand(len(cos), 2)
    return regularizer.penalty(torch.stack([torch.ones_like(cos), cos], 1), is_other)


def _plot_criteria(axes: Axes, criteria: list[Criterion], num_classes: int) -> None:
    import torch

    grid = torch.linspace(-4.0, 4.0, 401)
    _plot_curves(axes, grid, [(repr(criterion), criterion_curve(criterion, grid)) for criterion in criteria])
    if criteria[0].target_type == "values":
        axes.set(title="Classical: loss against the error", xlabel="ŷ − y", ylabel="loss")
    else:
        axes.set(title="Classical: loss against the logit of the truth", xlabel="logit", ylabel="loss")


def criterion_curve(criterion: Criterion, grid: Tensor) -> Tensor:
    """Loss over the error where numbers are predicted, else over the logit of the truth (another class has 0)."""
    import torch

    if criterion.target_type == "values":
        return criterion(grid, torch.zeros_like(grid))
    if criterion.target_type == "classes":
        pair = torch.stack([grid, torch.zeros_like(grid)], 1)
        return criterion(pair, torch.zeros(len(grid), dtype=torch.int64))
    return criterion(grid, torch.ones_like(grid))


def _final_scale(margin: Margin, num_classes: int) -> float:
    """The scale a margin ends with: what its curves are divided by in the picture (1 where it is 0)."""
    import torch

    return float(margin.for_num_classes(num_classes).at_step(torch.tensor(10**9), None, torch.float64).s) or 1.0
