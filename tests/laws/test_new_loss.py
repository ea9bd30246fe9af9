"""Adding a loss is one new file: dropped into a copy of the package, it appears everywhere."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    group = "margin"
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
    group = "margin"

    def loss_and_stats(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return x.square().sum(1), {}
'''


# A law it breaks: the target's curve rises.
RISING_MARGIN = (
    NEW_MARGIN.replace("Halved", "Rising")
    .replace("halved", "rising")
    .replace("half_price", "double_price")
    .replace("- self.w\n", "+ self.w * theta**2\n")
)


@pytest.fixture(scope="module")
def copy_with_new_losses(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(
        Path(widemargin.__file__).parent, folder / "widemargin", ignore=shutil.ignore_patterns("__pycache__")
    )
    (folder / "widemargin" / "losses" / "margins" / "halved.py").write_text(NEW_MARGIN)
    (folder / "widemargin" / "losses" / "margins" / "rising.py").write_text(RISING_MARGIN)
    (folder / "widemargin" / "losses" / "pairs" / "shrink.py").write_text(NEW_PAIR_LOSS)
    return folder


def run(folder: Path, *command: str, exit_code: int = 0) -> str:
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
    assert result.returncode == exit_code, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


# What a user does with them, in one process: three lists, the picture, the benchmarks' names, a step of training.
USES = """
import contextlib, io, json
import torch
import widemargin as wm
from benchmarks import numerics
from widemargin.cli.main import main

def say(*words):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(list(words)) == 0
    return said.getvalue()

shown = {kind: say("losses", *words) for kind, words in
         {"listed": [], "json": ["--format", "json"], "md": ["--format", "md"]}.items()}
say("curves", "--out", "all.svg")
shown["benchmarked"] = [c.name for c in numerics.list_loss_implementations()]
o = wm.Objective("half_price(s=9) + 0.1*shrink", 4, 3)
o(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])).mean().backward()
shown["is_class"] = wm.Halved(s=9) == wm.parse("halved(s=9)")
shown["gradient"] = float(o.parts["halved"].weight.grad.abs().sum())
print(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def used(copy_with_new_losses) -> dict[str, Any]:
    """What the commands and the package say of the new losses."""
    return json.loads(run(copy_with_new_losses, "-c", USES))


def test_it_is_listed_explained_and_documented(used):
    assert "halved" in used["listed"]
    assert "half_price" in used["listed"]
    assert "shrink" in used["listed"]
    assert {"halved", "shrink"} <= {page["name"] for page in json.loads(used["json"])}
    assert "## `halved` (also `half_price`)" in used["md"]


def test_it_is_drawn(used, copy_with_new_losses):
    drawn = (copy_with_new_losses / "all.svg").read_text()
    assert "halved" in drawn
    assert "shrink" in drawn


def test_it_is_benchmarked(used):
    assert "halved(s=20, w=0.5)" in used["benchmarked"]


def test_it_trains_in_an_objective_under_its_class_name_and_alias(used):
    assert used["is_class"] is True
    assert used["gradient"] > 0


def run_tests(folder: Path, which: str, *files: str, exit_code: int = 0) -> str:
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
    paths = [str(ROOT / "tests" / file) for file in files]
    return run(folder, "-m", "pytest", *options, "-k", which, *paths, exit_code=exit_code)


@pytest.mark.slow
def test_it_is_held_to_the_laws(copy_with_new_losses):
    """They hold for two of the new losses; the one that breaks a law is found."""
    files = ("laws/test_margins.py", "laws/test_pair_and_classical_losses.py", "losses/test_grammar.py")
    out = run_tests(copy_with_new_losses, "halved or shrink or (rising and falls)", *files, exit_code=1)
    assert int(out.split(" passed")[0].split()[-1]) >= 30
    (failed,) = (line for line in out.splitlines() if line.startswith("FAILED"))
    assert "test_target_curve_falls[rising]" in failed


def test_a_file_that_names_itself_otherwise_is_refused(copy_with_new_losses, tmp_path):
    wrong = tmp_path / "wrong"
    shutil.copytree(copy_with_new_losses, wrong)
    (wrong / "widemargin" / "losses" / "margins" / "other.py").write_text(NEW_MARGIN)
    with pytest.raises(AssertionError, match="the loss is named 'halved'"):
        run(wrong, "-m", "widemargin", "losses")
