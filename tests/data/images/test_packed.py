"""Packed images: every format from files in its official layout, and one line for each that is damaged."""

import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import image_formats as formats
from widemargin.data.images.packed import FileSlice, PackedPart, expand_braces, is_packed_set
from widemargin.data.images.packed_sets import read_packed_set
from widemargin.data.images.recordio import read_recordio
from widemargin.io.errors import InputError

COUNTS = (4, 1, 3)


@pytest.fixture(scope="module")
def images() -> list[tuple[bytes, int]]:
    return formats.encoded_pictures(COUNTS)


def contents(part: PackedPart) -> list[tuple[bytes, str]]:
    return [(one.read(), part.class_names[y]) for one, y in zip(part.images, part.y.tolist(), strict=True)]


def expected(images) -> list[tuple[bytes, str]]:
    return [(data, str(label)) for data, label in images]


# ---------------------------------------------------------------- RecordIO


@pytest.mark.parametrize("index", [True, False])
def test_insightface_records_are_read_as_they_were_written(tmp_path, images, index):
    formats.write_insightface(tmp_path, images, index=index)
    (tmp_path / "lfw.bin").write_bytes(b"")
    found = read_packed_set(tmp_path)
    assert contents(found.train) == expected(images)
    assert found.pair_files == (tmp_path / "lfw.bin",)
    assert not found.notes
    assert str(found.train.images[2]) == f"{tmp_path / 'train.rec'}, record 3"
    alone = read_packed_set(tmp_path / "train.rec")
    assert contents(alone.train) == expected(images)
    (tmp_path / "property").write_text("4,16,16")
    assert "property says 4 classes" in read_packed_set(tmp_path).notes[0]


@given(st.lists(st.sampled_from([formats.MAGIC, b"abcd", b"\0", b"xyz"]), max_size=12), st.integers(0, 70_000))
def test_records_that_hold_the_magic_number_come_back_whole(tmp_path_factory, pieces, label):
    data = b"".join(pieces)
    folder = tmp_path_factory.mktemp("records")
    items = [(0, formats.pack_image(data, label)), (1, formats.pack_image(b"other", [2.0, 5.0]))]
    found = read_recordio(formats.write_records(folder / "a.rec", items))
    assert sorted(contents(found)) == sorted([(data, str(label)), (b"other", "2")])


def test_a_record_in_pieces_survives_selection_and_joining(tmp_path):
    data = b"abcd" + formats.MAGIC + b"efgh"
    part = read_recordio(formats.write_records(tmp_path / "a.rec", [(7, formats.pack_image(data, 1))]))
    assert part.images[0].more_spans
    assert (part.images + part.images)[1].read() == part.images.take(np.array([0]))[0].read() == data
    assert [one.read() for one in part.images[:1]] == [data]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: b"", "no records"),
        (lambda data: data[:-30], "damaged or truncated"),
        (lambda data: b"\1" + data[1:], "no record begins"),
        (lambda data: data[:4] + struct.pack("<I", (1 << 29) - 1) + data[8:], "damaged or truncated"),
        (lambda data: data[:4] + struct.pack("<I", 2 << 29 | 24) + data[8:], "out of order"),
        (lambda data: data[:4] + struct.pack("<I", 4) + data[8:12], "too few"),
        (lambda data: data[:8] + struct.pack("<I", 2**31) + data[12:], "labels in"),
        (lambda data: data[:12] + struct.pack("<f", 1.5) + data[16:], "not a class number"),
        (lambda data: data[:12] + struct.pack("<f", float("nan")) + data[16:], "not a class number"),
    ],
)
def test_damaged_records_are_one_line(tmp_path, spoil, said):
    path = formats.write_records(tmp_path / "a.rec", [(0, formats.pack_image(b"12345678", 1))], index=False)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(InputError, match=said) as error:
        read_recordio(path)
    assert "a.rec" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ("0\t99999\n", "belongs to another file"),
        ("0\t-4\n", "belongs to another file"),
        ("0\t4\n", "no record begins"),
        ("0\n", "incomplete"),
        ("zero\t0\n", "two whole numbers"),
        ("0\t0\n0\t0\n", "twice"),
        ("9" * 30 + "\t0\n", "two whole numbers"),
    ],
)
def test_a_wrong_index_is_one_line(tmp_path, index, said):
    path = formats.write_records(tmp_path / "a.rec", [(0, formats.pack_image(b"12345678", 1))])
    path.with_suffix(".idx").write_text(index)
    with pytest.raises(InputError, match=said):
        read_recordio(path)


