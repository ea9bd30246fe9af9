"""Small images by name, whole in memory: CIFAR-10 and 100, MNIST, Fashion-MNIST, Omniglot, ORL faces, checked.

Pixels stay bytes until a batch is made of them: CIFAR-10 is 184 MB so, and four times that as floats. Sets are split
with the same fraction of every class (`stratified_split`, `stratified_subset`).

Omniglot, the small background sets: 242 characters of 8 alphabets, each drawn by 20 people, 105×105 pixels. Read from
one file of arrays (`omniglot_background_small.npz`) or from the two original archives, found in a folder or fetched;
what counts is that the decoded images are the known ones. Reference: Lake, Salakhutdinov and Tenenbaum, Human-level
concept learning through probabilistic program induction, Science 350 (2015).

ORL (AT&T) faces: 40 people, ten pictures each, grey, 92×112 pixels. Read from the folder of the original archive
(`orl_faces/s1/1.pgm` …), from the archive itself, or fetched; what counts is that the pixels are the known ones.
Pictures are cut to their middle square, 92×92, where the face is. Reference: Samaria and Harter, Parameterisation of a
stochastic model for human face identification, WACV 1994.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...io.bounded import check_zip_size, read_bounded_file, read_zip_member
from ...io.errors import InputError, spell_option, unknown_name_error
from ...numerics.random import permutation
from ..download import FetchError, cache_dir, fetch
from ..label_sets import rarest_labels
from .originals import IMAGE_SETS, PixelsAndLabels, candidate_folders, read_originals

__all__ = ["ImageSet", "Images", "image_set_names", "load_images", "stratified_split", "stratified_subset"]


class LabelledSamples(Protocol):
    """Samples with labels `y` [N], or [N, C] where each has several, of which rows can be taken."""

    @property
    def y(self) -> Tensor: ...

    def take(self: SamplesT, rows: Tensor) -> SamplesT: ...


SamplesT = TypeVar("SamplesT", bound=LabelledSamples)


def stratified_split(images: SamplesT, fraction: float, seed: int) -> tuple[SamplesT, SamplesT]:
    """The rest and a held-out part with `fraction` of every class; a class of one sample stays in the rest."""
    if not 0.0 < fraction < 1.0:
        raise InputError(f"held-out fraction {fraction!r} must lie between 0 and 1, neither included")
    rank, count = ranks_within_class(images.y, seed)
    wanted = _class_quota(count, fraction).minimum(count - 1)
    held = rank < wanted
    return images.take(torch.nonzero(~held).squeeze(1)), images.take(torch.nonzero(held).squeeze(1))


def stratified_subset(images: SamplesT, fraction: float, seed: int) -> SamplesT:
    """`fraction` of every class, at least one sample each; of one seed smaller fractions lie within larger ones."""
    if not 0.0 < fraction <= 1.0:
        raise InputError(f"fraction {fraction!r} of the data must be above 0 and at most 1")
    rank, count = ranks_within_class(images.y, seed)
    return images.take(torch.nonzero(rank < _class_quota(count, fraction)).squeeze(1))


def _class_quota(count: Tensor, fraction: float) -> Tensor:
    """How many samples that is of each class, at least one; in float32, whatever the process's default dtype is."""
    return (count.to(torch.float32) * fraction).round().clamp(min=1)


