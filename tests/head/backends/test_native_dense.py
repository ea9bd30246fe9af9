"""A small head by native kernels has the loss and gradients of the plain one, and is left alone where it should be."""

import warnings
from collections import OrderedDict

import pytest
import torch

import widemargin as wm
from widemargin.head.backends import compiled, native_dense

CPU = torch.device("cpu")
N, D, C = 90, 21, 53  # none is a multiple of a vector or a tile
needs_compiler = pytest.mark.skipif(not compiled.can_compile(CPU), reason="no C++ compiler")


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(loss, compile, dtype=torch.float32, **options):  # noqa: A002
    head = wm.Head(D, C, loss, compile=compile, dtype=dtype, backend="dense", **options)
    with torch.no_grad():
        head.weight.copy_(random(*head.weight.shape, seed=1).float())
        if head.bias is not None:
            head.bias.copy_(random(*head.bias.shape, seed=2).float())
    return head


def embeddings(head, near):
    """Numbers of single precision; half of them at angles from 1e-6 to their class weights, one opposite to it."""
    x, y = random(N, D, seed=3) * 9.0, torch.arange(N) * 7 % C
    if near:
        weight = head.weight.detach().double()
        own = (weight if weight.ndim == 2 else weight[:, 0])[y[: N // 2]]
        x[: N // 2] = 3.0 * own + torch.logspace(-6, -0.3, N // 2).unsqueeze(1) * random(N // 2, D, seed=4)
        x[1] = -own[1] + 1e-4 * random(D, seed=5)
    return x.float(), y


def step(head, x, y, **options):
    x = x.to(head.weight.dtype).detach().requires_grad_()
    head.zero_grad()
    torch.manual_seed(0)  # elasticface draws its margins
    loss = head(x, y, **options)
    (loss * torch.linspace(0.5, 1.5, len(loss), dtype=loss.dtype)).sum().backward()
    return [loss.detach(), x.grad, *(p.grad for p in head.parameters() if p.grad is not None)]


def assert_close(ours, exact, tolerance):
    assert len(ours) == len(exact)
    for one, other in zip(ours, exact, strict=True):
        assert torch.isfinite(one).all()
        assert (one.double() - other).norm() <= tolerance * other.norm().clamp_min(1e-30)


@pytest.fixture
def native_calls(monkeypatch):
    """Number of backward passes by native kernels so far."""
    calls = []
    gradients = native_dense.DenseKernels.gradients
    monkeypatch.setattr(
        native_dense.DenseKernels, "gradients", lambda self, *rest: (calls.append(1), gradients(self, *rest))[1]
    )
    return calls


@pytest.mark.slow
@needs_compiler
@pytest.mark.filterwarnings("ignore:.*without counts.*")
@pytest.mark.parametrize("name", wm.list_losses("margins"))
def test_every_loss_is_the_plain_one_in_double_precision(name, native_calls):
    """Two steps, since adaptive numbers of the first are used in the second; with label smoothing and without."""
    name = str(getattr(name, "name", name))
    for smoothing in (0.0, 0.1) if wm.parse(name).allows_label_smoothing else (0.0,):
        for near in (False, True):
            exact_head = make(name, False, torch.float64, label_smoothing=smoothing)
            x, y = embeddings(exact_head, near)
            exact = [step(exact_head, x, y) for _ in range(2)]
            assert not native_calls
            # Draws of another dtype are other numbers.
            for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5))[: 1 if name == "elasticface" else 2]:
                head = make(name, True, dtype, label_smoothing=smoothing)
                for one in exact:
                    assert_close(step(head, x, y), one, tolerance)
                assert len(native_calls) == 2, name
                native_calls.clear()


@needs_compiler
def test_small_angles_and_losses_keep_their_digits(native_calls):
    """Gradients of losses from 1e-12 up, each by itself, against double precision."""
    exact_head, head = make("arcface(s=30, m=0.2)", False, torch.float64), make("arcface(s=30, m=0.2)", True)
    x, y = embeddings(exact_head, True)
    exact, ours = step(exact_head, x, y), step(head, x, y)
    assert native_calls
    assert exact[0].min() < 1e-4
    for one, other in zip(ours[:2], exact[:2], strict=True):
        error = (one.double() - other).reshape(N, -1).norm(dim=1) / other.reshape(N, -1).norm(dim=1)
        assert error.max() < 5e-5


@needs_compiler
def test_parts_of_a_head_that_do_not_learn(native_calls):
    for frozen in ("weight", "x"):
        heads = make("arcface(s=9)", False, torch.float64), make("arcface(s=9)", True, torch.float64)
        x, y = embeddings(heads[0], False)
        grads = []
        for head in heads:
            head.weight.requires_grad_(frozen != "weight")
            given = x.double().requires_grad_(frozen != "x")
            head(given, y).sum().backward()
            grads.append([head.weight.grad if frozen == "x" else given.grad])
        assert_close(grads[1], grads[0], 1e-12)
    assert len(native_calls) == 2


@needs_compiler
def test_second_backward_passes_and_second_derivatives(native_calls):
    results = []
    for head in (make("arcface(s=9)", False, torch.float64), make("arcface(s=9)", True, torch.float64)):
        x, y = embeddings(head, False)
        x = x.double().requires_grad_()
        total = head(x, y).sum()
        (first,) = torch.autograd.grad(total, x, retain_graph=True)
        (again,) = torch.autograd.grad(total, x, create_graph=True)
        (second,) = torch.autograd.grad((again**2).sum(), head.weight)
        results.append([first, again.detach(), second])
    assert_close(results[1], results[0], 1e-10)
    assert native_calls


@needs_compiler
def test_extreme_weights_mixup_and_evaluation_take_the_plain_path(native_calls):
    head, plain = make("arcface(s=9)", True), make("arcface(s=9)", False)
    x, y = embeddings(head, False)
    for one in (head, plain):
        with torch.no_grad():
            one.weight[3], one.weight[5] = 0.0, 1e20
    for ours, theirs in zip(step(head, x, y), step(plain, x, y), strict=True):
        torch.testing.assert_close(ours, theirs)
    step(head, x, y, mix=(y.flip(0), 0.3))
    with torch.no_grad():
        head(x, y)
    assert not native_calls


def test_auto_builds_only_from_a_size_on(monkeypatch):
    large, can = compiled.MIN_DENSE_COMPILE_LOGITS, compiled.can_compile(CPU)
    assert [compiled.should_compile_dense("auto", n, CPU) for n in (large, large - 1)] == [can, False]
    assert not compiled.should_compile_dense(False, large, CPU)
    assert not compiled.should_compile_dense(True, large, torch.device("meta"))
    if can:
        assert compiled.should_compile_dense(True, 1, CPU)
    monkeypatch.setenv("WIDEMARGIN_COMPILE", "0")
    assert not compiled.should_compile_dense(True, large, CPU)


def test_without_a_compiler_a_warning_and_the_same_work(monkeypatch, native_calls):
    monkeypatch.setattr(compiled, "_warnings_given", set())
    monkeypatch.setattr(compiled, "_library_cache", OrderedDict())
    head, plain = make("arcface(s=9)", True), make("arcface(s=9)", False)
    x, y = embeddings(head, False)
    expected = step(plain, x, y)

    def fail_to_build(*_):
        raise OSError("no such compiler")

    with monkeypatch.context() as patch:
        patch.setattr(compiled.native, "NativeLibrary", fail_to_build)
        patch.setattr(compiled, "can_compile", lambda device: True)
        with pytest.warns(UserWarning, match=r"arcface \(dense\), plain PyTorch is used: no such compiler"):
            got = step(head, x, y)
        for ours, theirs in zip(got, expected, strict=True):
            assert torch.equal(ours, theirs)
    monkeypatch.setattr(compiled, "can_compile", lambda device: False)
    with pytest.warns(UserWarning, match=r"compile=True needs a C\+\+ compiler"):
        step(head, x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(head, x, y)
    assert not native_calls
