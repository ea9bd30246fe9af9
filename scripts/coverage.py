"""Write the table of docs/intervals.md from the record of `python -m benchmarks coverage`.

python -m benchmarks coverage --json records/coverage.json && python scripts/coverage.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for benchmarks, which is not installed

from benchmarks.coverage import markdown
from widemargin.io import bounded

RECORD, PAGE = ROOT / "records" / "coverage.json", ROOT / "docs" / "intervals.md"
BEGIN, END = "<!-- coverage: begin -->\n", "<!-- coverage: end -->\n"


def replace_table(page: str, table: str) -> str:
    """The page with its table made anew."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"{PAGE}: has no place for the table, {BEGIN.strip()} to {END.strip()}")
    return f"{before}{BEGIN}\n{table}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(
        replace_table(PAGE.read_text(encoding="utf-8"), markdown(bounded.read_json(RECORD))), encoding="utf-8"
    )
    print(f"wrote {PAGE.relative_to(ROOT)}")
