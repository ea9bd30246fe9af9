"""Figure 1: angles and gradients of Iris samples in three phases of training, for s = 1 and s = 40.

Cost: seconds. Expected: points inside the theoretical gap of Eq. 19 (84° for s = 1, 2° for s = 40) have large
gradients, so a small scale moves the classes far apart and a large one stops early.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.projections.polar import PolarAxes
    from torch import Tensor


FIGURE1_SCALES = (1.0, 40.0)
PHASES = ("start", "middle", "end")
_PHASE_FRACTIONS = (0.0, 0.5, 1.0)


class TrainingSnapshot(NamedTuple):
    """All samples at one step of training."""

    scale: float
    phase: str
    theta: Tensor
    """Angles [N, C] to all class weights."""
    y: Tensor
    gradient: Tensor
    """∂loss/∂θ [N, C]."""
    mean_gap: float
    """Mean gap: nearest other class minus own, radians."""
    theoretical_gap: float
    accuracy: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--out", default="figure1.svg", help="picture to write: .svg, .png or .pdf")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default 0)")


def run(options: argparse.Namespace) -> None:
    """Train, print the gaps, draw the figure."""
    from ..viz.curves import FIGURE_FORMATS
    from ..viz.terminal import check_suffix, check_writable

    check_writable(check_suffix(options.out, FIGURE_FORMATS))
    phases = dict(zip(PHASES, _PHASE_FRACTIONS, strict=True))
    snapshots = [snapshot for scale in FIGURE1_SCALES for snapshot in train_snapshots(scale, options.seed, phases)]
    _print_gaps(snapshots)
    _draw_figure(snapshots, options.out)
    print(f"wrote {options.out}")


def train_snapshots(scale: float, seed: int, phases: Mapping[str, float]) -> list[TrainingSnapshot]:
    """Train ArcGrad with one scale on all of Iris; take a snapshot at each fraction of the training in `phases`."""
    import numpy as np
    import torch

    from ..data.tabular.encode import encode
    from ..data.tabular.uci import load_uci_set
    from ..head.functional import margin_softmax
    from ..numerics import angles
    from ..tabular.batched import StackedTrainer
    from ..tabular.config import MLPConfig
    from ..tabular.model_stacks import build_stacked_table
    from ..theory import theoretical_gap

    table = load_uci_set("iris")
    everything = np.arange(len(table))
    rows = build_stacked_table(encode(table), table.y, len(table.class_names), [everything], torch.float64)
    spec = f"arcgrad(s={scale:g})"
    stack = StackedTrainer(spec, rows, [everything], [(seed, 0)], MLPConfig(dropout=0.0))
    snapshots = []
    for phase, share in phases.items():
        stack.run(int(share * stack.steps) - stack.step)
        x = stack.embed(torch.from_numpy(everything).unsqueeze(0))[0]
        weight = stack.objective.head.weight[0].detach()
        unit = angles.unit_and_norm(weight)[0]
        theta = angles.safe_arccos(angles.unit_and_norm(x)[0] @ unit.T).detach().requires_grad_()
        loss = margin_softmax(torch.cos(theta), rows.y, spec)
        gradient = torch.autograd.grad(loss.sum(), theta)[0]
        theta = theta.detach()
        own = theta.gather(1, rows.y.unsqueeze(1)).squeeze(1)
        nearest = theta.scatter(1, rows.y.unsqueeze(1), torch.inf).amin(1)
        snapshots.append(
            TrainingSnapshot(
                scale,
                phase,
                theta,
                rows.y,
                gradient,
                float((nearest - own).mean()),
                theoretical_gap(num_classes=len(table.class_names), scale=scale),
                float((nearest > own).double().mean() * 100.0),
            )
        )
    return snapshots


def _print_gaps(snapshots: list[TrainingSnapshot]) -> None:
    import math

    from rich.table import Table as Grid

    from ..viz.terminal import console

    grid = Grid(title="Figure 1: the gap of ArcGrad on Iris", title_justify="left", title_style="bold")
    for column in ("s", "phase", "mean gap", "theoretical gap (Eq. 19)", "mean |gradient| / s, own class", "right"):
        grid.add_column(column, justify="left" if column == "phase" else "right")
    for snapshot in snapshots:
        pull = snapshot.gradient.gather(1, snapshot.y.unsqueeze(1)).abs().mean() / snapshot.scale
        gap, theory = math.degrees(snapshot.mean_gap), math.degrees(snapshot.theoretical_gap)
        cells = (f"{gap:.1f}°", f"{theory:.1f}°", f"{float(pull):.4f}", f"{snapshot.accuracy:.1f} %")
        grid.add_row(f"{snapshot.scale:g}", snapshot.phase, *cells)
    console().print(grid)


def _draw_figure(snapshots: list[TrainingSnapshot], out: str) -> None:
    from pathlib import Path

    import matplotlib as mpl
    from matplotlib.figure import Figure

    from ..viz.svg import figure_to_svg

    with mpl.rc_context({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "widemargin"}):
        figure = Figure((11, 5.6), layout="constrained")
        axes = figure.subplots(len(FIGURE1_SCALES), len(PHASES), subplot_kw={"projection": "polar"})
        for axis, snapshot in zip(axes.flat, snapshots, strict=True):
            _draw_panel(axis, snapshot)
        handles = axes.flat[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False)
        title = "Angles of Iris samples with ArcGrad, and the direction of their gradients"
        figure.suptitle(title)
        if out.lower().endswith(".svg"):
            Path(out).write_text(figure_to_svg(figure, title, standalone=True), encoding="utf-8")
        else:
            figure.savefig(out, dpi=150)


def _draw_panel(axis: PolarAxes, snapshot: TrainingSnapshot) -> None:
    """Draw a half circle: the angle is the angle, the radius is random so that points do not overlap."""
    import math

    import numpy as np

    rng = np.random.default_rng(0)
    theta, gradient = snapshot.theta.numpy(), snapshot.gradient.numpy() / snapshot.scale
    own = np.zeros_like(theta, dtype=bool)
    own[np.arange(len(theta)), snapshot.y.numpy()] = True
    radius = rng.uniform(1.0, 3.0, theta.shape)
    start = float(theta[own].mean())
    width = min(snapshot.theoretical_gap, math.pi - start)
    axis.bar(start, 3.2, width=width, align="edge", color="#CCBB44", alpha=0.35, label="theoretical gap from θ intra")
    for chosen, colour, label in (
        (own, "#4477AA", "θ intra (own class)"),
        (~own, "#EE6677", "θ inter (other classes)"),
    ):
        angles, radii, slopes = theta[chosen], radius[chosen], gradient[chosen]
        axis.scatter(angles, radii, s=7, color=colour, alpha=0.75, linewidths=0, label=label)
        # Arrows point down the gradient; the longest (|∂L/∂θ| = s) is a quarter radian.
        moved = -0.25 * slopes
        shown = np.abs(moved) > 0.004
        for a, r, d in zip(angles[shown], radii[shown], moved[shown], strict=True):
            axis.annotate(
                "",
                xy=(a + d, r),
                xytext=(a, r),
                arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 0.6, "alpha": 0.7, "mutation_scale": 5},
            )
    axis.set(thetamin=0, thetamax=180, rmax=3.2, yticks=[], xticks=np.radians([0, 30, 60, 90, 120, 150, 180]))
    gap, theory = math.degrees(snapshot.mean_gap), math.degrees(snapshot.theoretical_gap)
    axis.set_title(
        f"s = {snapshot.scale:g}, {snapshot.phase}\nmean gap {gap:.0f}°, theory {theory:.0f}°", fontsize=9, y=0.88
    )
