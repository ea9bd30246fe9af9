"""Pairs files (a, b, same): pairs, or one line that names the file."""

from __future__ import annotations

from ..check import CheckContext, Outcome
from ..fuzzing import load_corpus_files, run_fuzz_cases
from ..mutate import Mutator

TITLE = "Pairs files with wrong columns, paths, answers, quotes and encodings"
KIND = "input"
LONG = False

COUNTS = (300, 12_000)


def run(context: CheckContext) -> Outcome:
    """Corrupt valid pairs files next to two real images."""
    from widemargin.recognition.protocols import read_pairs

    picture = load_corpus_files("images")["grey.png"]
    for name in ("one.png", "two.png"):
        (context.folder / name).write_bytes(picture)
    corpus = list(load_corpus_files("pairs").values())
    texts = [data.decode("utf-8", "replace") for data in corpus]
    mutator = Mutator(context.seed, ("one.png", "two.png", "a", "b", "same", "1", "0", "yes", "x" * 300, "a" * 200_000))
    path = context.folder / "pairs.csv"

    def make_case() -> bytes:
        if mutator.rng.random() < 0.4:
            return mutator.mutate_bytes(corpus)
        return mutator.mutate_text(texts).encode("utf-8", "surrogatepass")

    def read(data: bytes) -> None:
        path.write_bytes(data)
        for a, b, same in read_pairs(path):
            if not (a.is_file() and b.is_file() and isinstance(same, bool)):
                raise AssertionError("a pair that is none")

    return run_fuzz_cases(context, "pairs", corpus, make_case, read, COUNTS, expected_text="pairs.csv")
