"""Run folders edited by hand: `metrics.jsonl`, `record.json`, `manifest.csv` and a comparison's `results.jsonl`."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ..check import Outcome, Size
from ..corpus import files, lines
from ..mutate import Mutator
from ..trial import run_trials

TITLE = "Run folders edited by hand: logs, records, results of a comparison, read by their reports; manifests of images"
KIND = "input"
LONG = False

COUNTS = (250, 4_000)
FILES = ("metrics.jsonl", "record.json", "manifest.csv", "results.jsonl")
_MISTAKES = {"true": [2, 0], "answer": [0, 1], "times": [2, 1]}
_COLUMNS = {"images": [4, 4, 4], "right": [3, 4, 2], "mistakes": _MISTAKES}  # as a record of very many classes has it


def run(size: Size) -> Outcome:
    """Spoil one file at a time, make the report that reads it."""
    names = FILES if find_spec("PIL") is not None else tuple(name for name in FILES if name != "manifest.csv")
    if "manifest.csv" in names:
        import_module("widemargin.data.changes")  # what it brings into memory is not the cases' doing
    good = {name: data for name, data in files("run").items() if name in (*names, "run.json")}
    mutator = Mutator(size.seed)

    def made() -> tuple[str, bytes]:
        name = mutator.draw.choice(names)
        if name.endswith(".csv") or mutator.draw.random() < 0.25:
            return name, mutator.spoiled([good[name]])
        rows = good[name].splitlines() if name.endswith(".jsonl") else [good[name]]
        values: list[Any] = [json.loads(row) for row in rows]
        place = mutator.draw.randrange(len(values))
        if name == "record.json" and mutator.draw.random() < 0.5:
            values[place]["confusion"] = _COLUMNS
        values[place] = mutator.misshapen(values[place])
        return name, b"".join(json.dumps(value).encode() + b"\n" for value in values)

    def read(case: tuple[str, bytes]) -> None:
        name, data = case
        for other in names:
            (size.folder / other).write_bytes(data if other == name else good[other])
        if name == "results.jsonl":
            _compared(size)
        elif name == "manifest.csv":
            _listed(size)
        else:
            _reported(size)

    (size.folder / "run.json").write_bytes(good["run.json"])
    for label in ("cat", "dog"):
        (size.folder / "images" / label).mkdir(parents=True)
        for number in range(3):
            (size.folder / "images" / label / f"{number}.png").write_text(f"{label} {number}")
    kept = [(name, text.encode()) for name, text in lines("folders")]
    return run_trials(size, "folders", [*good.items(), *kept], made, read, COUNTS, place=str(size.folder))


def _reported(size: Size) -> None:
    from ...commands.report import _told
    from ...report.run_page import markdown, runs_page
    from ...training.log import Log

    told = _told(size.folder, None, False)
    runs_page([told, told], {}, "widemargin report")
    runs_page([told], {}, "widemargin report").encode()
    markdown([told], "widemargin report").encode()
    Log(size.folder, 1, [], told.run)


def _listed(size: Size) -> None:
    """Compare the manifest with a folder, and take the folder in."""
    from ...data.changes import compare, take_in
    from ...data.folder import scan_folder
    from ...data.manifest import Manifest
    from ...data.splits import Shares

    manifest, tree = Manifest.read(size.folder / "manifest.csv"), scan_folder(size.folder / "images")
    compared = compare(manifest, tree)
    compared.changes.line().encode()
    json.dumps(compared.changes.facts()).encode()
    b"".join(take_in(manifest, tree, compared, Shares(hold_out=0.2, unseen=0.5))[0].to_csv())


def _compared(size: Size) -> None:
    from ...report.compare_page import compare_page
    from ...report.comparison import comparison
    from ...results import Store

    store = Store(size.folder)
    good = list(store.results.values())
    for result in good:
        store.matching(result.key, result.seed, {**result.settings, "protocol": {}, "runs": 1})
    if len({(result.set, len(result.folds)) for result in good}) == 1 and len(good) > 1:
        compare_page(comparison(good), [], "widemargin compare", [])
