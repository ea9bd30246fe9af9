"""Compiled kernels are the plain ones, one serves all sizes, and plain ones do the work without a compiler."""

import copy
import logging
import pickle
import threading
import time
import warnings
from collections import OrderedDict

import pytest
import torch

import widemargin as wm
from stream_cases import C, D, assert_same, batch, gradients, pair
from widemargin.head.backends import class_blocks, compiled

CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(not compiled.can_compile(CPU), reason="no C++ compiler")


@pytest.fixture
def empty_cache(monkeypatch):
    """No kernel compiled and no warning given yet."""
    monkeypatch.setattr(compiled, "_kernel_cache", OrderedDict())
    monkeypatch.setattr(compiled, "_warnings_given", set())


@pytest.fixture
def compile_small_heads(monkeypatch):
    """Compiled kernels for the smallest heads, which have several blocks of classes."""
    monkeypatch.setattr(compiled, "MIN_COMPILE_LOGITS", 0)
    monkeypatch.setattr(class_blocks, "max_block_rows", lambda samples, dim: 128)


# ---------------------------------------------------------------- the same numbers


@needs_compiler
@pytest.mark.parametrize(
    "spec",
    # Those of every loss are compared with a dense head in tests/laws/test_heads.py.
    [
        *(pytest.param(spec, marks=pytest.mark.slow) for spec in ("arcgrad", "cosface(s=learnable(9))")),
        *(
            pytest.param(spec, marks=pytest.mark.exhaustive)
            for spec in ("arcface(s=20)", "adacos", "a_softmax(m=2)", "m_softmax", "softmax(bias=True)")
        ),
    ],
)
def test_compiled_kernels_are_the_plain_ones(spec, compile_small_heads):
    x, y = batch(dtype=torch.float32)
    plain = wm.Head(D, C, spec, backend="stream", label_smoothing=0.1, compile=False)
    fast = wm.Head(D, C, spec, backend="stream", label_smoothing=0.1)
    fast.load_state_dict(plain.state_dict())
    for _ in range(2):
        compiled_before = compiled.compilation_count()
        assert_same(gradients(plain, x, y), gradients(fast, x, y), rtol=1e-5, atol=1e-6)
    assert compiled.compilation_count() == compiled_before  # a second step compiles nothing
    assert not compiled._warnings_given


@pytest.mark.slow
@needs_compiler
def test_one_compilation_serves_all_sizes(empty_cache, monkeypatch):
    """Batches, classes and dimensions of any size, blocks of one row or one run, products cached, in part or not."""
    sizes = [(256, 300, 16), (255, 300, 16), (64, 1100, 70), (63, 1100, 5), (17, 4001, 33), (1, 70_000, 8)]
    sizes += [(2, 33_000, 2), (1040, 64, 16), (700, 97, 700), (48, 1366, 49), (50, 2 * 1311 + 1, 50)]
    monkeypatch.setattr(class_blocks, "_MAX_SEPARATE_PRODUCTS", 1 << 17)
    counts = []
    for n, c, d in sizes:
        x, y = batch(n, d, c)
        dense, streamed = pair("a_softmax(m=2)", d=d, c=c, compile=True)
        assert_same(gradients(dense, x, y), gradients(streamed, x, y), rtol=1e-9, atol=1e-10)
        assert_same([dense(x, y)], [streamed(x, y)], rtol=1e-9)
        counts.append(compiled.compilation_count())
    assert counts == [counts[0]] * len(sizes)
    assert len(compiled._kernel_cache) == 2
    assert not compiled._warnings_given


