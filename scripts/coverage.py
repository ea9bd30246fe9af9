"""Write the table of docs/intervals.md from the record of `python -m benchmarks coverage`.

python -m benchmarks coverage --json records/coverage.json && python scripts/coverage.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for benchmarks, which is not installed

from pages.blocks import write_block

from benchmarks.coverage import markdown
from widemargin.io import bounded

if __name__ == "__main__":
    record = bounded.read_json(ROOT / "records" / "coverage.json")
    write_block(ROOT / "docs" / "intervals.md", "coverage", markdown(record))
