"""`widemargin tour`: a page that explains the losses one by one, from squared error to ArcGrad."""

from __future__ import annotations

import argparse

from ..io.text import print_escaped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--out", default="tour.html", metavar="FILE", help="file to write (default tour.html)")
    parser.add_argument(
        "--train", action="store_true", help="train the gallery's networks again (minutes, needs MNIST)"
    )
    parser.add_argument("--runs-dir", metavar="DIR", help="with --train: folder of the gallery's runs (default runs)")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    parser.add_argument("--json", metavar="FILE", help="with --train: also write the embeddings of the digits")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    import json
    from pathlib import Path

    from ..io.errors import InputError
    from ..tour.gallery import load_gallery, train_gallery
    from ..tour.page import build_sections, tour_page
    from ..viz.terminal import check_suffix, check_writable

    check_writable(check_suffix(options.out, (".html",)))
    if not options.train and (options.json or options.runs_dir or options.data_dir):
        flag = "--json" if options.json else "--runs-dir" if options.runs_dir else "--data-dir"
        raise InputError(f"{flag} requires --train, which trains the gallery again")
    gallery = load_gallery()
    if options.train:
        if options.json:
            check_writable(options.json)
        on_progress = lambda loss: print_escaped(f"training {loss}", to_stderr=True)  # noqa: E731
        gallery = train_gallery(Path(options.runs_dir or "runs"), options.data_dir, on_progress)
        if options.json:
            Path(options.json).write_text(json.dumps(gallery, separators=(",", ":")) + "\n", encoding="utf-8")
    text = tour_page(build_sections(), gallery)
    Path(options.out).write_text(text, encoding="utf-8")
    print_escaped(f"wrote {options.out} ({len(text) / 2**20:.1f} MiB); open it in a browser")
