"""Run folders edited by hand: `metrics.jsonl`, `record.json`, `manifest.csv` and a comparison's `results.jsonl`."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ..check import CheckContext, Outcome
from ..fuzzing import load_corpus_cases, load_corpus_files, run_fuzz_cases
from ..mutate import Mutator

TITLE = "Run folders edited by hand: logs, records, results of a comparison, read by their reports; manifests of images"
KIND = "input"
LONG = False

COUNTS = (100, 4_000)
FILES = ("metrics.jsonl", "record.json", "manifest.csv", "results.jsonl")
_MISTAKES = {"true": [2, 0], "answer": [0, 1], "times": [2, 1]}
_SPARSE_CONFUSION = {
    "images": [4, 4, 4],
    "right": [3, 4, 2],
    "mistakes": _MISTAKES,
}  # as a record of very many classes has it


def run(context: CheckContext) -> Outcome:
    """Corrupt one file at a time, and write the report that reads it."""
    names = FILES if find_spec("PIL") is not None else tuple(name for name in FILES if name != "manifest.csv")
    if "manifest.csv" in names:
        import_module("widemargin.data.images.changes")  # its memory is not caused by the cases
    good = {name: data for name, data in load_corpus_files("run").items() if name in (*names, "run.json")}
    mutator = Mutator(context.seed)

    def make_case() -> tuple[str, bytes]:
        name = mutator.rng.choice(names)
        if name.endswith(".csv") or mutator.rng.random() < 0.25:
            return name, mutator.mutate_bytes([good[name]])
        rows = good[name].splitlines() if name.endswith(".jsonl") else [good[name]]
        values: list[Any] = [json.loads(row) for row in rows]
        place = mutator.rng.randrange(len(values))
        if name == "record.json" and mutator.rng.random() < 0.5:
            values[place]["confusion"] = _SPARSE_CONFUSION
        values[place] = mutator.mutate_json(values[place])
        return name, b"".join(json.dumps(value).encode() + b"\n" for value in values)

    def read(case: tuple[str, bytes]) -> None:
        name, data = case
        for other in names:
            (context.folder / other).write_bytes(data if other == name else good[other])
        if name == "results.jsonl":
            _render_comparison(context)
        elif name == "manifest.csv":
            _compare_manifest(context)
        else:
            _render_run_report(context)

    (context.folder / "run.json").write_bytes(good["run.json"])
    for label in ("cat", "dog"):
        (context.folder / "images" / label).mkdir(parents=True)
        for number in range(3):
            (context.folder / "images" / label / f"{number}.png").write_text(f"{label} {number}")
    corpus = [(name, text.encode()) for name, text in load_corpus_cases("folders")]
    return run_fuzz_cases(
        context, "folders", [*good.items(), *corpus], make_case, read, COUNTS, expected_text=str(context.folder)
    )


def _render_run_report(context: CheckContext) -> None:
    from widemargin.training.logging import MetricsLog
    from widemargin.training.report import load_run_summary
    from widemargin.viz.run_page import runs_markdown, runs_page

    summary = load_run_summary(context.folder, None, False)
    runs_page([summary, summary], {}, "widemargin report")
    runs_page([summary], {}, "widemargin report").encode()
    runs_markdown([summary], "widemargin report").encode()
    MetricsLog(context.folder, 1, [], summary.config)


def _compare_manifest(context: CheckContext) -> None:
    """Compare the manifest with a folder, and update it from the folder."""
    from widemargin.data.images.changes import diff_manifest, update_manifest
    from widemargin.data.images.folder import scan_folder
    from widemargin.data.images.manifest import Manifest
    from widemargin.data.images.splits import SplitConfig

    manifest, tree = Manifest.read(context.folder / "manifest.csv"), scan_folder(context.folder / "images")
    compared = diff_manifest(manifest, tree)
    compared.changes.summary().encode()
    json.dumps(compared.changes.to_dict()).encode()
    b"".join(
        update_manifest(manifest, tree, compared, SplitConfig(val_fraction=0.2, unseen_class_fraction=0.5))[0].to_csv()
    )


def _render_comparison(context: CheckContext) -> None:
    from widemargin.tabular.comparison import build_comparison
    from widemargin.tabular.results import ResultStore
    from widemargin.viz.comparison_page import comparison_page

    store = ResultStore(context.folder)
    good = list(store.results.values())
    for result in good:
        store.find_matching(result.key, result.seed, {**result.settings, "mlp_config": {}, "cv_repeats": 1})
    if len({(result.set, len(result.folds)) for result in good}) == 1 and len(good) > 1:
        comparison_page(build_comparison(good), [], "widemargin compare", [])
