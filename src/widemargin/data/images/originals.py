"""Original files of CIFAR-10, CIFAR-100, MNIST and Fashion-MNIST: found or downloaded, checked, read as arrays.

Files are looked for in a folder, in the cache and on the network. From an archive only the wanted members are taken,
under our own names and at their known sizes. Hashes are of the unpacked files where the authors' are known (CIFAR-10,
MNIST), else of what is downloaded. CIFAR's binary records and MNIST's IDX are plain bytes; nothing here is unpickled.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...io.bounded import BoundedReader, open_regular, read_bounded_file
from ...io.errors import InputError, spell_option
from ..download import FetchError, atomic_write, cache_dir, fetch


@dataclass(frozen=True)
class OriginalFile:
    """One original: its name, how many images (or labels) it holds, its SHA-256 when unpacked."""

    name: str
    num_items: int
    sha256: str | None = None


@dataclass(frozen=True)
class ImageSetEntry:
    """One set: its files in order, the folders they usually lie in, and the addresses to fetch them from."""

    name: str
    file_format: str  # "cifar": label bytes and pixels in one record; "idx": images and labels in files of their own
    shape: tuple[int, int, int]
    train: tuple[OriginalFile, ...]
    test: tuple[OriginalFile, ...]
    folders: tuple[str, ...]
    urls: tuple[str, ...]  # one archive of all files ("cifar"), or folders that hold each file as .gz ("idx")
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    citation: str
    download_sha256: tuple[tuple[str, str], ...] = ()  # SHA-256 of what is downloaded, by file name
    num_coarse_classes: int = 0  # classes of the label byte before the one that counts; 0: there is none
    class_names_file: str = ""  # lists the class names, one a line

    @property
    def files(self) -> tuple[OriginalFile, ...]:
        return self.train + self.test

    @property
    def record_bytes(self) -> int:
        """Bytes of one image with its labels in a CIFAR file."""
        channels, height, width = self.shape
        return 1 + (self.num_coarse_classes > 0) + channels * height * width


_CIFAR100_CLASS_NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
"""

_CIFAR_CITATION = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"


def _idx_files(
    part: str, count: int, images: str | None = None, labels: str | None = None
) -> tuple[OriginalFile, OriginalFile]:
    return OriginalFile(f"{part}-images-idx3-ubyte", count, images), OriginalFile(
        f"{part}-labels-idx1-ubyte", count, labels
    )


