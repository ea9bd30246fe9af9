"""`widemargin losses`: all losses by group, one loss in full, and both as Markdown or JSON."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..io.errors import InputError, spell_option
from ..losses.registry import LOSS_GROUPS
from .terminal import console

if TYPE_CHECKING:
    from rich.console import Console

    from ..losses.base import Loss


GROUP_NAMES = tuple(LOSS_GROUPS)
_MIN_TABLE_WIDTH = 100  # of a screen; on a narrower one each loss is a paragraph


def print_losses(names: Sequence[str] = (), output_format: str = "text", group: str | None = None) -> None:
    """Print the losses by group (all, or those of one), or the full description of those named."""
    from ..losses.describe import describe_loss
    from ..losses.grammar import Sum, parse_list
    from ..losses.registry import list_losses, loss_class

    if names and group is not None:
        raise InputError(f"give names of losses or {spell_option('group')}, not both")
    if names:
        loss_types: list[type[Loss]] = []
        for value in (value for name in names for value in parse_list(name)):
            loss_types += [type(part) for _, part in value.parts] if isinstance(value, Sum) else [type(value)]
    else:
        loss_types = [loss_class(name) for name in list_losses(group=group)]
    pages = [describe_loss(loss_type) for loss_type in loss_types]
    if output_format == "json":
        print(json.dumps(pages, indent=2, ensure_ascii=False))
    elif output_format == "md":
        print("\n".join(map(loss_markdown, pages)))
    elif names:
        for page in pages:
            _print_loss(page)
    else:
        screen = console()
        shown = [key for key in LOSS_GROUPS if any(page["group"] == key for page in pages)]
        for key in shown:
            own = [page for page in pages if page["group"] == key]
            _print_group(screen, f"{key}: {LOSS_GROUPS[key]}", own, with_head=key == shown[0])
        if group is None:
            _print_schedules(screen)
        screen.print(
            "A dash in place of a default: it follows from the classes or from other options. widemargin losses NAME "
            "explains a loss, widemargin losses --group NAME lists a group; widemargin curves and lab draw them.",
            style="dim",
            highlight=False,
        )


def _print_group(screen: Console, title: str, pages: list[dict[str, Any]], with_head: bool) -> None:
    from rich.markup import escape
    from rich.padding import Padding
    from rich.table import Table

    rows = [
        (
            [page["name"], *(f"= {alias}" for alias in page["aliases"])],
            what_it_is(page),
            numbers_to_choose(page) or "–",
            "; ".join(page["state"]) or "–",
            "; ".join(page["needs"]) or "–",
        )
        for page in pages
    ]
    if screen.width < _MIN_TABLE_WIDTH:
        screen.print(f"\n{title}", style="bold", highlight=False)
        for name, what, numbers, state, needs in rows:
            screen.print(f"[bold cyan]{' '.join(name)}[/bold cyan]: {escape(what)}", highlight=False)
            parts = {"numbers": numbers, "state": state, "needs": needs}
            said = [f"{part} {escape(text)}" for part, text in parts.items() if text != "–"]
            if said:
                screen.print(Padding(f"[dim]{'. '.join(said)}[/dim]", (0, 0, 0, 2)), highlight=False)
        return
    # The columns of all groups are equally wide, so that one head serves all tables.
    table = Table(title=title, title_justify="left", title_style="bold", expand=True, show_header=with_head)
    table.add_column("name", style="bold cyan", no_wrap=True, width=18)
    table.add_column("what it is", ratio=8)
    table.add_column("numbers to choose", ratio=6)
    table.add_column("state", ratio=4)
    table.add_column("needs", ratio=4)
    for name, *cells in rows:
        table.add_row("\n".join(name), *map(escape, cells))
    screen.print(table)


def what_it_is(page: dict[str, Any]) -> str:
    """The sentence of a loss without its name."""
    sentence: str = page["sentence"]
    return sentence.partition(": ")[2] or sentence


def numbers_to_choose(page: dict[str, Any]) -> str:
    """The options of a loss and their defaults, without those that are rarely set."""
    shown = {name: option for name, option in page["options"].items() if not option["rarely_set"]}
    return ", ".join(f"{name}={_format_default(option['default'])}" for name, option in shown.items())


def _print_schedules(screen: Console) -> None:
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
    screen.print(table)


def _print_loss(page: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console()
    words = f"{page['kind']}, group {page['group']}, widemargin.{page['class']}"
    out.print(f"\n[bold cyan]{page['name']}[/bold cyan]  [dim]{words}[/dim]")
    out.print(escape(page["sentence"]))
    out.print()
    # Lines of one paragraph are joined, so that any width folds them well.
    for paragraph in re.split(r"\n(?=[A-Z]\w+:|`)", page["body"]):
        out.print(escape(" ".join(paragraph.split())))
    for word in ("state", "needs"):
        if page[word]:
            out.print(f"{word.capitalize()}: {escape('; '.join(page[word]))}.")
    if page["options"]:
        table = Table()
        for column in ("option", "default", "domain", "meaning", "may also be"):
            table.add_column(column, overflow="fold")
        for name, option in page["options"].items():
            cells = (_format_default(option["default"]), option["domain"], option["meaning"], option["may_be"])
            table.add_row(name, *map(escape, cells))
        out.print(table)
    if page["example"]:
        out.print(escape(page["example"]), style="green", highlight=False)


def loss_markdown(page: dict[str, Any]) -> str:
    """A loss's page in Markdown."""
    also = f" (also `{'`, `'.join(page['aliases'])}`)" if page["aliases"] else ""
    lines = [f"## `{page['name']}`{also}", "", page["sentence"], "", page["body"], "", *state_and_needs(page)]
    if page["options"]:
        lines += [*option_table(page), ""]
    if page["example"]:
        lines += ["```python", page["example"], "```", ""]
    return "\n".join(lines)


def state_and_needs(page: dict[str, Any]) -> list[str]:
    """Return the state and the requirements of a loss as lines of Markdown, if it has any."""
    said = [f"**{word.capitalize()}.** {'; '.join(page[word])}." for word in ("state", "needs") if page[word]]
    return [line for sentence in said for line in (sentence, "")]


def option_table(page: dict[str, Any]) -> list[str]:
    """The options of a loss's page as lines of a Markdown table."""
    lines = ["| option | default | domain | meaning | may also be |", "|---|---|---|---|---|"]
    for name, option in page["options"].items():
        domain = option["domain"].replace("|", "\\|")
        default = _format_default(option["default"])
        lines.append(f"| `{name}` | `{default}` | {domain} | {option['meaning']} | {option['may_be']} |")
    return lines


def _format_default(default: Any) -> str:
    from ..losses.schedule import format_number

    return "–" if default is None else format_number(default)
