"""Losses, theory and wide tables in the terminal, and the checks of a file name before something is written to it."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..io.errors import InputError
from ..io.text import escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ..losses.base import Loss, Option


FAMILY_TITLES = {
    "margins": "Margins: cross-entropy with a margin, head(x, y)",
    "pairs": "Losses on embeddings: added to a margin; contrastive and triplet also alone",
    "classical": "Classical: what they grew out of",
}


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
        title: what stands above it.
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


def describe_loss(loss_type: type[Loss]) -> dict[str, Any]:
    """Name, docstring parts, reference and options of a loss, all read from its file."""
    text = inspect.getdoc(sys.modules[loss_type.__module__]) or ""
    head, _, example = text.partition("\n>>> ")
    sentence, _, body = head.partition("\n\n")
    return {
        "name": loss_type.name,
        "class": loss_type.__name__,
        "kind": loss_type.kind,
        "aliases": list(loss_type.aliases),
        "sentence": " ".join(sentence.split()),
        "body": body.strip(),
        "example": ">>> " + example.strip() if example else "",
        "reference": loss_type.reference,
        "default": repr(loss_type()),
        "options": {
            name: {
                "default": _json_default(default),
                "domain": rule.domain(),
                "meaning": rule.meaning,
                "may_be": _format_also_accepts(rule),
            }
            for name, (rule, default) in loss_type.options().items()
        },
    }


def _json_default(default: Any) -> Any:
    return default if default is None or isinstance(default, bool | int | float | str) else repr(default)


def print_losses(names: list[str], output_format: str) -> None:
    """Print a table of all losses, or the full description of those named."""
    from ..losses.grammar import Sum, parse_list
    from ..losses.registry import LOSS_FAMILIES, list_losses, loss_class

    if names:
        loss_types: list[type[Loss]] = []
        for value in (value for name in names for value in parse_list(name)):
            loss_types += [type(part) for _, part in value.parts] if isinstance(value, Sum) else [type(value)]
    else:
        loss_types = [loss_class(name) for name in list_losses()]
    if output_format == "json":
        print(json.dumps([describe_loss(kind) for kind in loss_types], indent=2, ensure_ascii=False))
    elif output_format == "md":
        print("\n".join(loss_markdown(kind) for kind in loss_types))
    elif names:
        for loss_type in loss_types:
            _print_loss(loss_type)
    else:
        for family in LOSS_FAMILIES:
            _print_family(FAMILY_TITLES[family], [loss_class(name) for name in list_losses(family)])
        _print_schedules()
        console().print("[dim]widemargin losses NAME explains one; widemargin curves draws them all[/dim]")


def loss_markdown(loss_type: type[Loss]) -> str:
    """A loss's page in Markdown."""
    facts = describe_loss(loss_type)
    also = f" (also `{'`, `'.join(facts['aliases'])}`)" if facts["aliases"] else ""
    lines = [f"## `{facts['name']}`{also}", "", facts["sentence"], "", facts["body"], ""]
    if facts["options"]:
        lines += [*option_table(facts), ""]
    if facts["example"]:
        lines += ["```python", facts["example"], "```", ""]
    return "\n".join(lines)


def option_table(facts: dict[str, Any]) -> list[str]:
    """The options of a loss's page as lines of a Markdown table."""
    lines = ["| option | default | domain | meaning | may also be |", "|---|---|---|---|---|"]
    for name, option in facts["options"].items():
        domain = option["domain"].replace("|", "\\|")
        default = _format_default(option["default"])
        lines.append(f"| `{name}` | `{default}` | {domain} | {option['meaning']} | {option['may_be']} |")
    return lines


def _print_family(title: str, loss_types: list[type[Loss]]) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", expand=True)
    table.add_column("name", style="bold cyan", no_wrap=True)
    table.add_column("options and defaults", ratio=2, overflow="fold")
    table.add_column("what it is", ratio=4, overflow="fold")
    for loss_type in loss_types:
        facts = describe_loss(loss_type)
        name = "\n".join([facts["name"], *(f"= {alias}" for alias in facts["aliases"])])
        chosen = ", ".join(f"{key}={_format_default(option['default'])}" for key, option in facts["options"].items())
        table.add_row(name, chosen or "–", facts["sentence"].partition(": ")[2] or facts["sentence"])
    console().print(table)


def _print_schedules() -> None:
    from rich.table import Table

    from ..losses.schedule import SCHEDULES

    title = "Schedules: numbers that move, as in arcface(m=warmup(0, 0.5, steps=1000))"
    table = Table(title=title, title_justify="left", title_style="bold", expand=True)
    table.add_column("name", style="bold cyan", no_wrap=True)
    table.add_column("numbers", ratio=2, overflow="fold")
    table.add_column("what it is", ratio=4, overflow="fold")
    for name, kind in SCHEDULES.items():
        sentence = (inspect.getdoc(kind) or "").partition("\n\n")[0]
        table.add_row(name, ", ".join(spec.name for spec in fields(kind)), " ".join(sentence.split()))
    console().print(table)


def _format_default(default: Any) -> str:
    from ..losses.schedule import format_number

    return "–" if default is None else format_number(default)


def _format_also_accepts(rule: Option) -> str:
    kinds = {"a schedule": rule.allows_schedule, "learnable": rule.allows_learnable, "one per class": rule.per_class}
    return ", ".join(kind for kind, possible in kinds.items() if possible)


def _print_loss(loss_type: type[Loss]) -> None:
    from rich.markup import escape
    from rich.table import Table

    facts = describe_loss(loss_type)
    out = console()
    out.print(f"\n[bold cyan]{facts['name']}[/bold cyan]  [dim]{facts['kind']}, widemargin.{facts['class']}[/dim]")
    out.print(escape(facts["sentence"]))
    out.print()
    # Lines of one paragraph are joined, so that any width folds them well.
    for paragraph in re.split(r"\n(?=[A-Z]\w+:|`)", facts["body"]):
        out.print(escape(" ".join(paragraph.split())))
    if facts["options"]:
        table = Table()
        for column in ("option", "default", "domain", "meaning", "may also be"):
            table.add_column(column, overflow="fold")
        for name, option in facts["options"].items():
            cells = (_format_default(option["default"]), option["domain"], option["meaning"], option["may_be"])
            table.add_row(name, *map(escape, cells))
        out.print(table)
    if facts["example"]:
        out.print(escape(facts["example"]), style="green", highlight=False)


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
