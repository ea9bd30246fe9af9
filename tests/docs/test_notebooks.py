"""The notebooks of examples/notebooks run, and hold what their cells print."""

import json
import re
import sys
from pathlib import Path

import pytest

# isort: off
import widemargin.models.torchvision_compat  # noqa: F401  (before timm, which notebooks import)

# isort: on

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
try:
    from notebooks import NOTEBOOKS, code_cells, read_notebook, run_notebook, write_outputs
finally:
    sys.path.remove(str(ROOT / "scripts"))

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
MAX_BYTES = 300_000


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_cells_run_one_after_the_other(path):
    assert any(run_notebook(path))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_opens_with_a_title_and_holds_its_outputs(path):
    notebook = read_notebook(path)
    assert (notebook["nbformat"], notebook["cells"][0]["cell_type"]) == (4, "markdown")
    assert notebook["cells"][0]["source"][0].startswith("# ")
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))  # scripts/notebooks.py ran it
    assert any(cell["outputs"] for cell in code)
    assert all("id" in cell for cell in notebook["cells"])
    assert path.stat().st_size < MAX_BYTES
    assert not re.search(r"/(home|tmp|work|root)/", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_is_linked_from_the_docs(path):
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")]
    assert any(f"examples/notebooks/{path.name}" in page for page in pages)


def test_what_cells_print_return_and_draw_is_kept(tmp_path):
    sources = ["x = 2\nprint('a')\nx + 1", "import matplotlib.pyplot as plt\nlines = plt.plot([x])", "raise KeyError"]
    cells = [{"cell_type": "code", "source": [source], "outputs": [], "execution_count": None} for source in sources]
    path = tmp_path / "small.ipynb"
    path.write_text(json.dumps({"nbformat": 4, "cells": cells[:2]}))
    write_outputs(path, run_notebook(path))
    first, second = (cell["outputs"] for cell in read_notebook(path)["cells"])
    assert [first[0]["text"], first[1]["data"]["text/plain"]] == [["a\n"], ["3"]]
    assert [list(output["data"]) for output in second] == [["image/png"]]
    path.write_text(json.dumps({"nbformat": 4, "cells": cells}))
    assert len(code_cells(path)) == 3
    with pytest.raises(KeyError):
        run_notebook(path)
