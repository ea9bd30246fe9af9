"""`widemargin outliers RUN`: training images that look mislabelled or foreign."""

from __future__ import annotations

import argparse

from ..io.text import print_escaped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("folder", metavar="RUN", help="run folder")
    parser.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    parser.add_argument(
        "--score", choices=("gap", "angle", "norm", "subcenter"), default="gap", help="rank by this score (default gap)"
    )
    parser.add_argument("--top", type=int, default=20, metavar="N", help="images to list (default 20)")
    parser.add_argument("--out", metavar="FILE", help="write a page with the pictures of these images")
    parser.add_argument("--csv", metavar="FILE", help="write the scores of all training images to a CSV file")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the most suspicious images, and write them on request."""
    from ..loading import load_run
    from ..recognition.outliers import check_rows_file, describe_scores, write_outlier_page, write_outlier_table
    from ..training.outliers import find_outliers

    if options.csv:
        check_rows_file(options.csv)
    found = find_outliers(load_run(options.folder, options.checkpoint), by=options.score, data_dir=options.data_dir)
    for line in (describe_scores(found), *map(str, found[: options.top])):
        print_escaped(line)
    if options.out:
        write_outlier_page(options.out, found[: options.top], f"Outliers of {options.folder}")
        print_escaped(f"wrote {options.out}")
    if options.csv:
        write_outlier_table(options.csv, found)
        print_escaped(f"wrote {options.csv}")
