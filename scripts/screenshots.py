"""Take the pictures of README and docs from the real pages in a browser, with runs trained for this purpose.

    WIDEMARGIN_DATA=DIR python scripts/screenshots.py

Needs playwright, Chromium (`chromium` on the PATH, or WIDEMARGIN_CHROMIUM) and MNIST; takes a few minutes on one core.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from widemargin.cli.main import main as widemargin

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
LIMIT = 1.5e6  # total bytes of all pictures


@dataclass(frozen=True)
class Shot:
    """A picture: its page, size and position."""

    name: str
    page: str
    size: tuple[int, int] = (1200, 800)
    fragment: str = ""
    at: str = ""
    """Element to scroll to."""


SHOTS = (
    Shot("lab", "lab.html", fragment="#loss=softmax,cosface,arcface,arcgrad&s=10&m=3&C=10&between=90&gap=50"),
    Shot("tour", "tour.html", (940, 900), at="section#gallery"),
    Shot("report", "report.html", (1200, 900)),
    Shot("runs", "runs.html", (1200, 900)),
    Shot("compare", "compare/report.html", (1200, 900)),
)


def make_pages(place: Path) -> None:
    """Write missing pages: lab, tour, two runs on MNIST, a comparison on Iris; in their own folder, so that
    the commands they print contain no other path."""
    here = Path.cwd()
    os.chdir(place)
    try:
        for page in ("lab", "tour"):
            _run_unless_made(f"{page}.html", page, "--out", f"{page}.html")
        _run_unless_made("compare/report.html", "compare", "--out", "compare")
        for loss in ("arcgrad(s=10)", "adacos"):
            name = loss.partition("(")[0]
            words = [
                "fast(widths=(16, 32, 32))",
                loss,
                "--epochs",
                "10",
                "--train-fraction",
                "0.1",
                "--val-fraction",
                "0.1",
            ]
            words += ["--opt", "muon", "--lr", "0.02", "--batch-size", "100", "--augment", "none"]
            _run_unless_made(f"{name}/record.json", "train", "mnist", *words, "--out", name)
        _run_unless_made("report.html", "report", "arcgrad", "--out", "report.html")
        _run_unless_made("runs.html", "report", "arcgrad", "adacos", "--out", "runs.html")
    finally:
        os.chdir(here)


def _run_unless_made(page: str, *words: str) -> None:
    if not Path(page).exists() and widemargin(list(words)) != 0:
        raise SystemExit(f"widemargin {' '.join(words)} failed")


def take_screenshot(browser: Any, shot: Shot, place: Path) -> bytes:
    """Take one picture as PNG; without a palette, which would shift the colours of the losses."""
    width, height = shot.size
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(f"{(place / shot.page).as_uri()}{shot.fragment}")
    page.wait_for_function("!document.querySelector('[data-loading]')")
    if shot.at:
        page.locator(shot.at).evaluate("place => place.scrollIntoView()")
    image = Image.open(io.BytesIO(page.screenshot()))
    page.close()
    small = io.BytesIO()
    image.convert("RGB").save(small, "PNG", optimize=True)
    return small.getvalue()


def main() -> None:
    """Write the pages and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pages", metavar="DIR", type=Path, help="folder for the pages; existing pages are kept")
    options = parser.parse_args()
    program = os.environ.get("WIDEMARGIN_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("Chromium is not on the PATH; set WIDEMARGIN_CHROMIUM")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as started:
        place = (options.pages or Path(scratch)).resolve()
        place.mkdir(exist_ok=True)
        make_pages(place)
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        pictures = {shot.name: take_screenshot(browser, shot, place) for shot in SHOTS}
        browser.close()
    total = sum(map(len, pictures.values()))
    if total > LIMIT:
        raise SystemExit(f"{total / 1e6:.2f} MB of pictures exceed the limit of {LIMIT / 1e6:g} MB")
    PICTURES.mkdir(exist_ok=True)
    for name, picture in pictures.items():
        (PICTURES / f"{name}.png").write_bytes(picture)
        print(f"{name}.png {len(picture) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
