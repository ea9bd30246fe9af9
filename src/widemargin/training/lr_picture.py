"""A range test as a picture that stands alone: loss over rate, and the suggestion."""

from __future__ import annotations

import math

from ..report.escaped import escape
from ..report.palette import loss_colour
from ..report.svg import CHART_WIDTH, tick_values
from ..run import TrainConfig
from .lr_finder import LRRangeTest

_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 420, 70, 830, 50, 360
_STYLE = (
    "svg{font:13px system-ui,sans-serif;background:#fff}text{fill:#1d2129}.tick{fill:#5b6472;font-size:12px}"
    ".grid{stroke:#d9dde3}.mark{stroke:#1d2129;stroke-dasharray:6 4}"
    "@media(prefers-color-scheme:dark){svg{background:#15181d}text{fill:#e8eaee}.tick{fill:#a3acb9}"
    ".grid{stroke:#3a414c}.mark{stroke:#e8eaee}}"
)


def render_lr_svg(result: LRRangeTest, config: TrainConfig) -> str:
    """SVG text. The axis ends a little above where the loss began: how far it explodes says nothing more."""
    ink = loss_colour(config.loss)
    low, high = min(result.smoothed_losses), 1.15 * max(result.smoothed_losses[: len(result.smoothed_losses) // 3 + 1])
    low -= 0.08 * (high - low)
    first, last = math.log10(result.lrs[0]), math.log10(result.lrs[-1])

    def x(rate: float) -> float:
        return _LEFT + (math.log10(rate) - first) / max(last - first, 1e-9) * (_RIGHT - _LEFT)

    def y(loss: float) -> float:
        return _BOTTOM - (min(max(loss, low), high) - low) / max(high - low, 1e-9) * (_BOTTOM - _TOP)

    title = f"{config.model}, {config.loss}, {config.opt}: loss over learning rate"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {CHART_WIDTH} {_HEIGHT}" role="img">',
        f'<title>{escape(title)}</title><style>{_STYLE}</style><text x="{_LEFT}" y="24">{escape(title)}</text>',
    ]
    for tick in tick_values(low, high):
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for power in range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1):
        at = x(10.0**power)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{_BOTTOM + 18}" text-anchor="middle">1e{power}</text>')
    middle = (_LEFT + _RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{_BOTTOM + 40}" text-anchor="middle">learning rate</text>')
    dots = zip(result.lrs, result.losses, strict=True)
    parts += [f'<circle cx="{x(r):.1f}" cy="{y(v):.1f}" r="2" fill="{ink}" opacity=".35"/>' for r, v in dots]
    points = " ".join(f"{x(r):.1f},{y(v):.1f}" for r, v in zip(result.lrs, result.smoothed_losses, strict=True))
    parts.append(f'<polyline points="{points}" fill="none" stroke="{ink}" stroke-width="2.4"/>')
    if result.suggestion is not None:
        at = x(max(result.suggestion, result.lrs[0]))
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>')
        side = ' text-anchor="end"' if at > middle else ""
        label_x = at + (-8 if side else 8)
        parts.append(f'<text x="{label_x:.1f}" y="{_TOP + 14}"{side}>suggested: {result.suggestion:g}</text>')
    return "".join(parts) + "</svg>\n"
