"""The tables of docs/triton.md are those of the records, and the records keep what the page promises."""

import importlib
from pathlib import Path

import pytest

from benchmarks import triton_accuracy, triton_compiled
from widemargin.io import bounded

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("triton_tables")


def test_the_page_has_the_tables_of_the_records(tables):
    page = (ROOT / "docs" / "triton.md").read_text(encoding="utf-8")
    accuracy = bounded.read_json(ROOT / "records" / "triton_accuracy.json")
    compiled = bounded.read_json(ROOT / "records" / "triton_compiled.json")
    assert tables.tabulate_accuracy(accuracy) in page
    assert tables.tabulate_kernels(compiled) in page
    assert tables.tabulate_roofline(compiled) in page
    assert triton_accuracy.list_violations(accuracy) == []
    assert triton_compiled.list_violations(compiled) == []


def test_a_kernel_has_the_largest_needs_of_its_compilations(tables):
    rows = [
        {"kernel": "k", "dtype": "float32", "sm": sm, "registers": registers, "shared": shared, "spill_bytes": spills,
         "matrix": ["mma.sync.aligned"]}
        for sm in triton_compiled.SHARED_MEMORY
        for registers, shared, spills in ((40, 2048, 0), (30, 4096, 4))
    ]  # fmt: skip
    assert "| `k` | float32 | 40 / 4 | 40 / 4 | 40 / 4 | mma | 12 |" in tables.tabulate_kernels({"kernels": rows})
