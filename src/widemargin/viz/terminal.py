"""Theory and wide tables in the terminal, and the checks of a file name before something is written to it."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..io.errors import InputError
from ..io.text import escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def console(width: int = 120) -> Console:
    """A console that does not fold tables when its output goes to a file or a pipe, which take `width` columns."""
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # the command's own handler knows what to do

    return Screen() if sys.stdout.isatty() else Screen(width=width)


def plain_text(text: str, style: str = "") -> Text:
    """Untrusted text for a table: neither markup nor escape sequences in it take effect."""
    from rich.text import Text

    return Text(escape_unprintable(text), style=style)


_MIN_COLUMN_WIDTH = 6  # of a head that is folded
_COLUMN_FRAME = 3  # a line and two spaces
_MAX_FOLDED_NAME_WIDTH = 22  # of the first column, where a table is wider than the screen


def print_in_blocks(title: Text, head: Sequence[Text], sections: Sequence[Sequence[Sequence[Text]]]) -> None:
    """Print a table whose columns do not fit one beside the other in blocks, each with the first column.

    Args:
        title: text above the table.
        head: heads of the columns; long ones are folded.
        sections: rows of cells, separated by a line; a row may have fewer cells than there are columns.
    """
    from rich.table import Table

    rows = [row for section in sections for row in section]
    cells = [max((row[k].cell_len for row in rows if k < len(row)), default=0) for k in range(len(head))]
    widths = [max(width, text.cell_len) for width, text in zip(cells, head, strict=True)]
    total = sum(widths) + _COLUMN_FRAME * len(widths) + 1
    out = console(max(120, total))
    room, first = out.width - 1 - _COLUMN_FRAME, widths[0]
    if total > out.width:
        widths = [max(width, _min_head_width(text)) for width, text in zip(cells, head, strict=True)]
        first = min(widths[0], _MAX_FOLDED_NAME_WIDTH, room // 2)
    for block, columns in enumerate(_column_blocks(widths[1:], room - first)):
        table = Table(title=title if block == 0 else None, title_justify="left", title_style="bold")
        table.add_column(head[0], overflow="fold", max_width=first)
        for k in columns:
            table.add_column(head[k], justify="right", overflow="fold", width=min(widths[k], room - first))
        for section in sections:
            table.add_section()
            for row in section:
                if len(row) > columns[0]:  # else the block has nothing of it
                    table.add_row(row[0], *(row[k] if k < len(row) else "" for k in columns))
        out.print(table)


def _min_head_width(text: Text) -> int:
    """A head such as arcface(s=64, m=0.5) may be folded between words, but not to a few letters."""
    longest = max(len(word) for word in text.plain.split(" "))
    return min(text.cell_len, max(_MIN_COLUMN_WIDTH, longest))


def _column_blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """Numbers of the columns (from 1 on) of every block, as many in each as there is room for.

    >>> _column_blocks([10, 10, 10], 30), _column_blocks([10, 10, 10], 5)
    ([[1, 2], [3]], [[1], [2], [3]])
    """
    blocks: list[list[int]] = [[]]
    left = room
    for k, width in enumerate(widths, 1):
        if blocks[-1] and left < width + _COLUMN_FRAME:
            blocks.append([])
            left = room
        blocks[-1].append(k)
        left -= width + _COLUMN_FRAME
    return blocks


def print_theory(num_classes: int, scales: list[float], gaps: list[float]) -> None:
    """Print the gap of each scale and the scale of each gap (Eq. 19), usual values of both when none is given; advice.

    The advice is for the gaps that are given, or else for the usual one.
    """
    import warnings

    from rich.table import Table

    from ..theory import SCALE_EVIDENCE, USUAL_GAP, gap_gradient, scale_advice, suggest_scale, theoretical_gap

    wanted_gaps = gaps or [USUAL_GAP]
    if not scales and not gaps:
        gaps = [0.1, 0.3, 0.5, 1.0, math.pi / 2]
        scales = [s for s in (1.0, 5.0, 10.0, 30.0, 64.0) if s >= suggest_scale(num_classes, math.pi)]
    title = f"ArcGrad's scale against the angular gap for {num_classes} classes (Eq. 19)"
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("given", "scale s", "gap (rad)", "gap (°)", "gradient there"):
        table.add_column(column, justify="right")
    notes = []
    rows = [("s", s) for s in scales] + [("gap", g) for g in gaps]
    for given, value in rows:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            s, gap = (
                (value, theoretical_gap(num_classes, value))
                if given == "s"
                else (suggest_scale(num_classes, value), value)
            )
        notes += [str(warning.message) for warning in caught]
        steepness = gap_gradient(gap, s, num_classes)
        table.add_row(given, f"{s:.4g}", f"{gap:.4f}", f"{math.degrees(gap):.1f}°", f"{steepness:.3g}")
    out = console()
    out.print(table)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # noted above
        for gap in wanted_gaps:
            out.print(scale_advice(num_classes, gap), style="bold", highlight=False)
    out.print(SCALE_EVIDENCE, style="dim", highlight=False)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def check_writable(path: str) -> None:
    """Raise InputError if no file can be written at `path`; called before the work for it is done."""
    place = Path(path).absolute()
    if not place.parent.is_dir():
        raise InputError(f"{path}: the folder does not exist")
    if place.is_dir() or not os.access(place if place.exists() else place.parent, os.W_OK):
        raise InputError(f"{path}: cannot be written")


def check_suffix(path: str, allowed: tuple[str, ...]) -> str:
    """Returns `path`; InputError if its suffix is not one of `allowed`."""
    if not path.lower().endswith(allowed):
        raise InputError(f"{path or 'an empty name'}: the file must end in {', '.join(allowed)}")
    return path
