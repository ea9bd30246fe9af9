"""A list of runs on disk: each in a folder of its own, shared by all recipes, finished ones never repeated."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ... import plain_json
from ...errors import InputError
from ...run import Run

Record = dict[str, Any]
_KEPT = ("data", "loss", "model", "seed", "epochs", "seconds", "cores", "test", "angles", "command", "commit")

_WHERE_THERE = ("held_out", "intervals", "evaluation")


def folder_of(run: Run, place: Path) -> Path:
    """Where a run lives: words for people, and a hash of everything that makes the run what it is.

    Only what differs from a plain run counts, so that a field which runs gain later leaves the old ones where they are.

    >>> folder_of(Run(loss="arcgrad(s=10)", seed=3), Path("runs")).name.rpartition("-")[0]
    'cifar10-resnet18-arcgrad_s=10-120e-seed3'
    """
    plain_run = asdict(Run())
    told = {name: value for name, value in asdict(replace(run, name=None)).items() if value != plain_run[name]}
    text = json.dumps(told, sort_keys=True)
    words = f"{Path(run.data).name}-{run.model}-{run.loss}-{run.epochs}e-seed{run.seed}"
    plain = re.sub(r"[^A-Za-z0-9.=_+-]+", "_", words).replace("_-", "-").strip("_.")
    return place / f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def each_once(runs: Iterable[Run]) -> list[Run]:
    """Runs in their order without those that stand there already."""
    return list({folder_of(run, Path()): run for run in runs}.values())


def record_of(run: Run, place: Path) -> Record | None:
    """What a run reached, if it is finished."""
    path = folder_of(run, place) / "record.json"
    if not path.exists():
        return None
    try:
        found: Record = plain_json.read(path)
        float(next(iter(found["test"].values())))
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        raise InputError(f"{path}: not the record of a run; delete its folder to do it again") from None


def missing(runs: Iterable[Run], place: Path) -> list[Run]:
    """Runs that are not finished, each once."""
    return [run for run in each_once(runs) if record_of(run, place) is None]


def write_records(runs: Iterable[Run], place: Path, path: Path) -> int:
    """One line per finished run, without what only a page wants; how many there are."""
    lines = []
    for run in each_once(runs):
        record = record_of(run, place)
        if record is not None:
            line = {name: record.get(name) for name in _KEPT}
            line |= {name: record[name] for name in _WHERE_THERE if name in record}
            lines.append(json.dumps({**line, "augment": run.augment, "share": run.share}, ensure_ascii=False))
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    fresh.replace(path)
    return len(lines)
