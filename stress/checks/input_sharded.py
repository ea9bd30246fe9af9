"""Sharded checkpoints that are edited, truncated or inconsistent with their index: a working model, or one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ..check import CheckContext, Outcome
from ..fuzzing import run_fuzz_cases
from ..mutate import Mutator

TITLE = "Sharded checkpoints with a corrupt index or corrupt parts"
KIND = "input"
LONG = False

COUNTS = (60, 5_000)
Case = dict[str, bytes]


def run(context: CheckContext) -> Outcome:
    """Write a real checkpoint, corrupt one of its files, and load it into a model of the same kind."""
    import torch

    from widemargin.head.head import Head
    from widemargin.head.sharded_checkpoint import INDEX_FILENAME, load_sharded, save_sharded

    def make_head_and_optimizer() -> tuple[Head, torch.optim.Optimizer]:
        head = Head(4, 10, "arcgrad(s=10)")
        return head, torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)

    head, optimizer = make_head_and_optimizer()
    head(torch.ones(2, 4), torch.tensor([0, 1])).mean().backward()
    optimizer.step()
    whole, place = context.folder / "whole", context.folder / "spoiled"
    save_sharded(whole, head, optimizer)
    good = {path.name: path.read_bytes() for path in whole.iterdir() if path.name != ".metadata"}
    mutator = Mutator(context.seed)

    def make_case() -> Case:
        if mutator.rng.randrange(3):
            return {INDEX_FILENAME: json.dumps(mutator.mutate_json(json.loads(good[INDEX_FILENAME]))).encode()}
        name = mutator.rng.choice(sorted(good))
        return {name: mutator.mutate_bytes([good[name]])}

    def read(case: Case) -> None:
        _write_shard_files(place, {**good, **case})
        load_sharded(place, *make_head_and_optimizer())

    corpus: list[Case] = [
        {},
        {INDEX_FILENAME: b"7"},
        {INDEX_FILENAME: b"{}"},
        {INDEX_FILENAME: b'{"format": 2, "tensors": {}}'},
    ]
    corpus += [{name: b""} for name in sorted(good)]
    return run_fuzz_cases(
        context, "sharded checkpoints", corpus, make_case, read, COUNTS, expected_text=str(place), max_megabytes=512
    )


def _write_shard_files(folder: Path, files: Case) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
