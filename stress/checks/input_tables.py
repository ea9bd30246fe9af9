"""CSV and TSV: a table, or one line that names the file."""

from __future__ import annotations

import csv
import io

from ..check import CheckContext, Outcome
from ..fuzzing import load_corpus_files, run_fuzz_cases
from ..mutate import Mutator

TITLE = "Tables in text: bytes flipped, cut, doubled, spliced; other encodings, separators, quotes, numbers, labels"
KIND = "input"
LONG = False

COUNTS = (300, 14_000)


def run(context: CheckContext) -> Outcome:
    """Corrupt valid tables, write them to a file and read it."""
    from widemargin.data.tabular.encode import encode
    from widemargin.data.tabular.read import read_table

    corpus = list(load_corpus_files("tables").values())
    mutator = Mutator(context.seed, ("x", "label", "id", "a", "b", ",", ";", "\t", "|", "NA", '"', "1.5", "-0"))
    targets = (*[None] * 12, "label", "x", "lable", "", "\0", "x" * 500, "a\nb")
    path = context.folder / "table.csv"

    def make_case() -> bytes:
        kind = mutator.rng.random()
        if kind < 0.35:
            return mutator.mutate_bytes(corpus)
        if kind < 0.7:
            return _make_odd_table(mutator)
        text = mutator.mutate_text([data.decode("utf-8", "replace") for data in (mutator.rng.choice(corpus),)])
        return text.encode("utf-8", "surrogatepass")

    def read(data: bytes) -> None:
        path.write_bytes(data)
        table = read_table(path, mutator.rng.choice(targets))
        table.fingerprint  # noqa: B018
        encode(table)

    return run_fuzz_cases(context, "tables", corpus, make_case, read, COUNTS, expected_text="table.csv")


def _make_odd_table(mutator: Mutator) -> bytes:
    """A valid table with odd words in some of its cells."""
    draw = mutator.rng
    rows = [["x", "z", "label"]] + [[f"{k * 37 % 11 / 4}", f"{-k % 7}", "ab"[k % 2]] for k in range(24)]
    for _ in range(draw.choice((1, 2, 5, 30))):
        rows[draw.randrange(len(rows))][draw.randrange(3)] = mutator.odd_word()
    text = io.StringIO()
    csv.writer(text, delimiter=draw.choice(",;\t|")).writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")
