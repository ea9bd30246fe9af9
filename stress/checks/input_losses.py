"""The loss parser: any text is a loss that can be restored from its repr, or one line."""

from __future__ import annotations

from ..check import CheckContext, Outcome
from ..fuzzing import load_corpus_cases, run_fuzz_cases
from ..mutate import Mutator

TITLE = "Misspelt losses: names, options, numbers, schedules, sums, lists"
KIND = "input"
LONG = False

COUNTS = (600, 45_000)


def run(context: CheckContext) -> Outcome:
    """Corrupt valid losses and parse them."""
    from widemargin.losses.registry import list_losses
    from widemargin.losses.schedule import SCHEDULES

    mutator = Mutator(
        context.seed, (*list_losses(), *SCHEDULES, "s", "m", "steps", "mining", "hard", "learnable", "bias", "floor")
    )
    corpus = load_corpus_cases("losses")
    return run_fuzz_cases(context, "losses", corpus, lambda: mutator.mutate_text(corpus), _parse_losses, COUNTS)


def _parse_losses(text: str) -> None:
    from widemargin.io.errors import InputError
    from widemargin.losses.grammar import parse, parse_list

    for value in parse_list(text):
        if parse(repr(value)) != value:
            raise AssertionError(f"{value!r} is another loss when it is read again")
    try:
        parse(text)
    except InputError as error:
        if "list of" not in str(error):
            raise
