"""`fit`: fit one loss to all rows of a table; the fitted `MarginClassifier` is returned, and saved if `out` is given.

A Parquet file of more than `MAX_STATISTICS_ROWS` rows is streamed (`data.tabular.parquet_stream`): how its columns are
read is decided on a random sample of `ENCODER_ROWS` rows, and the inputs of the network are kept in single precision.
Its memory is bounded by 1 GiB for these inputs (`MAX_STREAMED_VALUES` numbers; of a larger table a stratified sample of
the rows is fitted, and a note says so), about 150 bytes per row for labels and the order of rows, and 1 GiB for blocks
and statistics (up to 4,000 encoded columns), in addition to Python and torch. Every other table is read into memory as
a whole, within the limits of `compare`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.tabular.encode import check_width
from ..data.tabular.encoder import TableEncoder
from ..data.tabular.grid import Grid
from ..data.tabular.load import TableData, load_table
from ..data.tabular.parquet_stream import ParquetBlocks, is_parquet_file, select_rows, split_rows
from ..data.tabular.read import read_labels, resolve_target
from ..data.tabular.table import Table
from ..io.errors import InputError, format_value
from ..io.progress import progress_bar
from ..io.text import print_escaped
from ..losses.base import Loss
from ..losses.grammar import Sum, parse, replace_options
from .compare import compare, default_folder
from .comparison import build_comparison
from .config import DEFAULT_LOSS, MLPConfig
from .crossval import stratified_sample
from .estimator import MarginClassifier
from .metric_choice import choose_metric
from .model_files import check_out_folder
from .recommendation import best_loss
from .results import RESULTS_FILE_NAME, ResultStore
from .single import BLOCK_VALUES, MAX_STATISTICS_ROWS, MatrixRows, RowSource, check_magnitude

BEST = "best"
ENCODER_ROWS = 1 << 17
MAX_STREAMED_VALUES = 1 << 28


def fit(
    data: TableData,
    *,
    target: str | None = None,
    target_is_class: bool = False,
    decimal: str | None = None,
    loss: str | Loss | Sum | Path = DEFAULT_LOSS,
    tune: float | bool | None = None,
    tune_trials: int | None = None,
    calibrate: bool = True,
    class_weight: str | Mapping[Any, float] | None = None,
    mlp_config: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: str = "cpu",
    out: str | Path | None = None,
    overwrite: bool = False,
    data_dir: str | Path | None = None,
    quiet: bool = False,
    command: str | None = None,
) -> MarginClassifier:
    """Fit a loss to all rows of a table and return the fitted classifier.

    Args:
        data: one table, in any form that `compare` accepts: a file, its https address, "-" for standard input, the name
            of a set, a DataFrame, `(X, y)`. A Parquet file of more than 262,144 rows is streamed, in bounded memory.
        target, target_is_class, decimal, data_dir: as in `compare`.
        loss: a parse string or a loss; the folder of a comparison of this table, for its best loss with the settings of
            the comparison (if it was tuned, with the medians of the selected values over the folds); or "best", for the
            best loss of the folder `compare-NAME` if it holds this table, otherwise of a comparison of the default
            losses with one repeat, which is run first.
        tune, tune_trials: seconds (True for 300) or number of trials to select learning rate, weight decay, `s` and
            `m` on inner folds.
        calibrate: fit a temperature for the probabilities, see `MarginClassifier`.
        class_weight: "balanced", or a dict by label.
        mlp_config: settings to fix instead of deriving them from the size of the table, such as `{"lr": 0.01}`.
        seed: random seed.
        device: where to train.
        out: folder to save the model to, for `wm.load` and `widemargin predict`.
        overwrite: replace an existing model.
        quiet: show no progress and print no notes.
        command: the command that made the model, stored in the folder for readers.

    >>> import widemargin as wm
    >>> model = wm.fit("iris", loss="softmax", quiet=True)
    >>> model.classes_.tolist(), model.loss_
    (['setosa', 'versicolor', 'virginica'], 'softmax')
    """
    if out is not None:
        check_out_folder(Path(out), overwrite)  # before any work
    rows = _load_rows(data, target, target_is_class, decimal, data_dir, seed)
    chosen = _choose_loss(loss, rows, seed, quiet)
    if not quiet:
        for note in (*rows.notes, *chosen.notes):
            print_escaped(f"note: {note}", to_stderr=True)
    given = {**chosen.config, **_check_config(mlp_config)}
    val_fraction = given.pop("val_fraction", None)
    model = MarginClassifier(
        chosen.loss,
        **given,
        **({} if val_fraction is None else _early_stopping(val_fraction)),
        class_weight=class_weight,
        tune=False if tune is None else tune,
        tune_trials=tune_trials,
        calibrate=calibrate,
        random_state=seed,
        device=device,
    )
    with progress_bar("fit", 1.0, hidden=quiet) as on_progress:
        model.fit_source(rows.source, rows.codes, rows.classes, rows.encoder, on_progress=on_progress)
    model.n_features_in_, model.feature_names_in_ = rows.encoder.n_features_in_, rows.encoder.feature_names_in_
    if out is not None:
        model.save(out, overwrite=overwrite, command=command or "")
    return model


def _check_config(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(f"mlp_config must be a dict of fields of MLPConfig, got {format_value(given)}")
    MLPConfig(**given)  # one with a mistake is refused
    return dict(given)


def _early_stopping(val_fraction: float) -> dict[str, Any]:
    if not val_fraction:
        return {"early_stopping": False}
    return {"early_stopping": True, "validation_fraction": val_fraction}


# ---------------------------------------------------------------- rows


class _Rows(NamedTuple):
    """The rows to fit, their classes, and the encoder that read them."""

    source: RowSource
    codes: NDArray[np.int64]
    classes: NDArray[Any]
    encoder: TableEncoder
    name: str
    table: Table | None
    """None if the file is streamed."""
    notes: tuple[str, ...]


def _load_rows(
    data: TableData, target: str | None, is_class: bool, decimal: str | None, data_dir: str | Path | None, seed: int
) -> _Rows:
    if is_parquet_file(data):
        blocks = ParquetBlocks(data)  # type: ignore[arg-type]
        if blocks.num_rows > MAX_STATISTICS_ROWS:
            return _stream_rows(blocks, target, is_class, decimal, seed)
    table = load_table(data, target, target_is_class=is_class, decimal=decimal, data_dir=data_dir)
    check_width(table)
    encoder = TableEncoder.from_table(table)
    codes, classes = _sort_classes(table.y, table.class_names)
    return _Rows(MatrixRows(encoder.encode_table(table)), codes, classes, encoder, table.name, table, table.notes)


def _sort_classes(y: NDArray[np.int64], names: tuple[str, ...]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The class index of each row and the classes, sorted as in scikit-learn."""
    classes, place = np.unique(np.array(names), return_inverse=True)
    return place[y], classes


