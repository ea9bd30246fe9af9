"""Every Python block of the README and of CONTRIBUTING runs, and what they say is true."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import widemargin as wm

ROOT = Path(__file__).resolve().parents[2]


def blocks(file: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / file).read_text(), re.DOTALL)


def test_readme_examples_run_one_after_the_other():
    space: dict[str, object] = {}
    for block in blocks("README.md"):
        exec(compile(block, "README.md", "exec"), space)
    assert space["loss"].ndim == 0
    assert space["classes"].shape == (128,)


def test_every_room_is_on_the_map():
    text = (ROOT / "README.md").read_text()
    for path in (ROOT / "src" / "widemargin").iterdir():
        if path.suffix == ".py" and not path.name.startswith("__"):
            assert path.name in text, path.name
        elif path.is_dir() and path.name != "__pycache__":
            assert f"{path.name}/" in text, path.name


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


def test_the_commands_are_the_ones_ci_runs():
    text = (ROOT / "README.md").read_text()
    assert '\npip install -c constraints.txt -e ".[test]" && pytest\n' in text
    assert "^pip install" in (ROOT / ".ci" / "run").read_text()
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text()
