"""A picture with a slider: every place of the slider is a picture of its own, computed beforehand by the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..report.escaped import escape


@dataclass(frozen=True)
class Frame:
    """One place of the slider."""

    label: str
    picture: str
    numbers: str


@dataclass(frozen=True)
class Live:
    """Frames to slide through."""

    what: str
    frames: Sequence[Frame]
    start: int = 0


@dataclass(frozen=True)
class Section:
    """A stop of the tour."""

    key: str
    title: str
    text: Sequence[str]
    live: Live | None = None
    still: str = ""
    """A picture that does not move, or further parts of a page."""
    tried: Sequence[str] = field(default_factory=tuple)
    """Commands or code to go on with."""


def live(what: str, places: Sequence[float], frame: Callable[[float], Frame], start: int = 0) -> Live:
    """A slider over some values."""
    return Live(what, [frame(place) for place in places], start)


def live_html(key: str, shown: Live) -> str:
    """The slider, the pictures (all but one hidden), and the numbers under them."""
    name = escape(key)
    parts = [
        f'<div class="live" data-live="{name}"><label for="{name}-slide">{escape(shown.what)} '
        f'<output id="{name}-label">{escape(shown.frames[shown.start].label)}</output></label>'
        f'<input type="range" id="{name}-slide" min="0" max="{len(shown.frames) - 1}" value="{shown.start}" step="1">'
    ]
    for k, frame in enumerate(shown.frames):
        hidden = "" if k == shown.start else " hidden"
        parts.append(
            f'<div class="frame" data-label="{escape(frame.label)}"{hidden}>{frame.picture}'
            f'<p class="numbers">{escape(frame.numbers)}</p></div>'
        )
    return "".join(parts) + "</div>"


SCRIPT = """
'use strict';
for (const live of document.querySelectorAll('[data-live]')) {
  const slide = live.querySelector('input'), label = live.querySelector('output');
  const frames = [...live.querySelectorAll('.frame')];
  const show = () => {
    frames.forEach((frame, k) => { frame.hidden = k !== Number(slide.value); });
    label.textContent = frames[Number(slide.value)].dataset.label;
  };
  slide.addEventListener('input', show);
  show();
}
"""
