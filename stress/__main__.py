"""`python -m stress`: faults, bad input and attacks, tried on this machine; exit code 1 if anything was lost."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from widemargin.cli.parser import CommandParser, run_command_line

PROG = "python -m stress"


def build_parser(argv: Sequence[str] | None = None) -> CommandParser:
    """The parser."""
    parser = CommandParser(
        prog=PROG,
        description="Tries faults, bad input and attacks on this machine and says what was lost; 1 if anything was.",
    )
    parser.add_argument("--long", action="store_true", help="as often as docs/reliability.md says; about an hour")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these checks and no others")
    parser.add_argument("--list", action="store_true", help="say which checks there are; run none")
    parser.add_argument("--json", metavar="FILE", help="also write the record to a file, or bring it up to date")
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the checks, print the table; 1 where something did not survive."""
    import json
    from pathlib import Path

    from widemargin.viz.terminal import check_writable

    from .check import load_checks
    from .run import print_list, print_results, read_record_lines, record, run_checks, select_checks

    if options.list:
        print_list(load_checks(options.only))
        return 0
    checks = select_checks(options.only, options.long)
    if options.json:
        check_writable(options.json)  # before the work, not after
    previous_lines = read_record_lines(Path(options.json), options.long) if options.json and options.only else []

    def on_progress(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    done = []
    for one in run_checks(checks, options.long, on_progress):
        done.append(one)
        on_progress(f"{one.check.name}: {one.outcome.survived} of {one.outcome.tried} survived in {one.seconds:.1f} s")
        if options.json:  # after every check: an hour of work shall not hang on the last one
            found = record(done, options.long, previous_lines)
            Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print_results(done)
    return 0 if all(one.outcome.has_passed for one in done) else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks and return the exit code."""
    return run_command_line(build_parser, argv, PROG)


if __name__ == "__main__":
    sys.exit(main())
