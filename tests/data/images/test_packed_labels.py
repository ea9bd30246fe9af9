"""Several labels per image in tar shards and saved data sets: every spelling of the field, and one line for others."""

import io
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import image_formats as formats
from widemargin.data.images.packed import PackedPart
from widemargin.data.images.packed_sets import read_packed_set
from widemargin.io.errors import InputError

COLOURS = formats.COLOURS
CLASS_LABEL = {"names": list(COLOURS), "_type": "ClassLabel"}


@pytest.fixture(scope="module")
def pictures() -> list[tuple[bytes, list[str]]]:
    return formats.colour_pictures(12)


def label_lists(part: PackedPart) -> list[list[str]]:
    return [[part.class_names[k] for k in np.flatnonzero(row)] for row in part.y]


def as_npy(values: object, **options) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(values), **options)
    return buffer.getvalue()


def as_row(labels: list[str]) -> list[bool]:
    return [name in labels for name in COLOURS]


def write_tar(path, pictures, extension, encode):
    samples = [(f"{k:04}", {"png": data, extension: encode(labels)}) for k, (data, labels) in enumerate(pictures)]
    return formats.write_shard(path, samples)


@pytest.mark.parametrize(
    ("extension", "encode", "separator", "has_names"),
    [
        ("json", lambda labels: json.dumps({"labels": labels}).encode(), None, True),
        ("json", lambda labels: json.dumps({"label": ";".join(labels)}).encode(), ";", True),
        ("json", lambda labels: json.dumps({"cls": [COLOURS.index(name) for name in labels]}).encode(), None, False),
        ("npy", lambda labels: as_npy(as_row(labels)), None, False),
        ("npy", lambda labels: as_npy(np.array(as_row(labels), ">f4"), version=(2, 0)), None, False),
        ("txt", lambda labels: ", ".join(labels).encode(), ",", True),
        ("cls", lambda labels: " ".join(str(COLOURS.index(name)) for name in labels).encode(), " ", False),
    ],
)
def test_shards_with_several_labels(tmp_path, pictures, extension, encode, separator, has_names):
    part = read_packed_set(write_tar(tmp_path / "a.tar", pictures, extension, encode), separator).train
    assert part.y.dtype == np.bool_
    assert part.class_names == (tuple(sorted(COLOURS)) if has_names else ("0", "1", "2"))
    expected = [
        sorted(labels if has_names else [str(COLOURS.index(name)) for name in labels]) for _, labels in pictures
    ]
    assert [sorted(labels) for labels in label_lists(part)] == expected
    assert [image.read() for image in part.images] == [data for data, _ in pictures]


@pytest.mark.parametrize(
    ("feature", "kind", "encode"),
    [
        ({"_type": "Sequence", "feature": CLASS_LABEL, "length": -1}, pa.list_(pa.int64()), "numbers"),
        ({"_type": "List", "feature": CLASS_LABEL}, pa.list_(pa.int64()), "numbers"),
        ([CLASS_LABEL], pa.large_list(pa.int64()), "numbers"),
        ({"_type": "List", "feature": {"_type": "Value", "dtype": "string"}}, pa.list_(pa.string()), "names"),
        ({"_type": "List", "feature": {"_type": "Value", "dtype": "float32"}}, pa.list_(pa.float32()), "row"),
        ({"_type": "Sequence", "feature": {"_type": "Value", "dtype": "bool"}}, pa.list_(pa.bool_()), "row"),
    ],
)
def test_saved_datasets_with_several_labels(tmp_path, pictures, feature, kind, encode):
    to_labels = {"numbers": lambda labels: [COLOURS.index(name) for name in labels], "names": list, "row": as_row}
    images = [(data, to_labels[encode](labels)) for data, labels in pictures]
    folder = formats.write_saved_dataset(tmp_path / "set", images, [], 2, feature=feature, kind_of_label=kind)
    part = read_packed_set(folder).train
    names = {"numbers": COLOURS, "names": tuple(sorted(COLOURS)), "row": ("0", "1", "2")}[encode]
    assert part.class_names == names
    for row, (_, labels) in zip(part.y, pictures, strict=True):
        place = COLOURS if encode == "row" else names
        assert {place[k] for k in np.flatnonzero(row)} == set(labels)


def test_a_saved_dataset_of_separated_words(tmp_path, pictures):
    feature = {"_type": "Value", "dtype": "string"}
    images = [(data, ";".join(labels)) for data, labels in pictures]
    folder = formats.write_saved_dataset(tmp_path / "set", images, [], feature=feature, kind_of_label=pa.string())
    part = read_packed_set(folder, ";").train
    assert [set(labels) for labels in label_lists(part)] == [set(labels) for _, labels in pictures]
    assert read_packed_set(folder).train.y.ndim == 1


