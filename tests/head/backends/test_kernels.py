"""Compiled kernels are the plain ones, and plain ones do where no compiler is."""

import warnings

import pytest
import torch

import widemargin as wm
from stream_cases import C, D, assert_same, batch, gradients, pair
from widemargin.head.backends import class_blocks, kernels

needs_compiler = pytest.mark.skipif(not kernels.can_compile(torch.device("cpu")), reason="no C++ compiler")


@needs_compiler
@pytest.mark.parametrize(
    "spec",
    [
        "arcface(s=20)",
        "arcgrad",
        "adacos",
        "cosface(s=learnable(9))",
        "softmax(bias=True)",
        "a_softmax(m=2)",
        "m_softmax",
    ],
)
def test_compiled_kernels_are_the_plain_ones(spec, monkeypatch):
    monkeypatch.setenv("CI", "true")  # PyTorch then refuses what it would only call slowly, such as writing in place
    monkeypatch.setattr(class_blocks, "max_block_rows", lambda samples, dim: 128)
    x, y = batch(dtype=torch.float32)
    plain, compiled = (wm.Head(D, C, spec, backend="stream", label_smoothing=0.1) for _ in range(2))
    compiled.load_state_dict(plain.state_dict())
    for _ in range(2):
        monkeypatch.setattr(kernels, "MIN_COMPILE_LOGITS", 1 << 60)
        wanted = gradients(plain, x, y)
        monkeypatch.setattr(kernels, "MIN_COMPILE_LOGITS", 0)
        compiled_before = len(kernels._kernel_cache)
        assert_same(wanted, gradients(compiled, x, y), rtol=1e-5, atol=1e-6)
    assert len(kernels._kernel_cache) == compiled_before  # a second step compiles nothing
    assert not kernels._warned_reasons


def test_a_compiler_that_fails_warns_once_and_is_done_without(monkeypatch):
    monkeypatch.setattr(kernels, "MIN_COMPILE_LOGITS", 0)
    monkeypatch.setattr(class_blocks, "max_block_rows", lambda samples, dim: 128)
    monkeypatch.setattr(kernels, "_kernel_cache", {})
    monkeypatch.setattr(kernels, "_warned_reasons", set())

    def fail_to_compile(*_):
        raise RuntimeError("no such compiler\nmore")

    monkeypatch.setattr(kernels, "_trace_and_compile", fail_to_compile)
    x, y = batch()
    dense, streamed = pair("arcface(s=20)")
    with pytest.warns(
        UserWarning, match=r"for arcface \(sum_exp_logits\), plain PyTorch does its work: no such compiler$"
    ):
        got = gradients(streamed, x, y)
    assert_same(gradients(dense, x, y), got)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients(streamed, x, y)


def test_kernels_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("WIDEMARGIN_FUSED", "0")
    assert not kernels.can_compile(torch.device("cpu"))


def test_a_scale_kept_in_fp64_and_one_adapted_in_fp32_meet_the_same_kernel(monkeypatch):
    """AdaCos asks for the sum with its old scale, then with the new one, in one pass over the classes."""
    monkeypatch.setattr(kernels, "MIN_COMPILE_LOGITS", 0)
    monkeypatch.setattr(class_blocks, "max_block_rows", lambda samples, dim: 64)
    x, y = batch(dtype=torch.float32)
    dense, streamed = pair("adacos", dtype=torch.float32)
    for _ in range(3):
        assert_same(gradients(dense, x, y), gradients(streamed, x, y), rtol=1e-4, atol=1e-5)
