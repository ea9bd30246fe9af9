"""The command: parses, calls, prints. Thin, and without torch until a job needs it."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from . import __version__
from .commands import (
    bench_coverage,
    bench_head,
    bench_pages,
    bench_retrieval,
    bench_train,
    compare,
    evaluate,
    hand_over,
    lab,
    report,
    reproduce,
    selftest,
    tabular,
    tour,
    train,
)
from .errors import InputError, StoppedError, one_line, shorten
from .printable import plain_warnings, print_escaped

SHELLS = ("bash", "zsh", "tcsh")
_OUT_OF_MEMORY_PATTERN = re.compile("can't allocate memory|out of memory|not enough memory")
_OUT_OF_MEMORY_MESSAGE = (
    "out of memory; take a smaller --batch-size or --input-size, fewer --jobs, or a sample of the rows"
)


class _HelpFormatter(argparse.HelpFormatter):
    """Help texts as they stand: argparse would take a percent sign in them for a format."""

    def _expand_help(self, action: argparse.Action) -> str:
        return action.help or ""


class _Parser(argparse.ArgumentParser):
    """One line for a mistake, with the nearest thing that exists, and exit code 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["allow_abbrev"] = False
        kwargs["formatter_class"] = _HelpFormatter
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        found = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if found:
            near = get_close_matches(found[1], re.findall(r"\w+", found[2]), n=1)
            message += f"; did you mean {near[0]!r}?" if near else ""
        self.exit(2, one_line(f"{self.prog}: {message} (see {self.prog} --help)") + "\n")

    def all_actions(self) -> list[argparse.Action]:
        """Every argument of this parser and of the commands below it."""
        found: list[argparse.Action] = []
        for action in self._actions:
            found.append(action)
            if isinstance(action, argparse._SubParsersAction):
                found += [inner for sub in action.choices.values() for inner in sub.all_actions()]
        return found

    def subparser_for(self, words: Sequence[str]) -> _Parser:
        """The parser of the command that the words name, as far down as they go."""
        found = self
        for word in words:
            below = next((a for a in found._actions if isinstance(a, argparse._SubParsersAction)), None)
            if below is not None and word in below.choices:
                found = below.choices[word]
        return found

    def all_option_strings(self) -> list[str]:
        """Every option name of this parser and of the commands below it."""
        return [name for action in self.all_actions() for name in action.option_strings]


