"""Parquet: a table, or one line that names the file."""

from __future__ import annotations

from ..check import Outcome, Size
from ..corpus import files
from ..mutate import Mutator
from ..trial import run_trials

TITLE = "Parquet files: bytes flipped, cut, doubled, spliced; columns of every type"
KIND = "input"
LONG = False

COUNTS = (150, 4_000)


def run(size: Size) -> Outcome:
    """Spoil good files and read them."""
    from ...data.read import read_table

    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return Outcome(0, 0, "nothing", "pyarrow is not installed, so no Parquet file is read at all")
    kept = list(files("parquet").values())
    mutator = Mutator(size.seed)
    path = size.folder / "table.parquet"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        read_table(path)

    return run_trials(size, "parquet", kept, lambda: mutator.spoiled(kept), read, COUNTS, place="table.parquet")
