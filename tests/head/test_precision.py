"""Dtypes of embeddings, labels and weights, autocast, extreme lengths, NaN."""

import math

import pytest
import torch

import widemargin as wm
from head_batch import C, D, batch


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["dense", "stream"])
def test_any_float_embedding_with_fp32_weights(dtype, backend):
    head = wm.Head(D, C, "arcface(s=16)", backend=backend)
    x, y = batch(dtype=dtype)
    loss = head(x, y)
    loss.mean().backward()
    assert loss.dtype == torch.float32
    assert x.grad.dtype == dtype
    assert head.weight.dtype == head.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("backend", ["dense", "stream"])
def test_low_precision_weights_keep_their_dtype(backend):
    head = wm.Head(D, C, "arcgrad", backend=backend, dtype=torch.bfloat16)
    x, y = batch(dtype=torch.bfloat16)
    loss = head(x, y)
    loss.mean().backward()
    assert loss.dtype == torch.float32
    assert head.weight.dtype == head.weight.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["dense", "stream"])
def test_autocast_leaves_the_head_in_fp32(dtype, backend):
    head = wm.Head(D, C, "arcface(s=64)", backend=backend)
    x, y = batch()
    plain = head(x, y)
    wanted = torch.autograd.grad(plain.sum(), (x, head.weight))
    with torch.autocast("cpu", dtype=dtype):
        inside = head(x, y)
        assert head.logits(x).dtype == torch.float32
        if backend == "stream":  # its backward pass is our own, so it is fp32 even inside the region
            got = torch.autograd.grad(inside.sum(), (x, head.weight))
    if backend == "dense":
        got = torch.autograd.grad(inside.sum(), (x, head.weight))
    torch.testing.assert_close(inside, plain, rtol=0, atol=0)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_huge_and_tiny_embeddings_have_the_same_loss():
    head = wm.Head(D, C, "arcface(s=16)")
    x, y = batch()
    usual = head(x, y)
    for factor in (1e-35, 1e-20, 1e20, 1e35):
        torch.testing.assert_close(head(x.detach() * factor, y), usual, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.int64])
def test_labels_of_any_whole_dtype(dtype):
    x, y = batch()
    head = wm.Head(D, C, "arcface(s=8)", label_smoothing=0.1)
    torch.testing.assert_close(head(x, y.to(dtype)), head(x, y))


@pytest.mark.parametrize("spec", ["arcface", "arcgrad", "softmax", "a_softmax"])
@pytest.mark.parametrize("backend", ["dense", "stream"])
def test_a_nan_stays_visible(spec, backend):
    x, y = batch()
    head = wm.Head(D, C, spec, backend=backend)
    broken = x.detach().clone()
    broken[2, 0] = math.nan
    assert head.logits(broken)[2].isnan().all()
    assert not head.logits(broken)[1].isnan().any()
    with torch.no_grad():
        head.weight[y[0]] = math.nan
    assert head(x, y)[0].isnan()


@pytest.mark.parametrize("lam", [0.25, torch.tensor(0.25), torch.full((8,), 0.25, dtype=torch.float64)])
def test_mixup_keeps_the_dtype_of_the_loss(lam):
    x, y = batch()
    head = wm.Head(D, C, "arcface(s=8)")
    mixed = head(x, y, mix=(y.flip(0), lam))
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, 0.25 * head(x, y) + 0.75 * head(x, y.flip(0)))


def test_tiny_half_precision_weights_give_no_nan():
    head = wm.Head(D, C, "arcface", dtype=torch.float16)
    with torch.no_grad():
        head.weight.mul_(1e-4)
    x, y = batch()
    head(x, y).sum().backward()
    assert not head.weight.grad.isnan().any()
