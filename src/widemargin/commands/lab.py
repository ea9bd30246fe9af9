"""`widemargin lab`: a page on which losses are chosen and their numbers moved."""

from __future__ import annotations

import argparse
from typing import Any

from ..printable import say


def add(commands: Any) -> None:
    """The command and its options."""
    parser = commands.add_parser("lab", help="a page to play with every margin: curves, regions, which s")
    parser.add_argument("--out", default="lab.html", metavar="FILE", help="file to write (default lab.html)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from pathlib import Path

    from ..lab.curves import everything
    from ..lab.film import film
    from ..lab.page import lab_page
    from ..listing import check_writable, checked_suffix

    check_writable(checked_suffix(options.out, (".html",)))
    text = lab_page(everything(), film())
    Path(options.out).write_text(text, encoding="utf-8")
    say(f"wrote {options.out} ({len(text) / 2**20:.1f} MiB); open it in a browser")
