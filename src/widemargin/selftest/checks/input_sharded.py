"""Sharded checkpoints that are edited, cut or not what their index says: a model that works, or one clear line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ..check import Outcome, Size
from ..mutate import Mutator
from ..trial import run_trials

TITLE = "Sharded checkpoints with a spoiled index or spoiled parts"
KIND = "input"
LONG = False

COUNTS = (60, 5_000)
Case = dict[str, bytes]


def run(size: Size) -> Outcome:
    """Write a real one, spoil a file of it, and load it into a model like the one it was written from."""
    import torch

    from ...head import Head
    from ...sharded_checkpoint import load_sharded, save_sharded
    from ...sharded_index import INDEX

    def fresh() -> tuple[Head, torch.optim.Optimizer]:
        head = Head(4, 10, "arcgrad(s=10)")
        return head, torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)

    head, optimizer = fresh()
    head(torch.ones(2, 4), torch.tensor([0, 1])).mean().backward()
    optimizer.step()
    whole, place = size.folder / "whole", size.folder / "spoiled"
    save_sharded(whole, head, optimizer)
    good = {path.name: path.read_bytes() for path in whole.iterdir() if path.name != ".metadata"}
    mutator = Mutator(size.seed)

    def made() -> Case:
        if mutator.draw.randrange(3):
            return {INDEX: json.dumps(mutator.misshapen(json.loads(good[INDEX]))).encode()}
        name = mutator.draw.choice(sorted(good))
        return {name: mutator.spoiled([good[name]])}

    def read(case: Case) -> None:
        _write(place, {**good, **case})
        load_sharded(place, *fresh())

    kept: list[Case] = [{}, {INDEX: b"7"}, {INDEX: b"{}"}, {INDEX: b'{"format": 2, "tensors": {}}'}]
    kept += [{name: b""} for name in sorted(good)]
    return run_trials(size, "sharded checkpoints", kept, made, read, COUNTS, place=str(place), megabytes=512)


def _write(place: Path, files: Case) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, data in files.items():
        (place / name).write_bytes(data)
