"""A table of a million rows and 30 columns, streamed from Parquet: time, memory and accuracy beside gradient boosting.

The table is drawn as `table_shapes` "categories" is: half numbers, half words with gaps, four classes. `wm.fit` streams
the file; scikit-learn's HistGradientBoostingClassifier gets it as a DataFrame with categories, its default settings and
as many threads. Each runs in a process of its own, reading included, and answers the same 100,000 further rows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .table_shapes import SHAPES

TEST_ROWS = 100_000
METHODS = ("widemargin", "hist_gradient_boosting")


def write_tables(folder: Path, rows: int, columns: int, seed: int) -> tuple[Path, Path]:
    """Draw the table, unless it is there, and write its training and test rows as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = folder / f"train-{rows}-{columns}-{seed}.parquet", folder / f"test-{rows}-{columns}-{seed}.parquet"
    if all(path.exists() for path in paths):
        return paths
    shape = replace(SHAPES["categories"], rows=rows, columns=columns)
    drawn, y = shape.draw(shape, rows + TEST_ROWS, np.random.default_rng(seed))
    arrays: dict[str, Any] = {}
    for column in drawn:
        if column.levels is None:
            arrays[column.name] = pa.array(column.values)
        else:
            indices = pa.array(column.values, mask=column.values < 0)
            arrays[column.name] = pa.DictionaryArray.from_arrays(indices, pa.array(column.levels)).cast(pa.string())
    table = pa.table({**arrays, "class": pa.array([f"class {k}" for k in y.tolist()])})
    pq.write_table(table.slice(0, rows), paths[0])
    pq.write_table(table.slice(rows), paths[1])
    return paths


def measure_widemargin(train: str, test: str, threads: int, loss: str, seed: int) -> dict[str, Any]:
    """Seconds, accuracy and peak memory of `wm.fit` and of the predictions."""
    import pyarrow.parquet as pq
    import torch

    from widemargin.tabular.fit import fit
    from widemargin.tabular.predictions import predict_file

    torch.set_num_threads(threads)
    begun = time.perf_counter()
    model = fit(train, target="class", loss=loss, seed=seed)
    fitted = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out = str(Path(test).with_name("predictions.parquet"))
    predict_file(model, test, out)
    predicted = time.perf_counter()
    answers, truth = (
        pq.read_table(path).column(name).to_pylist() for path, name in ((out, "prediction"), (test, "class"))
    )
    return {
        "method": f"wm.fit(loss={loss!r})",
        "seconds": fitted - begun,
        "predict_seconds": predicted - fitted,
        "accuracy": 100.0 * float(np.mean(np.array(answers) == np.array(truth))),
        "peak_mib": peak / 1024,
        "steps": model.n_steps_,
        "hidden": list(model.config_.hidden),
    }


def measure_hist_gradient_boosting(train: str, test: str, threads: int, loss: str, seed: int) -> dict[str, Any]:
    """The same of HistGradientBoostingClassifier; `loss` is not for it."""
    import pandas as pd
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits

    def read(path: str) -> pd.DataFrame:
        frame = pd.read_parquet(path)
        words = [name for name in frame.columns if name.startswith("c") and name != "class"]
        return frame.astype(dict.fromkeys(words, "category"))

    with threadpool_limits(threads):
        begun = time.perf_counter()
        frame = read(train)
        model = HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=seed)
        model.fit(frame.drop(columns="class"), frame["class"])
        fitted = time.perf_counter()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        held = read(test)
        answers = model.predict(held.drop(columns="class"))
        predicted = time.perf_counter()
    return {
        "method": "HistGradientBoostingClassifier",
        "seconds": fitted - begun,
        "predict_seconds": predicted - fitted,
        "accuracy": 100.0 * float((answers == held["class"]).mean()),
        "peak_mib": peak / 1024,
        "iterations": int(model.n_iter_),
    }


_MEASURES = {"widemargin": measure_widemargin, "hist_gradient_boosting": measure_hist_gradient_boosting}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows to learn from (default 1,000,000)")
    parser.add_argument("--columns", type=int, default=30, help="columns (default 30)")
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS), help="what is measured")
    parser.add_argument("--loss", default="arcgrad(s=5)", help="ours (default arcgrad(s=5))")
    parser.add_argument("--threads", type=int, default=2, help="of both (default 2)")
    parser.add_argument("--seed", type=int, default=100, help="the table is drawn from it (default 100)")
    parser.add_argument("--tables", metavar="DIR", help="folder to keep the drawn tables in, for another call")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file, beside those it holds")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    context = multiprocessing.get_context("spawn")
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.tables or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        train, test = write_tables(folder, options.rows, options.columns, options.seed)
        size = train.stat().st_size >> 20
        print(f"{options.rows:,} rows of {options.columns} columns, {size} MiB as Parquet, {options.threads} threads")
        for method in options.methods:
            with context.Pool(1) as pool:
                args = (str(train), str(test), options.threads, options.loss, options.seed)
                line = pool.apply(_MEASURES[method], args)
            print(
                f"{line['method']:32} fit {line['seconds']:7.1f} s  predict {line['predict_seconds']:5.1f} s  "
                f"accuracy {line['accuracy']:6.2f} %  peak {line['peak_mib']:6.0f} MiB"
            )
            shape = {"rows": options.rows, "columns": options.columns, "threads": options.threads, "seed": options.seed}
            lines.append({**shape, **line})
    if options.json:
        path = Path(options.json)
        there = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        kept = [line for line in there if line["method"] not in {new["method"] for new in lines}]
        path.write_text(json.dumps([*kept, *lines], indent=1) + "\n", encoding="utf-8")
