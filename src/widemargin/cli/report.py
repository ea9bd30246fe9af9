"""`widemargin report RUN …`: a report on one or several runs as HTML, Markdown, PNG or PDF."""

from __future__ import annotations

import argparse

from ..io.text import print_escaped
from .evaluate import DATA_DIR_HELP

_FORMATS = ("html", "md", "png", "pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "folders", nargs="+", metavar="RUN", help="run folders, or a folder that contains some; also of export --hub"
    )
    parser.add_argument("--out", metavar="FILE", help="file to write (default report.html in the run, or here)")
    parser.add_argument("--format", choices=_FORMATS, help="html, md, png or pdf (default: by --out, else html)")
    parser.add_argument(
        "--no-images", action="store_true", help="omit the parts that need the data: mistakes, embeddings"
    )
    parser.add_argument("--data-dir", metavar="DIR", help=DATA_DIR_HELP)
    parser.add_argument("--device", metavar="NAME", help="where the models compute, such as cuda (default cpu)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Write the report and print its path."""
    import shlex

    from ..reproduce.parts.runs import paper_angles
    from ..training.report import report

    written = report(
        options.folders,
        options.out,
        format=options.format,
        images=not options.no_images,
        data_dir=options.data_dir,
        device=options.device,
        command=shlex.join(["widemargin", *options.argv]),
        paper_angles=paper_angles,
    )
    for note in written.notes:
        print_escaped(note, to_stderr=True)
    print_escaped(f"wrote {written.path}")
