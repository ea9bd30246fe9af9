"""The corpus: small good inputs of every kind to make bad ones from, and every case that once failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CORPUS_DIR = Path(__file__).parent / "corpus"


def load_corpus_cases(name: str) -> list[Any]:
    """The cases of `NAME.jsonl`, one JSON value per line."""
    text = (CORPUS_DIR / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def load_corpus_files(name: str) -> dict[str, bytes]:
    """The files of the folder NAME by their names."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS_DIR / name).iterdir())}
