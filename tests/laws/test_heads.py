"""A law over everything a head can be: losses × backends × kernels × dtypes × sizes × a head's life × extreme weights.

Loss and all gradients of three training calls equal a dense fp64 reference (head_cases.py). Seeded and pairwise here;
`pytest -m slow` compiles kernels for every loss, `-m distributed` takes several ranks, and `-m exhaustive`
tries many more of all.
"""

import pytest
import torch

import head_cases_worker as worker
import widemargin as wm
from head_cases import LOSSES, SIZES, generate_cases, run
from head_references import compute_expected, find_errors, merge_ranks
from rank_processes import run_ranks
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


# Where φ, lengths and fold are those of a loss that .ci/run compiles, here or in test_margin_references.py, its kernels
# are the same loops: compiled by `-m exhaustive` only. A loss that is not listed is compiled by `-m slow`.
SAME_LOOPS = {
    "modified_softmax": "a_softmax",
    "m_softmax": "softmax",
    "l_softmax": "softmax",
    "normface": "arcface",
    "cosface": "arcface",
    "combined": "arcface",
    "ldam": "arcface",
    "adaface": "arcface",
    "magface": "arcface",
    "elasticface": "arcface",
    "adaacos": "adacos",
    "proxy_nca": "lm_softmax",
    "proxy_nca_pp": "arcface",
    "curricularface": "curricularface",
    "uniface": "uniface",
    "soft_triple": "soft_triple",
    "aam_softmax": "aam_softmax",
}


@pytest.mark.parametrize(("loss", "other"), [pair for pair in SAME_LOOPS.items() if pair[0] != pair[1]])
def test_losses_that_share_loops_declare_the_same_kernel(loss, other):
    one, representative = (type(wm.parse(name)) for name in (loss, other))
    for part in ("phi", "other_loss", "subcenters", "one_vs_all", "uses_x_norm", "uses_w_norm", "phi_sample_fields"):
        assert getattr(one, part) is getattr(representative, part), part


@pytest.mark.parametrize(
    "loss",
    [pytest.param(one, marks=pytest.mark.exhaustive if one in SAME_LOOPS else pytest.mark.slow) for one in LOSSES],
)
def test_heads_of_many_logits_with_compiled_kernels(loss, monkeypatch):
    """Where `auto` compiles by itself; a variant of a loss in single precision.

    Which of a class's weights is nearest hangs on the last digit for some of a million cosines, and with it a gradient:
    such losses are compared in double precision.
    """
    dtype = "float64" if loss in ("subcenter_arcface", "aam_softmax") else "float32"
    case = next(
        case for case in generate_cases(len(_KINDS), 7, size="beyond", dtype=dtype, **_LARGE) if case.loss == loss
    )
    run_all([case])
    if compiled.can_compile(torch.device("cpu")):
        kernels = [*compiled._kernel_cache, *compiled._library_cache]
        assert loss in {spec.margin.name for _, spec, *_ in kernels}, "nothing was compiled"


_KINDS = [(loss, variant) for loss, variants in LOSSES.items() for variant in range(len(variants))]
_LARGE = {
    "backend": ("stream", "auto", "sharded"),
    "compiled": True,
    "operation": ("none", "deepcopy", "state_dict", "accumulate", "mix"),
    "weights": ("ordinary", "zero row", "tiny"),
    "label_smoothing": 0.0,  # the sum for label smoothing makes other kernels
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_small_heads_with_native_kernels(dtype):
    """As many cases as losses and variants: the dense backend with the library of each."""
    run_all(generate_cases(len(_KINDS), 11, backend="dense", compiled=True, dtype=dtype))


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(40))
def test_small_heads_in_full(part, plain_kernels):
    run_all(generate_cases(200, 100 + part))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("part", range(6))
def test_compiled_kernels_in_full(part, dtype, compiled_kernels, monkeypatch):
    monkeypatch.setitem(SIZES, "small", (12, 300, 16))
    run_all(
        generate_cases(50, 200 + part, compiled=True, dtype=dtype, backend=("stream", "auto", "sampled", "sharded"))
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_heads_of_many_logits_in_full(dtype, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setenv("WIDEMARGIN_COMPILE", "0")
    backends = ("stream", "auto", "sampled", "sharded") if compiled else ("dense", "stream", "sampled", "sharded")
    run_all(generate_cases(3 * len(_KINDS), 300, size="beyond", compiled=compiled, dtype=dtype, backend=backends))


# ---------------------------------------------------------------- several ranks


def check_ranks(folder, world, count, seed):
    failed = []
    file, words = f"{world}-{{rank}}.pt", (str(count), str(seed))
    run_ranks(worker, world, folder, *words, file=file, timeout=900.0, WIDEMARGIN_COMPILE="0")
    ranks = [torch.load(folder / file.format(rank=rank), weights_only=False) for rank in range(world)]
    for number, (case, members) in enumerate(worker.cases_of(count, seed, world)):
        seen = [ranks[rank][number] for rank in members]
        failures = [one for one in seen if isinstance(one, str)]
        wrong = failures or find_errors(case, merge_ranks(case, seen), compute_expected(case, len(members)))
        failed += [f"{case} on ranks {members}: {', '.join(wrong)}"] if wrong else []
    assert not failed, f"{len(failed)} cases:\n" + "\n".join(failed)


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, 3])
def test_heads_on_several_ranks(tmp_path, world):
    check_ranks(tmp_path, world, 40, world)


@pytest.mark.exhaustive
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("part", range(5))
def test_heads_on_several_ranks_in_full(tmp_path, world, part):
    check_ranks(tmp_path, world, 400, 10 * world + part)
