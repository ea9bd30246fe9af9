"""The lab as one HTML file: controls, panels, their data and script, and the paper's Figure 1 as an animation."""

from __future__ import annotations

from importlib import resources
from typing import Any

import torch

from ..io.text import escape
from ..losses.registry import LOSS_GROUPS
from ..reproduce.figure1 import FIGURE1_SCALES, train_snapshots
from ..viz import page
from ..viz.colours import loss_colour
from .curves import CLASS_COUNTS, CLASS_SEPARATIONS_DEG, SCALES, WANTED_GAPS_DEG

_PANELS = (
    ("target", "Target logit", "The target's logit over its angle, at ‖w‖ = 1."),
    ("loss", "Loss against the angle", "All other classes are at 90°, as at the start of training in many dimensions."),
    (
        "pull",
        "Gradient against the angle",
        "|∂ loss / ∂θ|: how strongly a sample is pulled. ArcGrad's stays large while the sample is wrong.",
    ),
    ("gap_loss", "Loss against the gap", "The target moves closer, the others away; the gap is the difference."),
    (
        "gap_pull",
        "Gradient against the gap",
        "|∂ loss / ∂ gap|. The dashed line is the gap at which ArcGrad's s is optimal (Eq. 19).",
    ),
)


def lab_page(lab_data: dict[str, Any], films: list[dict[str, Any]]) -> str:
    """Return the whole page."""
    colours = {name: loss_colour(name) for name in lab_data["families"]}
    body = [
        f"<style>{_read_resource('lab.css')}</style>",
        _loss_choice(lab_data["families"], colours),
        _controls(),
        '<div class="panels" data-loading>',
    ]
    body += [_panel(*panel) for panel in _PANELS]
    body += [_scale_finder(), _regions(), _films(films), "</div>"]
    for name, data in (("facts", lab_data), ("colours", colours), ("films", films)):
        body.append(page.json_script(name, data))
    sub = "Choose losses and move the sliders. All curves are computed by the package and stored in this page."
    return page.html_page("The loss lab", sub, body, _read_resource("lab.js"))


def _read_resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _loss_choice(families: dict[str, dict[str, Any]], colours: dict[str, str]) -> str:
    """A checkbox for every loss, by group."""
    rows = []
    for group in dict.fromkeys(family["group"] for family in families.values()):
        chips = "".join(
            f'<label><input type="checkbox" id="use-{name}"><i style="background:{colours[name]}"></i>{name}</label>'
            for name, family in families.items()
            if family["group"] == group
        )
        name = f'<b title="{escape(LOSS_GROUPS[group])}">{escape(group)}</b>'
        rows.append(f'<div class="chips" role="group" aria-label="{escape(group)}">{name}{chips}</div>')
    return f'<div class="choice">{"".join(rows)}</div>'


def _controls() -> str:
    sliders = _slider("s", "scale s (or ‖x‖)", len(SCALES)) + _slider("m", "margin m", 9)
    sliders += _slider("c", "classes C", len(CLASS_COUNTS))
    return (
        f'<div class="controls"><div class="sliders">{sliders}</div>'
        '<div class="numbers" id="legend" aria-live="polite"></div></div>'
    )


def _slider(key: str, title: str, count: int) -> str:
    return (
        f'<label for="{key}">{escape(title)}<output id="{key}-value" for="{key}"></output>'
        f'<input type="range" id="{key}" min="0" max="{count - 1}" step="1"></label>'
    )


def _panel(key: str, title: str, description: str) -> str:
    return (
        f"<section>{page.heading(title, description)}"
        f'<svg id="{key}" viewBox="0 0 560 330" role="img" aria-label="{escape(title)}" '
        f'data-title="{escape(title)}"></svg><p class="numbers" id="{key}-numbers"></p></section>'
    )


def _regions() -> str:
    options = "".join(
        f'<option value="{k}">{"three classes, 120° apart" if b == 120 else f"two classes, {b}° apart"}</option>'
        for k, b in enumerate(CLASS_SEPARATIONS_DEG)
    )
    text = "In training, a sample is correct only inside the colour of its class; the white band between is the margin."
    return (
        f'<section style="grid-column:1/-1">{page.heading("Decision regions on the circle", text)}'
        f'<label>Classes: <select id="between">{options}</select></label>'
        '<div id="regions" class="many"></div></section>'
    )


def _scale_finder() -> str:
    text = "Eq. 19 of the ArcGrad paper with Lambert's W: a wide gap needs a small scale. C is the slider above."
    return (
        f"<section>{page.heading('Which s for my C?', text)}"
        f'<div class="sliders">{_slider("gap", "desired mean gap", len(WANTED_GAPS_DEG))}</div>'
        '<p class="verdict" id="answer" aria-live="polite"></p></section>'
    )


def _films(films: list[dict[str, Any]]) -> str:
    text = (
        "Iris under ArcGrad: each dot is a sample at its angle to its own class, its line the gradient. "
        "A small scale drives the classes far apart, a large one stops early."
    )
    pictures = "".join(
        f'<div><svg id="film{k}" viewBox="-8 0 316 165" role="img" aria-label="Iris at s = {one["s"]:g}" '
        f'data-title="Iris at s = {one["s"]:g}"></svg><p class="numbers" id="film{k}-numbers"></p></div>'
        for k, one in enumerate(films)
    )
    last = len(films[0]["frames"]) - 1
    return (
        f'<section style="grid-column:1/-1">{page.heading("Figure 1 of the paper, animated", text)}'
        '<div class="film"><button id="play" type="button">Play</button>'
        f'<input type="range" id="frame" min="0" max="{last}" value="0" aria-label="moment of training"></div>'
        f'<div class="many wider">{pictures}</div>'
        "</section>"
    )


NUM_FRAMES = 24
_MAX_SAMPLES_PER_CLASS = 40  # samples drawn per class


def compute_film_frames(seed: int = 0) -> list[dict[str, Any]]:
    """Frames for each scale of Figure 1: own angles in degrees, gradients / s, the mean gap, the theoretical gap."""
    # Most changes happen early: frames are at the squares of even steps.
    phases = {str(k): (k / (NUM_FRAMES - 1)) ** 2 for k in range(NUM_FRAMES)}
    films = []
    for scale in FIGURE1_SCALES:
        snapshots = train_snapshots(scale, seed, phases)
        y = snapshots[0].y
        rows = torch.cat([(y == k).nonzero().squeeze(1)[:_MAX_SAMPLES_PER_CLASS] for k in range(int(y.max()) + 1)])
        films.append(
            {
                "s": scale,
                "theory": round(float(torch.tensor(snapshots[0].theoretical_gap).rad2deg()), 1),
                "y": y[rows].tolist(),
                "frames": [
                    {
                        "own": _round_values(snapshot.theta[rows, y[rows]].rad2deg(), 1),
                        "pull": _round_values(snapshot.gradient[rows, y[rows]] / scale, 3),
                        "gap": round(float(torch.tensor(snapshot.mean_gap).rad2deg()), 1),
                        "right": round(snapshot.accuracy, 1),
                    }
                    for snapshot in snapshots
                ],
            }
        )
    return films


def _round_values(values: torch.Tensor, digits: int) -> list[float]:
    return [round(value, digits) for value in values.tolist()]