def _stream_rows(blocks: ParquetBlocks, target: str | None, is_class: bool, decimal: str | None, seed: int) -> _Rows:
    name = resolve_target(blocks.file, blocks.column_names, target)
    column = Grid(blocks.file, [name], [blocks.read_column(name)], range(1, blocks.num_rows + 1))
    labels = read_labels(column, name, is_class)
    kept = np.array(labels.kept_rows)
    codes, classes = _sort_classes(labels.y, labels.class_names)
    chosen = stratified_sample(np.arange(len(kept)), codes, ENCODER_ROWS, [seed, 12])
    sample = blocks.take(kept[chosen])
    place = blocks.column_names.index(name)
    encoder = TableEncoder(decimal=decimal).fit_grid(sample, range(len(chosen)), place)
    notes = [*labels.notes, *encoder.notes_]
    notes.append(f"{blocks.num_rows:,} rows are streamed; how columns are read was decided on {len(chosen):,} of them")
    max_rows = MAX_STREAMED_VALUES // len(encoder.is_numeric_)
    if len(kept) > max_rows:
        sampled = stratified_sample(np.arange(len(kept)), codes, max_rows, [seed, 13])
        notes.append(f"a sample of {max_rows:,} rows is fitted, because all of them would take more than 1 GiB")
        kept, codes = kept[sampled], codes[sampled]
    return _Rows(StreamedRows(blocks, kept, encoder), codes, classes, encoder, blocks.name, None, tuple(notes))


