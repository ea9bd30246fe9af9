"""The flags of `widemargin train`, including `--gin`: a run that can be restored, or one line."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from typing import Any

from ..check import CheckContext, Outcome
from ..fuzzing import load_corpus_cases, run_fuzz_cases
from ..mutate import Mutator

TITLE = "Misspelt flags of a training command, including --gin and its values"
KIND = "input"
LONG = False

COUNTS = (250, 15_000)


def run(context: CheckContext) -> Outcome:
    """Corrupt the words of valid commands and parse them like the command."""
    from widemargin.cli.main import build_parser

    top = build_parser()
    corpus = load_corpus_cases("flags")
    names = top.subparser_for(["train"]).all_option_strings()
    mutator = Mutator(
        context.seed, (*names, "MarginHead.s=", "build_model.", "build_transform.scale=(0.8,1)", "paper(pad=")
    )

    def make_case() -> list[str]:
        words = list(mutator.rng.choice(corpus))
        for _ in range(mutator.rng.choice((1, 1, 2))):
            place = mutator.rng.randrange(len(words))
            what = mutator.rng.randrange(6)
            if what == 0:
                del words[place]
            elif what == 1:
                words.insert(place, mutator.odd_word())
            else:
                words[place] = mutator.mutate_text([words[place]])
            words = words or [""]
        return words

    return run_fuzz_cases(context, "flags", corpus, make_case, lambda words: parse_flags(top, words), COUNTS)


def parse_flags(arg_parser: Any, argv: list[str]) -> None:
    """Parse the words like the command, then do everything that happens to a config before training."""
    from widemargin.io.errors import InputError
    from widemargin.io.text import normalize_flag
    from widemargin.reproduce.seed_flags import config_from_options

    output = io.StringIO()
    try:
        with redirect_stderr(output):
            options, unknown = arg_parser.parse_known_args(["train", *map(normalize_flag, argv)])
            if unknown:
                arg_parser.error(f"unknown argument {unknown[0]!r} at this place")
    except SystemExit as error:  # argparse has printed its line already
        if error.code == 0:
            return
        raise InputError(output.getvalue().rstrip("\n")) from None
    exercise_config(config_from_options(options))


def exercise_config(config: Any) -> None:
    """Convert a config to JSON and back, to a command and a folder name; build its loss, model and augmentation."""
    from types import SimpleNamespace

    from widemargin.data.images.augment import build_augment
    from widemargin.losses.grammar import parse
    from widemargin.models.build import parse_model
    from widemargin.training.config import TrainConfig
    from widemargin.training.run_files import default_run_folder

    if TrainConfig.from_json(config.to_json()) != config:
        raise AssertionError("the run is another one when it is read again")
    config.to_command()
    default_run_folder(config)
    parse(config.loss)
    parse_model(config.model)
    data = SimpleNamespace(mean=(0.5,), std=(0.2,))
    build_augment(config.augment, data, size=config.input_size, **config.augment_options)
