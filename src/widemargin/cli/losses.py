"""`widemargin losses`, `curves`, `theory`, `suggest`: the losses, their curves, which scale, and which loss to try."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from ..io.text import print_escaped
from ..viz.loss_listing import GROUP_NAMES


def add_losses_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("name", nargs="*", help="losses to describe, by name, alias or loss string")
    parser.add_argument("--group", choices=GROUP_NAMES, metavar="NAME", help=f"one of {', '.join(GROUP_NAMES)}")
    parser.add_argument("--format", choices=("text", "md", "json"), default="text", help="output format (default text)")
    parser.set_defaults(run=_run_losses)


def _run_losses(options: argparse.Namespace) -> None:
    from ..viz.loss_listing import print_losses

    print_losses(options.name, options.format, options.group)


def add_curves_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--losses", help='a list such as "arcface(m=0.3), arcgrad(s=5)"; default: all')
    parser.add_argument("--num-classes", type=int, default=10, help="number of classes (default 10)")
    parser.add_argument("--out", default="curves.svg", help="file to write: .svg, .png or .pdf (default curves.svg)")
    parser.set_defaults(run=_run_curves)


def _run_curves(options: argparse.Namespace) -> None:
    from ..viz.curves import draw_loss_curves

    path, notes = draw_loss_curves(options.out, options.losses, options.num_classes)
    print_escaped(f"wrote {path}")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def add_theory_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--num-classes", type=int, required=True, help="number of classes")
    parser.add_argument("--scale", type=float, nargs="+", default=[], help="print the gap for each scale")
    parser.add_argument("--gap", type=float, nargs="+", default=[], help="print the scale for each gap in radians")
    parser.set_defaults(run=_run_theory)


def _run_theory(options: argparse.Namespace) -> None:
    from ..viz.terminal import print_theory

    print_theory(options.num_classes, options.scale, options.gap)


def add_suggest_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--num-classes", type=int, required=True, metavar="N", help="classes in training")
    parser.add_argument(
        "--images-per-class", type=float, required=True, metavar="N", help="samples of a class, on average"
    )
    parser.add_argument(
        "--imbalance", type=float, default=1.0, metavar="X", help="largest class over smallest (default 1)"
    )
    parser.add_argument("--open-set", action="store_true", help="classes to recognise are not those in training")
    parser.add_argument("--batch-size", type=int, default=128, metavar="N", help="samples of a step (default 128)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="how to print")
    parser.set_defaults(run=_run_suggest)


def _run_suggest(options: argparse.Namespace) -> None:
    from ..advice import suggest

    found = suggest(
        options.num_classes,
        options.images_per_class,
        imbalance=options.imbalance,
        open_set=options.open_set,
        batch_size=options.batch_size,
    )
    if options.format == "json":
        print(json.dumps([asdict(each) for each in found], indent=2, ensure_ascii=False))
        return
    for each in found:
        settings = "".join(f" --{name.replace('_', '-')} {value}" for name, value in each.settings.items())
        print(f'"{each.loss}"{settings}\n    {each.reason}\n    source: {each.source}')
    print("Compare them on your data: widemargin compare (tables), widemargin train (images).")
