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
from ...run import TrainConfig

Record = dict[str, Any]
_RECORD_FIELDS = ("data", "loss", "model", "seed", "epochs", "seconds", "cores", "test", "angles", "command", "commit")

_OPTIONAL_RECORD_FIELDS = ("held_out", "intervals", "evaluation")


def run_folder(config: TrainConfig, runs_dir: Path) -> Path:
    """Where a run lives: words for people, and a hash of everything that makes the run what it is.

    Only what differs from a plain run counts, so that a field which runs gain later leaves the old ones where they are.

    >>> folder_of(Run(loss="arcgrad(s=10)", seed=3), Path("runs")).name.rpartition("-")[0]
    'cifar10-resnet18-arcgrad_s=10-120e-seed3'
    """
    plain_run = asdict(TrainConfig())
    changed_fields = {
        name: value for name, value in asdict(replace(config, name=None)).items() if value != plain_run[name]
    }
    text = json.dumps(changed_fields, sort_keys=True)
    words = f"{Path(config.data).name}-{config.model}-{config.loss}-{config.epochs}e-seed{config.seed}"
    plain = re.sub(r"[^A-Za-z0-9.=_+-]+", "_", words).replace("_-", "-").strip("_.")
    return runs_dir / f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def unique_configs(configs: Iterable[TrainConfig]) -> list[TrainConfig]:
    """Runs in their order without those that stand there already."""
    return list({run_folder(run, Path()): run for run in configs}.values())


def read_record(config: TrainConfig, runs_dir: Path) -> Record | None:
    """What a run reached, if it is finished."""
    path = run_folder(config, runs_dir) / "record.json"
    if not path.exists():
        return None
    try:
        found: Record = plain_json.read_json(path)
        float(next(iter(found["test"].values())))
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        raise InputError(f"{path}: not the record of a run; delete its folder to do it again") from None


def missing_configs(configs: Iterable[TrainConfig], runs_dir: Path) -> list[TrainConfig]:
    """Runs that are not finished, each once."""
    return [run for run in unique_configs(configs) if read_record(run, runs_dir) is None]


def write_records(configs: Iterable[TrainConfig], runs_dir: Path, path: Path) -> int:
    """One line per finished run, without what only a page wants; how many there are."""
    lines = []
    for run in unique_configs(configs):
        record = read_record(run, runs_dir)
        if record is not None:
            line = {name: record.get(name) for name in _RECORD_FIELDS}
            line |= {name: record[name] for name in _OPTIONAL_RECORD_FIELDS if name in record}
            lines.append(json.dumps({**line, "augment": run.augment, "share": run.train_fraction}, ensure_ascii=False))
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    fresh.replace(path)
    return len(lines)
