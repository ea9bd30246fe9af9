"""Archives that write elsewhere or fill memory and disk: tar members, links, devices, zip and gzip bombs."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import struct
import tarfile
import zipfile
import zlib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from ..check import CheckContext, Outcome
from ..sandbox import Sandbox, run_cli

TITLE = "archives that write elsewhere, contain links and devices, or unpack to gigabytes"
KIND = "attack"
LONG = False

_GIB = 1 << 30
_ZERO_BLOCK_BYTES = 1 << 24


def run(context: CheckContext) -> Outcome:
    """Tar, gzip, zip, npz, PyTorch archives, Parquet, pictures."""
    if find_spec("PIL") is None:
        return Outcome(0, 0, "nothing", 'not tried: PIL is missing; pip install "widemargin[train]"')
    sandbox = Sandbox(context)
    secret = context.folder / "secret"
    secret.write_text("not to be read", encoding="utf-8")
    _try_tar_members(sandbox, secret)
    _try_tar_bombs(sandbox)
    _try_gzip_bombs(sandbox)
    _try_zip_bombs(sandbox)
    _try_weights_bomb(sandbox)
    _try_image_bombs(sandbox)
    _try_odd_tables(sandbox)
    if find_spec("pyarrow") is not None:
        _try_parquet_bombs(sandbox)
    return sandbox.outcome()


# ---------------------------------------------------------------- tar


def unpack(archive: str, folder: str) -> None:
    """Unpack the archive as CIFAR-10's, without the checksum that would refuse it before."""
    from widemargin.data.images.originals import IMAGE_SETS, _unpack

    _unpack(replace(IMAGE_SETS["cifar10"], download_sha256=()), Path(archive), Path(folder))


def load_cifar(folder: str) -> None:
    """Load CIFAR-10 as usual, with the checksum of the archive."""
    from widemargin.data.images.sets import load_images

    load_images("cifar10", folder)


def _try_tar_members(sandbox: Sandbox, secret: Path) -> None:
    wanted = "data_batch_1.bin"
    outside = sandbox.folder / "escaped"
    for what, name, kind, link in (
        ("a name with ../", f"../{outside.name}/{wanted}", tarfile.REGTYPE, ""),
        ("an absolute name", f"{outside}/{wanted}", tarfile.REGTYPE, ""),
        ("a symbolic link in place of a member", wanted, tarfile.SYMTYPE, str(secret)),
        ("a hard link in place of a member", wanted, tarfile.LNKTYPE, str(secret)),
        ("a link to a folder, and a member behind it", "link", tarfile.SYMTYPE, str(outside)),
        ("a character device in place of a member", wanted, tarfile.CHRTYPE, ""),
        ("a block device in place of a member", wanted, tarfile.BLKTYPE, ""),
        ("a pipe in place of a member", wanted, tarfile.FIFOTYPE, ""),
    ):
        archive, folder = sandbox.folder / "cifar-10-binary.tar.gz", sandbox.folder / "unpacked"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with tarfile.open(archive, "w:gz") as pack:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.devmajor, member.devminor = kind, link, 1, 5
            content = b"written by the archive" if kind == tarfile.REGTYPE else b""
            member.size = len(content)
            pack.addfile(member, io.BytesIO(content))
            if kind == tarfile.SYMTYPE and name == "link":
                behind = tarfile.TarInfo("link/evil")
                behind.size = 4
                pack.addfile(behind, io.BytesIO(b"evil"))
        sandbox.expect_refusal(what, unpack, str(archive), str(folder))
        remaining = [path.name for path in folder.rglob("*")]
        sandbox.add_result(
            f"{what}: nothing is left", f"{remaining[0]} is there" if remaining or outside.exists() else ""
        )
        sandbox.expect_refusal(f"{what}, by its hash", load_cifar, str(sandbox.folder))
        archive.unlink()


def _try_tar_bombs(sandbox: Sandbox) -> None:
    archive, folder = sandbox.folder / "bomb.tar.gz", sandbox.folder / "unpacked"
    header = tarfile.TarInfo("in_front_of_the_others.bin")
    header.size = 4 * _GIB
    pax = tarfile.TarInfo("name")
    pax.type, pax.size = tarfile.XHDTYPE, 4 * _GIB
    long = tarfile.TarInfo("././@LongLink")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 4 * _GIB
    for what, first in (("a member", header), ("an extended header", pax), ("a long name", long)):
        archive.write_bytes(gzip.compress(first.tobuf(tarfile.GNU_FORMAT)) + _gzip_of_zeros(4 * _GIB))
        sandbox.expect_refusal(
            f"{what} of 4 GiB in a tar of {archive.stat().st_size >> 20} MiB", unpack, str(archive), str(folder)
        )
    archive.unlink()


# ---------------------------------------------------------------- gzip