@needs_compiler
@pytest.mark.parametrize(
    ("spec", "smoothing"),
    [
        pytest.param("cosface(s=learnable(9))", 0.0, marks=pytest.mark.slow),
        pytest.param("softmax(bias=True)", 0.1, marks=pytest.mark.slow),
        pytest.param("cosface(s=learnable(9))", 0.1, marks=pytest.mark.exhaustive),
        pytest.param("softmax(bias=True)", 0.0, marks=pytest.mark.exhaustive),
    ],
)
def test_learnable_numbers_biases_and_mixup(spec, smoothing, empty_cache):
    """All gradients in fp64, for batches that are and are not filled up, by the same kernels."""
    for n in (256, 219):
        x, y = batch(n)
        y_b, lam = y.flip(0), torch.rand(n, dtype=torch.float64)
        dense, streamed = pair(spec, c=700, label_smoothing=smoothing, compile=True)
        for head in (dense, streamed):
            if head.bias is not None:
                torch.nn.init.normal_(head.bias, generator=torch.Generator().manual_seed(0))
        wanted, got = (gradients(head, x, y, mix=(y_b, lam)) for head in (dense, streamed))
        assert_same(wanted, got, rtol=1e-9, atol=1e-10)
    assert len(compiled._kernel_cache) == 2


@pytest.mark.slow
@needs_compiler
def test_weights_of_every_precision(empty_cache):
    """Half-precision weights are worked on in fp32, by the same kernels."""
    x, y = batch(230, dtype=torch.float32)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        dense, streamed = pair("arcface(s=20)", dtype=dtype, compile=True)
        exact = 1e-5 if dtype == torch.float32 else 1e-2
        assert_same(gradients(dense, x, y), gradients(streamed, x, y), rtol=exact, atol=exact)
    assert len(compiled._kernel_cache) == 2


@pytest.mark.slow
@needs_compiler
def test_per_class_numbers_do_not_tie_a_kernel_to_a_batch_size(empty_cache):
    for n in (256, 250, 16 * 14):
        x, y = batch(n)
        dense, streamed = pair(wm.CosFace(s=9, m=[i / C for i in range(C)]), compile=True)
        assert_same(gradients(dense, x, y), gradients(streamed, x, y), rtol=1e-9, atol=1e-10)
    assert len(compiled._kernel_cache) == 2


