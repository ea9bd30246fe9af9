"""Run the core tests with several versions of torch, each in a separate virtual environment.

    python scripts/test_torch_versions.py 2.6.0 2.13.0 [--folder /tmp/versions] [-- tests/numerics -x]

The core are the lower layers: losses, metrics, heads and numerics (tests/losses, tests/metrics, tests/head,
tests/numerics, tests/laws). Other packages have the versions of constraints.txt; `dependencies` in pyproject.toml lists
the versions of torch that passed. An environment is removed after its tests.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = ("tests/losses", "tests/metrics", "tests/head", "tests/numerics", "tests/laws")
# Requirements of the package besides torch, and of its core tests.
PACKAGES = ("numpy", "scipy", "scikit-learn", "matplotlib", "rich", "shtab", "xlrd", "pillow", "safetensors")
PACKAGES += ("lightning-fabric", "pandas", "pytorch-metric-learning", "hypothesis", "pytest", "pytest-xdist")
PACKAGES += ("filelock", "packaging", "setuptools", "timm", "torchvision")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the core tests with several versions of torch.")
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="version of torch for pip")
    parser.add_argument("--folder", type=Path, help="folder for the environments (default: a temporary folder)")
    own, rest = _split(sys.argv[1:] if argv is None else argv)
    options = parser.parse_args(own)
    failed = 0
    for version in options.versions:
        with tempfile.TemporaryDirectory(prefix="torch-", dir=options.folder) as folder:
            summary, code = run_core_tests(version, Path(folder), rest or list(CORE))
        print(f"torch {version}: {summary}", flush=True)
        failed += code != 0
    return 1 if failed else 0


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words at `--`."""
    where = words.index("--") if "--" in words else len(words)
    return words[:where], words[where + 1 :]


def run_core_tests(version: str, folder: Path, words: list[str]) -> tuple[str, int]:
    """Run the core tests; return the last line of pytest's report and its exit code."""
    python = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    pins = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line.partition("==")[0] not in ("torch", "torchvision", "timm")
    ]
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pins))
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "-c", str(constraints)]
    subprocess.run([*install, f"torch=={version}", *PACKAGES], check=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", "-m", "not exhaustive", *words]
    process = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    print(process.stdout, file=sys.stderr)
    shutil.rmtree(folder / "venv")
    lines = process.stdout.strip().splitlines()
    return lines[-1].strip("= ") if lines else "no report", process.returncode


if __name__ == "__main__":
    sys.exit(main())
