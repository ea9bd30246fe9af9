"""Predictions of a fitted model for the rows of a file, written as CSV or Parquet in the order of the rows.

A Parquet file is read, predicted and written in blocks: the memory does not depend on its number of rows.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..data.tabular.encoder import TableEncoder, to_grid
from ..data.tabular.grid import Grid
from ..data.tabular.parquet import import_pyarrow
from ..data.tabular.parquet_stream import ParquetBlocks, is_parquet_file, split_rows
from ..data.tabular.readings import ColumnReading
from ..data.tabular.table import join_names
from ..io.errors import InputError, spell_option
from .estimator import MarginClassifier
from .single import BLOCK_VALUES

STANDARD_OUTPUT = "-"
UNKNOWN = "unknown"
"""The prediction of a row that is rejected."""


@dataclass
class PredictionSummary:
    """The file that was written, and counts for its notes."""

    out: str
    num_rows: int = 0
    num_unknown: int = 0
    unseen: dict[str, int] = field(default_factory=dict)
    """By column: cells with a level that was not in the training table."""

    @property
    def notes(self) -> list[str]:
        """Notes for the user, one sentence each."""
        if not self.unseen:
            return []
        total = sum(self.unseen.values())
        return [
            f"{total:,} value{'s' if total > 1 else ''} of {join_names(self.unseen)} "
            f"{'were' if total > 1 else 'was'} not in the training table; such values match none of the known levels"
        ]


def predict_file(
    model: MarginClassifier,
    data: Any,
    out: str | Path = STANDARD_OUTPUT,
    *,
    embeddings: bool = False,
    target_far: float | None = None,
) -> PredictionSummary:
    """Write the predictions for the rows of a table.

    Args:
        model: a fitted classifier, by `wm.fit` or on a DataFrame: columns are found by their names.
        data: CSV, TSV or Parquet file, its address, "-" for standard input, or a DataFrame.
        out: file to write, .csv or .parquet, or "-" for CSV on standard output. Columns: `prediction`; `p_CLASS`, the
            probability of each class; with `target_far` also `distance` and `is_unknown`; with `embeddings` `e1`, `e2`,
            … in CSV and a list `embedding` in Parquet.
        embeddings: write embeddings too.
        target_far: reject rows unlike all training rows at this rate of false alarms, see
            `MarginClassifier.is_unknown`; their prediction is "unknown".
    """
    encoder = _file_encoder(model)
    limit = None if target_far is None else model.novelty_.threshold(target_far)
    summary = PredictionSummary(str(out))
    with _open_writer(out) as writer:
        for grid in _iter_grids(data, max(1, BLOCK_VALUES // len(encoder.is_numeric_))):
            encoded = encoder.encode(grid)
            for name, count in encoded.unseen.items():
                summary.unseen[name] = summary.unseen.get(name, 0) + count
            columns = _predict_columns(model, encoded.x, embeddings, limit)
            writer.write(columns)
            summary.num_rows += len(encoded.x)
            summary.num_unknown += int(columns["is_unknown"].sum()) if limit is not None else 0
    return summary


def _file_encoder(model: MarginClassifier) -> TableEncoder:
    """The encoder of the model; for a DataFrame of numbers one that finds them by name."""
    if model.encoder_ is not None:
        return model.encoder_
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        raise InputError("the model was fitted on a matrix without column names; predict in Python with a matrix")
    return TableEncoder.from_readings(
        [ColumnReading(name, "number", (name,)) for name in names.tolist()], names.tolist()
    )


def _iter_grids(data: Any, max_rows: int) -> Iterator[Grid]:
    blocks = ParquetBlocks(data).blocks() if is_parquet_file(data) else iter([to_grid(data)])
    for block in blocks:
        yield from split_rows(block, max_rows)


def _predict_columns(
    model: MarginClassifier, x: NDArray[np.float64], embeddings: bool, limit: float | None
) -> dict[str, NDArray[Any]]:
    """The output columns for encoded rows."""
    embedded = model._model.embed(x)
    probabilities = model.probabilities_of_embeddings(embedded)
    found: dict[str, NDArray[Any]] = {"prediction": _label_words(model, probabilities)}
    found |= {f"p_{name}": probabilities[:, place] for place, name in enumerate(model.classes_.tolist())}
    if limit is not None:
        distance = model.novelty_.distances(model._model.inputs(x).numpy())
        found |= {"distance": distance, "is_unknown": distance > limit}
        found["prediction"] = np.where(found["is_unknown"], UNKNOWN, found["prediction"])
    if embeddings:
        found["embedding"] = embedded.numpy()
    return found


def _label_words(model: MarginClassifier, probabilities: NDArray[np.float64]) -> NDArray[Any]:
    names = [str(name) for name in model.classes_.tolist()]
    if model.multilabel_:
        return np.array(["|".join(np.array(names)[row > 0.5]) for row in probabilities], dtype=object)
    words: NDArray[Any] = np.array(names, dtype=object)[probabilities.argmax(1)]
    return words


# ---------------------------------------------------------------- files


class _CsvWriter:
    def __init__(self, file: IO[str]) -> None:
        self._rows = csv.writer(file, lineterminator="\n")
        self._has_header = False

    def write(self, columns: dict[str, NDArray[Any]]) -> None:
        """Append a block of rows."""
        flat: dict[str, list[Any]] = {}
        for name, values in columns.items():
            if values.ndim == 2:
                flat |= {f"e{place + 1}": values[:, place].tolist() for place in range(values.shape[1])}
            else:
                flat[name] = values.tolist()
        if not self._has_header:
            self._rows.writerow(flat)
            self._has_header = True
        self._rows.writerows(zip(*flat.values(), strict=True))


class _ParquetWriter:
    def __init__(self, path: Path) -> None:
        self._pa, self._pq = import_pyarrow(str(path))
        self._path = path
        self._writer: Any = None

    def write(self, columns: dict[str, NDArray[Any]]) -> None:
        """Append a block of rows."""
        arrays = {
            name: self._pa.FixedSizeListArray.from_arrays(self._pa.array(values.ravel()), values.shape[1])
            if values.ndim == 2
            else self._pa.array(values.tolist() if values.dtype == object else values)
            for name, values in columns.items()
        }
        table = self._pa.table(arrays)
        if self._writer is None:
            self._writer = self._pq.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


@contextmanager
def _open_writer(out: str | Path) -> Iterator[_CsvWriter | _ParquetWriter]:
    """A writer by the suffix of the file, which appears under its name when it is complete."""
    if str(out) == STANDARD_OUTPUT:
        yield _CsvWriter(sys.stdout)
        return
    path = Path(out).expanduser()
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(
            f"{spell_option('out', str(path))}: predictions are written as .csv or .parquet, or to stdout with -"
        )
    fresh = path.with_name(f".{path.stem}.{os.getpid()}.new{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".csv":
            with fresh.open("x", encoding="utf-8", newline="") as file:
                yield _CsvWriter(file)
        else:
            writer = _ParquetWriter(fresh)
            try:
                yield writer
            finally:
                writer.close()
        fresh.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
