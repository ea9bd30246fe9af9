"""Folders of files that are images by their names alone, and manifests of them."""

from collections import Counter
from pathlib import Path

from widemargin.data.images.changes import diff_manifest, update_manifest
from widemargin.data.images.folder import create_manifest, scan_folder
from widemargin.data.images.manifest import Manifest
from widemargin.data.images.splits import SplitConfig


def write_image(root: Path, name: str, content: str) -> Path:
    """A file that is an image by its name alone: splits look at bytes, and never decode them."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def fill_folder(root: Path, **counts: int) -> Path:
    for label, count in counts.items():
        for number in range(count):
            write_image(root, f"{label}/{number:03}.png", f"{label} {number}")
    return root


def draw_manifest(root: Path, **fractions) -> Manifest:
    return create_manifest(scan_folder(root), SplitConfig(**fractions))[0]


def paths_in(manifest: Manifest, part: str) -> set[str]:
    return {row.path for row in manifest.rows_in(part)}


def class_counts(manifest: Manifest, part: str) -> Counter:
    return Counter(row.label for row in manifest.rows_in(part))


def take_in_changes(root: Path, manifest: Manifest, **fractions):
    tree = scan_folder(root)
    compared = diff_manifest(manifest, tree)
    return compared, *update_manifest(manifest, tree, compared, SplitConfig(**fractions))
