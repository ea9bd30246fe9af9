"""CSV and TSV: a table, or one line that names the file."""

from __future__ import annotations

import csv
import io

from ..check import Outcome, Size
from ..corpus import files
from ..mutate import Mutator
from ..trial import run_trials

TITLE = "Tables in text: bytes flipped, cut, doubled, spliced; other encodings, separators, quotes, numbers, labels"
KIND = "input"
LONG = False

COUNTS = (300, 14_000)


def run(size: Size) -> Outcome:
    """Spoil good tables, write them to a file and read that."""
    from ...data.encode import encode
    from ...data.read import read_table
    from ...results import fingerprint

    kept = list(files("tables").values())
    mutator = Mutator(size.seed, ("x", "label", "id", "a", "b", ",", ";", "\t", "|", "NA", '"', "1.5", "-0"))
    targets = (*[None] * 12, "label", "x", "lable", "", "\0", "x" * 500, "a\nb")
    path = size.folder / "table.csv"

    def made() -> bytes:
        kind = mutator.draw.random()
        if kind < 0.35:
            return mutator.spoiled(kept)
        if kind < 0.7:
            return _other_cells(mutator)
        text = mutator.misspelt([data.decode("utf-8", "replace") for data in (mutator.draw.choice(kept),)])
        return text.encode("utf-8", "surrogatepass")

    def read(data: bytes) -> None:
        path.write_bytes(data)
        table = read_table(path, mutator.draw.choice(targets))
        fingerprint(table)
        encode(table)

    return run_trials(size, "tables", kept, made, read, COUNTS, place="table.csv")


def _other_cells(mutator: Mutator) -> bytes:
    """A table that is one, whole rows and all, with odd words in some of its cells."""
    draw = mutator.draw
    rows = [["x", "z", "label"]] + [[f"{k * 37 % 11 / 4}", f"{-k % 7}", "ab"[k % 2]] for k in range(24)]
    for _ in range(draw.choice((1, 2, 5, 30))):
        rows[draw.randrange(len(rows))][draw.randrange(3)] = mutator.odd_word()
    text = io.StringIO()
    csv.writer(text, delimiter=draw.choice(",;\t|")).writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")
