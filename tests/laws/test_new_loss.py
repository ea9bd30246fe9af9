"""Adding a loss is one new file: dropped into a copy of the package, it appears everywhere."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import widemargin

ROOT = Path(__file__).resolve().parents[2]

NEW_MARGIN = '''
"""Halved: half the target's cosine, for a test.

Formula: z_y = s (cos θ_y − 1) / 2 − s/2, z_j = s cos θ_j.
Domain: s > 0.
When: never.
Reference: none, Eq. 0.

>>> import widemargin as wm
>>> wm.parse("halved(s=3)")
halved(s=3)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..base import Number, option
from ..margin import Margin


@dataclass(frozen=True, repr=False)
class Halved(Margin):
    name = "halved"
    aliases = ("half_price",)
    reference = "none"
    neutral = ({"w": 0.0}, "normface")

    s: Number = option(20.0, "scale", low=0, open_low=True, allows_schedule=True)
    w: Number = option(0.5, "how much is taken away", low=0, high=1)

    def psi(self, theta: Tensor) -> Tensor:
        return torch.cos(theta) - self.w * (1 + torch.cos(theta)) / 2 - self.w
'''

NEW_PAIR_LOSS = '''
"""Shrink: short embeddings, for a test.

Formula: ‖x‖².
Domain: none.
When: never.
Reference: none, Eq. 0.

>>> import widemargin as wm
>>> wm.parse("shrink")
shrink
"""

from dataclasses import dataclass

from torch import Tensor

from ..pair_loss import PairLoss


@dataclass(frozen=True, repr=False)
class Shrink(PairLoss):
    name = "shrink"
    reference = "none"

    def loss_and_stats(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return x.square().sum(1), {}
'''


@pytest.fixture(scope="module")
def copy_with_new_losses(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(
        Path(widemargin.__file__).parent, folder / "widemargin", ignore=shutil.ignore_patterns("__pycache__")
    )
    (folder / "widemargin" / "losses" / "margins" / "halved.py").write_text(NEW_MARGIN)
    (folder / "widemargin" / "losses" / "pairs" / "shrink.py").write_text(NEW_PAIR_LOSS)
    return folder


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


def test_it_is_listed_explained_and_documented(copy_with_new_losses):
    listed = run(copy_with_new_losses, "-m", "widemargin", "losses")
    assert "halved" in listed
    assert "half_price" in listed
    assert "shrink" in listed
    pages = json.loads(run(copy_with_new_losses, "-m", "widemargin", "losses", "--format", "json"))
    assert {"halved", "shrink"} <= {page["name"] for page in pages}
    assert "## `halved` (also `half_price`)" in run(
        copy_with_new_losses, "-m", "widemargin", "losses", "--format", "md"
    )


def test_it_is_drawn(copy_with_new_losses):
    run(copy_with_new_losses, "-c", "import matplotlib; matplotlib.rcParams['svg.fonttype'] = 'none'\n"
        "from widemargin.cli.main import main; raise SystemExit(main(['curves', '--out', 'all.svg']))")  # fmt: skip
    drawn = (copy_with_new_losses / "all.svg").read_text()
    assert "halved" in drawn
    assert "shrink" in drawn


def test_it_is_benchmarked(copy_with_new_losses):
    code = "from benchmarks import numerics; print([c.name for c in numerics.list_loss_implementations()])"
    assert "halved(s=20, w=0.5)" in run(copy_with_new_losses, "-c", code)


def test_it_trains_in_an_objective_under_its_class_name_and_alias(copy_with_new_losses):
    code = (
        "import torch, widemargin as wm\n"
        "o = wm.Objective('half_price(s=9) + 0.1*shrink', 4, 3)\n"
        "o(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])).mean().backward()\n"
        "print(wm.Halved(s=9) == wm.parse('halved(s=9)'), o.parts['halved'].weight.grad.abs().sum() > 0)"
    )
    assert run(copy_with_new_losses, "-c", code).split() == ["True", "tensor(True)"]


def run_tests(folder: Path, which: str, *files: str) -> str:
    options = [
        "-o",
        "addopts=--import-mode=importlib",
        "-p",
        "no:cacheprovider",
        "-q",
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(ROOT),
    ]
    return run(folder, "-m", "pytest", *options, "-k", which, *(str(ROOT / "tests" / file) for file in files))


def test_it_is_held_to_the_laws(copy_with_new_losses):
    out = run_tests(
        copy_with_new_losses,
        "halved or shrink",
        "laws/test_margins.py",
        "laws/test_pair_and_classical_losses.py",
        "losses/test_grammar.py",
    )
    assert int(out.split(" passed")[0].split()[-1]) >= 50


def test_a_law_it_breaks_is_found(copy_with_new_losses, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(copy_with_new_losses, broken)
    file = broken / "widemargin" / "losses" / "margins" / "halved.py"
    file.write_text(file.read_text().replace("- self.w\n", "+ self.w * theta**2\n"))
    with pytest.raises(AssertionError, match="test_target_curve_falls"):
        run_tests(broken, "halved and falls", "laws/test_margins.py")


def test_a_file_that_names_itself_otherwise_is_refused(copy_with_new_losses, tmp_path):
    wrong = tmp_path / "wrong"
    shutil.copytree(copy_with_new_losses, wrong)
    (wrong / "widemargin" / "losses" / "margins" / "other.py").write_text(NEW_MARGIN)
    with pytest.raises(AssertionError, match="the loss calls itself 'halved'; name it like its file"):
        run(wrong, "-m", "widemargin", "losses")
