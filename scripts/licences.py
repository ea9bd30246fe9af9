"""Licences of everything that widemargin and its extras bring along, from the installed packages' own metadata.

    python scripts/licences.py           the list; exit code 1 where one is unknown or not permissive
    python scripts/licences.py --missing  also fails where a dependency is not installed

Needs no network. A dependency that is not installed is named and left out, as an extra that nobody asked for.
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
# Words of SPDX expressions, classifiers and free texts; packages under these may be part of any product as they are
# (the Mozilla licence asks for changes to its own files only).
PERMISSIVE = (
    r"apache|mit\b|bsd|isc\b|psf|python software foundation|python-2\.0|hpnd|unlicense|zlib|cc0|public domain"
    r"|mozilla public license 2\.0|mpl-2\.0|cnri-python|boost|bsl-1\.0|blueoak|libpng"
)
NOT = r"\ba?gpl|lgpl|general public|affero|sspl|busl|business source|commons clause|proprietary|non-?commercial|by-nc"
# Their metadata say nothing, or name what lies beside: read in the packages' own licence files.
KNOWN = {
    "certifi": "MPL-2.0",
    "numpy": "BSD-3-Clause (wheels carry OpenBLAS, BSD, and libgfortran, GPL with the runtime exception)",
    "scipy": "BSD-3-Clause (wheels carry OpenBLAS, BSD, and libgfortran, GPL with the runtime exception)",
}


def licence_of(found: Distribution) -> str:
    """SPDX expression, else classifiers, else the first line of the free text."""
    metadata = found.metadata
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
    """Every installed package that the root with all its extras asks for, and those that are not installed."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    found: dict[str, Distribution] = {}
    missing: set[str] = set()
    todo = [([*project["dependencies"], *(text for extra in extras for text in extra)], set[str]())]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        texts, wanted = todo.pop()
        for text in texts:
            requirement = Requirement(text)
            asked = [{"extra": extra} for extra in ("", *wanted)]
            if requirement.marker is not None and not any(requirement.marker.evaluate(each) for each in asked):
                continue
            name = canonicalize_name(requirement.name)
            key = name, frozenset(requirement.extras)
            if name == root or key in seen:
                continue
            seen.add(key)
            try:
                found[name] = distribution(name)
            except PackageNotFoundError:
                missing.add(name)
                continue
            todo.append((found[name].requires or [], set(requirement.extras)))
    return found, sorted(missing)


def main(words: list[str]) -> int:
    """Print the list; 1 where something is to be looked at."""
    found, missing = find_dependencies()
    wrong = []
    for name in sorted(found):
        said = KNOWN.get(name) or licence_of(found[name])
        permissive = bool(re.search(PERMISSIVE, said, re.IGNORECASE))
        if name not in KNOWN and (not permissive or re.search(NOT, said, re.IGNORECASE)):
            wrong.append(f"{name} {found[name].version}: {said or 'no licence in its metadata'}")
        print(f"{name:32} {found[name].version:16} {' '.join(said.split()) or '?'}")
    for name in missing:
        print(f"{name:32} not installed")
    print(f"{len(found)} packages, {len(missing)} not installed, {len(wrong)} to look at")
    for line in wrong:
        print(f"to look at: {line}", file=sys.stderr)
    return 1 if wrong or (missing and "--missing" in words) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
