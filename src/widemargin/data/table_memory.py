"""How much memory a table may take while it is read, counted as its cells come in.

A packed file can hold far more cells than its size suggests: a gzip file up to three hundred times as much text, a
Parquet file any number of equal values in a few bytes. So the memory is bounded by the size of the file as it lies on
disk. Text that is not packed needs at most 40 times its size, which is below the bound for every file up to 128 MiB.
"""

from __future__ import annotations

from ..bounded_files import size_text
from ..errors import InputError
from ..memory import available_memory

MIN_MEMORY_BUDGET, MAX_MEMORY_BUDGET = 512 << 20, 8 << 30  # bytes that any table may take, and that none may exceed
MEMORY_PER_FILE_BYTE = 64  # the size of the file on disk, between these two
MAX_CELLS = 1 << 27  # rows × columns; one gibibyte as numbers

BYTES_PER_CELL = 16  # bytes: a reference to the word, or the number itself; and the number that the table keeps
BYTES_PER_ROW = 128  # bytes: where the row began, whether it is kept, its label, and one column in the making


class MemoryBudget:
    """Counts what a table takes, and refuses it in one line when that is too much."""

    def __init__(self, file: str, stored_bytes: int) -> None:
        self.file, self.used = file, 0
        self.limit = min(max(MIN_MEMORY_BUDGET, MEMORY_PER_FILE_BYTE * stored_bytes), MAX_MEMORY_BUDGET)
        self.limit_reason = f"the bound for a file of {stored_bytes:,} bytes"
        there = available_memory()
        if there is not None and there < self.limit:
            self.limit, self.limit_reason = there, "all that is available now"

    def reserve(self, size: int) -> None:
        """So many bytes more."""
        self.used += size
        if self.used > self.limit:
            limit = size_text(self.limit >> 20 << 20)
            raise InputError(
                f"{self.file}: takes more than {limit} of memory as a table ({self.limit_reason}); take a sample of its rows"
            )

    def reserve_cells(self, rows: int, columns: int) -> None:
        """So many more rows of so many columns."""
        self.reserve(rows * (BYTES_PER_ROW + columns * BYTES_PER_CELL))


def check_cells(rows: int, columns: int, file: str, what: str = "") -> None:
    """Refuse a table of more cells than are taken."""
    if rows * max(1, columns) > MAX_CELLS:
        raise InputError(
            f"{file}: {rows:,} rows of {columns:,} columns{what}, more than {MAX_CELLS:,} cells; "
            "take a sample of its rows"
        )
