"""Which state of the software a result came from: the git commit of the source, and versions of packages."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_GIT_TIMEOUT_SECONDS = 10.0  # seconds; a record without a commit is better than a run that hangs


@cache
def source_commit(folder: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of the checkout that tracks this package, with "+changes" if the package differs from it.

    None for an installed package, also for one that lies in somebody's checkout without being part of it.
    """
    if _run_git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    found, changes = _run_git(folder, "rev-parse", "HEAD"), _run_git(folder, "status", "--porcelain", "--", ".")
    if not found or changes is None:
        return None
    return found.strip() + ("+changes" if changes.strip() else "")


def _run_git(folder: Path, *args: str) -> str | None:
    """What git says; None if there is no git, or it refuses or dawdles."""
    # Without the variables of git itself: those of a hook belong to another repository.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
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
    return done.stdout.decode(errors="replace")


def versions() -> dict[str, str]:
    """Versions of what computes."""
    from .._version import __version__

    found = {"widemargin": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "scikit-learn"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
