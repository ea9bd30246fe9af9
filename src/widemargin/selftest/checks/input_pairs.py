"""Pairs files (a, b, same): pairs, or one line that names the file."""

from __future__ import annotations

from ..check import Outcome, Size
from ..corpus import files
from ..mutate import Mutator
from ..trial import run_trials

TITLE = "Pairs files: columns, paths, answers, quotes and encodings gone wrong"
KIND = "input"
LONG = False

COUNTS = (300, 12_000)


def run(size: Size) -> Outcome:
    """Spoil good pairs files beside two real images."""
    from ...training.protocols import read_pairs

    picture = files("images")["grey.png"]
    for name in ("one.png", "two.png"):
        (size.folder / name).write_bytes(picture)
    kept = list(files("pairs").values())
    texts = [data.decode("utf-8", "replace") for data in kept]
    mutator = Mutator(size.seed, ("one.png", "two.png", "a", "b", "same", "1", "0", "yes", "x" * 300, "a" * 200_000))
    path = size.folder / "pairs.csv"

    def made() -> bytes:
        if mutator.draw.random() < 0.4:
            return mutator.spoiled(kept)
        return mutator.misspelt(texts).encode("utf-8", "surrogatepass")

    def read(data: bytes) -> None:
        path.write_bytes(data)
        for a, b, same in read_pairs(path):
            if not (a.is_file() and b.is_file() and isinstance(same, bool)):
                raise AssertionError("a pair that is none")

    return run_trials(size, "pairs", kept, made, read, COUNTS, place="pairs.csv")