@given(
    st.lists(st.frozensets(st.sampled_from(["2", "10", "a", "ü", "a b"])), min_size=1, max_size=8).filter(any),
    st.lists(st.frozensets(st.sampled_from(["2", "3", "x"])), min_size=1, max_size=8).filter(any),
)
def test_labels_of_any_part_have_a_column_in_every_part(tmp_path_factory, train, test):
    root = tmp_path_factory.mktemp("shards")
    for part, sets in (("train", train), ("test", test)):
        pictures = [(b"image", sorted(labels)) for labels in sets]
        write_tar(root / part / "0.tar", pictures, "json", lambda labels: json.dumps({"labels": labels}).encode())
    found = read_packed_set(root)
    assert found.train.class_names == found.test.class_names
    assert set(found.train.class_names) == frozenset().union(*train, *test)
    assert [frozenset(labels) for labels in label_lists(found.train)] == train
    assert [frozenset(labels) for labels in label_lists(found.test)] == test


@pytest.mark.parametrize(
    ("fields", "separator", "said"),
    [
        ([{"json": b'{"label": [0, 1, 0]}'}], None, "not a 0 or 1 for each class"),
        ([{"json": b'{"label": [1.5]}'}], None, "neither a string nor a class number"),
        ([{"json": b'{"label": [[1]]}'}], None, "neither a string nor a class number"),
        ([{"json": b'{"label": [true, false]}'}], None, "neither a string nor a class number"),
        ([{"json": b'{"label": {"a": 1}}'}], None, "neither a number, a string nor a list"),
        ([{"json": b'{"label": ["a"]}'}, {"cls": b"a"}], None, "one label, 'a', where other images have lists"),
        ([{"npy": as_npy([0, 1, 2])}], None, "a row of 0 and 1"),
        ([{"npy": as_npy([0.0, np.nan])}], None, "a row of 0 and 1"),
        ([{"npy": as_npy(3)}], None, r"the shape \[\], not \[C\]"),
        ([{"npy": as_npy([[0, 1]])}], None, r"the shape \[1, 2\], not \[C\]"),
        ([{"npy": as_npy([0, 1])}, {"npy": as_npy([0, 1, 1])}], None, "a row of 3 labels, 2 in the first image"),
        ([{"npy": as_npy(["a", {}], allow_pickle=True)}], None, "not an array of 0 and 1"),
        ([{"npy": as_npy([True] * 9).replace(b"(9,)", b"(9999999999,)")[:-9]}], None, "shape|not an array"),
        ([{"npy": b"\x93NUMPY"}], None, "not an array of 0 and 1"),
        ([{"txt": b"a red ball"}], None, "a .txt is a caption unless"),
    ],
)
def test_labels_that_are_none_are_one_line(tmp_path, fields, separator, said):
    samples = [(f"{k:03}", {"jpg": b"1", **one}) for k, one in enumerate(fields)]
    path = formats.write_shard(tmp_path / "a.tar", samples)
    with pytest.raises(InputError, match=said) as error:
        read_packed_set(path, separator)
    assert "a.tar" in str(error.value)
    assert "\n" not in str(error.value)


def test_wrong_rows_of_saved_datasets_are_one_line(tmp_path):
    kind = pa.list_(pa.int64())
    lists = {"_type": "List", "feature": CLASS_LABEL}
    floats = {"_type": "List", "feature": {"_type": "Value", "dtype": "float32"}}
    cases = (
        (lists, kind, [[0], [3]], "label '3' is not one of its 3 classes"),
        (lists, kind, [[0], [1, 1]], "row 1: the list of labels .* repeats one"),
        (lists, kind, [[0], None], "row 1: None where other rows have a list"),
        (floats, pa.list_(pa.float32()), [[0.0, 1.0], [0.5, 1.0]], "row 1: several labels must be a row of 0 and 1"),
        (floats, pa.list_(pa.float32()), [[0.0, 1.0], [None, 1.0]], "row 1: several labels must be a row of 0 and 1"),
    )
    for k, (feature, of, labels, said) in enumerate(cases):
        images = [(b"image", label) for label in labels]
        folder = formats.write_saved_dataset(tmp_path / str(k), images, [], feature=feature, kind_of_label=of)
        with pytest.raises(InputError, match=said):
            read_packed_set(folder)


def test_parts_that_do_not_fit_each_other_are_one_line(tmp_path, pictures):
    write_tar(tmp_path / "a" / "train-0.tar", pictures, "npy", lambda labels: as_npy(as_row(labels)))
    write_tar(tmp_path / "a" / "test-0.tar", pictures, "npy", lambda labels: as_npy([*as_row(labels), True]))
    with pytest.raises(InputError, match="not labelled with the same 3 labels"):
        read_packed_set(tmp_path / "a")
    write_tar(tmp_path / "b" / "train-0.tar", pictures, "npy", lambda labels: as_npy(as_row(labels)))
    write_tar(tmp_path / "b" / "test-0.tar", pictures, "cls", lambda labels: b"1")
    with pytest.raises(InputError, match="lists of labels, those of another one label each"):
        read_packed_set(tmp_path / "b")
    formats.write_insightface(tmp_path / "c", formats.encoded_pictures([2, 2]))
    with pytest.raises(InputError, match="splits text"):
        read_packed_set(tmp_path / "c", ";")
