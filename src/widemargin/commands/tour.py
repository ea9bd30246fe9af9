"""`widemargin tour`: the road from squared error to ArcGrad as a page."""

from __future__ import annotations

import argparse
from typing import Any

from ..printable import print_escaped


def add_parser(commands: Any) -> None:
    """The command and its options."""
    parser = commands.add_parser("tour", help="a page that explains the losses one by one, with pictures to move")
    parser.add_argument("--out", default="tour.html", metavar="FILE", help="file to write (default tour.html)")
    parser.add_argument(
        "--train", action="store_true", help="train the gallery's networks again (minutes, needs MNIST)"
    )
    parser.add_argument("--runs", metavar="DIR", help="with --train: folder of the gallery's runs (default runs)")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    parser.add_argument("--json", metavar="FILE", help="with --train: also write where the digits lie")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    import json
    from pathlib import Path

    from ..errors import InputError
    from ..listing import check_suffix, check_writable
    from ..tour.gallery import load_gallery, train_gallery
    from ..tour.page import build_sections, tour_page

    check_writable(check_suffix(options.out, (".html",)))
    if not options.train and (options.json or options.runs or options.data_dir):
        given = "--json" if options.json else "--runs" if options.runs else "--data-dir"
        raise InputError(f"{given} goes with --train, which trains the gallery anew")
    gallery = load_gallery()
    if options.train:
        if options.json:
            check_writable(options.json)
        on_progress = lambda loss: print_escaped(f"training {loss}", to_stderr=True)  # noqa: E731
        gallery = train_gallery(Path(options.runs or "runs"), options.data_dir, on_progress)
        if options.json:
            Path(options.json).write_text(json.dumps(gallery, separators=(",", ":")) + "\n", encoding="utf-8")
    text = tour_page(build_sections(), gallery)
    Path(options.out).write_text(text, encoding="utf-8")
    print_escaped(f"wrote {options.out} ({len(text) / 2**20:.1f} MiB); open it in a browser")
