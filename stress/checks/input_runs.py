"""`run.json`: the file of settings, edited by hand."""

from __future__ import annotations

import json
from pathlib import Path

from ..check import CheckContext, Outcome
from ..fuzzing import load_corpus_files, run_fuzz_cases
from ..mutate import Mutator

TITLE = "Files of settings (run.json) edited by hand"
KIND = "input"
LONG = False

COUNTS = (400, 12_000)


def run(context: CheckContext) -> Outcome:
    """Corrupt valid files, as bytes and as values."""
    from widemargin.training.config import TrainConfig

    from .input_flags import exercise_config

    corpus = list(load_corpus_files("settings").values())
    whole = [json.loads(data) for data in corpus[:2]]
    mutator = Mutator(context.seed)

    def make_case() -> bytes:
        if mutator.rng.random() < 0.3:
            return mutator.mutate_bytes(corpus)
        return json.dumps(mutator.mutate_json(mutator.rng.choice(whole))).encode()

    def read(data: bytes) -> None:
        folder = Path(context.folder)
        (folder / "run.json").write_bytes(data)
        exercise_config(TrainConfig.read(folder))

    return run_fuzz_cases(context, "settings", corpus, make_case, read, COUNTS)
