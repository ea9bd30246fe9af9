"""Write the table of docs/intervals.md from the record of `widemargin bench coverage`.

widemargin bench coverage --json records/coverage.json && python scripts/coverage.py
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.coverage import markdown
from widemargin.io import bounded

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = ROOT / "records" / "coverage.json", ROOT / "docs" / "intervals.md"
BEGIN, END = "<!-- coverage: begin -->\n", "<!-- coverage: end -->\n"


def filled(page: str, table: str) -> str:
    """The page with its table made anew."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"{PAGE}: has no place for the table, {BEGIN.strip()} to {END.strip()}")
    return f"{before}{BEGIN}\n{table}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), markdown(bounded.read_json(RECORD))), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
