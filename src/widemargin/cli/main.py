"""`widemargin`: parses the command line and runs the command; imports torch only if a command needs it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from .. import __version__
from . import COMMANDS
from .parser import CommandParser, run_command_line, select_subcommands


def build_parser(argv: Sequence[str] | None = None) -> CommandParser:
    """Build the parser of `widemargin`.

    Given a command line, only the options of the requested command are added and only its file is imported; other
    commands have only their help line. Without a command line, or without a known command in it, everything is added.
    """
    top = CommandParser(
        prog="widemargin",
        description="Large-margin classification and metric learning on PyTorch.",
        epilog="Every option may be written with - or _. Losses are written like arcface(s=64, m=0.5) + 0.02*center.",
    )
    top.add_argument("--version", action="version", version=f"widemargin {__version__}")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=CommandParser)
    needed = select_subcommands(COMMANDS, argv)
    for name, (module, summary) in COMMANDS.items():
        parser = subparsers.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if name in needed:
            file = importlib.import_module(f"{__package__}.{module}")
            if name == "reproduce":
                file.add_arguments(parser, argv[argv.index(name) + 1 :] if argv is not None and name in argv else None)
            elif hasattr(file, "add_arguments"):
                file.add_arguments(parser)
            else:  # a file with several commands
                getattr(file, f"add_{name}_arguments")(parser)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return run_command_line(build_parser, argv)


if __name__ == "__main__":
    sys.exit(main())
