"""The Python blocks of README and CONTRIBUTING run; the map of files, the layers and the figures are up to date."""

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import widemargin as wm

ROOT = Path(__file__).resolve().parents[2]


def blocks(file: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / file).read_text(), re.DOTALL)


def test_readme_examples_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    for block in blocks("README.md"):
        exec(compile(block, "README.md", "exec"), space)
    assert space["loss"].ndim == 0
    assert space["classes"].shape == (128,)


def file_map() -> str:
    """The block under "Map" in CONTRIBUTING."""
    return (
        (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Map\n")[2].partition("```text\n")[2].partition("```")[0]
    )


def packages() -> list[Path]:
    """Every folder of the package that holds Python, and those beside it."""
    source = ROOT / "src" / "widemargin"
    found = [path.parent for path in source.rglob("__init__.py") if path.parent != source]
    return [*found, *(ROOT / name for name in ("benchmarks", "stress", "tests", "records", "docs", "scripts"))]


def test_every_package_and_module_is_on_the_map():
    text = file_map()
    for path in packages():
        assert f"{path.name}/" in text, path
    for path in (ROOT / "src" / "widemargin").glob("*.py"):
        if not path.name.startswith("_"):
            assert path.name in text, path.name


def test_the_map_names_nothing_that_is_not_there():
    text = file_map()
    for name in re.findall(r"[\w-]+\.py\b", text):
        assert list((ROOT / "src").rglob(name)), name
    others = {"src", "widemargin", "laws", "checks", "corpus", "examples", "recipe_files"}
    folders = {path.name for path in packages()} | others
    assert set(re.findall(r"(\w+)/", text)) <= folders


def test_the_layers_are_those_of_the_contract():
    contract = configparser.ConfigParser()
    contract.read(ROOT / ".importlinter")
    layers = contract["importlinter:contract:layers"]["layers"].split("\n")[1:]
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Layers\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*`) \|", text, re.MULTILINE)
    assert [re.findall(r"`(\w+)`", row) for row in rows] == [layer.split(" | ") for layer in layers]
    on_the_map = re.findall(r"^  (\w+)(?:/|\.py) ?(?:(\w+)/ )?", file_map(), re.MULTILINE)
    assert [name for line in on_the_map for name in line if name] == [
        name for layer in layers for name in layer.split(" | ")
    ]


@pytest.mark.slow
def test_the_example_of_contributing_is_a_loss(tmp_path):
    (example,) = blocks("CONTRIBUTING.md")
    shutil.copytree(Path(wm.__file__).parent, tmp_path / "widemargin", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "widemargin" / "losses" / "margins" / "myface.py"
    file.write_text(example)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-o",
        "addopts=",
        "-p",
        "no:cacheprovider",
        "--doctest-modules",
        str(file),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


def test_the_table_of_figures_is_made_from_the_records():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import readme
        from pages.blocks import replace_block
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    assert replace_block(page, "figures", readme.render_figures(ROOT / "records")) == page, "run scripts/readme.py"


def test_the_commands_are_the_ones_ci_runs():
    text = (ROOT / "README.md").read_text()
    assert '\npip install -c constraints.txt -e ".[test]" && pytest\n' in text
    assert "^pip install" in (ROOT / ".ci" / "run").read_text()
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text()
    assert re.search(r"\blint-imports\n", (ROOT / ".ci" / "run").read_text())
