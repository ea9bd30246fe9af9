"""Every page in a real browser: no error, no request, sliders that move pictures, numbers that are the package's.

Needs playwright and a Chromium (`chromium` on the PATH, or WIDEMARGIN_CHROMIUM); `.ci/run` sees to both.
"""

import os
import re
import shutil
from urllib.parse import parse_qs

import pytest
import torch

from widemargin.cli import main
from widemargin.lab.curves import ANGLES
from widemargin.theory import boundary, suggest_scale

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("WIDEMARGIN_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the PATH")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser):
    """Opens a file; whatever the page asks of the network or complains about fails the test."""
    wrong: list[str] = []
    contexts = []

    def open_page(path, width=1400, fragment="", dark=False):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request", lambda asked: wrong.append(asked.url) if not asked.url.startswith(("file:", "data:")) else None
        )
        page.goto(f"file://{path}{fragment}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    path = tmp_path_factory.mktemp("lab") / "lab.html"
    assert main(["lab", "--out", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    path = tmp_path_factory.mktemp("tour") / "tour.html"
    assert main(["tour", "--out", str(path)]) == 0
    return path


def slide(page, name, value):
    page.locator(f"#{name}").fill(str(value))


def test_the_labs_sliders_move_its_pictures(opened, lab):
    page = opened(lab)
    before = {key: page.locator(f"#{key}").inner_html() for key in ("target", "loss", "pull", "gap_loss", "gap_pull")}
    slide(page, "s", 7)
    after = {key: page.locator(f"#{key}").inner_html() for key in before}
    assert all(before[key] != after[key] for key in before)
    circle = page.locator("#regions").inner_html()
    slide(page, "m", 8)
    assert page.locator("#regions").inner_html() != circle
    loss = page.locator("#loss").inner_html()
    slide(page, "c", 7)
    assert page.locator("#loss").inner_html() != loss
    page.locator("#s").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#s-value").inner_text() == "30"


def test_the_labs_numbers_are_the_packages(opened, lab):
    page = opened(lab, fragment="#loss=arcface,arcgrad&s=20&m=3&C=100&gap=40")
    middle = ANGLES[len(ANGLES) // 2]
    theta = torch.tensor([float(middle)], dtype=torch.float64).deg2rad()
    for loss in ("arcface", "arcgrad"):
        spec = "arcface(s=20, m=0.3)" if loss == "arcface" else "arcgrad(s=20)"
        assert spec in page.locator("#legend").inner_text()
        lead = boundary(spec, theta, torch.full_like(theta, torch.pi / 2), classes=100)
        wanted = float(torch.log1p(99 * torch.exp(-lead)))
        shown = float(page.locator(f"#loss-numbers b[data-loss={loss}]").inner_text())
        assert shown == pytest.approx(wanted, rel=5e-3)
    answer = page.locator("#answer").inner_text()
    wanted = suggest_scale(100, 40 * torch.pi / 180)
    assert float(re.search(r"s = ([\d.]+)", answer)[1]) == pytest.approx(wanted, rel=5e-3)


def test_a_link_carries_the_labs_settings(opened, lab):
    page = opened(lab, fragment="#loss=cosface&s=40&m=2&C=1000&between=120")
    assert page.locator("#use-cosface").is_checked()
    assert not page.locator("#use-arcface").is_checked()
    assert page.locator("#c-value").inner_text() == "1,000"
    page.locator("#use-arcgrad").check()
    told = parse_qs(page.evaluate("location.hash").lstrip("#"))
    assert told["loss"] == ["cosface,arcgrad"]
    assert told["s"] == ["40"]
    page.evaluate("location.hash = '#loss=normface&s=5&C=nonsense'")
    page.wait_for_function("document.getElementById('use-normface').checked")
    assert page.locator("#s-value").inner_text() == "5"


def test_the_labs_film_runs(opened, lab):
    page = opened(lab)
    first = page.locator("#film0").inner_html()
    page.locator("#play").click()
    page.wait_for_function("document.getElementById('frame').value > 1")
    page.locator("#play").click()
    assert page.locator("#film0").inner_html() != first
    assert "mean gap" in page.locator("#film1-numbers").inner_text()


def test_the_tours_pictures_move(opened, tour):
    page = opened(tour)
    for live in page.locator("[data-live]").all():
        slider, frames = live.locator("input"), live.locator(".frame")
        last = frames.count() - 1
        slider.fill(str(last))
        assert frames.nth(last).is_visible()
        assert live.locator(".frame:visible").count() == 1
        assert live.locator("output").inner_text() == frames.nth(last).get_attribute("data-label")


@pytest.mark.parametrize("width", [400, 1400, 1900])
@pytest.mark.parametrize("name", ["lab", "tour"])
def test_pages_fit_narrow_and_wide_screens(opened, request, tmp_path, name, width):
    page = opened(request.getfixturevalue(name), width=width, dark=width == 1900)
    over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert over <= 0
    page.screenshot(path=tmp_path / "shot.png", full_page=True)
    assert (tmp_path / "shot.png").stat().st_size > 20_000