_IMAGE_SET_ENTRIES = (
    ImageSetEntry(
        name="cifar10",
        file_format="cifar",
        shape=(3, 32, 32),
        train=(
            OriginalFile("data_batch_1.bin", 10000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            OriginalFile("data_batch_2.bin", 10000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            OriginalFile("data_batch_3.bin", 10000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            OriginalFile("data_batch_4.bin", 10000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            OriginalFile("data_batch_5.bin", 10000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        ),
        test=(
            OriginalFile("test_batch.bin", 10000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        ),
        folders=("cifar-10-batches-bin",),
        urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        citation=_CIFAR_CITATION,
        download_sha256=(
            ("cifar-10-binary.tar.gz", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
        ),
    ),
    ImageSetEntry(
        name="cifar100",
        file_format="cifar",
        shape=(3, 32, 32),
        train=(OriginalFile("train.bin", 50000),),
        test=(OriginalFile("test.bin", 10000),),
        folders=("cifar-100-binary",),
        urls=("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
        class_names=tuple(_CIFAR100_CLASS_NAMES.split()),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        citation=_CIFAR_CITATION,
        download_sha256=(
            ("cifar-100-binary.tar.gz", "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),
        ),
        num_coarse_classes=20,
        class_names_file="fine_label_names.txt",
    ),
    ImageSetEntry(
        name="mnist",
        file_format="idx",
        shape=(1, 28, 28),
        train=_idx_files(
            "train",
            60000,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        test=_idx_files(
            "t10k",
            10000,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        folders=("MNIST/raw", "mnist/raw", "MNIST", "mnist", "raw"),
        urls=("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        class_names=tuple("0123456789"),
        mean=(0.1307,),
        std=(0.3081,),
        citation="Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits, 1998",
    ),
    ImageSetEntry(
        name="fashion_mnist",
        file_format="idx",
        shape=(1, 28, 28),
        train=_idx_files("train", 60000),
        test=_idx_files("t10k", 10000),
        folders=("FashionMNIST/raw", "fashion_mnist/raw", "FashionMNIST", "fashion_mnist", "fashion-mnist", "raw"),
        urls=(
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        class_names=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
        mean=(0.2860,),
        std=(0.3530,),
        citation="H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST, arXiv 1708.07747, 2017",
        download_sha256=(
            ("train-images-idx3-ubyte.gz", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
            ("train-labels-idx1-ubyte.gz", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
            ("t10k-images-idx3-ubyte.gz", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
            ("t10k-labels-idx1-ubyte.gz", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        ),
    ),
)

IMAGE_SETS = {entry.name: entry for entry in _IMAGE_SET_ENTRIES}


# ---------------------------------------------------------------- files as arrays

MAX_CLASS_NAMES_BYTES = 1 << 16  # bytes of a file of class names
PixelsAndLabels = tuple[NDArray[np.uint8], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class ImageSetArrays:
    """Pixels [N, C, H, W] and labels [N] of both parts, and the class names."""

    train: PixelsAndLabels
    test: PixelsAndLabels
    class_names: tuple[str, ...]


def read_image_set(entry: ImageSetEntry, folder: Path) -> ImageSetArrays:
    """The set from the folder that holds its files; an InputError where these are not the originals."""
    read_part = _read_cifar if entry.file_format == "cifar" else _read_idx
    return ImageSetArrays(
        read_part(entry, entry.train, folder), read_part(entry, entry.test, folder), _read_class_names(entry, folder)
    )


def find_original_file(folder: Path, name: str) -> Path | None:
    """The file, unpacked or gzipped, if it is there."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _read_class_names(entry: ImageSetEntry, folder: Path) -> tuple[str, ...]:
    path = folder / entry.class_names_file
    if not entry.class_names_file or not path.is_file():
        return entry.class_names
    names = tuple(read_bounded_file(path, MAX_CLASS_NAMES_BYTES).decode("utf-8", "replace").split("\n"))
    names = tuple(name.strip() for name in names if name.strip())
    if len(set(names)) != len(entry.class_names) or len(names) != len(entry.class_names):
        raise InputError(f"{path}: {len(names)} class names, expected {len(entry.class_names)} different ones")
    return names


def _read_cifar(entry: ImageSetEntry, files: tuple[OriginalFile, ...], folder: Path) -> PixelsAndLabels:
    pixels = int(np.prod(entry.shape))
    x = np.empty((sum(file.num_items for file in files), pixels), dtype=np.uint8)
    y = np.empty(len(x), dtype=np.int64)
    start = 0
    for file in files:
        path, expected = folder / file.name, file.num_items * entry.record_bytes
        try:
            with open_regular(path) as opened:
                size = os.fstat(opened.fileno()).st_size
                raw = np.fromfile(opened, dtype=np.uint8) if size == expected else None
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        if raw is None or raw.size != expected:
            why = "cut short" if size < expected else "another file"
            raise InputError(f"{path}: {size:,} bytes, {entry.name!r} has {expected:,}: {why}; download it again")
        records = raw.reshape(-1, entry.record_bytes)
        if entry.num_coarse_classes:
            _check_labels(path, records[:, 0], entry.num_coarse_classes, "coarse label")
        _check_labels(path, records[:, -pixels - 1], len(entry.class_names), "label")
        _check_hash(entry, file, path, raw.data)
        x[start : start + file.num_items] = records[:, -pixels:]
        y[start : start + file.num_items] = records[:, -pixels - 1]
        start += file.num_items
    return x.reshape(-1, *entry.shape), y


def _read_idx(entry: ImageSetEntry, files: tuple[OriginalFile, ...], folder: Path) -> PixelsAndLabels:
    images, labels = files
    x = _read_idx_array(entry, images, folder, (images.num_items, *entry.shape[1:]))
    y = _read_idx_array(entry, labels, folder, (labels.num_items,))
    return x.reshape(-1, *entry.shape), y.astype(np.int64)


def _read_idx_array(
    entry: ImageSetEntry, file: OriginalFile, folder: Path, shape: tuple[int, ...]
) -> NDArray[np.uint8]:
    """Unsigned bytes in IDX: two zeros, the type 8, the number of dimensions, each of them in four bytes, the data."""
    path = find_original_file(folder, file.name) or folder / file.name
    header = bytes((0, 0, 8, len(shape))) + b"".join(size.to_bytes(4, "big") for size in shape)
    expected = len(header) + int(np.prod(shape))
    try:
        with open_regular(path) as opened, gzip.open(opened) if path.suffix == ".gz" else opened as stream:
            data = stream.read(expected + 1)  # never more: a small .gz can unpack to anything
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: a damaged file ({' '.join(str(error).split())}); download it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if data[: len(header)] != header[: len(data)]:
        raise InputError(f"{path}: not the IDX file of {entry.name!r} ({' × '.join(map(str, shape))} bytes)")
    if len(data) != expected:
        why = f"cut short after {len(data):,} of" if len(data) < expected else "longer than"
        raise InputError(f"{path}: {why} the {expected:,} bytes of {entry.name!r}; download it again")
    array = np.frombuffer(data, dtype=np.uint8, offset=len(header)).reshape(shape)
    if len(shape) == 1:
        _check_labels(path, array, len(entry.class_names), "label")
    _check_hash(entry, file, path, data)
    return array


def _check_labels(path: Path, labels: NDArray[np.uint8], num_classes: int, what: str) -> None:
    wrong = np.flatnonzero(labels >= num_classes)
    if len(wrong):
        place = int(wrong[0])
        raise InputError(f"{path}: {what} {labels[place]} of image {place} is out of range 0 to {num_classes - 1}")


def _check_hash(entry: ImageSetEntry, file: OriginalFile, path: Path, data: bytes | memoryview) -> None:
    found = hashlib.sha256(data).hexdigest()
    if file.sha256 is not None and found != file.sha256:
        raise InputError(f"{path}: not the data set {entry.name!r}: SHA-256 is {found}, expected {file.sha256}")
    whose = next(
        (name for name, other in IMAGE_SETS.items() for known in other.files if known.sha256 == found), entry.name
    )
    if whose != entry.name:  # MNIST and Fashion-MNIST give their files the same names
        raise InputError(f"{path}: this file belongs to {whose!r}, not to {entry.name!r}")


# ---------------------------------------------------------------- in a folder, in the cache

MAX_ARCHIVE_BYTES = 256 << 20
_ARCHIVE_OVERHEAD_BYTES = 1 << 20  # bytes of names, headers and what else is in it besides the wanted members


def read_originals(entry: ImageSetEntry, data_dir: str | Path | None = None) -> ImageSetArrays:
    """The set from `data_dir`, `WIDEMARGIN_DATA` or the cache, else downloaded; what is given must be right."""
    given = list(candidate_folders(entry.folders, data_dir))
    for folder in given:
        if all(find_original_file(folder, file.name) for file in entry.files):
            return read_image_set(entry, folder)
    for folder in given:
        lacking = [file.name for file in entry.files if not find_original_file(folder, file.name)]
        if len(lacking) < len(entry.files):
            raise InputError(f"{folder}: no {lacking[0]}, which belongs to {entry.name!r}; put all its files there")
    cache_folder = cache_dir() / "images" / entry.name
    if all(find_original_file(cache_folder, file.name) for file in entry.files):
        try:
            return read_image_set(entry, cache_folder)
        except InputError:
            pass  # a damaged file in the cache is not the user's: download it again
    archives = [folder / name for folder in given for name in _packed_names(entry) if (folder / name).is_file()]
    return _fetch_into_cache(entry, cache_folder, archives[0] if archives and entry.file_format == "cifar" else None)


def candidate_folders(folders: tuple[str, ...], data_dir: str | Path | None) -> Iterator[Path]:
    """Where to look for a set whose own folder has one of the names `folders`.

    `data_dir` and `WIDEMARGIN_DATA` may be its own folder, the one that holds it, or the parent of a folder `data` that
    does.
    """
    for given, whose in ((data_dir, spell_option("data_dir")), (os.environ.get("WIDEMARGIN_DATA"), "WIDEMARGIN_DATA")):
        if given:
            folder = Path(given).expanduser()
            if not folder.is_dir():
                raise InputError(f"{whose}: {folder} is not a folder")
            yield from (folder / name for name in folders)
            yield folder
            yield from (folder / "data" / name for name in folders)


def _packed_names(entry: ImageSetEntry) -> list[str]:
    """What the network has: one archive, or every file gzipped."""
    if entry.file_format == "cifar":
        return [url.rpartition("/")[2] for url in entry.urls]
    return [f"{file.name}.gz" for file in entry.files]


# ---------------------------------------------------------------- from the network


def _fetch_into_cache(entry: ImageSetEntry, cache_folder: Path, archive: Path | None) -> ImageSetArrays:
    """Download (or unpack an archive put there by hand), read, and only then keep in the cache."""
    try:
        cache_folder.mkdir(parents=True, exist_ok=True)
        temporary_folder = TemporaryDirectory(dir=cache_folder.parent, prefix=f".{entry.name}.")
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{cache_folder}: cannot be written ({why}); set WIDEMARGIN_CACHE to another folder") from None
    with temporary_folder as name:
        folder = Path(name)
        if archive is not None:
            _check_archive(entry, archive)
            _unpack(entry, archive, folder)
        else:
            try:
                _download_image_files(entry, folder)
            except InputError as error:
                first, *more = _packed_names(entry)
                files = f"{first!r} and {len(more)} more" if more else repr(first)
                remedy = f"download it elsewhere and pass the folder with {files} as {spell_option('data_dir')}"
                raise InputError(f"data set {entry.name!r}: {error}; {remedy}") from None
        originals = read_image_set(entry, folder)
        for path in folder.iterdir():
            path.replace(cache_folder / path.name)
    return originals


def _download_image_files(entry: ImageSetEntry, folder: Path) -> None:
    packed = dict(entry.download_sha256)
    failed: FetchError | None = None
    for url in entry.urls:
        try:
            if entry.file_format == "cifar":
                name = url.rpartition("/")[2]
                archive = fetch(url, folder / name, sha256=packed.get(name), max_bytes=MAX_ARCHIVE_BYTES)
                _unpack(entry, archive, folder)
                archive.unlink()
                return
            for name in _packed_names(entry):
                fetch(url + name, folder / name, sha256=packed.get(name), max_bytes=MAX_ARCHIVE_BYTES)
            return
        except FetchError as error:
            failed = failed or error
    assert failed is not None
    raise failed


def _check_archive(entry: ImageSetEntry, archive: Path) -> None:
    expected = dict(entry.download_sha256).get(archive.name)
    try:
        with open_regular(archive, MAX_ARCHIVE_BYTES) as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{archive}: cannot be read ({error.strerror})") from None
    if expected is not None and found != expected:
        raise InputError(f"{archive}: not the original of {entry.name!r}: SHA-256 is {found}, expected {expected}")


def _tar(stream: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode="r|")


def _unpack(entry: ImageSetEntry, archive: Path, folder: Path) -> None:
    """The wanted members alone, wherever they lie in the archive, at the sizes they must have."""
    sizes = {file.name: file.num_items * entry.record_bytes for file in entry.files}
    missing = set(sizes)
    try:
        # Read as a stream, so that neither a bomb in front of a member nor one in its name's place unpacks beyond this.
        max_bytes = sum(sizes.values()) + _ARCHIVE_OVERHEAD_BYTES
        with (
            open_regular(archive) as stream,
            gzip.open(stream) as unpacked,
            _tar(BoundedReader(unpacked, max_bytes, str(archive))) as pack,
        ):
            for member in pack:
                name = member.name.rpartition("/")[2]
                if not member.isfile() or (name not in missing and name != entry.class_names_file):
                    continue
                if member.size != sizes.get(name, member.size) or (
                    name not in sizes and member.size > MAX_CLASS_NAMES_BYTES
                ):
                    raise InputError(f"{archive}: {name} has {member.size:,} bytes, unlike that of {entry.name!r}")
                content = pack.extractfile(member)
                assert content is not None
                with atomic_write(folder / name) as target:
                    shutil.copyfileobj(content, target)
                missing.discard(name)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, OSError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{archive}: a damaged archive ({why}); download it again") from None
    if missing:
        raise InputError(f"{archive}: no {min(missing)} in the archive; it is not the original of {entry.name!r}")
