"""`widemargin calibrate`, `gallery` and `identify`: thresholds of a run, enrolled identities, who is on a picture."""

from __future__ import annotations

import argparse
from typing import Any

from ..io.text import print_escaped
from .evaluate import print_checkpoint_note


def add_calibrate_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("folder", metavar="RUN", help="run folder, or a folder written by export --hub")
    parser.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    parser.add_argument(
        "--images",
        metavar="PATH",
        help="identities the run never trained on: folder per identity, or index file (default: its unseen classes)",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    parser.set_defaults(run=run_calibrate)


def add_gallery_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="make a gallery with a model, and enrol images")
    create.add_argument("gallery", metavar="GALLERY", help="folder to make")
    create.add_argument("images", metavar="IMAGES", help="a folder per identity, or an index file")
    create.add_argument("--model", required=True, metavar="RUN", help="run folder, or a folder written by export --hub")
    create.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    create.add_argument(
        "--reduce",
        choices=("best", "mean"),
        default="best",
        help="compare with the nearest image of an identity, or with the mean of its images (default best)",
    )
    add = actions.add_parser("add", help="enrol more images")
    add.add_argument("gallery", metavar="GALLERY", help="folder of the gallery")
    add.add_argument("images", metavar="IMAGES", help="a folder per identity, an index file, or with --identity images")
    add.add_argument("more", nargs="*", metavar="IMAGE", help="with --identity: more images")
    add.add_argument("--identity", metavar="NAME", help="enrol the images under this name")
    for command in (create, add):
        command.add_argument(
            "--on-bad-image", choices=("stop", "skip"), default="stop", help="at an unreadable file (default stop)"
        )
        command.add_argument("--no-pictures", action="store_true", help="keep vectors only")
    remove = actions.add_parser("remove", help="remove an identity, or one of its images, and every trace of it")
    remove.add_argument("gallery", metavar="GALLERY", help="folder of the gallery")
    remove.add_argument("identity", metavar="NAME", help="identity")
    remove.add_argument("--image", metavar="FILE", help="only this image, named as gallery list --images prints it")
    show = actions.add_parser("list", help="list the identities")
    show.add_argument("gallery", metavar="GALLERY", help="folder of the gallery")
    show.add_argument("--images", action="store_true", help="a line per image")
    check = actions.add_parser("check", help="check the files, and rank images that look mislabelled or foreign")
    check.add_argument("gallery", metavar="GALLERY", help="folder of the gallery")
    check.add_argument("--top", type=int, default=20, metavar="N", help="images to list (default 20)")
    check.add_argument("--out", metavar="FILE", help="write a page with their pictures")
    parser.set_defaults(run=run_gallery)


def add_identify_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("gallery", metavar="GALLERY", help="folder of the gallery")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files, or folders of them")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="identities to list for each image (default 5)")
    parser.add_argument("--threshold", type=float, metavar="COS", help="accept from this cosine on")
    parser.add_argument(
        "--target-far",
        type=float,
        metavar="P",
        help="rate at which an unknown person may be accepted (default 0.01, or the smallest calibrated rate above it)",
    )
    parser.add_argument(
        "--search", choices=("exact", "faiss", "usearch"), default="exact", help="search library (default exact)"
    )
    parser.add_argument("--out", metavar="FILE", help="write all matches to a .csv or .json file")
    parser.set_defaults(run=run_identify)


def run_calibrate(options: argparse.Namespace) -> None:
    """Fit, store and print the thresholds."""
    from ..loading import load_run

    found = load_run(options.folder, options.checkpoint).calibrate(options.images, data_dir=options.data_dir)
    for line in found.describe():
        print_escaped(line)
    print_checkpoint_note(options.folder, options.checkpoint)


def run_gallery(options: argparse.Namespace) -> int:
    """Run one of the actions on a gallery."""
    action = {"create": _create, "add": _add, "remove": _remove, "list": _list, "check": _check}[options.action]
    return action(options)


