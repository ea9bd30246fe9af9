"""What all tests share: one thread per worker, seeds, and where real data is found."""

import math
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

if sys.dont_write_bytecode:
    # Containers often ask for that. Then every process that a test starts compiles torch from its sources, which takes
    # longer than most tests: bytecode goes to pytest's own folder, and none beside the sources.
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
import torch
from filelock import FileLock
from hypothesis import HealthCheck, settings

settings.register_profile(
    "tests", deadline=None, max_examples=30, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start, several at a time
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # tests that import onnxruntime leave nothing in the user's cache
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it puts into the background with interrupts ignored, and children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_lines_of_progress(monkeypatch) -> None:
    """However slow the machine is, the standard error of a test holds only what the test is about."""
    monkeypatch.setattr("widemargin.io.progress.FIRST_LINE_SECONDS", math.inf)


@pytest.fixture
def one_thread():
    """Small tensors are faster on one thread, and sums are then the same on every machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items) -> None:
    """What opens a page in a browser is marked so."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with real data: `WIDEMARGIN_DATA`, or `shared/data` beside the project."""
    given = os.environ.get("WIDEMARGIN_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no data: set WIDEMARGIN_DATA to a folder with the data sets")
    return folder


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """An empty cache, no data around, and a port nobody listens on instead of the network."""
    from widemargin.data import download

    monkeypatch.delenv("WIDEMARGIN_DATA", raising=False)
    monkeypatch.setenv("WIDEMARGIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WIDEMARGIN_MIRROR", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "RETRY_DELAY_SECONDS", 0.0)
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """`shared_folder(name, fill)`: a folder that `fill(folder)` filled once, in the first worker that asks for it."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def get(name: str, fill: Callable[[Path], object]) -> Path:
        folder = shared / name
        filled = folder.with_name(f"{name}.filled")
        with FileLock(f"{folder}.lock"):
            if not filled.exists():
                folder.mkdir(exist_ok=True)
                fill(folder)
                filled.touch()
        return folder

    return get


@pytest.fixture(scope="session")
def made_once(shared_folder):
    """Makes a page by its command, `made_once("lab.html", "lab")`, once for all workers."""
    from widemargin.cli.main import main

    def make(name: str, *words: str) -> Path:
        def write(folder: Path) -> None:
            assert main([*words, "--out", str(folder / name)]) == 0

        return shared_folder(f"page-{name}", write) / name

    return make


@pytest.fixture(scope="session")
def browser():
    """WIDEMARGIN_CHROMIUM or the Chromium on the PATH. Without it tests skip, or fail: WIDEMARGIN_BROWSER=required."""
    absent = pytest.fail if os.environ.get("WIDEMARGIN_BROWSER") == "required" else pytest.skip
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        absent("playwright is not installed")
    program = os.environ.get("WIDEMARGIN_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        absent("there is no Chromium on the PATH")
    with sync_playwright() as started:
        found = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser):
    """Opens a file; whatever the page asks of the network, complains about or asks the reader fails the test."""
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
        page.on("dialog", lambda dialog: wrong.append(dialog.message) or dialog.dismiss())
        page.on(
            "request", lambda asked: wrong.append(asked.url) if not asked.url.startswith(("file:", "data:")) else None
        )
        page.goto(f"{Path(path).as_uri()}{fragment}")
        page.wait_for_function("!document.querySelector('[data-loading]')")  # of the lab, which unpacks its curves
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