@pytest.mark.slow
def test_a_scale_kept_in_fp64_and_one_adapted_in_fp32_meet_the_same_kernel(compile_small_heads):
    """AdaCos asks for the sum with its old scale, then with the new one, in one pass over the classes."""
    x, y = batch(dtype=torch.float32)
    dense, streamed = pair("adacos", dtype=torch.float32)
    for _ in range(3):
        assert_same(gradients(dense, x, y), gradients(streamed, x, y), rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.filterwarnings("ignore:.*without counts.*")
@pytest.mark.parametrize("name", wm.list_losses("margins"))
def test_every_loss_in_double_precision(name, empty_cache):
    for n, c in ((96, 800), (331, 2003)):
        x, y = batch(n, c=c)
        dense, streamed = pair(name, c=c, compile=True)
        for _ in range(2):
            results = []
            for head in (dense, streamed):
                torch.manual_seed(0)  # elasticface draws its margins
                results.append(gradients(head, x, y))
            assert_same(*results, rtol=1e-8, atol=1e-9)
    assert not compiled._warnings_given


# ---------------------------------------------------------------- the setting


def test_auto_compiles_large_heads_true_smaller_ones_false_none():
    large, small, tiny = 1 << 20, 1 << 16, (1 << 16) - 1
    can = compiled.can_compile(CPU)
    assert [compiled.should_compile("auto", n, CPU) for n in (large, large - 1)] == [can, False]
    assert not compiled.should_compile(False, large, CPU)
    if can:
        assert [compiled.should_compile(True, n, CPU) for n in (large, small, tiny)] == [True, True, False]


@pytest.mark.parametrize(("written", "wanted"), [("0", [False] * 3), ("1", [True] * 3), ("auto", ["auto"] * 3)])
def test_the_environment_overrides_a_head(written, wanted, monkeypatch):
    monkeypatch.setenv("WIDEMARGIN_COMPILE", written)
    assert [compiled.effective_setting(setting) for setting in ("auto", True, False)] == wanted


def test_a_setting_that_does_not_exist_is_one_line(monkeypatch):
    with pytest.raises(wm.InputError, match=r"compile='always'.*auto"):
        wm.Head(D, C, "arcface", compile="always")
    with pytest.raises(wm.InputError, match="compile=1"):
        wm.Head(D, C, "arcface", compile=1)
    monkeypatch.setenv("WIDEMARGIN_COMPILE", "yes")
    x, y = batch()
    with pytest.raises(wm.InputError, match=r"WIDEMARGIN_COMPILE='yes'.*auto"):
        wm.Head(D, C, "arcface", backend="stream", dtype=x.dtype)(x, y)


def test_a_head_keeps_its_setting():
    head = wm.Head(D, C, "arcface", compile=False)
    assert repr(head) == f"Head({D}, {C}, {head.spec!r}, backend=auto, compile=False)"
    assert "compile" not in repr(wm.Head(D, C, "arcface"))
    other = wm.Head(D, C, "arcface")
    other.assign_from(head)
    head.extend(2)
    for one in (copy.deepcopy(head), pickle.loads(pickle.dumps(head)), head, other):
        assert one.compile_kernels is False
    objective = wm.Objective("arcface + 0.1*center", D, C, compile=True)
    assert objective.head.compile_kernels is True
    assert callable(head.compile)  # torch's own method, which compiles a module's forward


def test_true_without_a_compiler_warns_once_and_does_the_same_work(empty_cache, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    x, y = batch(256)
    dense, streamed = pair("arcface(s=20)", compile=True)
    with pytest.warns(UserWarning, match=r"compile=True.*C\+\+"):
        got = gradients(streamed, x, y)
    assert_same(gradients(dense, x, y), got)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients(streamed, x, y)
        assert not compiled.should_compile("auto", 1 << 20, CPU)  # not requested


# ---------------------------------------------------------------- the cache


def test_a_compiler_that_fails_warns_once_and_is_done_without(empty_cache, compile_small_heads, monkeypatch):
    def fail_to_compile(*_):
        raise RuntimeError("no such compiler\nmore")

    monkeypatch.setattr(compiled, "_compile", fail_to_compile)
    x, y = batch()
    dense, streamed = pair("arcface(s=20)")
    counted = compiled.compilation_count()
    with pytest.warns(UserWarning, match=r"arcface \(sum_exp_logits\).*no such compiler$"):
        got = gradients(streamed, x, y)
    assert_same(gradients(dense, x, y), got)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients(streamed, x, y)
    assert compiled.compilation_count() == counted


def test_the_least_recently_used_kernel_is_dropped(empty_cache, compile_small_heads, monkeypatch):
    made = []

    def keep_plain(function, spec, block):
        made.append((spec.margin.name, function.__name__))
        return function, True

    monkeypatch.setattr(compiled, "_compile", keep_plain)
    monkeypatch.setattr(compiled, "MAX_KERNELS", 4)
    x, y = batch()
    heads = {name: pair(name)[1] for name in ("arcface", "cosface", "normface")}
    for name in ("arcface", "cosface", "arcface", "normface", "arcface"):
        gradients(heads[name], x, y)
        assert len(compiled._kernel_cache) <= 4
    two = ["sum_exp_logits", "gradients"]
    assert made == [(name, function) for name in ("arcface", "cosface", "normface") for function in two]
    gradients(heads["cosface"], x, y)  # the one that had to go
    assert made[6:] == [("cosface", function) for function in two]


def test_threads_that_want_the_same_kernel_compile_it_once(empty_cache, compile_small_heads, monkeypatch):
    made = []

    def keep_plain(function, spec, block):
        time.sleep(0.05)
        made.append(function)
        return function, True

    monkeypatch.setattr(compiled, "_compile", keep_plain)
    x, y = batch()
    heads = [pair("arcface")[1] for _ in range(4)]
    threads = [threading.Thread(target=gradients, args=(head, x, y)) for head in heads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2


def test_a_compilation_is_logged(empty_cache, compile_small_heads, monkeypatch, caplog):
    monkeypatch.setattr(compiled, "_compile", lambda function, *_: (function, True))
    x, y = batch()
    with caplog.at_level(logging.INFO, logger="widemargin"):
        for _ in range(2):
            gradients(pair("arcface")[1], x, y)
    assert [record.getMessage().split(" in ")[0] for record in caplog.records] == [
        f"compiled arcface ({function}) for torch.float64 on cpu" for function in ("sum_exp_logits", "gradients")
    ]
