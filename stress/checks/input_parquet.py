"""Parquet: a table, or one line that names the file."""

from __future__ import annotations

from ..check import CheckContext, Outcome
from ..fuzzing import load_corpus_files, run_fuzz_cases
from ..mutate import Mutator

TITLE = "Parquet files: bytes flipped, cut, doubled, spliced; columns of every type"
KIND = "input"
LONG = False

COUNTS = (150, 4_000)


def run(context: CheckContext) -> Outcome:
    """Corrupt valid files and read them."""
    from widemargin.data.tabular.read import read_table

    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return Outcome(0, 0, "nothing", "pyarrow is not installed, so no Parquet file is read at all")
    corpus = list(load_corpus_files("parquet").values())
    mutator = Mutator(context.seed)
    path = context.folder / "table.parquet"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        read_table(path)

    return run_fuzz_cases(
        context, "parquet", corpus, lambda: mutator.mutate_bytes(corpus), read, COUNTS, expected_text="table.parquet"
    )
