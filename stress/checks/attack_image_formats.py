"""Packed images made to fill memory, to lead elsewhere or to run something: records, shards, pickled pairs, Arrow."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..check import CheckContext, Outcome
from ..sandbox import Sandbox
from .attack_pickles import Payload

TITLE = "records, shards, pairs and saved data sets with hostile lengths, paths and pickles"
KIND = "attack"
LONG = False

_MAGIC = struct.pack("<I", 0xCED7230A)
_GIB = 1 << 30


def run(context: CheckContext) -> Outcome:
    """RecordIO, tar shards, pickled pairs, LFW's list, data sets of `save_to_disk`."""
    if find_spec("PIL") is None:
        return Outcome(0, 0, "nothing", 'not tried: PIL is missing; pip install "widemargin[train]"')
    sandbox = Sandbox(context)
    secret = context.folder / "secret.jpg"
    secret.write_text("not to be read", encoding="utf-8")
    _try_records(sandbox)
    _try_shards(sandbox, secret)
    _try_pickled_pairs(sandbox)
    _try_listed_pairs(sandbox, secret)
    if find_spec("pyarrow") is not None:
        _try_saved_sets(sandbox, secret)
    return sandbox.outcome()


def read_packed(path: str) -> None:
    """A packed set, and every image of it, as an attempt."""
    from widemargin.data.images.decode import read_image
    from widemargin.data.images.packed_sets import read_packed_set

    for image in read_packed_set(Path(path)).train.images:
        read_image(image)


def read_pairs(path: str) -> None:
    """A list of pairs, as an attempt."""
    from widemargin.recognition.pair_files import read_pair_list

    read_pair_list(path)


# ---------------------------------------------------------------- records


def _record(data: bytes, flag: int = 0, length: int | None = None) -> bytes:
    word = flag << 29 | (len(data) if length is None else length)
    return _MAGIC + struct.pack("<I", word) + data + bytes(-len(data) % 4)


def _hostile_records() -> Iterator[tuple[str, bytes, str | None]]:
    header = struct.pack("<IfQQ", 0, 1.0, 0, 0)
    image = header + b"no image"
    yield "a record that claims 512 MiB", _record(image, length=(1 << 29) - 1), None
    yield "a record with four billion labels", _record(struct.pack("<IfQQ", 2**32 - 1, 1.0, 0, 0)), None
    yield "a record that never ends", _record(image, 1) + _record(b"", 2) * 100_000, None
    yield "a record of an endless class number", _record(struct.pack("<IfQQ", 0, 3e38, 0, 0)), None
    yield "a header that names a billion images", _record(struct.pack("<IfQQ2f", 2, 0.0, 0, 0, 1e9, 1e9)), None
    yield "an index beyond the file", _record(image), f"0\t{2**62}\n"
    yield "an index of negative places", _record(image), "0\t-8\n"
    yield "an index into the middle of a record", _record(image + _record(image)), "0\t40\n"
    yield "an index of enormous numbers", _record(image), "9" * 400 + "\t0\n"
    yield "a record that is no image", _record(image) + _record(image), "0\t0\n1\t40\n"


def _try_records(sandbox: Sandbox) -> None:
    path = sandbox.folder / "train.rec"
    for what, data, index in _hostile_records():
        path.write_bytes(data)
        path.with_suffix(".idx").unlink(missing_ok=True)
        if index is not None:
            path.with_suffix(".idx").write_text(index)
        sandbox.expect_refusal(what, read_packed, str(path))
    path.with_suffix(".idx").unlink(missing_ok=True)
    path.unlink()
    with path.open("wb") as file:  # holes that take no disk
        file.write(_record(b"", 0, 0))
        file.truncate(64 * _GIB)
    sandbox.expect_refusal("64 GiB of holes as records", read_packed, str(path))
    path.unlink()
    path.symlink_to("/dev/zero")
    sandbox.expect_refusal("a device as records", read_packed, str(path))
    path.unlink()


# ---------------------------------------------------------------- shards


def _try_shards(sandbox: Sandbox, secret: Path) -> None:
    path = sandbox.folder / "shard.tar"

    def member(name: str, data: bytes = b"", size: int | None = None, **fields: Any) -> bytes:
        header = tarfile.TarInfo(name)
        header.size = len(data) if size is None else size
        for field, value in fields.items():
            setattr(header, field, value)
        return header.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)

    label = member("0.cls", b"1")
    for what, data in (
        ("a member that claims 4 TiB", member("0.jpg", size=4 << 40) + label),
        ("a long name of 2 GiB", member("././@LongLink", size=2 * _GIB, type=tarfile.GNUTYPE_LONGNAME)),
        ("a pax header of 2 GiB", member("x", size=2 * _GIB, type=tarfile.XHDTYPE)),
        ("a pax header with a length of nothing", member("x", b"0 a=b\n" * 9, type=tarfile.XHDTYPE) + label),
        ("a pax header with a size beyond all", member("x", b"30 size=9999999999999999999999\n", type=tarfile.XHDTYPE)),
        ("a sparse member", member("0.jpg", b"1", type=tarfile.GNUTYPE_SPARSE) + label),
        ("a link in place of an image", member("0.jpg", type=tarfile.SYMTYPE, linkname=str(secret)) + label),
        ("a device in place of an image", member("0.jpg", type=tarfile.CHRTYPE) + label),
        ("a label of 2 MiB", member("0.jpg", b"1") + member("0.cls", b"1" * (2 << 20))),
        ("JSON of a million levels", member("0.jpg", b"1") + member("0.json", b"[" * 1_000_000)),
        ("a name that leads elsewhere", member(f"../{secret.name[:-4]}.jpg", b"1") + member("../secret.cls", b"1")),
    ):
        path.write_bytes(data + bytes(1024))
        sandbox.expect_refusal(what, read_packed, str(path))
    with path.open("wb") as file:
        file.write(member("0.jpg", size=32 * _GIB))
        file.truncate(33 * _GIB)
    sandbox.expect_refusal("an image of 32 GiB of holes", read_packed, str(path))
    path.unlink()
    sandbox.expect_refusal("braces for a billion files", read_packed, str(sandbox.folder / "{0..999999999}.tar"))


