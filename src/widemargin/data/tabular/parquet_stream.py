"""Parquet files block by block, in memory that does not depend on how many rows they have.

A block has at most `BLOCK_CELLS` cells; beside it there are the pages that pyarrow is unpacking, one of each column,
none of which may be larger than `MAX_PAGE_BYTES`. The file is never in memory as a whole, and may have any size. What
it says of itself is looked at first, as in `parquet`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...io.bounded import check_not_sparse, open_regular, size_text
from ...io.errors import InputError
from ...io.text import escape_unprintable
from .grid import Cells, Grid, resolve_column_names
from .parquet import (
    column_chunks,
    import_pyarrow,
    is_readable_type,
    is_text_type,
    largest_page,
    to_column_cells,
    translate_parquet_errors,
)
from .table import MemoryBudget, quote_cell
from .text import PARQUET_MAGIC

BLOCK_CELLS = 1 << 22
"""Cells of a block: 64 MiB as numbers and references to words."""
MAX_BLOCK_ROWS = 1 << 16
MAX_PAGE_BYTES = 256 << 20
_BUFFER_BYTES = 1 << 20
_WINDOW_BYTES = 1 << 12


class ParquetBlocks:
    """The rows of a Parquet file as grids of cells, some at a time; it can be read again and again."""

    def __init__(self, path: str | Path) -> None:
        self.file = escape_unprintable(str(path))
        self.name = Path(path).stem
        self._pa, self._pq = import_pyarrow(self.file)
        try:
            self._handle = open_regular(Path(path).expanduser())
        except OSError as error:
            raise InputError(f"{self.file}: cannot be read ({error.strerror or error})") from None
        weakref.finalize(self, self._handle.close)
        check_not_sparse(self._handle, self.file)
        with translate_parquet_errors(self._pa, self.file):
            self._check_pages()
            source = self._open()
            schema = source.schema_arrow
            self.num_rows = int(source.metadata.num_rows)
            names = resolve_column_names([str(name).strip() for name in schema.names], self.file)
            self._stored_names = {
                name: field.name
                for name, field in zip(names, schema, strict=True)
                if is_readable_type(self._pa, field.type)
            }
        self.column_names = list(self._stored_names)
        self.notes = [
            f"left out {quote_cell(name)} (neither numbers nor words)"
            for name in names
            if name not in self._stored_names
        ]
        if not self.num_rows:
            raise InputError(f"{self.file}: columns but no rows")

    def _open(self) -> Any:
        self._handle.seek(0)
        options = {"pre_buffer": False, "buffer_size": _BUFFER_BYTES}
        schema = self._pq.ParquetFile(self._handle, **options).schema_arrow
        coded = [field.name for field in schema if is_text_type(self._pa, field.type)]
        self._handle.seek(0)
        return self._pq.ParquetFile(self._handle, read_dictionary=coded, **options)

    def _check_pages(self) -> None:
        data: Any = _FileBytes(self._handle)
        for chunk in column_chunks(data):
            if largest_page(data, chunk.start, chunk.end) > MAX_PAGE_BYTES:
                raise InputError(
                    f"{self.file}: a page of more than {size_text(MAX_PAGE_BYTES)} unpacked; write smaller pages"
                )

    def blocks(self, columns: list[str] | None = None) -> Iterator[Grid]:
        """All rows in order, or some columns of them; rows are numbered from 1."""
        wanted = self.column_names if columns is None else columns
        stored = [self._stored_names[name] for name in wanted]
        rows = max(1, min(MAX_BLOCK_ROWS, BLOCK_CELLS // max(1, len(wanted))))
        first = 1
        with translate_parquet_errors(self._pa, self.file):
            for batch in self._open().iter_batches(rows, columns=stored, use_threads=False):
                table = self._pa.Table.from_batches([batch])
                memory = MemoryBudget(self.file, 0)  # of a block
                memory.reserve_cells(len(batch), len(wanted))
                cells: list[Cells] = [to_column_cells(self._pa, table.column(name), memory) for name in stored]
                yield Grid(self.file, list(wanted), cells, range(first, first + len(batch)))
                first += len(batch)
        if first != self.num_rows + 1:
            raise InputError(f"{self.file}: a damaged Parquet file; write or download it again")

    def read_column(self, name: str) -> Cells:
        """All cells of one column."""
        parts = [block.columns[0] for block in self.blocks([name])]
        if all(isinstance(part, np.ndarray) for part in parts):
            return np.concatenate(parts)
        return [word for part in parts for word in part]

    def take(self, rows: NDArray[np.int64]) -> Grid:
        """The cells of some rows, by their places in ascending order."""
        parts = [select_rows(block, kept) for block, kept in self.iter_rows(rows)]
        columns: list[Cells] = []
        for cells in zip(*(part.columns for part in parts), strict=True):
            if all(isinstance(part, np.ndarray) for part in cells):
                columns.append(np.concatenate(cells))
            else:
                columns.append([word for part in cells for word in part])
        return Grid(self.file, list(self.column_names), columns, (rows + 1).tolist(), list(self.notes))

    def iter_rows(self, rows: NDArray[np.int64]) -> Iterator[tuple[Grid, NDArray[np.int64]]]:
        """Blocks that hold some of these rows, and the places of them in the block."""
        for block in self.blocks():
            start = block.line_numbers[0] - 1
            low, high = np.searchsorted(rows, (start, start + len(block.line_numbers)))
            if high > low:
                yield block, rows[low:high] - start


def select_rows(grid: Grid, rows: NDArray[np.int64]) -> Grid:
    """The grid of some of its rows."""
    if len(rows) == len(grid.line_numbers):
        return grid
    places = rows.tolist()
    columns: list[Cells] = [
        cells[rows] if isinstance(cells, np.ndarray) else [cells[row] for row in places] for cells in grid.columns
    ]
    return Grid(grid.file, grid.column_names, columns, [grid.line_numbers[row] for row in places])


def split_rows(grid: Grid, max_rows: int) -> Iterator[Grid]:
    """The rows of a grid in order, at most so many at a time."""
    count = len(grid.line_numbers)
    for start in range(0, count, max(1, max_rows)):
        yield select_rows(grid, np.arange(start, min(count, start + max_rows)))


def is_parquet_file(path: object) -> bool:
    """Whether this is the path of a file that begins as Parquet does."""
    if not isinstance(path, str | Path):
        return False
    try:
        with open_regular(Path(path).expanduser()) as file:
            return file.read(4) == PARQUET_MAGIC
    except (OSError, ValueError):
        return False


class _FileBytes:
    """Bytes of an open file by their places, as of a `bytes`; a few are kept in memory."""

    def __init__(self, file: BufferedReader) -> None:
        self._handle, self._size = file.fileno(), os.fstat(file.fileno()).st_size
        self._start, self._window = 0, b""

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            start, stop, _ = place.indices(self._size)
            return os.pread(self._handle, max(0, stop - start), start)
        if not self._start <= place < self._start + len(self._window):
            self._start, self._window = place, os.pread(self._handle, _WINDOW_BYTES, place)
        return self._window[place - self._start]
