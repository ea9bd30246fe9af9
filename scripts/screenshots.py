"""Take the pictures of README and docs from the real pages in a browser, with runs trained for this purpose.

    WIDEMARGIN_DATA=DIR python scripts/screenshots.py

Needs playwright, Chromium (`chromium` on the PATH, or WIDEMARGIN_CHROMIUM), MNIST and Omniglot; takes a few minutes on
one core. `--only gallery` retakes the pictures of the gallery's page alone.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

import widemargin as wm
from widemargin.cli.main import main as widemargin
from widemargin.data.images.sets import load_images

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


# Characters of Omniglot by what they are for: to train on, to calibrate on, to enrol; the rest are strangers.
PARTS = {"letters/train": range(160), "letters/test": range(160, 200), "enrol": range(200, 236)}
NUM_ENROLLED = 5
THRESHOLD = 0.87
PROBES = (("known", 210, 9), ("again", 210, 12), ("stranger", 239, 0), ("misnamed", 221, 9))


def write_letters(place: Path) -> None:
    """Folders of characters as in docs/start/gallery.md, and `new/`: drawings of a known one and of a stranger."""
    found = load_images("omniglot")
    parts, names = (found.train, found.test), found.train.class_names
    images = 255 - np.concatenate([part.x[:, 0].numpy() for part in parts])  # black on white
    labels = np.concatenate([part.y.numpy() for part in parts])
    for part, characters in PARTS.items():
        for character in characters:
            folder = place / part / names[character].replace("/", " ")
            folder.mkdir(parents=True, exist_ok=True)
            rows = np.flatnonzero(labels == character)
            for row in rows[:NUM_ENROLLED] if part == "enrol" else rows:
                Image.fromarray(images[row]).save(folder / f"{row}.png")
    (place / "new").mkdir(exist_ok=True)
    for name, character, drawing in PROBES:
        row = np.flatnonzero(labels == character)[drawing]
        Image.fromarray(images[row]).save(place / "new" / f"{name}.png")


def make_gallery(place: Path) -> None:
    """Train, calibrate and enrol, by the commands of docs/start/gallery.md."""
    here = Path.cwd()
    os.chdir(place)
    try:
        write_letters(place)
        train = ["train", "letters", "fast(widths=(16, 32, 64))", "arcface(s=16, m=0.3)", "--input-size", "32"]
        train += ["--augment", "paper(pad=2, hflip=0)", "--opt", "muon", "--lr", "0.02", "--epochs", "10"]
        _run_unless_made("runs/letters/record.json", *train, "--out", "runs/letters")
        _run_unless_made("runs/letters/calibration.json", "calibrate", "runs/letters")
        _run_unless_made("known/gallery.json", "gallery", "create", "known", "--model", "runs/letters", "enrol")
        _run_unless_made("found.csv", "identify", "known", "new", "--top", "3", "--out", "found.csv")
        _run_unless_made("looser.csv", "identify", "known", "new", "--threshold", str(THRESHOLD), "--out", "looser.csv")
        misnamed = ["new/misnamed.png", "--identity", next(iter(wm.load("known").identities))]
        _run_unless_made("checked/gallery.json", "gallery", "create", "checked", "--model", "runs/letters", "enrol")
        _run_unless_made("check.html", "gallery", "add", "checked", *misnamed)
        _run_unless_made("check.html", "gallery", "check", "checked", "--top", "8", "--out", "check.html")
    finally:
        os.chdir(here)


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The address of a served gallery."""
    import uvicorn

    from widemargin.serve.app import build_app

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    app = build_app(wm.load(folder), frozenset({"127.0.0.1"}))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join(10)


def take_gallery_pictures(browser: Any, place: Path) -> dict[str, bytes]:
    """The gallery's page: a known character, two drawings compared, all identities, and a stranger on a phone; and the
    page of `gallery check`."""
    pictures = {}
    with serve(place / "known") as address:
        page = browser.new_page(viewport={"width": 1000, "height": 660})
        page.goto(address)
        page.set_input_files("#file", str(place / "new" / "known.png"))
        page.wait_for_selector("#matches li")
        _move_threshold(page)
        _wait_for_images(page)
        pictures["gallery-identify"] = to_small_png(page.screenshot())
        page.click("[data-view=compare]")
        for slot, name in enumerate(("known", "again")):
            page.set_input_files(f"[data-slot='{slot}'] input", str(place / "new" / f"{name}.png"))
        page.locator("#comparison", has_text="Cosine").wait_for()
        pictures["gallery-compare"] = to_small_png(page.screenshot())
        page.click("[data-view=browse]")
        _wait_for_images(page)
        pictures["gallery-browse"] = to_small_png(page.screenshot())
        page.close()
        phone = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
        phone.goto(address)
        phone.set_input_files("#file", str(place / "new" / "stranger.png"))
        phone.wait_for_selector("#matches li")
        _move_threshold(phone)
        _wait_for_images(phone)
        pictures["gallery-phone"] = to_small_png(phone.screenshot())
        phone.close()
    pictures["gallery-check"] = take_screenshot(browser, Shot("gallery-check", "check.html", (1000, 640)), place)
    return pictures


def _wait_for_images(page: Any) -> None:
    """Until the images in view are there; others are loaded when they come into view."""
    in_view = "i.offsetParent !== null && i.getBoundingClientRect().top < window.innerHeight"
    code = f"[...document.images].every(i => i.complete || !({in_view}))"
    while not page.evaluate(code):  # the page's policy allows no wait_for_function, which compiles code in it
        page.wait_for_timeout(50)


def _move_threshold(page: Any) -> None:
    """Move the slider, as a person would."""
    code = "slider => { slider.value = %s; slider.dispatchEvent(new Event('input')) }"
    page.locator("#threshold").evaluate(code % THRESHOLD)


def take_screenshot(browser: Any, shot: Shot, place: Path) -> bytes:
    """Take one picture as PNG; without a palette, which would shift the colours of the losses."""
    width, height = shot.size
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(f"{(place / shot.page).as_uri()}{shot.fragment}")
    page.wait_for_function("!document.querySelector('[data-loading]')")
    if shot.at:
        page.locator(shot.at).evaluate("place => place.scrollIntoView()")
    png = page.screenshot()
    page.close()
    return to_small_png(png)


def to_small_png(png: bytes) -> bytes:
    """The same picture in fewer bytes."""
    small = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(small, "PNG", optimize=True)
    return small.getvalue()


def main() -> None:
    """Write the pages and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pages", metavar="DIR", type=Path, help="folder for the pages; existing pages are kept")
    parser.add_argument("--only", choices=("pages", "gallery"), help="retake only these")
    options = parser.parse_args()
    program = os.environ.get("WIDEMARGIN_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("Chromium is not on the PATH; set WIDEMARGIN_CHROMIUM")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as started:
        place = (options.pages or Path(scratch)).resolve()
        place.mkdir(exist_ok=True)
        if options.only != "gallery":
            make_pages(place)
        if options.only != "pages":
            make_gallery(place)
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        shots = () if options.only == "gallery" else SHOTS
        pictures = {shot.name: take_screenshot(browser, shot, place) for shot in shots}
        if options.only != "pages":
            pictures |= take_gallery_pictures(browser, place)
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
