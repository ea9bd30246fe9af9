"""Images of a gallery: found by identity, opened, hashed, and kept as small pictures."""

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
    from ..data.images.folder import images_by_class
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
    found = {name: paths for name, paths in images_by_class(root)[0].items() if paths}
    if not found:
        raise InputError(
            f"{root}: contains no folder with images; put the images of each identity into a folder with its name"
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


def open_item(item: Any) -> tuple[Image.Image, str]:
    """An image as RGB, and its name."""
    from PIL import Image

    from ..data.images.decode import read_image

    if isinstance(item, str | Path):
        source = str(item).encode(errors="surrogateescape").decode(errors="backslashreplace")  # a name may be no UTF-8
        return read_image(Path(item)), source
    if isinstance(item, Image.Image):
        return (item if item.mode == "RGB" else item.convert("RGB")), ""
    raise InputError(f"an image is a file or a PIL image, got {type(item).__name__}")


def hash_item(item: Any, image: Image.Image) -> str:
    """SHA-256 of the file of an item that `open_item` opened as `image`, or of its pixels if it is no file."""
    from ..data.images.decode import hash_file

    if isinstance(item, str | Path):
        return hash_file(Path(item)).sha256
    return hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest()


def encode_picture(image: Image.Image) -> bytes:
    """A small JPEG without any metadata of the original."""
    small = image.copy()
    small.thumbnail((PICTURE_PIXELS, PICTURE_PIXELS))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
