"""`widemargin losses`, `curves` and `theory`: descriptions of the losses, their curves, and which scale to use."""

from __future__ import annotations

import argparse
import sys

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
