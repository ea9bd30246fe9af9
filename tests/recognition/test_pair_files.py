"""Lists of pairs in the field's formats: what they hold, their folds, and hostile pickles."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import image_formats as formats
from widemargin.io.errors import InputError
from widemargin.io.pickled_lists import ByteSpan, read_pickled_lists
from widemargin.recognition.pair_files import read_pair_list, verify_pair_list


def bin_pairs(count: int = 20) -> list[tuple[bytes, bytes, bool]]:
    """Pairs of which some share images, as in LFW."""
    return [(b"image %d" % (k % 7), b"image %d" % (k % 7 + 1 + k), k % 3 == 0) for k in range(count)]


# ---------------------------------------------------------------- .bin


@pytest.mark.parametrize("arrays", [False, True])
@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_bin_files_of_every_protocol(tmp_path, protocol, arrays):
    pairs = bin_pairs()
    found = read_pair_list(formats.write_bin(tmp_path / "lfw.bin", pairs, protocol, arrays))
    read = [
        (found.images[a].read(), found.images[b].read(), bool(same))
        for a, b, same in zip(found.first, found.second, found.same, strict=True)
    ]
    assert read == pairs
    assert len({image.read() for image in found.images}) == len(found.images)  # each image once
    assert found.folds.tolist() == np.repeat(np.arange(10), 2).tolist()


def test_a_bin_file_of_python_2(tmp_path):
    """cPickle wrote str as BINSTRING, which Python 3 reads with encoding="bytes"."""
    pairs = bin_pairs(10)
    images = [data for a, b, _ in pairs for data in (a, b)]
    body = b"\x80\x02]q\x00("
    for number, data in enumerate(images):
        body += (b"U" + bytes([len(data)]) if number % 2 else b"T" + len(data).to_bytes(4, "little")) + data
        body += b"q" + bytes([number + 1])
    body += b"e]q\xf0(" + b"".join(b"\x88" if same else b"\x89" for *_, same in pairs) + b"e\x86q\xf1."
    theirs = pickle.loads(body, encoding="bytes")
    assert theirs == (images, [same for *_, same in pairs])  # the file itself is right
    (tmp_path / "lfw.bin").write_bytes(body)
    found = read_pair_list(tmp_path / "lfw.bin")
    assert [found.images[k].read() for k in found.first] == [a for a, _, _ in pairs]
    assert found.same.tolist() == [same for *_, same in pairs]


class _Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_something_is_one_line_and_calls_nothing(tmp_path, protocol):
    marker = tmp_path / "ran"
    for value in (_Payload(marker), ([_Payload(marker)], [True]), ([b"x", b"y"], [_Payload(marker)])):
        (tmp_path / "a.bin").write_bytes(pickle.dumps(value, protocol))
        with pytest.raises(InputError, match="pickle") as error:
            read_pair_list(tmp_path / "a.bin")
        assert "\n" not in str(error.value)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": 1}, "something other than lists"),
        (([b"a"], [True]), "two for each"),
        (([], []), "two for each"),
        (([1, 2], [True]), "only encoded images"),
        (([b"a", b"b"], [2]), "only booleans"),
        (([b"a", b"b"], [True], []), "not a .bin file"),
        (b"a", "not a .bin file"),
        ((np.zeros(3), [True]), "NumPy"),
        (([np.zeros((2, 2), np.uint8)] * 2, [True]), "not rows of bytes"),
        (([np.array([os], dtype=object)] * 2, [True]), "cannot pickle|NumPy|names"),
    ],
)
def test_other_pickles_are_one_line(tmp_path, value, said):
    try:
        data = pickle.dumps(value, 4)
    except TypeError:
        return
    (tmp_path / "a.bin").write_bytes(data)
    with pytest.raises(InputError, match=said):
        read_pair_list(tmp_path / "a.bin")


PLAIN = st.recursive(
    st.booleans() | st.none() | st.integers(-(2**31), 2**70) | st.binary(max_size=300) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)


@given(st.lists(PLAIN, max_size=5), st.integers(3, 5))
def test_plain_values_are_what_pickle_says(value, protocol):
    data = pickle.dumps(value, protocol)

    def restore(item):
        if isinstance(item, ByteSpan):
            return data[item.offset : item.offset + item.size]
        return [restore(one) for one in item] if isinstance(item, list) else item

    assert restore(read_pickled_lists(data, "x")) == pickle.loads(data)


@given(st.binary(max_size=60) | st.integers(0, 200).map(lambda k: pickle.dumps(([b"ab" * 9] * 2, [True]), 4)[:k]))
def test_any_bytes_are_a_value_or_one_line(data):
    message = ""
    try:
        read_pickled_lists(data, "x")
    except InputError as error:
        message = str(error)
    assert "\n" not in message


# ---------------------------------------------------------------- LFW


def test_lfw_pairs_with_their_folds(tmp_path):
    path = formats.write_lfw(tmp_path)
    found = read_pair_list(path)
    lines = path.read_text().splitlines()[1:]
    for line, a, b, same, fold in zip(lines, found.first, found.second, found.same, found.folds, strict=True):
        words = line.split("\t")
        people = [words[0], words[0] if len(words) == 3 else words[2]]
        numbers = [int(words[1]), int(words[-1])]
        assert same == (len(words) == 3)
        assert fold == lines.index(line) // 6 or lines.count(line) > 1
        for place, person, number in zip((a, b), people, numbers, strict=True):
            assert found.images[place] == tmp_path / "lfw" / person / f"{person}_{number:04d}.jpg"
            assert found.identities[place] == person


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("10\t3", "10\t4", 1), "its first line says"),
        (lambda text: text.replace("10\t3", "ten", 1), "line 1"),
        (lambda text: text.replace("Person_", "../Person_", 1), "not a valid name of a person"),
        (lambda text: text.replace("Person_", "Nobody_", 1), "Nobody_"),
        (lambda text: text.replace("\t1\t", "\tx\t", 1), "not the number"),
        (lambda text: "", "line 1"),
    ],
)
def test_wrong_lfw_lists_are_one_line(tmp_path, change, said):
    path = formats.write_lfw(tmp_path)
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=said) as error:
        read_pair_list(path)
    assert "pairs.txt" in str(error.value)


def test_accuracy_over_the_folds_of_the_list(tmp_path):
    """Mean and standard deviation of ten folds, each at the threshold that is best on the other nine."""
    pairs = read_pair_list(formats.write_lfw(tmp_path))
    x = torch.randn(len(pairs.images), 5, generator=torch.Generator().manual_seed(3))
    found = verify_pair_list(x, pairs).metrics
    unit = torch.nn.functional.normalize(x.double(), dim=1).numpy()
    scores = (unit[pairs.first] * unit[pairs.second]).sum(1)
    right = []
    for fold in range(10):
        here = pairs.folds == fold
        ranked = np.sort(scores[~here])
        thresholds = [ranked[-1] + 1, *((ranked[1:] + ranked[:-1]) / 2), ranked[0]]
        counts = [((scores[~here] >= t) == pairs.same[~here]).sum() for t in thresholds]
        best = {t for t, count in zip(thresholds, counts, strict=True) if count == max(counts)}
        right.append({float(((scores[here] >= t) == pairs.same[here]).mean()) for t in best})
    assert all(
        min(abs(value / 100 - one) for one in options) < 1e-9
        for value, options in zip(found["fold_accuracies"], right, strict=True)
    )
    assert found["fold_accuracy"] == pytest.approx(np.mean(found["fold_accuracies"]))
    assert found["fold_accuracy_std"] == pytest.approx(np.std(found["fold_accuracies"]))
