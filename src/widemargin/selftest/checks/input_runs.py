"""`run.json`: the file of settings, edited by hand."""

from __future__ import annotations

import json
from pathlib import Path

from ..check import Outcome, Size
from ..corpus import files
from ..mutate import Mutator
from ..trial import run_trials

TITLE = "Files of settings (run.json) edited by hand"
KIND = "input"
LONG = False

COUNTS = (400, 12_000)


def run(size: Size) -> Outcome:
    """Spoil good files, as bytes and as values."""
    from ...run import Run
    from .input_flags import used

    kept = list(files("settings").values())
    whole = [json.loads(data) for data in kept[:2]]
    mutator = Mutator(size.seed)

    def made() -> bytes:
        if mutator.draw.random() < 0.3:
            return mutator.spoiled(kept)
        return json.dumps(mutator.misshapen(mutator.draw.choice(whole))).encode()

    def read(data: bytes) -> None:
        folder = Path(size.folder)
        (folder / "run.json").write_bytes(data)
        used(Run.read(folder))

    return run_trials(size, "settings", kept, made, read, COUNTS)