# ---------------------------------------------------------------- pairs


def _try_pickled_pairs(sandbox: Sandbox) -> None:
    path = sandbox.folder / "lfw.bin"
    payload = Payload(sandbox.payload_marker)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for what, value in (
            ("alone", payload),
            ("among the images", ([payload, b"b"], [True])),
            ("among the booleans", ([b"a", b"b"], [payload])),
        ):
            path.write_bytes(pickle.dumps(value, protocol))
            sandbox.expect_refusal(f"a payload {what}, protocol {protocol}", read_pairs, str(path))
    lists = b"\x80\x04]" + b"\x94" + b"(h\x00h\x00e" * 50 + b"."
    for what, data in (
        ("bytes that claim 16 EiB", b"\x80\x04\x8e" + struct.pack("<Q", 2**63) + b"."),
        ("a list that holds itself, doubled again and again", lists),
        ("a hundred million marks", b"\x80\x04" + b"(" * 100_000_000),
        ("a value from a memo that is empty", b"\x80\x04h\x07."),
        ("a name by its number", b"\x80\x02\x82\x01."),
        ("an object made without its class", b"\x80\x02cos\nsystem\n)\x81."),
        ("a persistent id", b"\x80\x04X\x01\x00\x00\x00aQ."),
        ("a dtype that is an object", pickle.dumps(([_object_array()] * 2, [True]), 4)),
    ):
        path.write_bytes(data)
        sandbox.expect_refusal(what, read_pairs, str(path))
    path.unlink()


def _object_array() -> Any:
    import numpy as np

    return np.array(["a"], dtype=object)


def _try_listed_pairs(sandbox: Sandbox, secret: Path) -> None:
    path = sandbox.folder / "pairs.txt"
    for what, lines in (
        ("a person whose name leads elsewhere", f"1\n../{secret.stem}\t1\t2\na\t1\tb\t1\n"),
        ("a person with an absolute name", f"1\n{secret}\t1\t2\na\t1\tb\t1\n"),
        ("ten billion folds", "9999999999\t9999999999\n"),
        ("an image of an enormous number", f"1\na\t{'9' * 400}\t2\na\t1\tb\t1\n"),
    ):
        path.write_text(lines, encoding="utf-8")
        sandbox.expect_refusal(what, read_pairs, str(path))
    path.unlink()


# ---------------------------------------------------------------- saved data sets


def _try_saved_sets(sandbox: Sandbox, secret: Path) -> None:
    import pyarrow as pa

    folder = sandbox.folder / "saved"
    folder.mkdir(exist_ok=True)
    features = {"image": {"_type": "Image"}, "label": {"names": ["a", "b"], "_type": "ClassLabel"}}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))

    def write(table: Any, options: Any = None) -> None:
        with (
            pa.OSFile(str(folder / "data.arrow"), "wb") as sink,
            pa.ipc.new_stream(sink, table.schema, options=options) as writer,
        ):
            writer.write_table(table)

    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    labels = pa.array([0, 1], pa.int64())
    for what, name in (("leads elsewhere", f"../{secret.name}"), ("is absolute", str(secret)), ("is a number", 7)):
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        sandbox.expect_refusal(f"a data set whose file {what}", read_packed, str(folder))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    paths = pa.array([{"bytes": None, "path": str(secret)}] * 2, kind)
    write(pa.table({"image": paths, "label": labels}))
    sandbox.expect_refusal("images that are paths to other files", read_packed, str(folder))
    zeros = pa.array([{"bytes": bytes(64 << 20), "path": None}] * 2, kind)
    write(pa.table({"image": zeros, "label": labels}), pa.ipc.IpcWriteOptions(compression="zstd"))
    sandbox.expect_refusal("compressed images", read_packed, str(folder))
    write(pa.table({"image": pa.array([{"bytes": b"abc", "path": None}] * 2, kind), "label": labels}))
    whole = (folder / "data.arrow").read_bytes()
    offsets = struct.pack("<3i", 0, 3, 6)
    at = whole.index(offsets)
    for what, spoilt in (
        ("offsets beyond the file", struct.pack("<3i", 0, 3, 2**31 - 1)),
        ("offsets that fall", struct.pack("<3i", 0, 6, 3)),
        ("negative offsets", struct.pack("<3i", -9, 3, 6)),
    ):
        (folder / "data.arrow").write_bytes(whole[:at] + spoilt + whole[at + len(offsets) :])
        sandbox.expect_refusal(f"images with {what}", read_packed, str(folder))
    for cut in (10, len(whole) // 2, len(whole) - 9):
        (folder / "data.arrow").write_bytes(whole[:cut])
        sandbox.expect_refusal(f"a data set cut off at byte {cut}", read_packed, str(folder))
    buffer = io.BytesIO(b"\xff\xff\xff\xff" + struct.pack("<i", 2**31 - 1))
    (folder / "data.arrow").write_bytes(buffer.getvalue())
    sandbox.expect_refusal("a schema that claims 2 GiB", read_packed, str(folder))
