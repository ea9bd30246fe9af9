"""`python -m stress`: tests faults, bad input and attacks on this machine; exit code 1 if a test fails."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from widemargin.cli.parser import CommandParser, run_command_line

PROG = "python -m stress"


def build_parser(argv: Sequence[str] | None = None) -> CommandParser:
    """Build the parser."""
    parser = CommandParser(
        prog=PROG,
        description="Tests faults, bad input and attacks on this machine; exit code 1 if a test fails.",
    )
    parser.add_argument("--long", action="store_true", help="repeat as often as in docs/reliability.md; about an hour")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these checks")
    parser.add_argument("--list", action="store_true", help="list the checks without running them")
    parser.add_argument("--json", metavar="FILE", help="also write the record to a file, or update it")
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the checks and print the table; return 1 if a test fails."""
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
        check_writable(options.json)  # before the work
    previous_lines = read_record_lines(Path(options.json), options.long) if options.json and options.only else []

    def on_progress(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    results = []
    for one in run_checks(checks, options.long, on_progress):
        results.append(one)
        on_progress(f"{one.check.name}: {one.outcome.survived} of {one.outcome.tried} passed in {one.seconds:.1f} s")
        if options.json:  # after every check, so that a failure of the last one loses nothing
            new_record = record(results, options.long, previous_lines)
            Path(options.json).write_text(json.dumps(new_record, indent=1) + "\n", encoding="utf-8")
    print_results(results)
    return 0 if all(one.outcome.has_passed for one in results) else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks and return the exit code."""
    return run_command_line(build_parser, argv, PROG)


if __name__ == "__main__":
    sys.exit(main())
