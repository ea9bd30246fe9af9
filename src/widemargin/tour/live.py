"""Sections of the tour, and pictures with a slider: one picture per value, computed in advance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..io.text import escape


@dataclass(frozen=True)
class Frame:
    """One position of the slider: its picture, and the caption with numbers."""

    label: str
    picture: str
    caption: str


@dataclass(frozen=True)
class SliderFigure:
    """Pictures for the positions of a slider."""

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
    """A static picture, or further parts of a page."""
    commands: Sequence[str] = field(default_factory=tuple)
    """Commands or code to continue with."""


def make_slider_figure(
    label: str, values: Sequence[float], make_frame: Callable[[float], Frame], start_index: int = 0
) -> SliderFigure:
    """Build a slider over some values."""
    return SliderFigure(label, [make_frame(place) for place in values], start_index)


def slider_html(key: str, slider: SliderFigure) -> str:
    """Return the slider, the pictures (all but one hidden), and their captions as HTML."""
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