# ---------------------------------------------------------------- tar shards


@pytest.mark.parametrize("as_json", [True, False])
def test_shards_of_a_folder_and_of_braces(tmp_path, images, as_json):
    half = len(images) // 2
    formats.write_shard(tmp_path / "s-000.tar", formats.shard_samples(images[:half], as_json=as_json))
    formats.write_shard(tmp_path / "s-001.tar", formats.shard_samples(images[half:], half, as_json=as_json))
    for root in (tmp_path, tmp_path / "s-{000..001}.tar"):
        assert is_packed_set(root)
        assert contents(read_packed_set(root).train) == expected(images)


def test_parts_of_shards_by_folder_or_by_name(tmp_path, images):
    unseen = formats.encoded_pictures([2, 2], first_label=7)
    for train, test in (("train/0.tar", "test/0.tar"), ("train-000.tar", "val-000.tar")):
        root = tmp_path / train.replace("/", "_")
        formats.write_shard(root / train, formats.shard_samples(images))
        formats.write_shard(root / test, formats.shard_samples(unseen))
        found = read_packed_set(root)
        other = found.test or found.val
        assert other.class_names == ("7", "8")
        assert contents(other) == expected(unseen)


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_files_beside_samples(tmp_path, kind):
    name = "ü" * 90 + "/" + "n" * 120
    path = formats.write_shard(tmp_path / "a.tar", [(name, {"seg.png": b"image", "cls": b" cat\n"})], format=kind)
    with tarfile.open(path, "a", format=kind) as pack:
        for other in ("README", ".hidden.jpg"):
            pack.addfile(tarfile.TarInfo(other), io.BytesIO(b""))
        link = tarfile.TarInfo("x.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        pack.addfile(link)
    part = read_packed_set(path).train
    assert contents(part) == [(b"image", "cat")]
    assert part.images[0].name == f"{name}.seg.png"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"jpg": b"1"}, "without a label"),
        ({"cls": b"1"}, "without an image"),
        ({"jpg": b"1", "cls": b" "}, "empty"),
        ({"jpg": b"1", "cls": b"\xff"}, "UTF-8"),
        ({"jpg": b"1", "json": b"{"}, "not JSON"),
        ({"jpg": b"1", "json": b"{}"}, "none of label"),
        ({"jpg": b"1", "json": b'{"label": true}'}, "neither a number, a string nor a list"),
    ],
)
def test_samples_that_lack_something_are_one_line(tmp_path, fields, said):
    path = formats.write_shard(tmp_path / "a.tar", [("000", fields)])
    with pytest.raises(InputError, match=said) as error:
        read_packed_set(path)
    assert "a.tar, 000" in str(error.value)


def test_damaged_archives_are_one_line(tmp_path, images):
    path = formats.write_shard(tmp_path / "a.tar", formats.shard_samples(images))
    whole = path.read_bytes()
    huge = tarfile.TarInfo("000000.jpg")
    huge.size = 1 << 40
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 2 << 20
    for data, said in (
        (whole[:700], "more than the file has"),
        (whole[:512] + b"\7" * 512, "no tar header|not a tar header|more than the file has"),
        (huge.tobuf(tarfile.GNU_FORMAT), "more than the file has"),
        (header.tobuf(tarfile.GNU_FORMAT) + bytes(2 << 20), "is too large"),
        (b"\x1f\x8b" + bytes(600), "compressed"),
        (b"", "no images"),
    ):
        path.write_bytes(data)
        with pytest.raises(InputError, match=said):
            read_packed_set(path)