def _gzip_of_zeros(size: int) -> bytes:
    """Return this many zeros as concatenated gzip members."""
    return gzip.compress(bytes(_ZERO_BLOCK_BYTES)) * (size // _ZERO_BLOCK_BYTES)


def load_mnist(folder: str) -> None:
    """MNIST out of a folder, as an attempt."""
    from widemargin.data.images.sets import load_images

    load_images("mnist", folder)


def _try_gzip_bombs(sandbox: Sandbox) -> None:
    from widemargin.data.images.originals import IMAGE_SETS

    path = sandbox.folder / "table.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n1,") + _gzip_of_zeros(8 * _GIB))
    sandbox.expect_refusal("a table of 8 GiB in a .gz of 8 MiB", run_cli, "compare", str(path))
    with gzip.open(path, "wb") as packed:  # below the ratio that no table has, and still 45 million rows
        packed.write(b"a,b,c,y\n")
        for k in range(45_000):
            packed.write(b"1,1,1,a\n1,1,1,b\n" * 500 + b"%d,1,1,a\n" % (k * 6364136223846793005 % 2**64))
    size = path.stat().st_size >> 10
    sandbox.expect_refusal(f"a table of 45 million rows in a .gz of {size} KiB", run_cli, "compare", str(path))
    path.unlink()
    folder = sandbox.folder / "mnist"
    folder.mkdir()
    for file in IMAGE_SETS["mnist"].files:
        (folder / f"{file.name}.gz").write_bytes(_gzip_of_zeros(_GIB))
    sandbox.expect_refusal("MNIST's files with 1 GiB each in 1 MiB", load_mnist, str(folder))
    shutil.rmtree(folder)


# ---------------------------------------------------------------- zip


