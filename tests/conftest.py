"""What all tests share: one thread per worker, seeds, and where real data is found."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "tests", deadline=None, max_examples=30, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(0)


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
    from widemargin.data import fetch

    monkeypatch.delenv("WIDEMARGIN_DATA", raising=False)
    monkeypatch.setenv("WIDEMARGIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WIDEMARGIN_MIRROR", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetch, "PAUSE", 0.0)
    return tmp_path / "cache"
