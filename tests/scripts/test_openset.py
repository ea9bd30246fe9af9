"""The results of the open-set recipes in docs/start/open-sets.md."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def openset(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("openset")


def row(method, auc, splits=3):
    cells = {metric: {"mean": 90.0, "interval": [80.0, 95.0]} for metric in ("eer", "recall1", "map_at_r")}
    return {"method": method, "splits": splits, "auc": {"mean": auc, "interval": None}, **cells}


def difference(metric, one, other, value, is_significant):
    return {"metric": metric, "method_a": one, "method_b": other, "difference": value, "is_significant": is_significant}


def write_folder(folder, rows, compared):
    folder.mkdir()
    for name, content in (("table.json", rows), ("compared.json", compared), ("settings.json", {"chosen": {}})):
        (folder / name).write_text(json.dumps(content))
    (folder / "records.jsonl").write_text("{}\n")


def test_tables_are_sorted_and_significant_differences_are_named(openset, tmp_path):
    families, others, records = tmp_path / "families", tmp_path / "others", tmp_path / "records"
    records.mkdir()
    compared = [difference("eer", "softmax", "arcface(s=16)", 2.0, True), difference("auc", "softmax", "x", 9.0, False)]
    write_folder(families, [row("softmax", 91.0), row("arcface(s=16)", 93.0)], compared)
    write_folder(others, [row("cosface(s=16)", 92.0, 1)], [])
    openset.copy_records(records, "faces", {"families": families, "others": others})
    text = openset.render(records)
    assert text.index("`arcface(s=16)` | 93.0 | 90.0 (80.0 to 95.0)") < text.index("`softmax` | 91.0")
    assert "EER: 1 of 1 pairs differ significantly: `arcface(s=16)` is better than `softmax`." in text
    assert "AUC: no two of the 1 pairs differ" in text
    assert "cosface(s=16)" in text
    assert "Omniglot" not in text


def test_a_method_without_runs_is_left_out(openset):
    assert openset.sorted_rows([{"method": "diverged", "splits": 0}, row("softmax", 91.0)]) == [row("softmax", 91.0)]


def test_records_must_be_there(openset, tmp_path):
    with pytest.raises(SystemExit, match="no openset_"):
        openset.render(tmp_path)


def test_the_page_shows_the_records(openset):
    page = (ROOT / "docs/start/open-sets.md").read_text(encoding="utf-8")
    if not list((ROOT / "records").glob("openset_*_families_table.json")):
        assert "openset: begin" not in page
        return
    assert openset.replace_block(page, "openset", openset.render(ROOT / "records")) == page
