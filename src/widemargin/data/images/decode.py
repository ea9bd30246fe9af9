"""Image files as RGB: decoded by PIL, turned as their camera says, and refused in one line when they are damaged.

An image is a file of its own (a `Path`) or part of a larger one (`packed.FileSlice`). Contents are compared by size and
SHA-256 of the file: a picture under another name is the same content.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ...io.bounded import NotAFileError, open_regular
from ...io.errors import InputError
from ...io.worker_pool import run_all
from .packed import FileSlice

# Formats are named, because PIL guesses by content: an EPS file called .png would be passed to Ghostscript.
PIL_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
IMAGE_SUFFIXES = (
    ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"
)  # fmt: skip
UNREAD_SUFFIXES = (".avif", ".cr2", ".dng", ".heic", ".heif", ".jp2", ".jxl", ".nef", ".psd", ".svg", ".tga")
"""Images of formats that are not read, which users expect to be read."""
MAX_PIXELS = 89_478_485  # pixels, PIL's own bound: a small file can unpack to more memory than there is
MAX_SIDE_PIXELS = 65_535  # pixels, JPEG's own bound: PIL keeps a pointer for every row, and tall images have many
MAX_IMAGE_FILE_BYTES = 1 << 29  # bytes: as many pixels in 48 bits each
_SERIAL_DECODE_PIXELS = 1 << 24  # pixels from which on images are decoded one at a time
_SCALE_BLOCK_PIXELS = 1 << 22  # pixels that are scaled at once
_HEADERS_PER_JOB = 20_000  # images whose headers a process checks at a time: two seconds

_ORIENTATION_KEYS = {"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"}  # where PIL looks for it

Box = tuple[int, int, int, int]
ImageFile: TypeAlias = Path | FileSlice

_large_image_lock = threading.Lock()


def find_images(folder: Path, suffixes: tuple[str, ...] = IMAGE_SUFFIXES) -> list[Path]:
    """The image files in a folder and its subfolders, sorted; links to folders are followed, each folder once.

    Names that begin with a dot are left out, because systems and editors keep copies and metadata there
    (`._1.jpg`, `.ipynb_checkpoints`).
    """
    found: list[Path] = []
    seen: set[tuple[int, int]] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        status = os.stat(place)
        if (status.st_dev, status.st_ino) in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        found += [Path(place, name) for name in files if not is_hidden(name) and name.lower().endswith(suffixes)]
    return sorted(found)


def is_hidden(name: str) -> bool:
    """Whether a file or folder is no part of a set of images: a dot begins its name, or an archiver of macOS made it.

    >>> is_hidden(".DS_Store"), is_hidden("__MACOSX"), is_hidden("ann")
    (True, True, False)
    """
    return name.startswith(".") or name == "__MACOSX"


def open_image(path: ImageFile) -> BinaryIO:
    """Open an image for reading; InputError if it is not a file or is larger than `MAX_IMAGE_FILE_BYTES`."""
    return BytesIO(path.read()) if isinstance(path, FileSlice) else open_regular_image(path)


def open_regular_image(path: Path) -> BufferedReader:
    """Open an image that is a file of its own, with the same checks."""
    try:
        return open_regular(path, MAX_IMAGE_FILE_BYTES)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except NotAFileError as error:
        raise InputError(f"{error}; remove it from the images") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); repair or remove it") from None


@contextmanager
def open_decoded_image(path: ImageFile) -> Iterator[Image.Image]:
    """The image as RGB, upright, within the block; large images are decoded one at a time over all threads."""
    with open_image(path) as file, ExitStack() as stack:
        image = _decode_file(file, path, stack)
        file.close()
        yield image


def read_image(path: ImageFile) -> Image.Image:
    """The image as RGB, upright."""
    with open_decoded_image(path) as image:
        return image


def read_image_bytes(data: bytes, name: str = "image") -> Image.Image:
    """The image in the bytes of a file as RGB, upright; `name` stands in errors."""
    with ExitStack() as stack:
        return _decode_file(BytesIO(data), Path(name), stack)


def find_header_problem(path: ImageFile) -> str | None:
    """One line on why an image cannot be read, judged by its header; None if the header is valid."""
    try:
        with open_image(path) as file, _one_line_errors(file, path), Image.open(file, formats=PIL_FORMATS) as opened:
            _check_size(opened, path)
    except InputError as error:
        return str(error)
    return None


def find_header_problems(paths: Sequence[ImageFile], workers: int | None = None) -> dict[int, str]:
    """Indices of images that cannot be read, with the reason; headers are read in parallel, pixels are not decoded.

    PIL reads headers in Python, where threads wait for each other: many images are shared among processes.
    """
    workers = workers or default_num_workers()
    starts = range(0, len(paths), _HEADERS_PER_JOB)
    jobs = [(start, paths[start : start + _HEADERS_PER_JOB]) for start in starts]
    found: dict[int, str] = {}
    for part in run_all(_check_headers, jobs, workers if len(jobs) > 2 else 1, lambda _: None):
        found |= part
    return dict(sorted(found.items()))


def _check_headers(start: int, paths: Sequence[ImageFile], on_progress: object) -> dict[int, str]:
    problems = ((start + row, find_header_problem(path)) for row, path in enumerate(paths))
    return {row: problem for row, problem in problems if problem is not None}


def default_num_workers() -> int:
    """Threads that decode images, unless the caller says how many."""
    return min(16, os.cpu_count() or 1)


def _check_size(opened: Image.Image, path: ImageFile) -> None:
    if max(opened.size) > MAX_SIDE_PIXELS:
        wide, tall = opened.size
        raise InputError(
            f"{path}: {wide:,} × {tall:,} pixels, more than {MAX_SIDE_PIXELS:,} along a side; "
            "make it smaller or remove it"
        )
    if opened.width * opened.height > MAX_PIXELS:
        raise Image.DecompressionBombError


def _decode_file(file: BinaryIO, path: ImageFile, stack: ExitStack) -> Image.Image:
    """Decode an image file; its size is checked in its header before anything is decoded."""
    with _one_line_errors(file, path), Image.open(file, formats=PIL_FORMATS) as opened:
        _check_size(opened, path)
        if opened.width * opened.height > _SERIAL_DECODE_PIXELS:
            stack.enter_context(_large_image_lock)
        opened.load()
        # Most JPEG files have no such tag, and looking for it takes a tenth of the time that decoding takes.
        if opened.format != "JPEG" or not _ORIENTATION_KEYS.isdisjoint(opened.info):
            with suppress(Exception):  # the pixels can be read although the tag is broken
                ImageOps.exif_transpose(opened, in_place=True)
        return opened if opened.mode == "RGB" else to_rgb(opened)  # PIL would copy an image that is RGB already


@contextmanager
def _one_line_errors(file: BinaryIO, path: ImageFile) -> Iterator[None]:
    """Turn any error of decoding into an InputError of one line."""
    try:
        yield
    except InputError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise InputError(f"{path}: more than {MAX_PIXELS:,} pixels; make it smaller or remove it") from None
    except MemoryError:
        raise InputError(f"{path}: not enough memory to decode it; make it smaller or remove it") from None
    except Exception as error:  # decoders raise many types of errors for damaged files
        why = " ".join(str(error).split()) or type(error).__name__
        why = "the file is empty" if _is_empty(file) else why.replace(repr(file), repr(path.name))
        raise InputError(f"{path}: cannot be read as an image ({why}); repair or remove it") from None


def _is_empty(file: BinaryIO) -> bool:
    return not file.closed and file.seek(0, os.SEEK_END) == 0


def to_rgb(image: Image.Image) -> Image.Image:
    """The image with three channels of bytes; 16 bits are scaled, not clipped."""
    image.info.pop("transparency", None)  # PIL warns of what it means for a palette; the colours are the same
    return (_to_eight_bits(image) if image.mode[0] in "IF" else image).convert("RGB")


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """16 or 32 bits a pixel scaled to 8, which PIL would clip; some rows at a time, to save memory."""
    found = np.empty((image.height, image.width), dtype=np.uint8)
    factor = np.float32(1 / 257)
    if image.mode[0] == "F":
        factor = np.float32(255.0 if max(_max_value(rows) for _, rows in _iter_row_blocks(image)) <= 1.0 else 1.0)
    for top, rows in _iter_row_blocks(image):
        found[top : top + len(rows)] = (rows * factor).round().clip(0, 255)
    return Image.fromarray(found)


def _max_value(rows: NDArray[np.float32]) -> float:
    return float(rows.max(initial=0.0))


def _iter_row_blocks(image: Image.Image) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Rows of an image as numbers, 0 where there is none, and where they begin."""
    count = max(1, _SCALE_BLOCK_PIXELS // max(1, image.width))
    for top in range(0, image.height, count):
        part = image.crop((0, top, image.width, min(image.height, top + count))) if image.height > count else image
        yield top, np.nan_to_num(np.array(part, dtype=np.float32))


def resize_and_centre_crop(
    image: Image.Image, size: int, zoom: float = 1.0, interpolation: str = "bicubic"
) -> NDArray[np.uint8]:
    """The middle size × size pixels [H, W, 3] of the image whose shorter side is made size × zoom pixels long."""
    short = int(size * zoom)
    wide, tall = (max(short, int(short * side / min(image.size))) for side in image.size)
    left, top = round((wide - size) / 2), round((tall - size) / 2)
    if wide * tall > MAX_PIXELS:  # a very long image: resize only its middle, because the whole would fill the memory
        across, down = image.width / wide, image.height / tall
        box = (left * across, top * down, (left + size) * across, (top + size) * down)
        return np.asarray(image.resize((size, size), _pil_resampling(interpolation), box=box))
    resized = image if image.size == (wide, tall) else image.resize((wide, tall), _pil_resampling(interpolation))
    return np.asarray(resized.crop((left, top, left + size, top + size)))


def crop_and_resize(image: Image.Image, box: Box, size: int, interpolation: str = "bicubic") -> NDArray[np.uint8]:
    """The box (top, left, height, width) as size × size pixels [H, W, 3]."""
    top, left, tall, wide = box
    part = image.crop((left, top, left + wide, top + tall))
    return np.asarray(part.resize((size, size), _pil_resampling(interpolation)))


def _pil_resampling(interpolation: str) -> Image.Resampling:
    return Image.Resampling[interpolation.upper()]


class FileDigest(NamedTuple):
    """Bytes of a file and the SHA-256 of them, in hexadecimal digits."""

    size: int
    sha256: str


def hash_file(path: Path) -> FileDigest:
    """Read and hash a file."""
    with open_regular_image(path) as file:
        try:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error}); repair or remove it") from None
        return FileDigest(os.fstat(file.fileno()).st_size, digest)


def hash_files(paths: Iterable[Path]) -> list[FileDigest]:
    """The same for many files, in their order; hashing leaves Python's lock alone, so threads share the work."""
    with ThreadPoolExecutor(default_num_workers(), thread_name_prefix="hash") as pool:
        return list(pool.map(hash_file, paths))
