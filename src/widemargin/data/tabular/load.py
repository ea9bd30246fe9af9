"""Whatever holds a table, as a `Table`: a file, a set's name, a pandas DataFrame, arrays, a scikit-learn Bunch.

A DataFrame and arrays become the same grid of cells that a file does, so that one set of rules decides what is a
number, a category, a class or left out (see `read`). The index of a DataFrame is not a column and is not looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...io.errors import InputError, format_value
from .grid import Cells, Grid, resolve_column_names
from .numbers import check_decimal
from .read import build_table, read_table
from .table import Table, check_cells, quote_cell
from .uci import load_uci_set, uci_set_names

if TYPE_CHECKING:
    import pandas as pd

TableData: TypeAlias = "str | Path | pd.DataFrame | tuple[Any, Any] | Mapping[str, Any] | Table"
"""A path, an address, the name of a UCI set, a pandas DataFrame, a tuple `(X, y)`, a Bunch or a `Table`."""

DEFAULT_NAME = "table"
SECONDS_PER_DAY = 86400.0
_KINDS = "a path, the name of a set, a DataFrame, (X, y), a scikit-learn Bunch or a Table"


def load_tables(
    data: TableData | list[TableData] | Mapping[str, TableData],
    target: str | None = None,
    *,
    target_is_class: bool = False,
    decimal: str | None = None,
    data_dir: str | Path | None = None,
) -> list[Table]:
    """One table or several as `Table`s, each with a name of its own.

    Args:
        data: whatever `load_table` takes, a list of these, or a dict of them by name.
        target, target_is_class, decimal, data_dir: as in `load_table`, for all of them.

    >>> [table.name for table in load_tables({"mine": ([[1, 2], [3, 4], [5, 7], [9, 8]], "abab")})]
    ['mine']
    """
    named: list[tuple[str | None, TableData]]
    if isinstance(data, Mapping) and not _is_bunch(data):
        named = [(str(name), value) for name, value in data.items()]
    else:
        named = [(None, value) for value in data] if isinstance(data, list) else [(None, data)]
    if not named:
        raise InputError(f"data is empty; give {_KINDS}, or a list or dict of these")
    tables = []
    for place, (name, value) in enumerate(named, 1):
        default = name or (DEFAULT_NAME if len(named) == 1 else f"{DEFAULT_NAME}_{place}")
        table = load_table(
            value, target, target_is_class=target_is_class, decimal=decimal, data_dir=data_dir, default_name=default
        )
        tables.append(table if name is None else replace(table, name=name))
    names = [table.name for table in tables]
    for one in names:
        if names.count(one) > 1:
            raise InputError(f"two tables are named {one}; rename one of them")
    return tables


def load_table(
    data: TableData,
    target: str | None = None,
    *,
    target_is_class: bool = False,
    decimal: str | None = None,
    data_dir: str | Path | None = None,
    default_name: str = DEFAULT_NAME,
) -> Table:
    """A table from anything that holds one.

    Args:
        data: CSV, TSV or Parquet file, its https address, or "-" for standard input; name of a UCI set (`list_uci_sets`
            has them); pandas DataFrame; `(X, y)`; scikit-learn Bunch; `Table`.
        target: column of classes of a file or a DataFrame, by default the last one.
        target_is_class: the target's numbers are classes, however many there are.
        decimal: "," or ".", the decimal sign of columns that can be read both ways, such as one of only `1,234`.
        data_dir: folder to look for UCI sets in.
        default_name: the table's name where the data has none.

    >>> table = load_table(([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0], [9.0, 8.0]], ["a", "b", "a", "b"]))
    >>> table.class_names, [column.name for column in table.columns]
    (('a', 'b'), ['c1', 'c2'])
    """
    check_decimal(decimal)
    column = None if target is None else str(target)  # a DataFrame's may be a number
    if isinstance(data, str | Path) and not _is_uci_name(data):
        return read_table(data, column, target_is_class=target_is_class, decimal=decimal)
    if is_frame(data):
        return build_table(frame_grid(data, default_name), default_name, column, target_is_class, decimal)
    if target is not None:
        known = f"the classes of {data} are known" if isinstance(data, str | Path) else "this has its classes already"
        raise InputError(f"target is for files and DataFrames; {known}")
    if isinstance(data, str | Path):
        return load_uci_set(str(data), data_dir)
    if isinstance(data, Table):
        return data
    if _is_bunch(data):
        return _bunch_table(data, default_name, target_is_class, decimal)
    if isinstance(data, tuple) and len(data) == 2:
        return _arrays_table(*data, default_name, target_is_class, decimal)
    raise InputError(f"data must be {_KINDS} (several: a list or dict of these), got {format_value(data)}")


def _is_uci_name(data: str | Path) -> bool:
    """Whether this names a UCI set; a file of that name goes first, a folder may well be where results went."""
    return str(data) in uci_set_names() and not Path(data).is_file()


def is_frame(data: object) -> bool:
    """Whether this is a pandas DataFrame."""
    pandas = sys.modules.get("pandas")  # who has a DataFrame has imported it
    return pandas is not None and isinstance(data, pandas.DataFrame)


def _is_bunch(data: object) -> bool:
    return isinstance(data, Mapping) and hasattr(data, "data") and hasattr(data, "target")


def _bunch_table(bunch: Any, default_name: str, target_is_class: bool, decimal: str | None) -> Table:
    """A Bunch of scikit-learn: its classes are named by `target_names` where it has them."""
    names, y = bunch.get("target_names"), bunch.target
    codes = np.asarray(y)
    if names is not None and codes.ndim == 1 and codes.dtype.kind in "iu" and len(names) > codes.max(initial=-1):
        y = np.asarray(names)[codes]
    columns = bunch.get("feature_names")
    file_name = Path(str(bunch.get("filename") or default_name)).name
    known = default_name if default_name != DEFAULT_NAME else file_name.split(".", maxsplit=1)[0] or default_name
    return _arrays_table(bunch.data, y, known, target_is_class, decimal, columns)


def _arrays_table(
    x: Any, y: Any, name: str, target_is_class: bool, decimal: str | None, column_names: Any = None
) -> Table:
    """Rows X [n, F] and labels y [n]."""
    import pandas as pd

    try:
        frame = x if is_frame(x) else pd.DataFrame(np.asarray(x)).infer_objects()
        labels = pd.Series(list(y) if isinstance(y, str) else np.asarray(y).ravel())
    except (ValueError, TypeError, RuntimeError) as error:  # RuntimeError: a tensor that requires a gradient
        why = " ".join(str(error).split())
        raise InputError(f"{name}: X must have rows and columns and y a label for each row ({why})") from None
    if len(frame) != len(labels):
        raise InputError(f"{name}: X has {len(frame)} rows, y has {len(labels)} labels; they must be equally many")
    if not is_frame(x):
        named = column_names is not None and len(column_names) == frame.shape[1]
        wanted = column_names if named else [f"c{place}" for place in range(1, frame.shape[1] + 1)]
        frame.columns = pd.Index([str(column) for column in wanted])
    taken = {str(column).strip() for column in frame.columns}
    wanted_names = (str(getattr(y, "name", None) or "y"), *(f"y{'_' * count}" for count in range(len(taken) + 1)))
    label_name = next(free for free in wanted_names if free.strip() not in taken)
    frame = frame.assign(**{label_name: labels.to_numpy()})
    return build_table(frame_grid(frame, name), name, None, target_is_class, decimal)


# ---------------------------------------------------------------- a DataFrame as a grid of cells


def frame_grid(frame: pd.DataFrame, name: str, min_columns: int = 2) -> Grid:
    """The columns of a DataFrame; numbers stay numbers, all else becomes words, as in a Parquet file.

    Dates and times are words in ISO form, from which `dates` makes numbers; durations are numbers of days.
    """
    rows, width = frame.shape
    check_cells(rows, width, name)
    names = resolve_column_names([str(column).strip() for column in frame.columns], name)
    if width < min_columns:
        raise InputError(
            f"{name}: {width} column{'s' * (width != 1)}; at least a feature and a column of classes are needed"
        )
    if not rows:
        raise InputError(f"{name}: columns but no rows")
    kept: list[str] = []
    columns: list[Cells] = []
    notes: list[str] = []
    for place, column_name in enumerate(names):
        column = frame.iloc[:, place]
        unreadable = _unreadable_type(column)
        if unreadable:
            notes.append(f"left out {quote_cell(column_name)} (it holds {unreadable!r}, neither numbers nor words)")
            continue
        kept.append(column_name)
        columns.append(_series_cells(column))
    if len(kept) < min_columns:
        raise InputError(f"{name}: no column to learn from: {'; '.join(notes)}")
    return Grid(name, kept, columns, range(rows), notes)


def _unreadable_type(column: pd.Series[Any]) -> str:
    """The type of the first value of a column if it is a structure or bytes; empty otherwise."""
    if column.dtype != object:
        return ""
    first = next(iter(column.dropna().head(1)), None)
    return type(first).__name__ if isinstance(first, list | tuple | dict | set | bytes | np.ndarray) else ""


def _series_cells(column: pd.Series[Any]) -> Cells:
    """A column as whole numbers, numbers or words."""
    import pandas as pd
    from pandas.api import types

    kind: Any = column.dtype
    if isinstance(kind, pd.CategoricalDtype) and types.is_numeric_dtype(kind.categories.dtype):
        kind = np.dtype(np.float64) if column.hasnans else kind.categories.dtype
        column = column.astype(kind)
    if types.is_timedelta64_dtype(kind):
        return np.asarray(column.dt.total_seconds().to_numpy(dtype=np.float64)) / SECONDS_PER_DAY
    if types.is_bool_dtype(kind):
        pass
    elif types.is_integer_dtype(kind) and not column.hasnans and str(kind).lower() != "uint64":
        return np.asarray(column.to_numpy(dtype=np.int64))
    elif types.is_integer_dtype(kind) or types.is_float_dtype(kind):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    gaps = column.isna().tolist()
    return ["" if gap else str(value).strip() for value, gap in zip(column.tolist(), gaps, strict=True)]
