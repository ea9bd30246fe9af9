"""Cells of an experiment on tables: one line per finished cell on disk, so that none is trained twice.

A cell is a setting with its result (thousands of small models make minutes, not hours, so a run folder for each would
be too much). The record of an experiment is all its cells as one table, with the command, the commits and the seeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...io import bounded
from ...io.errors import InputError
from ...io.provenance import source_commit

Row = dict[str, Any]
Record = dict[str, Any]


class CellStore:
    """Finished cells in `OUT/cells.jsonl`; `keys` are the fields that tell cells apart."""

    def __init__(self, out: Path, keys: Sequence[str]) -> None:
        self.path, self.keys = out / "cells.jsonl", tuple(keys)
        self.rows: dict[tuple[Any, ...], Row] = {}
        self._commit = source_commit()
        if self.path.exists():
            for row in _read_lines(self.path, self.keys):
                self.rows[self.key_of(row)] = row

    def key_of(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """The fields that tell cells apart."""
        return tuple(row[name] for name in self.keys)

    def has_all(self, rows: Iterable[Mapping[str, Any]]) -> bool:
        """True if all these cells are finished."""
        return all(self.key_of(row) in self.rows for row in rows)

    def add(self, rows: Sequence[Row]) -> None:
        """Append finished cells; a run that is stopped meanwhile loses at most the last line."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = []
        for row in rows:
            full = {**row, "commit": self._commit}
            self.rows[self.key_of(full)] = full
            lines.append(json.dumps(full, ensure_ascii=False) + "\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(lines)

    def select(self, rows: Iterable[Mapping[str, Any]]) -> list[Row]:
        """The finished ones of these cells, in their order."""
        return [self.rows[key] for row in rows if (key := self.key_of(row)) in self.rows]


def _read_lines(path: Path, keys: Sequence[str]) -> Iterator[Row]:
    text = bounded.read_file(path, bounded.MAX_IN_MEMORY_LOG_BYTES).decode("utf-8", "replace")
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            continue  # cut off while it was written: the cell counts as missing
        try:
            row = json.loads(line)
            tuple(row[name] for name in keys)
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"{path}, line {number}: not a cell of this recipe; delete the file to start over"
            ) from None
        yield row


def write_record(path: Path, command: str, seeds: Sequence[int], rows: Sequence[Row]) -> Record:
    """Write all cells as one table and return it: `columns`, `rows`, the command, the commits and the seeds."""
    columns = [name for name in rows[0] if name != "commit"] if rows else []
    record: Record = {
        "command": command,
        "commits": sorted({str(row["commit"]) for row in rows}),
        "seeds": list(seeds),
        "columns": columns,
    }
    head = json.dumps(record, ensure_ascii=False, indent=1)[:-2]
    body = ",\n".join(json.dumps([row[name] for name in columns], ensure_ascii=False) for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(f'{head},\n "rows": [\n{body}\n]}}\n', encoding="utf-8")
    fresh.replace(path)
    return {**record, "rows": [[row[name] for name in columns] for row in rows]}


def record_rows(record: Record) -> list[Row]:
    """The rows of a record as dicts."""
    return [dict(zip(record["columns"], row, strict=True)) for row in record["rows"]]


def read_record_rows(path: Path) -> list[Row]:
    """The rows of a record on disk."""
    try:
        return record_rows(bounded.read_json(path))
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: not a record of this recipe") from None


def add_cell_arguments(parser: argparse.ArgumentParser, recipe: str) -> None:
    """Options that all recipes of cells share."""
    parser.add_argument("--seed", type=int, default=0, help="random seed (default 0)")
    parser.add_argument("--list", action="store_true", help="count finished and missing cells without training")
    parser.add_argument("--out", metavar="DIR", help=f"folder of cells, record and page (default {recipe})")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
