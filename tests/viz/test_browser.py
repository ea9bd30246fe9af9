"""Every page in a real browser: no error, no request, sliders that move pictures, numbers that are the package's.

Needs playwright and a Chromium (see `browser` in conftest.py); `.ci/run` sees to both, and fails without them.
"""

import json
import re
import time
from html import unescape
from urllib.parse import parse_qs

import pytest
import torch

from colours import FAST, draw
from widemargin.cli.main import main
from widemargin.lab.curves import ANGLES_DEG
from widemargin.tabular.results import ResultStore
from widemargin.theory import decision_function, suggest_scale
from widemargin.tour.margins import arcface

HOSTILE = "<img src=x onerror=alert(1)> & 'red' \"co\""
PAGES = ("lab", "tour", "report", "runs", "comparison")


@pytest.fixture(scope="session")
def lab(made_once):
    return made_once("lab.html", "lab")


@pytest.fixture(scope="session")
def tour(made_once):
    return made_once("tour.html", "tour")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two short runs on coloured pictures, one with an adaptive loss; a class and a run have hostile names."""
    place = tmp_path_factory.mktemp("runs")
    images = draw(place / "data")
    for part in ("train", "test"):
        (images / part / "red").rename(images / part / HOSTILE)
    common = ["--epochs", "2", "--val-fraction", "0.2", "--quiet"]
    assert main(["train", str(images), *FAST, *common, "--out", str(place / "<b>one")]) == 0
    words = ["adacos" if word.startswith("arcgrad") else word for word in FAST]
    assert main(["train", str(images), *words, *common, "--out", str(place / "two")]) == 0
    return place


@pytest.fixture(scope="module")
def report(folder):
    out = folder / "one.html"
    assert main(["report", str(folder / "<b>one"), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def runs(folder):
    out = folder / "both.html"
    assert main(["report", str(folder / "<b>one"), str(folder / "two"), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    place = tmp_path_factory.mktemp("compare")
    rows = [f"{k % 7},{k * k % 11},{['<b>a', 'b', 'c'][k % 3]}" for k in range(90)]
    (place / "<i>x & y.csv").write_text("\n".join(["width,height,<u>kind", *rows]) + "\n")
    words = ["compare", str(place / "<i>x & y.csv"), "--target", "<u>kind", "--losses", "softmax, arcgrad(s=5), adacos"]
    words += ["--cv-repeats", "2", "--folds", "3", "--min-steps", "20", "--epochs", "1", "--jobs", "1"]
    assert main([*words, "--out", str(place / "out")]) == 0
    return place / "out" / "report.html"


def wait_until(true, seconds=10.0):
    """Wait for something; the pages forbid scripts from outside, and so playwright's own waiting."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