def test_braces_are_bounded():
    assert expand_braces("a-{9..11}.tar") == ["a-9.tar", "a-10.tar", "a-11.tar"]
    assert expand_braces("{x,y}{0..1}") == ["x0", "x1", "y0", "y1"]
    assert expand_braces("plain{}") == ["plain{}"]
    for pattern in ("{0..99999999}", "{0..999}{0..999}"):
        with pytest.raises(InputError, match="more than 100,000"):
            expand_braces(pattern)


# ---------------------------------------------------------------- saved datasets


@pytest.mark.parametrize("shards", [1, 3])
def test_a_saved_dataset_and_its_splits(tmp_path, images, shards):
    names = ["ant", "bee", "cow", "dog"]
    formats.write_saved_dataset(tmp_path / "one", images, names, shards)
    found = read_packed_set(tmp_path / "one")
    assert contents(found.train) == [(data, names[label]) for data, label in images]
    assert found.train.class_names == ("ant", "bee", "cow")
    for split in ("train", "test", "other"):
        formats.write_saved_dataset(tmp_path / "many" / split, images, names)
    (tmp_path / "many" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test", "other"]}))
    both = read_packed_set(tmp_path / "many")
    assert contents(both.test) == contents(both.train)
    assert both.val is None


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: (f / "state.json").write_text("{}"), "no Arrow files"),
        (
            lambda f: (f / "state.json").write_text('{"_data_files": [{"filename": "../x.arrow"}]}'),
            "in the same folder",
        ),
        (
            lambda f: (f / "state.json").write_text('{"_data_files": [{"filename": "/etc/passwd"}]}'),
            "in the same folder",
        ),
        (lambda f: (f / "state.json").write_text('{"_data_files": [{"filename": "x.arrow"}]}'), "no such file"),
        (lambda f: next(f.glob("*.arrow")).write_bytes(b"ARROW1"), "damaged"),
        (lambda f: next(f.glob("*.arrow")).write_bytes(next(f.glob("*.arrow")).read_bytes()[:900]), "damaged"),
        (
            lambda f: (f / "dataset_info.json").write_text('{"features": {"label": {"_type": "ClassLabel"}}}'),
            "0 columns",
        ),
        (lambda f: (f / "dataset_info.json").write_text('{"features": {"image": {"_type": "Image"}}}'), "no column of"),
        (lambda f: (f / "dataset_info.json").unlink(), "cannot be read"),
    ],
)
def test_damaged_saved_datasets_are_one_line(tmp_path, images, spoil, said):
    folder = formats.write_saved_dataset(tmp_path / "set", images, ["a", "b", "c"])
    spoil(folder)
    with pytest.raises(InputError, match=said) as error:
        read_packed_set(folder)
    assert "\n" not in str(error.value)


def test_a_label_beyond_the_names_and_images_without_bytes(tmp_path, images):
    formats.write_saved_dataset(tmp_path / "set", images, ["only"])
    with pytest.raises(InputError, match="one of its 1 classes"):
        read_packed_set(tmp_path / "set")
    formats.write_saved_dataset(tmp_path / "none", [(None, 0)], ["only"])
    with pytest.raises(InputError, match="no bytes but a path"):
        read_packed_set(tmp_path / "none")


# ---------------------------------------------------------------- slices


def test_a_slice_of_a_file_that_shrank_or_is_gone_is_one_line(tmp_path):
    path = tmp_path / "a.rec"
    path.write_bytes(b"0123456789")
    assert FileSlice(path, 2, 3, "x").read() == b"234"
    with pytest.raises(InputError, match="ends within"):
        FileSlice(path, 8, 3, "x").read()
    for offset, size in ((0, 1 << 40), (-1, 2), (0, -2)):
        with pytest.raises(InputError, match="not an image"):
            FileSlice(path, offset, size, "x").read()
    with pytest.raises(InputError, match="no such file"):
        FileSlice(Path(tmp_path, "b.rec"), 0, 1, "x").read()
