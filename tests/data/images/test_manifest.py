"""The manifest as a file: any name survives it, and a damaged one is refused in one line."""

import os

import pytest

from widemargin.data.images.manifest import MANIFEST_COLUMNS, PARTS, Manifest, ManifestRow
from widemargin.io.errors import InputError


def test_any_name_survives_the_file(tmp_path):
    odd = ["a,b", 'quo"te', "line\nend", "re\rturn", " space ", "=1+1", "ümlaut", os.fsdecode(b"\xff\xfe")]
    rows = tuple(ManifestRow(f"c/{name}.png", name, PARTS[k % 8], 10**k, f"{k:064x}") for k, name in enumerate(odd))
    (tmp_path / "manifest.csv").write_bytes(b"".join(Manifest(rows).to_csv()))
    found = Manifest.read(tmp_path / "manifest.csv")
    assert found.rows == rows
    assert found.digest() == Manifest(rows).digest()
    assert found.counts() == dict.fromkeys(PARTS, 1)


GOOD = "cat/1.png,cat,train,5," + "a" * 64


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 0: the columns of a manifest are path, class, part, size, sha256, not ''"),
        ("path,class\n", "the columns of a manifest are"),
        (f"{','.join(MANIFEST_COLUMNS)}\n", "no images in it"),
        (f"{','.join(MANIFEST_COLUMNS)}\n{GOOD}\ncat/2.png,cat\n", "line 3: 2 cells, not 5"),
        (
            f"{','.join(MANIFEST_COLUMNS)}\n{GOOD.replace('train', 'tset')}\n",
            "line 2: part 'tset' is none of train, val",
        ),
        (f"{','.join(MANIFEST_COLUMNS)}\n{GOOD}\n{GOOD}\n", "line 3: 'cat/1.png' stands in it twice"),
        (f"{','.join(MANIFEST_COLUMNS)}\n{GOOD.replace(',5,', ',-5,')}\n", "size is a whole number"),
        (f"{','.join(MANIFEST_COLUMNS)}\n{GOOD.replace(',5,', ',' + '9' * 5000 + ',')}\n", "size is a whole number"),
        (f"{','.join(MANIFEST_COLUMNS)}\n{GOOD[:-1]}\n", "sha256 has 64 digits"),
        (f'{",".join(MANIFEST_COLUMNS)}\n"{GOOD}', "not CSV"),
        (f"{','.join(MANIFEST_COLUMNS)}\n{'x' * 200_000}\n", "not CSV (field larger than field limit"),
    ],
)
def test_a_damaged_manifest_is_one_line(tmp_path, text, says):
    path = tmp_path / "manifest.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        Manifest.read(path)
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{path}")
    assert "\n" not in str(caught.value)


def test_what_is_no_manifest_at_all_is_one_line(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="cannot be read"):
        Manifest.read(tmp_path / "nowhere.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InputError, match="not a file"):
        Manifest.read(tmp_path / "pipe.csv")
    with (tmp_path / "huge.csv").open("wb") as file:
        file.truncate(2 << 30)  # a hole: takes no disk
    with pytest.raises(InputError, match="more than 1 GiB"):
        Manifest.read(tmp_path / "huge.csv")
    monkeypatch.setattr("widemargin.data.images.manifest.MAX_MANIFEST_BYTES", 500)
    with pytest.raises(InputError, match="the limit"):
        list(Manifest(tuple(ManifestRow(f"{k}", "cat", "train", 1, "0" * 64) for k in range(10))).to_csv())
