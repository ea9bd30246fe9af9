"""The flags of `widemargin train`, the seeds' `--gin` among them: a run that reads back, or one line."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from typing import Any

from ..check import Outcome, Size
from ..corpus import lines
from ..mutate import Mutator
from ..trial import run_trials

TITLE = "Flags of a training command spelt wrongly, --gin and its values among them"
KIND = "input"
LONG = False

COUNTS = (250, 15_000)


def run(size: Size) -> Outcome:
    """Spoil the words of good commands and read them as the command does."""
    from ...cli import parser

    top = parser()
    kept = lines("flags")
    names = top.asked_by(["train"]).options()
    mutator = Mutator(
        size.seed, (*names, "MarginHead.s=", "build_model.", "build_transform.scale=(0.8,1)", "paper(pad=")
    )

    def made() -> list[str]:
        words = list(mutator.draw.choice(kept))
        for _ in range(mutator.draw.choice((1, 1, 2))):
            place = mutator.draw.randrange(len(words))
            what = mutator.draw.randrange(6)
            if what == 0:
                del words[place]
            elif what == 1:
                words.insert(place, mutator.odd_word())
            else:
                words[place] = mutator.misspelt([words[place]])
            words = words or [""]
        return words

    return run_trials(size, "flags", kept, made, lambda words: read(top, words), COUNTS)


def read(top: Any, words: list[str]) -> None:
    """The run of the words, and all that is made of its texts before anything is trained."""
    from ...cli import dashed
    from ...commands.train import run_of
    from ...errors import InputError

    said = io.StringIO()
    try:
        with redirect_stderr(said):
            options, unknown = top.parse_known_args(["train", *map(dashed, words)])
            if unknown:
                top.error(f"unknown argument {unknown[0]!r} at this place")
    except SystemExit as error:  # argparse has said its line already
        if error.code == 0:
            return
        raise InputError(said.getvalue().rstrip("\n")) from None
    used(run_of(options))


def used(run: Any) -> None:
    """A run goes to text and back, to a command, a folder's name, a loss, a model and an augmentation."""
    from types import SimpleNamespace

    from ...backbones.build import parse_model
    from ...catalogue import parse
    from ...commands.train import _name
    from ...data.augment import augment_of
    from ...run import Run
    from ...spelling import command_of

    if Run.from_json(run.to_json()) != run:
        raise AssertionError("the run is another one when it is read again")
    command_of(run)
    _name(run)
    parse(run.loss)
    parse_model(run.model)
    data = SimpleNamespace(mean=(0.5,), std=(0.2,))
    augment_of(run.augment, data, size=run.input_size, **run.augment_options)
