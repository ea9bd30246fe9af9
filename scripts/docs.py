"""Generate pages of the docs: one per loss, our results next to the paper's, how to add a loss, the API.

    python scripts/docs.py && zensical build --clean --strict && python scripts/check_site.py

All content comes from the package and from records/; generated pages are not part of the repository (docs/.gitignore).
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for benchmarks, which is not installed

from pages import api, losses, records


def main(out: Path) -> None:
    """Write all pages to a folder."""
    losses.write_loss_pages(out)
    (out / "reproduce.md").write_text(records.render_records_page(ROOT / "records"), encoding="utf-8")
    (out / "add-a-loss.md").write_text(read_add_a_loss(), encoding="utf-8")
    (out / "api.md").write_text(api.render_api_page(), encoding="utf-8")


def read_add_a_loss() -> str:
    """Return the section of CONTRIBUTING on adding a loss."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    title, _, part = text.partition("## Add a loss")[2].partition("\n")
    return f"# Add a loss{title}\n{part.partition(chr(10) + '## ')[0]}\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs")
