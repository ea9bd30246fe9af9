"""Argument parsing and exit codes shared by `widemargin`, `python -m benchmarks` and `python -m stress`.

A user error is one line on standard error that names the nearest option or command, and exit code 2.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, NoReturn

from ..io.errors import InputError, StoppedError, option_style, shorten
from ..io.text import normalize_flag, one_line, plain_warnings

_OUT_OF_MEMORY_PATTERN = re.compile("can't allocate memory|out of memory|not enough memory")
_OUT_OF_MEMORY_MESSAGE = (
    "out of memory; use a smaller --batch-size or --input-size, fewer --jobs, or a sample of the rows"
)
_SHORT_OPTION_PATTERN = re.compile("-[A-Za-z_]")
_MAX_COMMANDS_NAMED = 3
_HELP_FLAGS = {"-h", "--help", "--version"}


class _HelpFormatter(argparse.HelpFormatter):
    """Shows help texts unchanged: argparse would interpret a percent sign as a format."""

    def _expand_help(self, action: argparse.Action) -> str:
        return action.help or ""


class CommandParser(argparse.ArgumentParser):
    """Reports an error in one line with the nearest existing name, and exits with code 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["allow_abbrev"] = False
        kwargs["formatter_class"] = _HelpFormatter
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        match = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if match:
            near = get_close_matches(match[1], [name.strip("'") for name in match[2].split(", ")], n=1)
            message += f"; did you mean {near[0]!r}?" if near else ""
        self.exit(2, one_line(f"{self.prog}: {message} (see {self.prog} --help)") + "\n")

    def all_actions(self) -> list[argparse.Action]:
        """Return every argument of this parser and of its subcommands."""
        actions: list[argparse.Action] = []
        for action in self._actions:
            actions.append(action)
            if isinstance(action, argparse._SubParsersAction):
                actions += [inner for sub in action.choices.values() for inner in sub.all_actions()]
        return actions

    def subparser_for(self, words: Sequence[str]) -> CommandParser:
        """Return the parser of the (sub)command that the words name."""
        parser = self
        for word in words:
            below = next((a for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None)
            if below is not None and word in below.choices:
                parser = below.choices[word]
        return parser

    def all_option_strings(self) -> list[str]:
        """Return every option name of this parser and of its subcommands."""
        return [name for action in self.all_actions() for name in action.option_strings]

    def commands_with(self, option: str) -> list[str]:
        """Return the subcommands, as typed, that have an option with this name."""
        commands = []
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, sub in action.choices.items():
                    own = [name] if any(option in inner.option_strings for inner in sub._actions) else []
                    commands += own + [f"{name} {below}" for below in sub.commands_with(option)]
        return commands


def find_unknown_option(words: Iterable[str], known: Sequence[str]) -> str | None:
    """Return the first unknown option among the words; negative numbers and words after `--` are values.

    >>> find_unknown_option(["train", "--lr", "-1", "-lr=3"], ["--lr"]), find_unknown_option(["--", "--x"], ["--lr"])
    ('-lr', None)
    """
    for word in words:
        name = word.partition("=")[0]
        if word == "--":
            return None
        is_option = name.startswith("--") or (_SHORT_OPTION_PATTERN.match(name) and " " not in word)
        if is_option and name not in known:
            return name
    return None


def explain_unknown_option(name: str, parser: CommandParser, build_parser: Callable[..., CommandParser]) -> str:
    """Suggest a replacement for an unknown option: the nearest one of this command, or the commands that have it."""
    plain = name.lstrip("-").lower()
    known = [option[2:] for option in parser.all_option_strings() if option.startswith("--")]
    longer = sorted((option for option in known if plain and option.startswith(plain)), key=len)
    near = longer or get_close_matches(plain, known, n=1)
    hints = [f"did you mean --{near[0]}?"] if near else []
    with suppress(ImportError):  # a benchmark may need a package that is not installed
        elsewhere = build_parser(None).commands_with(f"--{plain}")[:_MAX_COMMANDS_NAMED]
        if elsewhere and plain not in known:
            hints.append(f"{', '.join(elsewhere)} {'has' if len(elsewhere) == 1 else 'have'} --{plain}")
    return "; ".join([f"unknown option {shorten(name)}", *hints])


def select_subcommands(names: Iterable[str], argv: Sequence[str] | None) -> set[str]:
    """Return those of the commands `names` whose options are needed to parse the words `argv`.

    That is the requested command, or none for the help. Without `argv`, or without a known command in it, all are
    returned, so that an error can suggest options of any command.

    >>> select_subcommands(["losses", "train"], ["train", "--lr", "0.1"]), select_subcommands(["losses"], ["--help"])
    ({'train'}, set())
    >>> sorted(select_subcommands(["losses", "train"], ["trian", "--lr", "0.1"]))
    ['losses', 'train']
    """
    if argv is None:
        return set(names)
    typed = {next((word for word in argv if not word.startswith("-")), "")}
    return typed.intersection(names) or (set() if _HELP_FLAGS.issuperset(argv) else set(names))


def run_command_line(
    build_parser: Callable[[Sequence[str] | None], CommandParser],
    argv: Sequence[str] | None = None,
    prog: str = "widemargin",
) -> int:
    """Parse and run a command line of the program `prog`, and return its exit code.

    0 is success, 1 a check that failed, 2 a user error, 75 a run that was stopped by a signal.
    """
    words = [normalize_flag(word) for word in (sys.argv[1:] if argv is None else argv)]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # print ? for characters the terminal cannot encode, such as θ
            stream.reconfigure(errors="replace")
    try:
        top = build_parser(words)
        subparser = top.subparser_for(words)
        name = find_unknown_option(words, subparser.all_option_strings())
        if name is not None:
            subparser.error(explain_unknown_option(name, subparser, build_parser))
        options, unknown = top.parse_known_args(words)
        if unknown:
            hint = "; put a pattern of shards in quotes" if sum(word.endswith(".tar") for word in words) > 1 else ""
            subparser.error(f"unexpected argument {shorten(unknown[0])!r}{hint}")
        if getattr(options, "run", None) is None:
            top.print_help()
            return 0
        options.argv = words
        with plain_warnings(), option_style(command_line=True):
            code = options.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except InputError as error:
        _print_error(prog, str(error))
        return 2
    except StoppedError as error:
        _print_error(prog, str(error))
        return error.exit_code
    except MemoryError:
        _print_error(prog, _OUT_OF_MEMORY_MESSAGE)
        return 2
    except RuntimeError as error:
        if not _OUT_OF_MEMORY_PATTERN.search(str(error)):  # torch has no error type for this
            raise
        _print_error(prog, _OUT_OF_MEMORY_MESSAGE)
        return 2
    except BrokenPipeError:  # the reader closed the pipe, as `| head` does
        _silence_output()
        return 0
    except OSError as error:
        if error.filename is not None:
            _print_error(prog, f"{shorten(str(error.filename), 300)}: cannot be used ({error.strerror or error})")
        else:
            _print_error(prog, f"cannot write the output: {error.strerror or error}")
            _silence_output()
        return 2
    except KeyboardInterrupt:
        _print_error(prog, "interrupted; finished work is kept, run the same command to continue")
        return 130


def _print_error(prog: str, text: str) -> None:
    """Print an error as one printable line of bounded length."""
    print(one_line(f"{prog}: {text}"), file=sys.stderr)


def _silence_output() -> None:
    """Redirect standard output to nowhere, because Python flushes it once more at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
