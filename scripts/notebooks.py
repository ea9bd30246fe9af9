"""Run the notebooks of examples/notebooks, and store the output of their cells in them.

    python scripts/notebooks.py                                        all of them
    python scripts/notebooks.py examples/notebooks/finetune_timm.ipynb

The code cells of a notebook run one after the other in this process, in one namespace and in an empty folder. They are
plain Python without magics, so that no Jupyter is needed to run them. tests/docs/test_notebooks.py runs them too.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).resolve().parents[1] / "examples" / "notebooks"


def run_notebook(path: Path) -> list[list[dict[str, Any]]]:
    """Run a notebook; return the outputs of each code cell in the notebook format. An error of a cell is raised."""
    import matplotlib

    matplotlib.use("agg")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return [
            _run_cell(source, namespace, f"{path.name}, code cell {k}") for k, source in enumerate(code_cells(path), 1)
        ]


def code_cells(path: Path) -> list[str]:
    """Sources of the code cells."""
    return ["".join(cell["source"]) for cell in read_notebook(path)["cells"] if cell["cell_type"] == "code"]


def read_notebook(path: Path) -> dict[str, Any]:
    """Read a notebook as a dict."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def _run_cell(source: str, namespace: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Run a cell; return its printed output, the value of its last expression, and its figures."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(True)}
        outputs.append({"output_type": "execute_result", "execution_count": None, "data": data, "metadata": {}})
    return outputs + [
        {"output_type": "display_data", "data": {"image/png": picture}, "metadata": {}} for picture in _take_figures()
    ]


def _take_figures() -> list[str]:
    """Return the open figures as PNG in base64, and close them."""
    import matplotlib.pyplot as plt

    pictures = []
    for number in plt.get_fignums():
        buffer = io.BytesIO()
        plt.figure(number).savefig(buffer, dpi=80, bbox_inches="tight", metadata={"Software": None})
        pictures.append(base64.b64encode(buffer.getvalue()).decode())
        plt.close(number)
    return pictures


def write_outputs(path: Path, outputs: list[list[dict[str, Any]]]) -> None:
    """Store the outputs in the notebook's code cells, numbered from 1."""
    notebook = read_notebook(path)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, (cell, found) in enumerate(zip(cells, outputs, strict=True), 1):
        cell["execution_count"] = count
        cell["outputs"] = [{**one, "execution_count": count} if "execution_count" in one else one for one in found]
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(words: list[str]) -> int:
    """Run the named notebooks, or all, and write them."""
    for path in [Path(word).resolve() for word in words] or sorted(NOTEBOOKS.glob("*.ipynb")):
        start = time.perf_counter()
        write_outputs(path, run_notebook(path))
        print(f"{os.path.relpath(path)}: {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
