"""Charts drawn by matplotlib as SVG for pages, notebooks and files: `Chart` is a figure and its SVG text.

Colours of text and axes are CSS variables, so that a chart follows its page, light or dark. The text stays text, marks
may have a hover text, and no element has an id, so that any number of charts can stand in one page. Also what charts
drawn by hand share with these: the opening tag, labels that fit, round ticks and limits of an axis.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

from ..io.text import escape, escape_unprintable

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHART_WIDTH = 860
# Stand-ins, which no loss has, for colours that the page chooses.
INK, SOFT, GRID = "#010203", "#010204", "#010205"
_PAGE_COLOURS = {SOFT: "var(--soft,currentColor)", GRID: "var(--line,#8886)"}
_PAGE_COLOURS |= dict.fromkeys((INK, "#000000"), "var(--ink,currentColor)")
_STANDALONE_STYLE = (
    ".chart{--ink:#1d2129;--soft:#5b6472;--line:#d9dde3;background:#fff;font:13px system-ui,sans-serif;max-width:100%;"
    "height:auto}"
    ".chart text{fill:var(--ink)}.chart .tick{fill:var(--soft);font-size:12px}.chart .strong{font-weight:600}"
    "@media(prefers-color-scheme:dark){.chart{--ink:#e8eaee;--soft:#a3acb9;--line:#3a414c;background:#15181d}}"
)
_RC_PARAMS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "widemargin",
    "text.parse_math": False,  # a name is no formula, though it may hold two dollars
    "text.color": INK,
    "font.size": 13,
    "axes.edgecolor": INK,
    "axes.labelcolor": SOFT,
    "axes.labelsize": 12,
    "axes.labelpad": 7,
    "axes.titlecolor": SOFT,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 1,
    "lines.markeredgewidth": 0,
    "lines.solid_capstyle": "butt",
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "xtick.major.pad": 8,
    "ytick.major.pad": 8,
    "legend.frameon": False,
    "legend.borderaxespad": 0,
} | {f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")}
_RC_PARAMS |= {f"{axis}tick.{kind}.size": 0 for axis in "xy" for kind in ("major", "minor")}


@contextmanager
def chart_style() -> Iterator[None]:
    """Draw in the style of the pages, whatever a user's own settings of matplotlib are; these stay as they are."""
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        # A browser has letters that matplotlib's font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="Attempting to set identical")  # of a single value
        mpl.rcdefaults()
        mpl.rcParams.update(_RC_PARAMS)
        yield


class Chart:
    """A matplotlib figure of `width` × `height` pixels with a text alternative; made and changed in `chart_style`."""

    def __init__(self, width: float, height: float, title: str) -> None:
        from matplotlib.figure import Figure

        self.width, self.height, self.title = width, height, title
        self.figure = Figure((width / 72, height / 72), dpi=72)  # a point is a pixel
        self._tips: dict[str, Sequence[str]] = {}

    def add_axes(self, left: float, top: float, right: float, bottom: float) -> Axes:
        """Axes whose edges are so many pixels from the left and from the top of the chart."""
        width, height = self.width, self.height
        return self.figure.add_axes(
            (left / width, 1 - bottom / height, (right - left) / width, (bottom - top) / height)
        )

    @property
    def axes(self) -> Axes:
        """The axes that were added first."""
        return self.figure.axes[0]

    def add_tip(self, artist: Artist, *tips: str) -> None:
        """Show a text while the pointer is on the artist, or one on each of its marks."""
        gid = f"tip{len(self._tips)}"
        artist.set_gid(gid)
        self._tips[gid] = tips

    def to_svg(self, standalone: bool = False) -> str:
        """SVG text for a page; `standalone` for a file that has no page to take its colours from."""
        with chart_style():
            return figure_to_svg(self.figure, self.title, self._tips, standalone)


