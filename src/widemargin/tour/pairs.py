"""Sections on pairs and triplets: similarity without class weights."""

from __future__ import annotations

import math

import torch

from ..head.objective import Objective
from ..losses.grammar import parse
from .classical import BLUE, GOLD, GREEN, RED
from .live import Frame, Section, make_slider_figure
from .xy_chart import AxesSpec, Curve, Marks, draw_xy_chart

_TRIPLET_ALPHA = 0.2


def _unit_circle_points(degrees: list[float]) -> torch.Tensor:
    """Points of the unit circle."""
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack((torch.cos(angles), torch.sin(angles)), 1)


def contrastive() -> Section:
    """Pairs: same classes together, different ones at least m apart."""
    grid = [float(d) for d in range(181)]

    def cost(spec: str, degrees: float, same: bool) -> float:
        y = torch.tensor([0, 0 if same else 1])
        return float(parse(spec)(_unit_circle_points([0.0, degrees]), y)[0])

    def make_frame(m: float) -> Frame:
        spec = f"contrastive(m={m:g})"
        curves = [
            Curve("of one class", [(d, cost(spec, d, True)) for d in grid], BLUE),
            Curve("of two classes", [(d, cost(spec, d, False)) for d in grid], RED),
        ]
        free = next((d for d in grid if cost(spec, d, False) < 1e-6), None)  # up to rounding
        picture = draw_xy_chart(
            curves, AxesSpec((0, 180), (0, 4), "angle of the pair", "loss", "°"), f"Contrastive loss at m = {m:g}"
        )
        caption = (
            "different classes always have a loss"
            if free is None
            else f"different classes have no loss from {free:g}° on"
        )
        return Frame(f"{m:g}", picture, caption)

    return Section(
        "contrastive",
        "Pairs",
        (
            "No class weights, only pairs of the same or of different classes. Same pairs are pulled together; "
            "different ones are pushed apart until their distance is m. Without the second part the network could map "
            "everything to one point; this is called collapse, and training warns about it.",
        ),
        make_slider_figure("margin m (a distance)", (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0), make_frame, 3),
        commands=('widemargin train omniglot fast "contrastive" --per-class 4 --unseen-classes 0.5 --input-size 32',),
    )


def siamese() -> Section:
    """Two ways to compare two images."""
    box = '<rect x="{x}" y="{y}" width="{w}" height="34" rx="6" fill="{ink}" fill-opacity=".2" stroke="{ink}"/>'
    text = '<text x="{x}" y="{y}" text-anchor="middle">{words}</text>'
    parts = []
    for x, y, w, ink, words in (
        (20, 20, 90, BLUE, "image a"),
        (20, 74, 90, BLUE, "image b"),
        (140, 47, 90, GOLD, "on top"),
        (250, 47, 90, GREEN, "network"),
        (360, 47, 90, RED, "same?"),
        (20, 140, 90, BLUE, "image a"),
        (20, 194, 90, BLUE, "image b"),
        (140, 140, 90, GREEN, "network"),
        (140, 194, 90, GREEN, "the same"),
        (250, 167, 90, GOLD, "|a − b|"),
        (360, 167, 90, RED, "same?"),
    ):
        parts.append(box.format(x=x, y=y, w=w, ink=ink))
        parts.append(text.format(x=x + w / 2, y=y + 22, words=words))
    for line in (
        "M110,37 L140,60",
        "M110,91 L140,68",
        "M230,64 L250,64",
        "M340,64 L360,64",
        "M110,157 L140,157",
        "M110,211 L140,211",
        "M230,157 L250,178",
        "M230,211 L250,190",
        "M340,184 L360,184",
    ):
        parts.append(f'<path d="{line}" class="axis" fill="none"/>')
    picture = (
        '<svg viewBox="0 0 640 240" role="img" aria-label="Two Siamese architectures: merged at the input, or embedded '
        f'apart and merged then">{"".join(parts)}</svg>'
    )
    return Section(
        "siamese",
        "Siamese networks",
        (
            "The input is two images, the output one score. Merged at the input, the network can compare every "
            "detail, but every pair needs its own pass. Embedded separately by the same network, each image needs one "
            "pass, and comparisons are cheap: a search in a million images needs this, and all losses below do it.",
        ),
        static_html=picture,
        commands=("widemargin reproduce siamese pairs.csv",),
    )


def triplet() -> Section:
    """Anchor, positive and negative, and the selection of triplets."""
    near = 25.0  # degrees from the anchor to its positive
    all_triplets = Objective(f"triplet(mining=all, alpha={_TRIPLET_ALPHA})", 2, 2)
    semihard = Objective(f"triplet(mining=semihard, alpha={_TRIPLET_ALPHA})", 2, 2)
    y = torch.tensor([0, 0, 1])
    positive = float((_unit_circle_points([0.0])[0] - _unit_circle_points([near])[0]).square().sum())
    far = math.degrees(2 * math.asin(math.sqrt(positive + _TRIPLET_ALPHA) / 2))  # where D_an = D_ap + α

    def make_frame(degrees: float) -> Frame:
        loss = float(all_triplets(_unit_circle_points([0.0, near, -degrees]), y)[0])
        semihard(_unit_circle_points([0.0, near, -degrees]), y)
        num_kept = int(semihard.mining_stats()["triplet"]["triplets"])
        kind = "hard" if degrees <= near else "semi-hard" if degrees < far else "easy"
        grid = [float(d) for d in range(2, 91, 2)]
        points = [(d, float(all_triplets(_unit_circle_points([0.0, near, -d]), y)[0])) for d in grid]
        curve = Curve("loss of the anchor", points, RED)
        bands = [(0.0, near, RED, "hard"), (near, far, GOLD, "semi-hard"), (far, 90.0, GREEN, "easy")]
        axes = AxesSpec((0, 90), (0, 0.5), "angle from the anchor to the negative", "loss", "°")
        marks = Marks(dots=[(degrees, loss, RED)], vertical_bands=bands, vertical_lines=[(near, BLUE, "positive")])
        return Frame(
            f"{degrees:g}°",
            draw_xy_chart([curve], axes, "Triplet loss", marks),
            f"{kind}: loss {loss:.3f}; semi-hard mining keeps {num_kept}",
        )

    return Section(
        "triplet",
        "Triplets and their selection",
        (
            "An anchor, a positive of its class, a negative of another: the negative must be farther away than the "
            "positive by α. Most triplets are easy and have no loss; the hardest are often mislabelled and collapse "
            "everything to one point. Semi-hard mining uses those in between: farther than the positive, but by less "
            "than α.",
        ),
        make_slider_figure(
            "angle of the negative", (10.0, 20.0, 25.0, 28.0, 32.0, 36.0, 45.0, 60.0, 80.0), make_frame, 3
        ),
    )


PAIR_SECTIONS = (contrastive, siamese, triplet)