def take_screenshot(page, path, full_page=False, attempts=3):
    """Write a screenshot; Chromium on a busy machine sometimes answers that it cannot capture one, and then can."""
    from playwright.sync_api import Error

    for attempt in range(1, attempts + 1):
        try:
            page.screenshot(path=path, full_page=full_page)
        except Error as error:
            if attempt == attempts or "captureScreenshot" not in str(error):
                raise
            time.sleep(0.5 * attempt)
        else:
            return


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
    middle = ANGLES_DEG[len(ANGLES_DEG) // 2]
    theta = torch.tensor([float(middle)], dtype=torch.float64).deg2rad()
    for loss in ("arcface", "arcgrad"):
        spec = "arcface(s=20, m=0.3)" if loss == "arcface" else "arcgrad(s=20)"
        assert spec in page.locator("#legend").inner_text()
        lead = decision_function(spec, theta, torch.full_like(theta, torch.pi / 2), num_classes=100)
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
    fragment = parse_qs(page.evaluate("location.hash").lstrip("#"))
    assert set(fragment["loss"][0].split(",")) == {"cosface", "arcgrad"}
    assert fragment["s"] == ["40"]
    page.evaluate("location.hash = '#loss=normface&s=5&C=nonsense'")
    wait_until(lambda: page.locator("#use-normface").is_checked())
    assert page.locator("#s-value").inner_text() == "5"


def test_the_labs_film_runs(opened, lab):
    page = opened(lab)
    first = page.locator("#film0").inner_html()
    page.locator("#play").click()
    wait_until(lambda: int(page.locator("#frame").input_value()) > 1)
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


def test_the_tours_numbers_are_the_packages(opened, tour):
    page = opened(tour, fragment="#arcface")
    assert -1 <= page.locator("section#arcface").bounding_box()["y"] < 900  # the link leads to its section
    section = arcface()
    live = page.locator("[data-live=arcface]")
    slider = live.locator("input")
    slider.focus()
    page.keyboard.press("Home")
    for frame in section.slider.frames:
        assert live.locator("output").inner_text() == frame.label
        assert live.locator(".frame:visible .numbers").inner_text() == frame.caption
        page.keyboard.press("ArrowRight")


def test_a_reports_numbers_are_the_records(opened, folder, report, runs):
    record = json.loads((folder / "<b>one" / "record.json").read_text())
    page = opened(report)
    cells = page.locator("table").first.locator("td").all_inner_texts()
    assert f"{record['test']['top1']:.2f} %" in cells
    assert f"{torch.rad2deg(torch.tensor(record['angles']['wc_intra'])):.1f}°" in cells
    assert record["command"] in page.locator("pre").all_inner_texts()
    both = opened(runs)
    assert both.locator("table").first.locator("tbody tr").count() == 2
    assert "The number s" in both.locator("h2").all_inner_texts()
    both.locator("summary").first.click()
    assert both.locator("details[open] h2").count() > 2


def test_a_comparisons_numbers_are_the_results(opened, comparison):
    page = opened(comparison)
    shown = " ".join(page.locator("td").all_inner_texts())
    for result in ResultStore(comparison.parent).results.values():
        assert re.search(rf"\b{result.mean:.2f}\b", shown), result.loss


@pytest.mark.parametrize("name", ["report", "runs", "comparison"])
def test_names_inject_nothing(opened, request, name):
    path = request.getfixturevalue(name)
    page = opened(path)
    assert page.locator("img[src=x], main b:text-matches('^one'), main i, main u").count() == 0
    words = page.locator("body").evaluate("body => body.textContent")
    wanted = {"report": [HOSTILE, "<b>one"], "runs": [HOSTILE, "<b>one"], "comparison": ["<i>x & y"]}[name]
    for word in wanted:
        assert word in words
        assert word not in path.read_text(encoding="utf-8")
        assert word in unescape(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("width", [400, 1400, 1900])
@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_narrow_and_wide_screens(opened, request, tmp_path, name, width):
    path = request.getfixturevalue(name)
    assert path.stat().st_size <= 6 << 20
    page = opened(path, width=width, dark=width == 1900)
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert over <= 0
    take_screenshot(page, tmp_path / "shot.png", full_page=width == 400)
    assert (tmp_path / "shot.png").stat().st_size > 20_000


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_dark_at_night_and_can_be_heard(opened, request, name):
    path = request.getfixturevalue(name)
    light: dict[bool, list[float]] = {}
    for dark in (False, True):
        page = opened(path, dark=dark)
        inks = page.evaluate("(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))")
        light[dark] = [sum(map(int, re.findall(r"\d+", ink)[:3])) / 765 for ink in inks]
    assert light[False][1] - light[False][0] > 0.6
    assert light[True][0] - light[True][1] > 0.6
    nameless = (
        "svg => !(svg.getAttribute('aria-label') || svg.querySelector('title') || svg.closest('[aria-hidden=true]'))"
    )
    assert page.evaluate(f"[...document.querySelectorAll('svg')].filter({nameless}).length") == 0
    unlabelled = "e => !e.labels.length && !e.getAttribute('aria-label')"
    assert page.evaluate(f"[...document.querySelectorAll('input, select')].filter({unlabelled}).length") == 0