class StreamedRows:
    """Rows of a Parquet file, encoded as they are read."""

    def __init__(self, blocks: ParquetBlocks, kept: NDArray[np.int64], encoder: TableEncoder) -> None:
        self._blocks, self._kept, self._encoder = blocks, kept, encoder
        self.num_columns = len(encoder.is_numeric_)

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.concatenate(list(self._encode(self._kept[rows])))

    def blocks(self) -> Iterator[NDArray[np.float64]]:
        first = 0
        for x in self._encode(self._kept):
            yield check_magnitude(x, first_row=first)
            first += len(x)

    def _encode(self, rows: NDArray[np.int64]) -> Iterator[NDArray[np.float64]]:
        max_rows = max(1, BLOCK_VALUES // self.num_columns)  # encoded, a block is wider than in the file
        for block, places in self._blocks.iter_rows(rows):
            for part in split_rows(select_rows(block, places), max_rows):
                yield self._encoder.encode(part).x


# ---------------------------------------------------------------- the loss


class _ChosenLoss(NamedTuple):
    loss: str | Loss | Sum
    config: dict[str, Any]
    """Settings that the comparison fixed instead of deriving them from the size of the table."""
    notes: tuple[str, ...] = ()


def _choose_loss(loss: Any, rows: _Rows, seed: int, quiet: bool) -> _ChosenLoss:
    if loss == BEST:
        folder = Path(f"compare-{rows.name}" if rows.table is None else default_folder([rows.table]))
        if (folder / RESULTS_FILE_NAME).is_file():
            return _best_of_folder(folder, rows)
        if rows.table is None:
            raise InputError(f"{rows.name}: the table is too large to compare losses on it first; name the loss")
        found = compare(rows.table, baselines=False, cv_repeats=1, seed=seed, quiet=quiet)
        return _ChosenLoss(
            best_loss(found.sets[0]), {}, (f"{best_loss(found.sets[0])} is the best of a comparison with one repeat",)
        )
    if isinstance(loss, Path) or (isinstance(loss, str) and (Path(loss) / RESULTS_FILE_NAME).is_file()):
        return _best_of_folder(Path(loss), rows)
    if isinstance(loss, str) and Path(loss).is_dir():
        raise InputError(f"{loss}: not a comparison: it has no {RESULTS_FILE_NAME}")
    return _ChosenLoss(parse(loss) if isinstance(loss, str) else loss, {})


def _best_of_folder(folder: Path, rows: _Rows) -> _ChosenLoss:
    """The best loss of a comparison of this table, with the settings that were given or tuned there."""
    if not (folder / RESULTS_FILE_NAME).is_file():
        raise InputError(f"{folder}: not a comparison: it has no {RESULTS_FILE_NAME}")
    results = [
        result
        for result in ResultStore(folder).results.values()
        if (
            result.settings.get("data") == rows.table.fingerprint if rows.table is not None else result.set == rows.name
        )
    ]
    if not any(not result.is_baseline for result in results):
        raise InputError(f"{folder}: has no results for {rows.name} as it is now; compare it first, or name the loss")
    first = next(result for result in results if not result.is_baseline)
    metric = choose_metric(None, [rows.table] if rows.table is not None else [])[0]
    same_set = [result for result in results if result.set == first.set]
    one = build_comparison(same_set, metric=metric).sets[0]
    loss = best_loss(one)
    settings = next(result.settings for result in one.results if result.loss == loss)
    config = _given_settings(settings, rows, len(rows.classes))
    spec, tuned = parse(loss), _tuned_medians(settings)
    config |= {name: tuned.pop(name) for name in ("lr", "weight_decay") if name in tuned}
    how = "" if one.has_statement else ", whose verdict makes no statement about the losses"
    notes = (f"{loss} is the best loss of {folder}{how}",)
    return _ChosenLoss(replace_options(spec, **tuned) if tuned else spec, config, notes)


def _given_settings(settings: Mapping[str, Any], rows: _Rows, num_classes: int) -> dict[str, Any]:
    """Settings of a result that differ from the rule for tables of its size."""
    stored = settings.get("mlp_config")
    folds = settings.get("folds")
    if not isinstance(stored, dict) or not isinstance(folds, int) or folds < 2 or rows.table is None:
        return {}
    num_rows = len(rows.table) - len(rows.table) // folds
    rule = MLPConfig.for_table(num_rows, check_width(rows.table), num_classes)
    used = MLPConfig(**{**stored, "hidden": tuple(stored.get("hidden", rule.hidden))})
    return {name: getattr(used, name) for name in stored if getattr(used, name) != getattr(rule, name)}


def _tuned_medians(settings: Mapping[str, Any]) -> dict[str, float]:
    """Medians over the folds of the values that tuning selected."""
    tuning = settings.get("tuning")
    chosen = tuning.get("chosen") if isinstance(tuning, dict) else None
    if not isinstance(chosen, list) or not chosen or not all(isinstance(one, dict) for one in chosen):
        return {}
    return {name: float(median(float(one[name]) for one in chosen)) for name in chosen[0]}