def _create(options: argparse.Namespace) -> int:
    from ..loading import load_run
    from ..recognition.gallery import Gallery

    gallery = Gallery.create(options.gallery, load_run(options.model, options.checkpoint), reduce=options.reduce)
    if gallery.calibration is None:
        print_escaped(
            "the model has no calibration, so identify will need --threshold; widemargin calibrate fits one",
            to_stderr=True,
        )
    return _enrol(gallery, options.images, options)


def _add(options: argparse.Namespace) -> int:
    from ..io.errors import InputError
    from ..loading import load_gallery

    if options.more and options.identity is None:
        raise InputError("gallery add: several images are given without --identity NAME")
    images = options.images if options.identity is None else {options.identity: [options.images, *options.more]}
    return _enrol(load_gallery(options.gallery), images, options)


def _enrol(gallery: Any, images: Any, options: argparse.Namespace) -> int:
    from ..io.progress import progress_bar
    from ..recognition.gallery_images import find_identity_images

    groups = find_identity_images(images)
    with progress_bar("enrolling", sum(len(paths) for paths in groups.values())) as on_progress:
        report = gallery.add(
            groups,
            on_bad_image=options.on_bad_image,
            keep_pictures=not options.no_pictures,
            on_progress=on_progress,
        )
    for note in report.notes:
        print_escaped(note, to_stderr=True)
    people = "1 identity" if report.identities == 1 else f"{report.identities:,} identities"
    print_escaped(f"enrolled {report.added:,} image{'s' if report.added != 1 else ''} of {people}: {gallery!r}")
    return 0


def _remove(options: argparse.Namespace) -> int:
    from ..loading import load_gallery

    gallery = load_gallery(options.gallery)
    count = gallery.remove(options.identity, source=options.image)
    print_escaped(f"removed {count:,} images of {options.identity}: {gallery!r}")
    return 0


def _list(options: argparse.Namespace) -> int:
    from ..loading import load_gallery

    gallery = load_gallery(options.gallery)
    if options.images:
        for entry in gallery.entries:
            print_escaped(f"{entry.identity}\t{entry.source}")
        return 0
    for name, count in gallery.identities.items():
        print_escaped(f"{name}: {count:,} image{'s' if count > 1 else ''}")
    print_escaped(repr(gallery))
    return 0


def _check(options: argparse.Namespace) -> int:
    from ..loading import load_gallery
    from ..recognition.outliers import check_gallery, write_outlier_page

    report = check_gallery(load_gallery(options.gallery))
    for line in (*report.problems, *report.describe(options.top)):
        print_escaped(line)
    if options.out:
        write_outlier_page(options.out, report.outliers[: options.top], f"Gallery {options.gallery}")
        print_escaped(f"wrote {options.out}")
    return 1 if report.problems else 0


def run_identify(options: argparse.Namespace) -> None:
    """Print a line per image, and write all matches on request."""
    from ..loading import load_gallery
    from ..recognition.outliers import check_rows_file, write_rows

    if options.out:
        check_rows_file(options.out)
    gallery = load_gallery(options.gallery)
    gallery.use_backend(options.search)
    found = gallery.identify(
        options.images, top=options.top, threshold=options.threshold, target_far=options.target_far
    )
    if options.search == "usearch":
        print_escaped(f"usearch finds {100 * gallery.index_recall():.1f} % of the nearest images", to_stderr=True)
    for one in found:
        print_escaped(str(one))
    if found and found[0].threshold is not None:
        rate, count = gallery.stranger_rate(found[0].threshold)
        print_escaped(
            f"accepted from cosine {found[0].threshold:.4f} on ({found[0].why}); of {count:,} enrolled images "
            f"{100 * rate:.1f} % would pass as somebody else if their own identity were not enrolled"
        )
    elif found:
        print_escaped("nothing is rejected: the gallery has no calibration; give --threshold", to_stderr=True)
    if options.out:
        write_rows(options.out, [row for one in found for row in one.to_rows()])
        print_escaped(f"wrote {options.out}")
