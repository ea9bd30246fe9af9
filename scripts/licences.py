"""List the licences of all dependencies of widemargin and its extras, from the metadata of installed packages.

    python scripts/licences.py           prints the list; exit code 1 if one is unknown or not permissive
    python scripts/licences.py --missing  also fails if a dependency is not installed

Needs no network. A dependency that is not installed is listed and skipped, since it may belong to an unused extra.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = "widemargin"
PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
# Words of SPDX expressions, classifiers and free texts; packages with these licences may be part of any product
# unchanged (the Mozilla licence only covers changes to its own files).
PERMISSIVE = (
    r"apache|mit\b|bsd|isc\b|psf|python software foundation|python-2\.0|hpnd|unlicense|zlib|cc0|public domain"
    r"|mozilla public license 2\.0|mpl-2\.0|cnri-python|boost|bsl-1\.0|blueoak|libpng"
)
NOT = r"\ba?gpl|lgpl|general public|affero|sspl|busl|business source|commons clause|proprietary|non-?commercial|by-nc"
# Packages whose metadata are missing or name bundled libraries; from their own licence files.
KNOWN = {
    "certifi": "MPL-2.0",
    "numpy": "BSD-3-Clause (wheels carry OpenBLAS, BSD, and libgfortran, GPL with the runtime exception)",
    "scipy": "BSD-3-Clause (wheels carry OpenBLAS, BSD, and libgfortran, GPL with the runtime exception)",
}


def licence_of(package: Distribution) -> str:
    """Return the SPDX expression, else the classifiers, else the first line of the free text."""
    metadata = package.metadata
    expression = metadata.get("License-Expression")
    if expression:
        return expression
    classes = [
        line.rpartition("::")[2].strip() for line in metadata.get_all("Classifier", []) if line.startswith("License")
    ]
    classes = [line for line in classes if line != "OSI Approved"]
    if classes:
        return "; ".join(classes)
    text = (metadata.get("License") or "").strip()
    return text.splitlines()[0][:100] if text else ""


def find_dependencies(root: str = ROOT) -> tuple[dict[str, Distribution], list[str]]:
    """Return every installed package that the root with all its extras requires, and those that are not installed."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    installed: dict[str, Distribution] = {}
    missing: set[str] = set()
    todo = [([*project["dependencies"], *(text for extra in extras for text in extra)], set[str]())]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        texts, wanted = todo.pop()
        for text in texts:
            requirement = Requirement(text)
            environments = [{"extra": extra} for extra in ("", *wanted)]
            if requirement.marker is not None and not any(requirement.marker.evaluate(each) for each in environments):
                continue
            name = canonicalize_name(requirement.name)
            key = name, frozenset(requirement.extras)
            if name == root or key in seen:
                continue
            seen.add(key)
            try:
                installed[name] = distribution(name)
            except PackageNotFoundError:
                missing.add(name)
                continue
            todo.append((installed[name].requires or [], set(requirement.extras)))
    return installed, sorted(missing)


def main(words: list[str]) -> int:
    """Print the list; return 1 if something needs attention."""
    installed, missing = find_dependencies()
    wrong = []
    for name in sorted(installed):
        licence = KNOWN.get(name) or licence_of(installed[name])
        permissive = bool(re.search(PERMISSIVE, licence, re.IGNORECASE))
        if name not in KNOWN and (not permissive or re.search(NOT, licence, re.IGNORECASE)):
            wrong.append(f"{name} {installed[name].version}: {licence or 'no licence in its metadata'}")
        print(f"{name:32} {installed[name].version:16} {' '.join(licence.split()) or '?'}")
    for name in missing:
        print(f"{name:32} not installed")
    print(f"{len(installed)} packages, {len(missing)} not installed, {len(wrong)} to check")
    for line in wrong:
        print(f"to check: {line}", file=sys.stderr)
    return 1 if wrong or (missing and "--missing" in words) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
