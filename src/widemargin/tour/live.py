"""A section of the tour, and its picture with a slider: one picture per value, computed beforehand by the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..io.text import escape


@dataclass(frozen=True)
class Frame:
    """One value of the slider: its picture, and the numbers under it."""

    label: str
    picture: str
    caption: str


@dataclass(frozen=True)
class SliderFigure:
    """Frames to slide through."""

    label: str
    frames: Sequence[Frame]
    start_index: int = 0


@dataclass(frozen=True)
class Section:
    """A section of the tour."""

    key: str
    title: str
    text: Sequence[str]
    slider: SliderFigure | None = None
    static_html: str = ""
    """A picture that does not move, or further parts of a page."""
    commands: Sequence[str] = field(default_factory=tuple)
    """Commands or code to go on with."""


def make_slider_figure(
    label: str, values: Sequence[float], make_frame: Callable[[float], Frame], start_index: int = 0
) -> SliderFigure:
    """A slider over some values."""
    return SliderFigure(label, [make_frame(place) for place in values], start_index)


def slider_html(key: str, slider: SliderFigure) -> str:
    """The slider, the pictures (all but one hidden), and the numbers under them."""
    name = escape(key)
    parts = [
        f'<div class="live" data-live="{name}"><label for="{name}-slide">{escape(slider.label)} '
        f'<output id="{name}-label">{escape(slider.frames[slider.start_index].label)}</output></label>'
        f'<input type="range" id="{name}-slide" min="0" max="{len(slider.frames) - 1}" value="{slider.start_index}" step="1">'
    ]
    for k, frame in enumerate(slider.frames):
        hidden = "" if k == slider.start_index else " hidden"
        parts.append(
            f'<div class="frame" data-label="{escape(frame.label)}"{hidden}>{frame.picture}'
            f'<p class="numbers">{escape(frame.caption)}</p></div>'
        )
    return "".join(parts) + "</div>"


SLIDER_SCRIPT = """
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
