"""The first sections: squared error, cross-entropy, softmax, sigmoid and focal loss."""

from __future__ import annotations

import torch

from ..losses.grammar import parse
from .live import Frame, Section, make_slider_figure
from .xy_chart import AxesSpec, Curve, Marks, draw_xy_chart

BLUE, RED, GREEN, GOLD, PURPLE = "#4477AA", "#EE6677", "#228833", "#CCBB44", "#AA3377"


def outliers() -> Section:
    """L1, L2 and Huber with one outlier."""
    good = torch.tensor([1.6, 1.8, 2.0, 2.1, 2.3])
    grid = torch.linspace(-1.0, 12.0, 1301)
    losses = {"l2": BLUE, "l1": RED, "huber": GREEN}

    def make_frame(far: float) -> Frame:
        points = torch.cat((good, torch.tensor([far])))
        curves, lines, captions = [], [], []
        for name, colour in losses.items():
            pairs = torch.cartesian_prod(grid, points)
            heights = parse(name)(pairs[:, 0], pairs[:, 1]).view(len(grid), len(points)).mean(1)
            best = float(grid[heights.argmin()])
            shown = heights[::20].tolist()
            curves.append(Curve(name, list(zip(grid[::20].tolist(), shown, strict=True)), colour))
            lines.append((best, colour, f"{best:.2f}"))
            captions.append(f"{name}: minimum at {best:.2f}")
        dots = [(float(p), 0.0, "currentColor") for p in points]
        axes = AxesSpec((-1, 12), (0, 16), "prediction", "mean loss")
        picture = draw_xy_chart(
            curves, axes, "Mean loss over the prediction for L2, L1 and Huber", Marks(dots=dots, vertical_lines=lines)
        )
        return Frame(f"{far:g}", picture, "; ".join(captions))

    return Section(
        "outliers",
        "One outlier",
        (
            "Five measurements are about 2, a sixth is moved away. The minimum of the squared error (L2) is the mean, "
            "which follows the outlier; that of the absolute error (L1) is the median, which hardly moves; Huber is "
            "squared near 0 and absolute far from it.",
        ),
        make_slider_figure("the sixth measurement", (2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 11.0), make_frame, 4),
        commands=("widemargin losses huber",),
    )


def cross_entropy() -> Section:
    """Squared error against cross-entropy on a probability."""
    grid = torch.linspace(0.02, 0.99, 195, dtype=torch.float64)

    def compute_losses(p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        one = torch.ones_like(p)
        return parse("l2(half=False)")(p, one), parse("bce")(torch.logit(p), one)

    squared, entropy = compute_losses(grid)

    def make_frame(at: float) -> Frame:
        p = torch.tensor([at], dtype=torch.float64, requires_grad=True)
        values = compute_losses(p)
        slopes = [torch.autograd.grad(value.sum(), p, retain_graph=True)[0].item() for value in values]
        curves = [
            Curve("squared error", list(zip(grid.tolist(), squared.tolist(), strict=True)), BLUE),
            Curve("cross-entropy", list(zip(grid.tolist(), entropy.tolist(), strict=True)), RED),
        ]
        dots = [(at, values[0].item(), BLUE), (at, values[1].item(), RED)]
        picture = draw_xy_chart(
            curves,
            AxesSpec((0, 1), (0, 4), "probability of the true class", "loss"),
            "Loss by probability",
            Marks(dots),
        )
        caption = (
            f"squared error {values[0].item():.2f}, slope {slopes[0]:.1f}; "
            f"cross-entropy {values[1].item():.2f}, slope {slopes[1]:.1f}"
        )
        return Frame(f"{at:g}", picture, caption)

    return Section(
        "surprise",
        "How wrong is 0.1?",
        (
            "The truth is 1, the network says 0.1. The squared error is 0.81, with a slope of 1.8. The cross-entropy "
            "is 2.30, with a slope of 10: confident mistakes cost more and are corrected first.",
        ),
        make_slider_figure("the network says", (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.98), make_frame, 1),
    )


def softmax_and_sigmoid() -> Section:
    """Softmax and sigmoid: one answer, or several."""
    names = ("cat", "dog", "grass", "car")

    def make_frame(dog: float) -> Frame:
        logits = torch.tensor([2.0, dog, 1.0, -1.0])
        one, several = logits.softmax(0), logits.sigmoid()
        parts = []
        for k, name in enumerate(names):
            y = 24 + 34 * k
            parts.append(f'<text x="70" y="{y + 15}" text-anchor="end">{name}</text>')
            for left, value, ink in ((80, one[k], BLUE), (340, several[k], RED)):
                wide = 200 * float(value)
                parts.append(f'<rect x="{left}" y="{y}" width="{wide:.1f}" height="20" fill="{ink}" opacity=".8"/>')
                parts.append(f'<text class="tick" x="{left + wide + 6:.1f}" y="{y + 15}">{float(value):.2f}</text>')
        heads = (
            '<text x="80" y="14">softmax: one class</text><text x="340" y="14">sigmoid: each label separately</text>'
        )
        picture = (
            '<svg viewBox="0 0 640 170" role="img" aria-label="Softmax and sigmoid of four logits">'
            f"{heads}{''.join(parts)}</svg>"
        )
        caption = f"softmax adds up to {float(one.sum()):.2f}, sigmoid to {float(several.sum()):.2f}"
        return Frame(f"{dog:g}", picture, caption)

    return Section(
        "answers",
        "One label, or several",
        (
            "Softmax distributes a probability of 1 over the classes: raising one lowers the others. Sigmoids decide "
            "each class separately, so a picture may show a cat, a dog and grass at once. Softmax goes with "
            "cross-entropy, sigmoids with `bce`.",
        ),
        make_slider_figure("logit of dog", (-2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0), make_frame, 2),
        commands=('wm.Objective("bce", embedding_dim, num_classes)  # targets [N, C], several ones in a row',),
    )


def focal() -> Section:
    """Focal loss: easy samples count less."""
    grid = torch.linspace(0.02, 0.99, 98, dtype=torch.float64)
    one = torch.ones_like(grid)

    def make_frame(gamma: float) -> Frame:
        plain, turned = (parse(f"focal(gamma={g:g})")(torch.logit(grid), one) for g in (0.0, gamma))
        curves = [
            Curve("cross-entropy", list(zip(grid.tolist(), plain.tolist(), strict=True)), BLUE, dashed=True),
            Curve(f"focal, γ = {gamma:g}", list(zip(grid.tolist(), turned.tolist(), strict=True)), RED),
        ]
        easy = parse(f"focal(gamma={gamma:g})")(torch.logit(torch.tensor([0.1, 0.9], dtype=torch.float64)), one[:2])
        base = parse("focal(gamma=0)")(torch.logit(torch.tensor([0.1, 0.9], dtype=torch.float64)), one[:2])
        shares = (easy / base).tolist()
        picture = draw_xy_chart(curves, AxesSpec((0, 1), (0, 4), "probability of the true class", "loss"), "Focal loss")
        return Frame(f"{gamma:g}", picture, f"factor {shares[0]:.2f} at p = 0.1 and {shares[1]:.4f} at p = 0.9")

    return Section(
        "focal",
        "Many easy samples",
        (
            "If most samples are easy, their many small losses outweigh the few that matter. Focal loss multiplies "
            "cross-entropy by (1 − p)^γ: samples that are already right hardly count.",
        ),
        make_slider_figure("γ", (0.0, 0.5, 1.0, 2.0, 3.0, 5.0), make_frame, 3),
    )


CLASSICAL_SECTIONS = (outliers, cross_entropy, softmax_and_sigmoid, focal)
