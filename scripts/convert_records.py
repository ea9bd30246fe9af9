"""Convert records with earlier field names to the current names: `python scripts/convert_records.py`.

Only keys are renamed: values, seeds, versions, commits and the layout of the text are unchanged. There is one function
per record; records with the new names are left unchanged, so the script can be run again at any time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parents[1] / "records"

_DUMP_OPTIONS: tuple[dict[str, Any], ...] = (
    *({"indent": indent, "ensure_ascii": ensure_ascii} for indent in (None, 1, 2) for ensure_ascii in (True, False)),
    {"separators": (",", ":")},
)

TRAIN_CONFIG_FIELDS = {
    "smoothing": "label_smoothing",
    "dim": "embedding_dim",
    "repeats": "repeated_augmentation",
    "unseen": "unseen_classes",
    "share": "train_fraction",
    "hold_out": "val_fraction",
}
TRAIN_FLAGS = {f"--{old.replace('_', '-')}": f"--{new.replace('_', '-')}" for old, new in TRAIN_CONFIG_FIELDS.items()}
TRAIN_FLAGS["--ra"] = TRAIN_FLAGS.pop("--repeats")


def rename_keys(value: dict[str, Any], new_names: Mapping[str, str]) -> dict[str, Any]:
    """Return the same values under the new names, in the same order.

    >>> rename_keys({"runs": 10, "seed": 0}, {"runs": "cv_repeats"})
    {'cv_repeats': 10, 'seed': 0}
    """
    return {new_names.get(name, name): item for name, item in value.items()}


def convert_mlp_config(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of an `MLPConfig`."""
    return rename_keys(config, {"smoothing": "label_smoothing"})


def convert_table1(line: dict[str, Any]) -> dict[str, Any]:
    """Convert a line of `results.jsonl`, including its settings."""
    settings = rename_keys(line["settings"], {"runs": "cv_repeats", "parts": "folds", "protocol": "mlp_config"})
    if "mlp_config" in settings:
        settings["mlp_config"] = convert_mlp_config(settings["mlp_config"])
    return {**line, "settings": settings}


def convert_table1_decay2(line: dict[str, Any]) -> dict[str, Any]:
    """As `table1.jsonl`, of another weight decay."""
    return convert_table1(line)


