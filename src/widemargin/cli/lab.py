"""`widemargin lab`: an interactive page with the curves of chosen losses and sliders for their options."""

from __future__ import annotations

import argparse

from ..io.text import print_escaped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--out", default="lab.html", metavar="FILE", help="file to write (default lab.html)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from pathlib import Path

    from ..lab.curves import compute_lab_data
    from ..lab.page import compute_film_frames, lab_page
    from ..viz.terminal import check_suffix, check_writable

    check_writable(check_suffix(options.out, (".html",)))
    text = lab_page(compute_lab_data(), compute_film_frames())
    Path(options.out).write_text(text, encoding="utf-8")
    print_escaped(f"wrote {options.out} ({len(text) / 2**20:.1f} MiB); open it in a browser")