def _write_zip_of_zeros(
    path: Path | IO[bytes], names: tuple[str, ...], size: int, claimed_size: int | None = None
) -> None:
    """Write an archive whose members unpack to zeros, with any claimed size."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = packer.compress(bytes(_ZERO_BLOCK_BYTES)) + packer.flush(zlib.Z_FULL_FLUSH)
    data = piece * (size // _ZERO_BLOCK_BYTES) + packer.flush()
    claimed_size = size if claimed_size is None else claimed_size
    entries = b""
    parts: list[bytes] = []
    for name in names:
        word = name.encode()
        sizes = struct.pack("<III", 0, len(data), claimed_size)
        local = struct.pack("<4sHHHHH", b"PK\3\4", 20, 0, 8, 0, 33) + sizes + struct.pack("<HH", len(word), 0) + word
        offset = sum(map(len, parts))
        parts += [local, data]
        entries += struct.pack("<4sHHHHHH", b"PK\1\2", 20, 20, 0, 8, 0, 33) + sizes
        entries += struct.pack("<HHHHHII", len(word), 0, 0, 0, 0, 0, offset) + word
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, len(names), len(names), len(entries), sum(map(len, parts)), 0)
    content = b"".join((*parts, entries, end))
    if isinstance(path, Path):
        path.write_bytes(content)
    else:
        path.write(content)


def load_image_set(name: str, folder: str) -> None:
    """An image set out of a folder, as an attempt."""
    from widemargin.data.images.sets import load_images

    load_images(name, folder)


def _try_zip_bombs(sandbox: Sandbox) -> None:
    from widemargin.data.images.sets import OMNIGLOT_ARCHIVES, OMNIGLOT_ARRAYS_FILE, ORL_ARCHIVE

    pictures = tuple(f"orl_faces/s{k}/1.pgm" for k in range(1, 9))
    drawings = tuple(f"images/Greek/character{k:02d}/0001_01.png" for k in range(1, 9))
    arrays = tuple(f"{name}.npy" for name in ("images", "labels", "drawer", "names"))
    cases = (
        ("orl_faces", (ORL_ARCHIVE,), pictures),
        ("omniglot", OMNIGLOT_ARCHIVES, drawings),
        ("omniglot", (OMNIGLOT_ARRAYS_FILE,), arrays),
    )
    for name, files, members in cases:
        for what, claimed in (("a zip bomb", None), ("a zip bomb that claims to be small", 40_000)):
            folder = sandbox.folder / "bombs"
            folder.mkdir()
            for file in files:
                _write_zip_of_zeros(folder / file, members, _GIB, claimed)
            sandbox.expect_refusal(f"{what} of {len(members)} GiB as {files[0]}", load_image_set, name, str(folder))
            shutil.rmtree(folder)
    _try_uci_bombs(sandbox)


def load_table(folder: str) -> None:
    """A UCI set out of a folder, as an attempt."""
    from widemargin.data.tabular.uci import load_uci_set

    load_uci_set("forest_type_mapping", folder)


def _try_uci_bombs(sandbox: Sandbox) -> None:
    wanted, place = ("training.csv", "testing.csv"), sandbox.folder / "uci"
    place.mkdir()
    path = place / "forest+type+mapping.zip"
    _write_zip_of_zeros(path, wanted, _GIB)
    sandbox.expect_refusal("a zip bomb as a UCI archive", load_table, str(place))
    inner = io.BytesIO()
    _write_zip_of_zeros(inner, wanted, _GIB)
    for depth in (1, 40):
        content = inner.getvalue()
        for _ in range(depth):
            outer = io.BytesIO()
            with zipfile.ZipFile(outer, "w", zipfile.ZIP_DEFLATED) as pack:
                pack.writestr("inside.zip", content)
                for name in wanted[:1] if depth > 1 else ():
                    pack.writestr(name, "")
            content = outer.getvalue()
        path.write_bytes(content)
        sandbox.expect_refusal(f"a zip bomb {depth} archives deep as a UCI archive", load_table, str(place))
    shutil.rmtree(place)


def load_weights_file(path: str) -> None:
    """Class weights out of a file, as an attempt."""
    from widemargin.head.import_weights import read_class_weights

    read_class_weights(path, 8)


def _try_weights_bomb(sandbox: Sandbox) -> None:
    """A PyTorch archive with compressed members, which torch would unpack to any claimed size."""
    import torch

    plain, path = io.BytesIO(), sandbox.folder / "weights.pt"
    torch.save({"weight": torch.zeros(2, 8)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            with target.open(entry.filename, "w") as stream:
                stream.write(source.read(entry))
                for _ in range(64 if entry.filename.endswith("data/0") else 0):
                    stream.write(bytes(_ZERO_BLOCK_BYTES))
    sandbox.expect_refusal(
        f"weights of 1 GiB packed into {path.stat().st_size >> 10} KiB", load_weights_file, str(path)
    )
    path.unlink()


# ---------------------------------------------------------------- pictures and tables


def read_picture(path: str) -> None:
    """An image file, as an attempt."""
    from widemargin.data.images.decode import read_image

    read_image(Path(path))


def _try_image_bombs(sandbox: Sandbox) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    path = sandbox.folder / "bomb.png"
    for wide, tall, bits, colour, size in ((50_000, 50_000, 8, 2, 1 << 20), (1, 80_000_000, 1, 0, 160_000_000)):
        header = struct.pack(">IIBBBBB", wide, tall, bits, colour, 0, 0, 0)
        parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(size), 9)) + chunk(b"IEND", b"")
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + parts)
        kilobytes = path.stat().st_size >> 10
        sandbox.expect_refusal(f"a picture of {wide:,} × {tall:,} pixels in {kilobytes} KiB", read_picture, str(path))
    program = (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n("
        + bytes(sandbox.payload_marker)
        + b") (w) file closefile\n"
    )
    path.write_bytes(program + b"%%EOF\n")
    sandbox.expect_refusal("a PostScript program that is called .png", read_picture, str(path))
    path.unlink()


def _try_parquet_bombs(sandbox: Sandbox) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = sandbox.folder / "bomb.parquet"
    table = pa.table({"x": pa.array([0.5] * 1_000_000), "y": pa.array(["a"] * 1_000_000)})
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(300):
            writer.write_table(table)
    size = path.stat().st_size >> 10
    sandbox.expect_refusal(f"a Parquet file of 300 million rows in {size} KiB", run_cli, "compare", str(path))
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(60):  # within the bound of cells, and gigabytes as words
            writer.write_table(table)
    size = path.stat().st_size >> 10
    sandbox.expect_refusal(f"a Parquet file of 60 million rows in {size} KiB", run_cli, "compare", str(path))
    word = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000_000, pa.int32()), pa.array(["x" * 100_000]))
    pq.write_table(pa.table({"x": word, "y": table["y"]}), path)
    size = path.stat().st_size >> 10
    sandbox.expect_refusal(f"a Parquet file with 100 GB of words in {size} KiB", run_cli, "compare", str(path))
    path.unlink()


def read_pipe(path: str) -> None:
    """Read a table from a pipe, with a short timeout."""
    from widemargin.data.tabular.read import read_table
    from widemargin.io import bounded

    bounded.PIPE_TIMEOUT_SECONDS = 1.0
    read_table(path)


def _try_odd_tables(sandbox: Sandbox) -> None:
    """A pipe without a writer, a device that never ends, gigabytes of holes."""
    path = sandbox.folder / "table.csv"
    os.mkfifo(path)
    sandbox.expect_refusal("a pipe that nobody writes to as a table", read_pipe, str(path))
    path.unlink()
    path.symlink_to("/dev/zero")
    sandbox.expect_refusal("a link to /dev/zero as a table", run_cli, "compare", str(path))
    path.unlink()
    with path.open("wb") as file:
        file.truncate(8 * _GIB)
    sandbox.expect_refusal("8 GiB of holes as a table", run_cli, "compare", str(path))
    path.unlink()