def figure_to_svg(
    figure: Figure, title: str, tips: Mapping[str, Sequence[str]] | None = None, standalone: bool = False
) -> str:
    """SVG text of a figure drawn in `chart_style`; `tips` are hover texts of artists by their gid."""
    file = io.StringIO()
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set_visible(False)  # the page is the background
    figure.savefig(file, format="svg", metadata={"Date": None})
    text = _NOT_XML.sub(lambda char: char[0].encode("unicode_escape").decode(), file.getvalue())
    root = ElementTree.fromstring(text)
    markers = {path.get("id", ""): path.get("d", "") for path in root.iter(f"{_SVG}path") if path.get("id")}
    width, height = root.get("viewBox", "0 0 1 1").split()[2:]
    content = _render(_iter_marks(root, tips or {}, markers))
    opening = svg_open_tag(float(width), float(height), title)
    if standalone:
        size = f'<svg class="chart" width="{width}" height="{height}" '
        opening = opening.replace("<svg ", size, 1) + f"<style>{_STANDALONE_STYLE}</style>"
    return f"{opening}{content}</svg>"


_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # characters that names may have
_MIN_SHARED = 3  # consecutive marks of one style that are worth a group of their own


class _Mark(NamedTuple):
    """An element of the picture: its tag and attributes, its style, its content, and its hover text."""

    tag: str
    attributes: str
    style: str
    content: str = ""
    tip: str = ""

    def to_xml(self, with_style: bool = True) -> str:
        style = f' style="{self.style}"' if self.style and with_style else ""
        content = (f"<title>{escape(self.tip)}</title>" if self.tip else "") + self.content
        return f"<{self.tag}{self.attributes}{style}" + (f">{content}</{self.tag}>" if content else "/>")


def _render(marks: Iterable[_Mark]) -> str:
    parts = []
    for style, run in groupby(marks, key=lambda mark: mark.style):
        same = list(run)
        is_shared = bool(style) and len(same) >= _MIN_SHARED
        inside = "".join(mark.to_xml(with_style=not is_shared) for mark in same)
        parts.append(f'<g style="{style}">{inside}</g>' if is_shared else inside)
    return "".join(parts)


def _iter_marks(
    node: ElementTree.Element, tips: Mapping[str, Sequence[str]], markers: Mapping[str, str]
) -> Iterator[_Mark]:
    """Yield the marks drawn by matplotlib, without ids, definitions and clips (the only use of ids)."""
    for child in node:
        tag, own = child.tag.removeprefix(_SVG), tips.get(child.get("id", ""), ())
        if tag == "g":
            inside = list(_iter_marks(child, tips, markers))
            if len(own) == 1:
                yield _Mark("g", "", "", _render(inside), own[0])
            elif own:
                yield from (mark._replace(tip=tip) for mark, tip in zip(inside, own, strict=True))
            else:
                yield from inside
        elif tag == "path":
            yield _Mark("path", f' d="{_compact_path(child.get("d", ""))}"', _shape_style(child))
        elif tag == "use":
            yield _used_marker(child, markers[child.get(_HREF, "#")[1:]])
        elif tag == "text":
            yield _text_mark(child)


def _used_marker(node: ElementTree.Element, path: str) -> _Mark:
    """A marker at its place; the only one with curves is the circle, which begins below its centre."""
    x, y = (_round(node.get(name, "0")) for name in "xy")
    if "C" in path:
        radius = _round(path.split()[2])
        return _Mark("circle", f' cx="{x}" cy="{y}" r="{radius}"', _shape_style(node))
    return _Mark("path", f' transform="translate({x} {y})" d="{_compact_path(path)}"', _shape_style(node))


