"""A law over everything a head can be: losses × backends × kernels × dtypes × sizes × a head's life × extreme weights.

Loss and all gradients of three training calls equal a dense fp64 reference (head_cases.py). Seeded and pairwise here;
`pytest -m slow` tries many more, with compiled kernels for every loss and size.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import head_cases_worker as worker
from head_cases import LOSSES, SIZES, compute_expected, find_errors, generate_cases, merge_ranks, run
from widemargin.head.backends import class_blocks, compiled
from widemargin.losses import registry


def run_all(some):
    """Every case by itself; all that failed are named."""
    failed = []
    for case in some:
        try:
            wrong = find_errors(case, run(case), compute_expected(case))
        except Exception as error:
            wrong = [f"{type(error).__name__}: {error}"]
        failed += [f"{case}: {', '.join(wrong)}"] if wrong else []
    assert not failed, f"{len(failed)} of {len(some)} cases:\n" + "\n".join(failed)


@pytest.fixture
def compiled_kernels(monkeypatch):
    """Compiled kernels for small heads too, with several blocks of classes."""
    monkeypatch.setattr(compiled, "MIN_COMPILE_LOGITS", 0)
    monkeypatch.setattr(class_blocks, "max_block_rows", lambda samples, dim: 64)


@pytest.fixture
def plain_kernels(monkeypatch):
    """No compiled kernels; blocks so small that a head has several."""
    monkeypatch.setenv("WIDEMARGIN_COMPILE", "0")
    monkeypatch.setattr(class_blocks, "max_block_rows", lambda samples, dim: 2)


def test_every_loss_of_the_registry_has_a_reference():
    assert sorted(LOSSES) == sorted(registry.list_losses("margins"))


@pytest.mark.parametrize("part", range(4))
def test_small_heads(part, plain_kernels):
    run_all(generate_cases(100, part))


@pytest.mark.parametrize("loss", LOSSES)
def test_heads_of_many_logits_with_compiled_kernels(loss, monkeypatch):
    """Where `auto` compiles by itself; the first variant of a loss in single precision."""
    case = next(
        case for case in generate_cases(len(_KINDS), 7, size="beyond", dtype="float32", **_LARGE) if case.loss == loss
    )
    run_all([case])
    if compiled.can_compile(torch.device("cpu")):
        assert loss in {spec.margin.name for _, spec, *_ in compiled._kernel_cache}, "nothing was compiled"


_KINDS = [(loss, variant) for loss, variants in LOSSES.items() for variant in range(len(variants))]
_LARGE = {
    "backend": ("stream", "auto", "sharded"),
    "compiled": True,
    "operation": ("none", "deepcopy", "state_dict", "accumulate", "mix"),
    "weights": ("ordinary", "zero row", "tiny"),
    "label_smoothing": 0.0,  # the sum for label smoothing makes other kernels
}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(40))
def test_small_heads_in_full(part, plain_kernels):
    run_all(generate_cases(200, 100 + part))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("part", range(6))
def test_compiled_kernels_in_full(part, dtype, compiled_kernels, monkeypatch):
    monkeypatch.setitem(SIZES, "small", (12, 300, 16))
    run_all(
        generate_cases(50, 200 + part, compiled=True, dtype=dtype, backend=("stream", "auto", "sampled", "sharded"))
    )


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_heads_of_many_logits_in_full(dtype, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setenv("WIDEMARGIN_COMPILE", "0")
    backends = ("stream", "auto", "sampled", "sharded") if compiled else ("dense", "stream", "sampled", "sharded")
    run_all(generate_cases(3 * len(_KINDS), 300, size="beyond", compiled=compiled, dtype=dtype, backend=backends))


# ---------------------------------------------------------------- several ranks


def run_ranks(folder: Path, world: int, count: int, seed: int) -> list[list]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(world), "--standalone"]
    command += [str(Path(worker.__file__)), str(folder), str(count), str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WIDEMARGIN_COMPILE": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, check=False)
    written = [folder / f"{world}-{rank}.pt" for rank in range(world)]
    assert all(file.exists() for file in written), done.stderr[-3000:]
    return [torch.load(file, weights_only=False) for file in written]


def check_ranks(folder, world, count, seed):
    failed = []
    ranks = run_ranks(folder, world, count, seed)
    for number, (case, members) in enumerate(worker.cases_of(count, seed, world)):
        seen = [ranks[rank][number] for rank in members]
        failures = [one for one in seen if isinstance(one, str)]
        wrong = failures or find_errors(case, merge_ranks(case, seen), compute_expected(case))
        failed += [f"{case} on ranks {members}: {', '.join(wrong)}"] if wrong else []
    assert not failed, f"{len(failed)} cases:\n" + "\n".join(failed)


@pytest.mark.parametrize("world", [2, 3])
def test_heads_on_several_ranks(tmp_path, world):
    check_ranks(tmp_path, world, 60, world)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("part", range(5))
def test_heads_on_several_ranks_in_full(tmp_path, world, part):
    check_ranks(tmp_path, world, 400, 10 * world + part)
