"""`widemargin completion`: prints a shell script that completes commands, options and losses."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("shell", choices=SHELLS, help='for bash: eval "$(widemargin completion bash)"')
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the script."""
    import shtab

    from ..losses.registry import list_losses
    from .main import build_parser

    top = build_parser()
    for action in top.all_actions():
        if action.dest in ("out", "json"):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.dest == "name":
            action.choices = list_losses()
    print(shtab.complete(top, shell=options.shell))
