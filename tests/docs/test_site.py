"""The site of the docs: built without a warning, whole, readable from disk at any width, searched without a server."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ZENSICAL = Path(sys.executable).with_name("zensical")
PAGES = ("index.html", "choosing.html", "losses.html", "losses/arcface.html", "reproduce.html", "api.html")


@pytest.fixture(scope="session")
def site(shared_folder):
    """The one that WIDEMARGIN_SITE names, else built in a copy, so that nothing is left in the project."""
    built = os.environ.get("WIDEMARGIN_SITE")
    if built:
        assert (Path(built) / "index.html").exists()
        return Path(built)
    if not ZENSICAL.exists():
        pytest.skip("zensical is not installed")

    def build(place: Path) -> None:
        shutil.copytree(ROOT / "docs", place / "docs", dirs_exist_ok=True)
        shutil.copytree(ROOT / "scripts" / "theme", place / "scripts" / "theme", dirs_exist_ok=True)
        shutil.copy(ROOT / "mkdocs.yml", place)
        _run([sys.executable, str(ROOT / "scripts" / "docs.py"), str(place / "docs")], place)
        _run([str(ZENSICAL), "build", "--clean", "--strict"], place)

    return shared_folder("site-of-docs", build) / "site"


def _run(command: list[str], place: Path) -> None:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def check_site(site: Path) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "scripts" / "check_site.py"), str(site)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


@pytest.mark.slow
def test_every_link_leads_somewhere_and_nothing_is_fetched(site):
    assert check_site(site) == (0, "all links and anchors exist; nothing is loaded from other hosts\n")


def test_the_check_finds_what_is_wrong(tmp_path):
    (tmp_path / "index.html").write_text(
        '<a href="gone.html">a</a><a href="two.html#there">b</a><a href="two.html#not">c</a><img src="no.png">'
        '<script src="https://cdn.example/x.js"></script><a href="https://example.org">fine</a>'
    )
    (tmp_path / "two.html").write_text('<p id="there"></p><link rel="stylesheet" href="//fonts.example/f.css">')
    (tmp_path / "a.css").write_text("@import 'https://fonts.example/g.css'; b { background: url(data:x) }")
    code, said = check_site(tmp_path)
    assert code == 1
    assert said.splitlines() == [
        "index.html: fetches https://cdn.example/x.js",
        "index.html: gone.html does not exist",
        "index.html: no.png does not exist",
        "index.html: two.html#not has no such anchor",
        "two.html: fetches //fonts.example/f.css",
        "a.css: fetches https://fonts.example/g.css",
    ]
    assert check_site(tmp_path / "nowhere")[0] == 1


@pytest.mark.parametrize("width", [400, 1400])
def test_pages_open_from_disk_and_fit(opened, site, width):
    for name in PAGES:
        page = opened(site / name, width=width, dark=width == 400)
        assert page.locator("h1").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name


def test_the_formula_is_typeset(opened, site):
    box = opened(site / "index.html").locator("math").first.bounding_box()
    assert box["width"] > 3 * box["height"] > 0  # in one line


def test_search_works_without_a_server(opened, site):
    page = opened(site / "start" / "images.html")
    page.keyboard.press("Control+k")
    box = page.locator("input[role=combobox]")
    box.click()
    box.press_sequentially("angular gap")
    page.locator("a:has-text('ArcGrad')").first.wait_for(timeout=15_000)
    assert box.input_value() == "angular gap"


def test_the_pictures_are_small():
    """The docs show real screenshots (scripts/screenshots.py)."""
    pictures = list((ROOT / "docs" / "pictures").glob("*.png"))
    assert {path.stem for path in pictures} >= {"lab", "tour", "report", "compare"}
    assert sum(path.stat().st_size for path in pictures) <= 1.5e6
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    assert [path.name for path in pictures if f"pictures/{path.name}" not in pages] == []