def _text_mark(node: ElementTree.Element) -> _Mark:
    style = _declarations(node)
    colour, size = style.get("fill", INK), style.get("font-size", "13px")
    css_class = "tick" if colour == SOFT else "strong" if style.get("font-weight") in ("bold", "600", "700") else ""
    own = [] if colour in (INK, SOFT) else [f"fill:{colour}"]
    own += [f"font-size:{size}"] if size != ("12px" if css_class == "tick" else "13px") else []
    own += [f"opacity:{style['opacity']}"] if "opacity" in style else []
    turned = node.get("transform", "")
    attributes = f' class="{css_class}"' if css_class else ""
    attributes += f' x="{_round(node.get("x", "0"))}" y="{_round(node.get("y", "0"))}"'
    if style.get("text-anchor", "start") != "start":
        attributes += f' text-anchor="{style["text-anchor"]}"'
    if turned and not turned.startswith("rotate(-0 "):
        attributes += f' transform="{_NUMBER.sub(lambda number: _round(number[0]), turned)}"'
    return _Mark("text", attributes, ";".join(own), escape(node.text or ""))


def _declarations(node: ElementTree.Element) -> dict[str, str]:
    pairs = (part.split(":", 1) for part in node.get("style", "").split(";") if ":" in part)
    return {name.strip(): value.strip() for name, value in pairs}


def _shape_style(node: ElementTree.Element) -> str:
    return ";".join(f"{name}:{_PAGE_COLOURS.get(value, value)}" for name, value in _declarations(node).items())


_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def _round(number: str) -> str:
    """
    >>> _round("12.345678"), _round("-0.001"), _round("3.0")
    ('12.35', '0', '3')
    """
    return f"{round(float(number), 2) + 0.0:g}" if abs(float(number)) < 1e4 else f"{float(number):.0f}"


def _compact_path(path: str) -> str:
    """A path with rounded numbers, without spaces around letters and without the L that follows from M or L.

    >>> _compact_path("M 250.123456 10 L 700 10.5 L 700 20 C 1 2 3 4 5 6 L 7 8 z")
    'M250.12 10 700 10.5 700 20C1 2 3 4 5 6L7 8z'
    """
    parts, command = [], ""
    for part in path.split():
        if not part.isalpha():
            parts.append(_round(part))
        elif part != "L" or command not in ("M", "L"):
            parts.append(part)
        command = part if part.isalpha() else command
    return re.sub(r" ?([A-Za-z]) ?", r"\1", " ".join(parts))


def svg_open_tag(width: float, height: float, title: str) -> str:
    """The opening tag of an SVG with its text alternative."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>'
    )


def truncate_label(name: str, max_length: int = 34) -> str:
    """A name cut to at most `max_length` characters, all of which can be drawn.

    >>> truncate_label("arcface(s=64, m=0.5)", 8)
    'arcface…'
    """
    name = escape_unprintable(name)
    return name if len(name) <= max_length else name[: max_length - 1] + "…"


def truncate_label_middle(name: str, max_length: int) -> str:
    """A name shortened in the middle, for names that may begin alike.

    >>> truncate_label_middle("a long name of a run, held out", 17)
    'a long n…held out'
    """
    name, half = escape_unprintable(name), (max_length - 1) // 2
    return name if len(name) <= max_length else f"{name[: max_length - 1 - half]}…{name[-half:]}"


def tick_values(low: float, high: float, target_count: int = 6) -> list[float]:
    """Round numbers between `low` and `high`.

    >>> tick_values(92.3, 97.8)
    [93.0, 94.0, 95.0, 96.0, 97.0]
    """
    raw = max(high - low, 1e-9) / target_count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def axis_limits(values: Sequence[float], pad_fraction: float, decimals: int = 2) -> tuple[float, float]:
    """Limits of an axis, padded by a fraction of the range; values that (nearly) agree in `decimals` are centred.

    >>> axis_limits([90.0, 100.0], 0.1), axis_limits([100.0], 0.1), axis_limits([0.5], 0.1, decimals=4)
    ((89.0, 101.0), (99.0, 101.0), (0.49, 0.51))
    """
    low, high, unit = min(values), max(values), 10.0**-decimals
    pad = pad_fraction * (high - low) if high - low > 2 * unit else 100 * unit
    return low - pad, high + pad
