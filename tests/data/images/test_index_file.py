"""Index files of images: one label or several per image, splits, and mistakes as one line."""

from pathlib import Path

import pytest

from image_folders import write_image
from widemargin.data.images.changes import diff_manifest
from widemargin.data.images.folder import create_manifest
from widemargin.data.images.index_file import scan_index_file
from widemargin.data.images.splits import SplitConfig
from widemargin.io.errors import InputError
from widemargin.training.config import TrainConfig
from widemargin.training.inputs import load_inputs


def write_index(root: Path, *rows: str, head: str = "path,label") -> Path:
    root.mkdir(exist_ok=True)
    for row in rows:
        name = row.split(",")[0]
        write_image(root, name, name)
    (root / "labels.csv").write_text("\n".join((head, *rows)) + "\n")
    return root / "labels.csv"


def parts_of(path: Path, separator: str | None = ";", **fractions) -> dict[str, tuple[str, str]]:
    manifest, _ = create_manifest(scan_index_file(path, separator), SplitConfig(**fractions))
    return {row.path: (row.label, row.part) for row in manifest.rows}


def test_splits_and_labels_of_an_index_file(tmp_path):
    rows = ("a.png,round;red,train", "sub/b.png, blue ,val", "c.png,,train", "d.png,red;blue,test", "e.png,round,")
    found = parts_of(write_index(tmp_path, *rows, head="path,label,split"))
    assert found == {
        "a.png": ("red;round", "train"),
        "sub/b.png": ("blue", "val"),
        "c.png": (";", "train"),
        "d.png": ("blue;red", "test"),
        "e.png": ("round", "train"),
    }


def test_repeated_rows_are_several_labels_and_single_ones_one(tmp_path):
    path = write_index(tmp_path, "a.png,red", "a.png,round", "b.png,red", "b.png,red", "c.png,blue")
    tree = scan_index_file(path)
    assert tree.split_label(tree.labelled_files()["a.png"][1]) == ("red", "round")
    assert tree.split_label(tree.labelled_files()["b.png"][1]) == ("red",)
    single = scan_index_file(write_index(tmp_path, "a.png,red", "b.png,red", "c.png,blue"))
    assert single.label_separator is None
    assert single.train.keys() == {"red", "blue"}


@pytest.mark.parametrize("spelling", ["{root}/{name}", "./{name}", "sub\\{stem}", " {name} "])
@pytest.mark.parametrize(("mark", "ending"), [(",", "\n"), (";", "\r\n"), ("\t", "\n")])
def test_paths_and_separators_as_other_programs_write_them(tmp_path, spelling, mark, ending):
    names = [f"sub/{k}.png" for k in range(4)]
    for name in names:
        write_image(tmp_path, name, name)
    rows = ["path,label", *(f"{spelling.format(root=tmp_path, name=n, stem=n[4:])},{n[4]}" for n in names)]
    (tmp_path / "labels.csv").write_bytes(("\ufeff" + ending.join(rows) + ending).replace(",", mark).encode())
    tree = scan_index_file(tmp_path / "labels.csv")
    assert tree.labelled_files() == {n: (tmp_path / n, n[4], "") for n in names}


def test_a_second_label_by_mistake_is_said_with_its_row(tmp_path):
    path = write_index(tmp_path, "a.png,red", "b.png,blue", "a.png,blue")
    with pytest.raises(InputError, match=r"labels\.csv, line 4: a\.png is labelled blue here and red before; arcface"):
        load_inputs(TrainConfig(str(path), "fast", "arcface", input_size=8), None)


def test_an_empty_cell_of_a_parquet_file_is_no_label(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    for name in "abc":
        write_image(tmp_path, f"{name}.png", name)
    for labels in ([0, 1, None], ["red", "blue", None]):
        pandas.DataFrame({"path": ["a.png", "b.png", "c.png"], "label": labels}).to_parquet(tmp_path / "index.parquet")
        with pytest.raises(InputError, match=r"index\.parquet, row 3: c\.png has no label"):
            scan_index_file(tmp_path / "index.parquet")


def test_each_label_is_divided_where_no_split_is_given(tmp_path):
    common = [f"c{k}.png,common;{'left' if k % 2 else 'right'}" for k in range(40)]
    rare = [f"r{k}.png,common;rare;left" for k in range(5)]
    found = parts_of(write_index(tmp_path, *common, *rare), val_fraction=0.25)
    for label, least in (("rare", 1), ("left", 3), ("right", 3)):
        of_label = [part for labels, part in found.values() if label in labels.split(";")]
        assert of_label.count("train") > of_label.count("test") >= least
        assert of_label.count("val") >= 1


def test_a_manifest_knows_labels_that_were_changed_and_images_that_went(tmp_path):
    path = write_index(tmp_path, *(f"{k}.png,{'red;round' if k % 2 else 'blue'}" for k in range(20)))
    manifest, _ = create_manifest(scan_index_file(path, ";"), SplitConfig())
    (tmp_path / "3.png").unlink()
    diff = diff_manifest(manifest, scan_index_file(path, ";"))
    assert [row.path for row in diff.removed] == ["3.png"]
    path.write_text(path.read_text().replace("5.png,red;round", "5.png,red"))
    with pytest.raises(InputError, match=r"5\.png.*of another in .*labels\.csv"):
        diff_manifest(manifest, scan_index_file(path, ";"))


@pytest.mark.parametrize(
    ("head", "rows", "said"),
    [
        ("file,class", ["a.png,red"], "columns path, label"),
        ("path,label", ["a.png,red", "b.png,red"], "at least two"),
        ("path,label", ["a.png,red,train"], "3 cells"),
        ("path,label", ["../a.png,red"], "below the folder"),
        ("path,label", ["/nowhere/a.png,red"], "below the folder"),
        ("path,label", [r"C:\nowhere\a.png,red"], "below the folder"),
        ("path,label,split", ["a.png,red,trian"], "must be train, val or test"),
        ("path,label,split", ["a.png,red,train", "a.png,blue,test"], "two splits"),
        ("path,label,split", ["a.png,red,train", "b.png,blue,train"], "marks no row as test"),
        (
            "path,label,split",
            ["a.png,red,train", "b.png,blue,train", "c.png,green,test", "d.png,red,test"],
            "such as 'green', are not among the 2",
        ),
        ("path,label", ["a.png,red", "b.png,"], "has no label"),
        ("path,label", [], "no images"),
    ],
)
def test_mistakes_are_one_line_that_names_the_file(tmp_path, head, rows, said):
    path = write_index(tmp_path / "images", *(row for row in rows if row[0] not in "./C"), head=head)
    path.write_text("\n".join((head, *rows)) + "\n")
    with pytest.raises(InputError, match=said) as error:
        parts_of(path, None)
    assert "labels.csv" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    path = write_index(tmp_path, "a.png,red", "b.png,blue")
    (tmp_path / "b.png").unlink()
    with pytest.raises(InputError, match=r"b\.png.*was not found"):
        parts_of(path, None)
