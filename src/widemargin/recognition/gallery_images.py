"""Images of a gallery: found by identity, opened with their digest, and kept as small pictures."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..io.errors import InputError

if TYPE_CHECKING:
    from PIL import Image

PICTURE_PIXELS = 256


def find_identity_images(images: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Images by identity: of a folder of folders, an index file, or a mapping."""
    from ..data.images.decode import IMAGE_SUFFIXES
    from ..data.images.index_file import scan_index_file

    if isinstance(images, Mapping):
        return {name: [item] if isinstance(item, str | Path) else item for name, item in images.items()}
    root = Path(images).expanduser()
    if root.is_file():
        tree = scan_index_file(root)
        groups: dict[str, list[Path]] = {}
        for part in (tree.train, tree.test or {}):
            for label, paths in part.items():
                groups.setdefault(label, []).extend(paths)
        return groups
    if not root.is_dir():
        raise InputError(f"{root}: no such folder or index file")
    found = {
        folder.name: sorted(p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
        for folder in sorted(root.iterdir())
        if folder.is_dir()
    }
    found = {name: paths for name, paths in found.items() if paths}
    if not found:
        raise InputError(
            f"{root}: no folder with images in it; put the images of each identity into a folder of its name"
        )
    return found


def list_probe_images(images: Any) -> list[Any]:
    """Image files of a path, a folder, or a list of these; PIL images as they are."""
    from ..export.embeddings import find_image_files

    given = images if isinstance(images, list | tuple) else [images]
    found: list[Any] = []
    for item in given:
        found += find_image_files(Path(item).expanduser()) if isinstance(item, str | Path) else [item]
    return found


def open_item(item: Any) -> tuple[Image.Image, str, str]:
    """An image as RGB, its name, and the SHA-256 of its file or of its pixels."""
    from PIL import Image

    from ..data.images.decode import hash_file, read_image

    if isinstance(item, str | Path):
        path = Path(item)
        return read_image(path), str(item), hash_file(path).sha256
    if isinstance(item, Image.Image):
        image = item.convert("RGB")
        return image, "", hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest()
    raise InputError(f"an image is a file or a PIL image, got {type(item).__name__}")


def encode_picture(image: Image.Image) -> bytes:
    """A small JPEG without any metadata of the original."""
    small = image.copy()
    small.thumbnail((PICTURE_PIXELS, PICTURE_PIXELS))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