def build_parser() -> _Parser:
    """All commands and options."""
    top = _Parser(
        prog="widemargin",
        description="Large-margin classification and metric learning on PyTorch.",
        epilog="Every option may be written with - or _. Losses are written like arcface(s=64, m=0.5) + 0.02*center.",
    )
    top.add_argument("--version", action="version", version=f"widemargin {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for command in (compare, train, evaluate, hand_over, reproduce, lab, tour, report, selftest):
        command.add(commands)

    losses = commands.add_parser("losses", help="list all losses, or explain one")
    losses.add_argument("name", nargs="*", help="explain these: names, aliases or full spellings")
    losses.add_argument("--format", choices=("text", "md", "json"), default="text", help="how to print")
    losses.set_defaults(run=_run_losses)

    curves = commands.add_parser("curves", help="draw what every loss does with an angle")
    curves.add_argument("--losses", help='a list such as "arcface(m=0.3), arcgrad(s=5)"; all of them by default')
    curves.add_argument("--classes", type=int, default=10, help="number of classes (default 10)")
    curves.add_argument("--out", default="curves.svg", help="file to write: .svg, .png or .pdf (default curves.svg)")
    curves.set_defaults(run=_run_curves)

    theory = commands.add_parser("theory", help="scale against gap: which s for my number of classes?")
    theory.add_argument("--classes", type=int, required=True, help="number of classes")
    theory.add_argument("--scale", type=float, nargs="+", default=[], help="print the gap that this scale asks for")
    theory.add_argument("--gap", type=float, nargs="+", default=[], help="print the scale for this gap in radians")
    theory.set_defaults(run=_run_theory)

    bench = commands.add_parser("bench", help="benchmarks against peers, in one run")
    which = bench.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True, parser_class=_Parser)
    numerics = which.add_parser("numerics", help="gradient errors against fp64, and what is finite")
    numerics.add_argument("--losses", help="which of our margins; all of them by default")
    numerics.add_argument("--road", choices=("dense", "stream"), default="dense", help="road of our heads")
    numerics.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    numerics.set_defaults(run=_run_bench_numerics)
    crossval = which.add_parser("crossval", help="time per fit against plain PyTorch and scikit-learn")
    crossval.add_argument("--sets", help="names of sets, with commas (default iris)")
    crossval.add_argument("--epochs", type=float, default=60.0, help="epochs of every fit (default 60)")
    crossval.add_argument("--fits", type=int, default=5, help="fits of the peers (default 5; ours are 100)")
    tabular.add_data_options(crossval)
    crossval.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    crossval.set_defaults(run=_run_bench_crossval)
    protocol = which.add_parser("protocol", help="how compare's one protocol was chosen, on inner folds")
    tabular.add_data_options(protocol)
    protocol.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    protocol.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    protocol.set_defaults(run=_run_bench_protocol)
    bench_coverage.add_parser(which)
    bench_head.add_parser(which)
    bench_pages.add_parser(which)
    bench_retrieval.add_parser(which)
    bench_train.add_parser(which)

    completion = commands.add_parser("completion", help="print a completion script for your shell")
    completion.add_argument("shell", choices=SHELLS, help='for bash: eval "$(widemargin completion bash)"')
    completion.set_defaults(run=_run_completion)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when all went well, 1 when a selftest found something, 2 for a mistake of the user's.

    75 is for a run that was asked to stop.
    """
    words = [normalize_flag(word) for word in (sys.argv[1:] if argv is None else argv)]
    top = build_parser()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without θ and ° gets a ? and no traceback
            stream.reconfigure(errors="replace")
    try:
        subparser = top.subparser_for(words)
        for word in words:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in subparser.all_option_strings():
                near = get_close_matches(name[2:], [option[2:] for option in subparser.all_option_strings()], n=1)
                subparser.error(f"unknown option {shorten(name)}" + (f"; did you mean --{near[0]}?" if near else ""))
        options, unknown = top.parse_known_args(words)
        if unknown:
            top.error(f"unknown argument {shorten(unknown[0])!r} at this place")
        if options.command is None:
            top.print_help()
            return 0
        options.words = words
        with plain_warnings():
            code = options.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except InputError as error:
        _print_error(str(error))
        return 2
    except StoppedError as error:
        _print_error(str(error))
        return error.exit_code
    except MemoryError:
        _print_error(_OUT_OF_MEMORY_MESSAGE)
        return 2
    except RuntimeError as error:
        if not _OUT_OF_MEMORY_PATTERN.search(str(error)):  # torch has no error of its own for this
            raise
        _print_error(_OUT_OF_MEMORY_MESSAGE)
        return 2
    except BrokenPipeError:  # the reader left, as `| head` does
        _silence_output()
        return 0
    except OSError as error:
        if error.filename is not None:
            _print_error(f"{shorten(str(error.filename), 300)}: cannot be used ({error.strerror or error})")
        else:
            _print_error(f"cannot write the output: {error.strerror or error}")
            _silence_output()
        return 2
    except KeyboardInterrupt:
        _print_error("interrupted; what was done is kept, the same command goes on")
        return 130


def _print_error(text: str) -> None:
    """The one line of an error: printable and never long, whatever stands in the input that it quotes."""
    print(one_line(f"widemargin: {text}"), file=sys.stderr)


def _silence_output() -> None:
    """Python flushes standard output once more when it ends: let that go nowhere."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def normalize_flag(word: str) -> str:
    """`--data_set=a_b` → `--data-set=a_b`: options are accepted with - or _."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _run_losses(options: argparse.Namespace) -> None:
    from .listing import print_losses

    print_losses(options.name, options.format)


def _run_curves(options: argparse.Namespace) -> None:
    from .curves import draw_loss_curves

    path, notes = draw_loss_curves(options.out, options.losses, options.classes)
    print_escaped(f"wrote {path}")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def _run_theory(options: argparse.Namespace) -> None:
    from .listing import print_theory

    print_theory(options.classes, options.scale, options.gap)


def _run_bench_numerics(options: argparse.Namespace) -> None:
    from .bench.table import print_numerics

    print_numerics(options.losses, options.road, options.json)


def _run_bench_crossval(options: argparse.Namespace) -> None:
    from .bench.crossval import print_crossval

    print_crossval(options.sets, options.data_dir, options.epochs, options.fits, options.json)


def _run_bench_protocol(options: argparse.Namespace) -> None:
    from .bench.protocol import print_candidates

    print_candidates(options.data_dir, options.jobs, options.json)


def _run_completion(options: argparse.Namespace) -> None:
    import shtab

    from .catalogue import losses

    top = build_parser()
    for action in top.all_actions():
        if action.dest in ("out", "json"):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.dest == "name":
            action.choices = losses()
    print(shtab.complete(top, shell=options.shell))


if __name__ == "__main__":
    sys.exit(main())
