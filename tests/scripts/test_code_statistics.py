"""scripts/code_statistics.py: what it counts on a small tree, and what must hold for the package."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def statistics(*folders: Path) -> str:
    command = [sys.executable, str(ROOT / "scripts" / "code_statistics.py"), *map(str, folders)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_small_tree(tmp_path):
    package = tmp_path / "small"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text('"""A package."""\n')
    (package / "inner" / "__init__.py").write_text("")
    (package / "a.py").write_text(
        "from .inner import b\n\n\ndef _checked():\n    return b\n\n\n@property\ndef detached(self):\n    return True\n"
    )
    (package / "inner" / "b.py").write_text("def embed():\n    from ..a import _checked\n\n    return _checked\n")
    (package / "c.py").write_text("from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from . import d\n")
    (package / "d.py").write_text("from .c import TYPE_CHECKING\n")
    out = statistics(package)
    assert "small: 6 files (0 of them in folders of losses), 20 lines" in out
    assert "modules at the root: 3" in out
    assert "import cycles: 1\n    a, inner.b\n" in out  # the import inside a function counts, that for types does not
    assert "named by a participle: 1\n    a._checked" in out


def test_the_package_has_no_cycle_and_no_function_named_by_a_participle():
    out = statistics()
    assert out.count("import cycles: 0") == 3
    assert out.count("functions named by a participle: 0") == 3


def test_a_folder_without_python_files_is_one_line(tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "code_statistics.py"), str(tmp_path / "nothing")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{tmp_path / 'nothing'}: ")
    assert done.stderr.count("\n") == 1
