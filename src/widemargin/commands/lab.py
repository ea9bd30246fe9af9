"""`widemargin lab`: a page on which losses are chosen and their numbers moved."""

from __future__ import annotations

import argparse
from typing import Any

from ..printable import print_escaped


def add_parser(commands: Any) -> None:
    """The command and its options."""
    parser = commands.add_parser("lab", help="a page to play with every margin: curves, regions, which s")
    parser.add_argument("--out", default="lab.html", metavar="FILE", help="file to write (default lab.html)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from pathlib import Path

    from ..lab.curves import compute_lab_data
    from ..lab.film import compute_film_frames
    from ..lab.page import lab_page
    from ..listing import check_suffix, check_writable

    check_writable(check_suffix(options.out, (".html",)))
    text = lab_page(compute_lab_data(), compute_film_frames())
    Path(options.out).write_text(text, encoding="utf-8")
    print_escaped(f"wrote {options.out} ({len(text) / 2**20:.1f} MiB); open it in a browser")
