"""The commit of the source: of a real checkout, changed or not, and of what is none."""

import inspect
import subprocess
from pathlib import Path

import pytest

import widemargin
from widemargin.io.provenance import source_commit


@pytest.fixture
def checkout(tmp_path):
    """A checkout with a package in it, and its commit."""
    package = tmp_path / "project" / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (tmp_path / "project" / "README.md").write_text("one")
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "-q", "-m", "first"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path / "project", check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path / "project", check=True, capture_output=True, text=True
    )
    source_commit.cache_clear()
    yield package, head.stdout.strip()
    source_commit.cache_clear()


def test_a_checkout_has_its_commit(checkout, monkeypatch):
    package, head = checkout
    assert len(head) == 40
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as in a hook of another checkout
    assert source_commit(package) == head


def test_all_of_the_package_counts():
    assert inspect.signature(source_commit).parameters["folder"].default == Path(widemargin.__file__).parent


@pytest.mark.parametrize("change", ["tracked", "new"])
def test_changes_of_the_package_are_told(change, checkout):
    package, head = checkout
    (package / ("__init__.py" if change == "tracked" else "arcnew.py")).write_text("x = 1\n")
    assert source_commit(package) == head + "+changes"


def test_changes_elsewhere_do_not_matter(checkout):
    package, head = checkout
    (package.parents[1] / "README.md").write_text("two")
    assert source_commit(package) == head


def test_a_package_that_only_lies_in_a_checkout_has_none(checkout):
    package, _ = checkout
    other = package.parents[1] / ".venv" / "widemargin"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    assert source_commit(other) is None


def test_no_checkout_no_folder_no_git_no_commit(tmp_path, checkout, monkeypatch):
    (tmp_path / "__init__.py").write_text("")
    assert source_commit(tmp_path) is None
    assert source_commit(tmp_path / "nowhere") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert source_commit(checkout[0]) is None


def test_a_git_that_never_answers_is_not_waited_for(checkout, tmp_path, monkeypatch):
    fake = tmp_path / "git"
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("widemargin.io.provenance._GIT_TIMEOUT_SECONDS", 0.2)
    assert source_commit(checkout[0]) is None