def convert_protocol(candidates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Candidates for the default `MLPConfig`, with their inner accuracies."""
    renamed = [rename_keys(entry, {"protocol": "config", "inner": "inner_accuracy"}) for entry in candidates]
    return [{**entry, "config": convert_mlp_config(entry["config"])} for entry in renamed]


def convert_coverage(record: dict[str, Any]) -> dict[str, Any]:
    """Coverage of intervals: `python -m benchmarks coverage`."""
    cells = [rename_keys(cell, {"held": "coverage_percent"}) for cell in record["cells"]]
    settings = rename_keys(record["settings"], {"compared": "bootstrap_trials"})
    return {**record, "settings": settings, "cells": cells}


def convert_heads(record: dict[str, Any]) -> dict[str, Any]:
    """Time and memory of heads: `python -m benchmarks head`."""
    record = rename_keys(record, {"ranks": "sharded"})
    names = {"ranks": "world_size", "rate": "sample_rate", "full_over_alone": "full_over_single_process"}
    sharded = rename_keys(record["sharded"], names)
    sharded["seconds"] = rename_keys(sharded["seconds"], {"alone": "single_process"})
    return {**record, "sharded": sharded}


def convert_retrieval(record: dict[str, Any]) -> dict[str, Any]:
    """Time of retrieval: `python -m benchmarks retrieval`."""
    record = rename_keys(record, {"dim": "embedding_dim"})
    return {**record, "seconds": rename_keys(record["seconds"], {"bare": "matmul_topk"})}


def convert_train_command(command: str) -> str:
    """Return the command of a run with the new names of its options.

    >>> convert_train_command("widemargin train mnist fast softmax --dim 16 --share 0.1 --hold-out=0.05")
    'widemargin train mnist fast softmax --embedding-dim 16 --train-fraction 0.1 --val-fraction=0.05'
    """
    return re.sub(r"(?<=\s)--[a-z-]+(?=[\s=]|$)", lambda flag: TRAIN_FLAGS.get(flag[0], flag[0]), command)


def convert_run_record(line: dict[str, Any]) -> dict[str, Any]:
    """A line of `records.jsonl` of an image or open-set recipe: a run with its metrics and its command."""
    line = rename_keys(line, {"held_out": "val", "share": "train_fraction"})
    return {**line, "command": convert_train_command(line["command"])}


def convert_openset_comparison(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`compared.json` of an open-set recipe: every two methods by every metric."""
    names = {
        "figure": "metric",
        "one": "method_a",
        "other": "method_b",
        "reach": "half_width",
        "apart": "is_significant",
    }
    return [rename_keys(row, names) for row in rows]


def convert_gallery(gallery: dict[str, Any]) -> dict[str, Any]:
    """The tour's gallery, which holds the fields of the `TrainConfig` it was trained with."""
    return {**gallery, "run": rename_keys(gallery["run"], TRAIN_CONFIG_FIELDS)}


def convert_stress(record: dict[str, Any]) -> dict[str, Any]:
    """Faults, bad input and attacks: `python -m stress`, which the command of each line now says."""
    old, new = "widemargin selftest ", "python -m stress "
    checks = [{**line, "command": line["command"].replace(old, new, 1)} for line in record["checks"]]
    return {**record, "checks": checks}


def convert_train_speed(record: dict[str, Any]) -> dict[str, Any]:
    """The training loop and the overhead of a head: `python -m benchmarks train`."""
    names = {"classes": "num_classes", "dim": "embedding_dim"}
    return {**record, "head": [rename_keys(row, names) for row in record["head"]]}


CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "../src/widemargin/tour/gallery.json": convert_gallery,
    "coverage.json": convert_coverage,
    "figure3_cpu.jsonl": convert_run_record,
    "headline.jsonl": convert_run_record,
    "heads.json": convert_heads,
    "openset_adaacos.jsonl": convert_run_record,
    "openset_faces.jsonl": convert_run_record,
    "openset_faces_compared.json": convert_openset_comparison,
    "openset_omniglot.jsonl": convert_run_record,
    "openset_omniglot_compared.json": convert_openset_comparison,
    "openset_sphere.jsonl": convert_run_record,
    "protocol.json": convert_protocol,
    "retrieval.json": convert_retrieval,
    "seeds_smoke.jsonl": convert_run_record,
    "stress.json": convert_stress,
    "table1.jsonl": convert_table1,
    "table1_decay2.jsonl": convert_table1_decay2,
    "table7_cpu.jsonl": convert_run_record,
    "train_speed.json": convert_train_speed,
}
"""Conversion by file, relative to `records/`: of the whole value, or of each line of a `.jsonl` file."""


def convert_text(text: str, convert: Callable[[Any], Any]) -> str:
    """Convert the value in a JSON text and keep its layout.

    >>> convert_text('{"smoothing": 0.0}', convert_mlp_config)
    '{"label_smoothing": 0.0}'
    """
    value = json.loads(text)
    bare = text.rstrip("\n")
    options = next((given for given in _DUMP_OPTIONS if json.dumps(value, **given) == bare), None)
    if options is None:
        raise ValueError("unknown layout of JSON, which would be lost")
    return json.dumps(convert(value), **options) + text[len(bare) :]


def convert_record(path: Path, convert: Callable[[Any], Any]) -> bool:
    """Convert a record; return whether it changed."""
    before = path.read_text(encoding="utf-8")
    parts = before.split("\n") if path.suffix == ".jsonl" else [before]
    after = "\n".join(convert_text(part, convert) if part else part for part in parts)
    if after != before:
        path.write_text(after, encoding="utf-8")
    return after != before


def main() -> None:
    """Convert every record in the old form."""
    for name, convert in sorted(CONVERTERS.items()):
        changed = convert_record(RECORDS / name, convert)
        print(f"{name}: {'converted' if changed else 'has the new names already'}")


if __name__ == "__main__":
    main()
