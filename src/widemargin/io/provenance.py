"""Provenance of results: git commit of the source and versions of packages."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_GIT_TIMEOUT_SECONDS = 10.0  # a record without a commit is better than a run that hangs


@cache
def source_commit(folder: Path = Path(__file__).parents[1]) -> str | None:
    """Return the commit of the checkout that tracks this package, with "+changes" if the package differs from it.

    None for an installed package, even if it is installed inside an unrelated checkout.
    """
    if _run_git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit, changes = _run_git(folder, "rev-parse", "HEAD"), _run_git(folder, "status", "--porcelain", "--", ".")
    if not commit or changes is None:
        return None
    return commit.strip() + ("+changes" if changes.strip() else "")


def _run_git(folder: Path, *args: str) -> str | None:
    """Return git's output; None if git is missing, fails or takes too long."""
    # Without git's own variables: those of a hook belong to another repository.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        process = subprocess.run(
            ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *args],
            cwd=folder,
            env={**plain, "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GIT_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.decode(errors="replace")


def versions() -> dict[str, str]:
    """Return the versions of widemargin, Python and the packages that compute."""
    from .._version import __version__

    versions_by_name = {"widemargin": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "scikit-learn"):
        try:
            versions_by_name[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions_by_name