def ranks_within_class(y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """For each sample its place in a random order of its class, and how many the class has."""
    y = rarest_labels(y) if y.ndim == 2 else y  # several labels per sample
    shuffled = permutation(torch.Generator().manual_seed(seed), len(y))
    grouped = shuffled[torch.argsort(y[shuffled], stable=True)]
    counts = torch.bincount(y)
    before = counts.cumsum(0) - counts
    rank = torch.empty_like(grouped)
    rank[grouped] = torch.arange(len(y), device=y.device) - before[y[grouped]]
    return rank, counts[y]


@dataclass(frozen=True, eq=False)
class Images:
    """Images x, uint8 [N, C, H, W], their labels y, int64 [N] or booleans [N, C], and the class names."""

    name: str
    x: Tensor
    y: Tensor
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Tensor) -> Images:
        """These rows, in this order."""
        return Images(self.name, self.x.index_select(0, rows), self.y.index_select(0, rows), self.class_names)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A training and a test part; mean and std are those of the training pixels in [0, 1], per channel."""

    name: str
    train: Images
    test: Images
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.train.class_names


def image_set_names() -> tuple[str, ...]:
    """Every name `load_images` knows.

    >>> image_set_names()
    ('cifar10', 'cifar100', 'fashion_mnist', 'mnist', 'omniglot', 'orl_faces')
    """
    return tuple(sorted((*IMAGE_SETS, "omniglot", "orl_faces")))


def canonical_set_name(name: str) -> str | None:
    """The set's own spelling of a name such as `CIFAR-10`; None if there is no such set.

    A generated set (`generated(classes=100)`) is its own spelling.
    """
    if name.strip().partition("(")[0].strip() == "generated":
        return name.strip()
    return {_normalize_set_name(known): known for known in image_set_names()}.get(_normalize_set_name(name))


def load_images(name: str, data_dir: str | Path | None = None) -> ImageSet:
    """The set; looked for in `data_dir`, `WIDEMARGIN_DATA` and the cache, else downloaded. `CIFAR-10` is `cifar10`."""
    set_name = canonical_set_name(name)
    if set_name is None:
        raise InputError(
            f"{unknown_name_error('image set', name, image_set_names())}; nor is there a folder or file of this name"
        )
    if set_name.startswith("generated"):
        from .generated import GENERATED_NAME, draw_generated

        drawn = draw_generated(set_name)
        train, test = (Images(GENERATED_NAME, *part, drawn.class_names) for part in (drawn.train, drawn.test))
        return ImageSet(GENERATED_NAME, train, test, drawn.mean, drawn.std)
    if set_name == "omniglot":
        return load_omniglot(list(candidate_folders(("omniglot",), data_dir)))
    if set_name == "orl_faces":
        return load_orl(list(candidate_folders(ORL_FOLDERS, data_dir)))
    entry = IMAGE_SETS[set_name]
    originals = read_originals(entry, data_dir)

    def make_part(pair: PixelsAndLabels) -> Images:
        x, y = pair
        pixels = torch.from_numpy(
            x if x.flags.writeable else x.copy()
        )  # torch shares the array's memory; bytes are read-only
        return Images(entry.name, pixels, torch.from_numpy(y), originals.class_names)

    return ImageSet(entry.name, make_part(originals.train), make_part(originals.test), entry.mean, entry.std)


def _normalize_set_name(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


# ---------------------------------------------------------------- Omniglot

OMNIGLOT_ARRAYS_FILE = "omniglot_background_small.npz"
OMNIGLOT_ARCHIVES = ("images_background_small1.zip", "images_background_small2.zip")
_OMNIGLOT_URL = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
_OMNIGLOT_SIDE, _OMNIGLOT_COUNT, _OMNIGLOT_DRAWERS = 105, 4840, 20
_OMNIGLOT_TRAIN_DRAWERS = 16  # drawers beyond this one are the test part where characters are not split
OMNIGLOT_SHA256 = "a3baf2b09c27636290eaaf2e8ebed0b1c3d5e32c894ade6b15520a4abd0418ac"
_MAX_OMNIGLOT_ARCHIVE_BYTES, _MAX_OMNIGLOT_UNPACKED_BYTES = 8 << 20, 128 << 20

OmniglotArrays = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]


def load_omniglot(folders: list[Path]) -> ImageSet:
    """The set from the first of these folders that has it, from the cache, or from the network."""
    images, labels, drawer, names = _load_omniglot_arrays(folders)
    x = torch.from_numpy(images * np.uint8(255)).unsqueeze(1)  # ink is white
    everything = Images("omniglot", x, torch.from_numpy(labels), names)
    test = torch.from_numpy(drawer > _OMNIGLOT_TRAIN_DRAWERS)
    train = everything.take((~test).nonzero().squeeze(1))
    ink = float(images.mean())
    deviation = float(np.sqrt(ink * (1 - ink)))
    return ImageSet("omniglot", train, everything.take(test.nonzero().squeeze(1)), (ink,), (deviation,))


def _load_omniglot_arrays(folders: list[Path]) -> OmniglotArrays:
    for folder in folders:
        if (folder / OMNIGLOT_ARRAYS_FILE).is_file():
            return _sort_and_check_omniglot(
                _read_omniglot_npz(folder / OMNIGLOT_ARRAYS_FILE), folder / OMNIGLOT_ARRAYS_FILE
            )
        if all((folder / name).is_file() for name in OMNIGLOT_ARCHIVES):
            return _sort_and_check_omniglot(_read_omniglot_archives(folder), folder)
    cache_folder = cache_dir() / "images" / "omniglot"
    if not all((cache_folder / name).is_file() for name in OMNIGLOT_ARCHIVES):
        cache_folder.mkdir(parents=True, exist_ok=True)
        for name in OMNIGLOT_ARCHIVES:
            try:
                fetch(_OMNIGLOT_URL + name, cache_folder / name, max_bytes=_MAX_OMNIGLOT_ARCHIVE_BYTES)
            except FetchError as error:
                raise InputError(
                    f"omniglot: {error}; put {' and '.join(OMNIGLOT_ARCHIVES)} into a folder and pass it as "
                    f"{spell_option('data_dir')}"
                ) from None
    try:
        return _sort_and_check_omniglot(_read_omniglot_archives(cache_folder), cache_folder)
    except InputError as error:  # the download is not the expected data: delete it
        for name in OMNIGLOT_ARCHIVES:
            (cache_folder / name).unlink(missing_ok=True)
        raise InputError(f"{error}; the download was deleted, run again to repeat it") from None


def _read_omniglot_npz(path: Path) -> OmniglotArrays:
    try:
        with zipfile.ZipFile(io.BytesIO(read_bounded_file(path, _MAX_OMNIGLOT_UNPACKED_BYTES))) as archive:
            check_zip_size(archive, _MAX_OMNIGLOT_UNPACKED_BYTES, str(path))
            images, labels, drawer, names = (
                np.load(io.BytesIO(read_zip_member(archive, archive.getinfo(f"{name}.npy"))), allow_pickle=False)
                for name in ("images", "labels", "drawer", "names")
            )
            return images, labels.astype(np.int64), drawer.astype(np.int64), tuple(str(name) for name in names)
    except (OSError, ValueError, KeyError, AttributeError, MemoryError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not Omniglot's arrays ({error})") from None


def _read_omniglot_archives(folder: Path) -> OmniglotArrays:
    archives = [
        (read_bounded_file(folder / name, _MAX_OMNIGLOT_ARCHIVE_BYTES), str(folder / name))
        for name in OMNIGLOT_ARCHIVES
    ]
    drawings = sorted({key: image for data, where in archives for key, image in _iter_drawings(data, where)}.items())
    if not drawings:
        raise InputError(f"{folder}: no drawings found in {' and '.join(OMNIGLOT_ARCHIVES)}")
    names = tuple(sorted({character for (character, _), _ in drawings}))
    place = {name: k for k, name in enumerate(names)}
    images = np.stack([image for _, image in drawings])
    labels = np.array([place[character] for (character, _), _ in drawings], dtype=np.int64)
    return images, labels, np.array([drawer for (_, drawer), _ in drawings], dtype=np.int64), names


def _iter_drawings(data: bytes, where: str) -> Iterator[tuple[tuple[str, int], NDArray[np.uint8]]]:
    """((alphabet/character, drawer), pixels) of an archive; nothing is written to disk."""
    from PIL import Image

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in check_zip_size(archive, _MAX_OMNIGLOT_UNPACKED_BYTES, where).infolist():
                parts = entry.filename.split("/")
                if not entry.filename.endswith(".png") or len(parts) < 3 or entry.file_size > 1 << 16:
                    continue
                with Image.open(io.BytesIO(read_zip_member(archive, entry)), formats=("PNG",)) as picture:
                    # checked before a small file unpacks to a large picture
                    fits = picture.size == (_OMNIGLOT_SIDE, _OMNIGLOT_SIDE)
                    pixels = np.asarray(picture.convert("L")) if fits else None
                if pixels is not None:
                    drawer = int(parts[-1].removesuffix(".png").rpartition("_")[2])
                    yield (f"{parts[-3]}/{parts[-2]}", drawer), (pixels < 128).astype(np.uint8)
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: the archive cannot be read ({error}); download it again") from None


def _sort_and_check_omniglot(arrays: OmniglotArrays, where: Path) -> OmniglotArrays:
    images, labels, drawer, names = arrays
    sizes = (labels.shape, drawer.shape) == (
        (_OMNIGLOT_COUNT,),
        (_OMNIGLOT_COUNT,),
    ) and 0 <= labels.min() <= labels.max() < len(names)
    if (
        images.shape != (_OMNIGLOT_COUNT, _OMNIGLOT_SIDE, _OMNIGLOT_SIDE)
        or len(names) * _OMNIGLOT_DRAWERS != _OMNIGLOT_COUNT
        or not sizes
    ):
        raise InputError(
            f"{where}: {images.shape[0]} images of {len(names)} characters, Omniglot has {_OMNIGLOT_COUNT} of 242"
        )
    ranked = sorted(range(len(names)), key=names.__getitem__)  # independent of the order in the file
    labels = np.argsort(ranked)[labels]
    order = np.lexsort((drawer, labels))
    arrays = images[order], labels[order], drawer[order], tuple(names[k] for k in ranked)
    found = hash_omniglot_arrays(arrays)
    if found != OMNIGLOT_SHA256:
        raise InputError(f"{where}: not the data set 'omniglot': SHA-256 of its images is {found[:16]}…")
    return arrays


def hash_omniglot_arrays(arrays: OmniglotArrays) -> str:
    """SHA-256 of what is in the arrays, whatever file they came from."""
    images, labels, drawer, names = arrays
    digest = hashlib.sha256("\n".join(names).encode())
    for part in (np.packbits(images), labels.astype("<i8"), drawer.astype("<i8")):
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


# ---------------------------------------------------------------- ORL faces

ORL_ARCHIVE = "att_faces.zip"
ORL_FOLDERS = ("orl_faces", "att_faces")
ORL_PEOPLE, ORL_IMAGES_PER_PERSON, ORL_WIDTH, ORL_HEIGHT = 40, 10, 92, 112
ORL_SHA256 = "2e4844a9f4fa4397058f69d6208047170f2e9d399cda18b55c1e8d28f0a83431"
_ORL_URL = f"https://www.cl.cam.ac.uk/Research/DTG/attarchive/pub/data/{ORL_ARCHIVE}"
_MAX_ORL_ARCHIVE_BYTES, _MAX_ORL_UNPACKED_BYTES = 16 << 20, 64 << 20
_PGM_HEADER = f"P5\n{ORL_WIDTH} {ORL_HEIGHT}\n255\n".encode()
_ORL_TRAIN_IMAGES_PER_PERSON = 8  # pictures beyond this one are the test part where people are not split


def load_orl(folders: list[Path]) -> ImageSet:
    """The set from the first of these folders that has it, from the cache, or from the network."""
    pixels = _load_orl_pixels(folders)
    top = (ORL_HEIGHT - ORL_WIDTH) // 2
    x = torch.from_numpy(pixels[:, top : top + ORL_WIDTH].copy()).unsqueeze(1)
    names = tuple(f"s{person:02d}" for person in range(1, ORL_PEOPLE + 1))
    everything = Images("orl_faces", x, torch.arange(ORL_PEOPLE).repeat_interleave(ORL_IMAGES_PER_PERSON), names)
    is_test = torch.arange(len(everything)) % ORL_IMAGES_PER_PERSON >= _ORL_TRAIN_IMAGES_PER_PERSON
    train = everything.take((~is_test).nonzero().squeeze(1))
    values = train.x.double() / 255
    mean, std = (float(values.mean()),), (float(values.std(correction=0)),)
    return ImageSet("orl_faces", train, everything.take(is_test.nonzero().squeeze(1)), mean, std)


def _load_orl_pixels(folders: list[Path]) -> NDArray[np.uint8]:
    for folder in folders:
        if (folder / "s1" / "1.pgm").is_file():
            return _check_and_stack_orl({name: _read_pgm_bytes(folder / name) for name in _orl_file_names()}, folder)
        if (folder / ORL_ARCHIVE).is_file():
            return _read_orl_archive(folder / ORL_ARCHIVE)
    cache_path = cache_dir() / "images" / "orl_faces" / ORL_ARCHIVE
    if not cache_path.is_file():
        cache_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fetch(_ORL_URL, cache_path, max_bytes=_MAX_ORL_ARCHIVE_BYTES)
        except FetchError as error:
            raise InputError(
                f"orl_faces: {error}; put the folder orl_faces (s1/1.pgm …) into a folder and pass that as "
                f"{spell_option('data_dir')}"
            ) from None
    try:
        return _read_orl_archive(cache_path)
    except InputError as error:  # the download is not the expected data: delete it
        cache_path.unlink(missing_ok=True)
        raise InputError(f"{error}; the download was deleted, run again to repeat it") from None


def _orl_file_names() -> list[str]:
    return [
        f"s{person}/{picture}.pgm"
        for person in range(1, ORL_PEOPLE + 1)
        for picture in range(1, ORL_IMAGES_PER_PERSON + 1)
    ]


def _read_pgm_bytes(path: Path) -> bytes:
    try:
        return read_bounded_file(path, len(_PGM_HEADER) + 2 * ORL_WIDTH * ORL_HEIGHT)
    except InputError as error:
        raise InputError(f"{error}; orl_faces has 40 × 10 images") from None


def _read_orl_archive(path: Path) -> NDArray[np.uint8]:
    """The pictures of the original archive, wherever in it they stand; nothing is written to disk."""
    wanted = set(_orl_file_names())
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(read_bounded_file(path, _MAX_ORL_ARCHIVE_BYTES))) as archive:
            for entry in check_zip_size(archive, _MAX_ORL_UNPACKED_BYTES, str(path)).infolist():
                name = "/".join(entry.filename.split("/")[-2:])
                if name in wanted and entry.file_size <= 1 << 16:
                    found[name] = read_zip_member(archive, entry)
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: the archive cannot be read ({error}); delete it and fetch it again") from None
    if lacking := sorted(wanted - set(found)):
        raise InputError(f"{path}: {lacking[0]} is missing; orl_faces has 40 × 10 images")
    return _check_and_stack_orl(found, path)


def _check_and_stack_orl(files: dict[str, bytes], where: Path) -> NDArray[np.uint8]:
    """Pixels [400, 112, 92] in the order of people and pictures."""
    digest, pictures = hashlib.sha256(), []
    for name in _orl_file_names():
        data = files[name]
        if not data.startswith(_PGM_HEADER) or len(data) != len(_PGM_HEADER) + ORL_WIDTH * ORL_HEIGHT:
            raise InputError(f"{where}/{name}: not a grey PGM picture of {ORL_WIDTH}×{ORL_HEIGHT} pixels")
        digest.update(data[len(_PGM_HEADER) :])
        pictures.append(np.frombuffer(data, np.uint8, offset=len(_PGM_HEADER)).reshape(ORL_HEIGHT, ORL_WIDTH))
    if digest.hexdigest() != ORL_SHA256:
        raise InputError(f"{where}: not the data set 'orl_faces': SHA-256 of its pixels is {digest.hexdigest()[:16]}…")
    return np.stack(pictures)
