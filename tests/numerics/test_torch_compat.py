"""Every private interface of torch has a fallback with the same results, and no other module uses one."""

import re
import warnings
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

import widemargin
import widemargin as wm
from widemargin.head.backends import compiled, native_source, stream
from widemargin.numerics import angles, torch_compat


def test_no_other_module_uses_private_interfaces_of_torch():
    private = re.compile(r"\btorch(\.\w+)*\._[a-zA-Z]\w*")
    found = [
        f"{file.name}: {match.group()}"
        for file in sorted(Path(widemargin.__file__).parent.rglob("*.py"))
        if file.name != "torch_compat.py"
        for match in private.finditer(file.read_text())
    ]
    assert not found


def compute_gradients(backend="dense", n=6, c=5, d=4, dtype=torch.float64, **options):
    """Loss and gradients of a small step."""
    torch.manual_seed(0)
    head = wm.Head(d, c, "arcgrad(s=8)", backend=backend, dtype=dtype, **options)
    x, y = torch.randn(n, d, dtype=dtype, requires_grad=True), torch.randint(c, (n,))
    loss = head(x, y)
    return loss, *torch.autograd.grad(loss.sum(), (x, head.weight))


def assert_same(one, other, rtol=1e-12):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=1e-12)


def test_without_a_look_at_transforms_python_never_branches_on_values(monkeypatch):
    """vmap, grad and jvp run, and give what they give otherwise; so does an ordinary step."""
    x = torch.randn(3, 4, dtype=torch.float64)

    def norms(row):
        return angles.unit_and_norm(row)[0].sum() + angles.safe_arccos(0.1 * row).sum()

    def results():
        return (
            torch.func.vmap(norms)(x),
            torch.func.vmap(torch.func.grad(norms))(x),
            torch.func.jvp(norms, (x[0],), (x[1],))[1],
            *compute_gradients(),
            *compute_gradients("stream"),
        )

    wanted = results()
    assert angles.is_eager_cpu(x)
    monkeypatch.setattr(torch_compat, "_peek_interpreter_stack", None)
    assert torch_compat.is_inside_transform()
    assert not angles.is_eager_cpu(x)
    assert_same(wanted, results())


def test_without_a_look_at_the_forward_mode_it_may_be_on(monkeypatch):
    x = 0.1 * torch.randn(5, dtype=torch.float64)

    def tangent():
        with torch.autograd.forward_ad.dual_level():
            assert torch_compat.is_forward_mode_on()
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            return torch.autograd.forward_ad.unpack_dual(angles.safe_arccos(dual)).tangent

    wanted = (tangent(), *compute_gradients())
    assert angles.is_reverse_mode_only(x)
    level = torch.autograd.forward_ad._current_level
    monkeypatch.delattr(torch.autograd.forward_ad, "_current_level")
    assert torch_compat.is_forward_mode_on()
    assert not angles.is_reverse_mode_only(x)
    got = compute_gradients()
    monkeypatch.setattr(torch.autograd.forward_ad, "_current_level", level, raising=False)
    assert_same(wanted, (tangent(), *got))


def test_without_the_count_of_a_storages_users_memory_is_never_used_again(monkeypatch):
    wanted, buffer, like = compute_gradients("stream"), stream.GradBuffer(), torch.empty(3, 2)
    address = buffer.allocate_like(like).data_ptr()
    assert buffer.allocate_like(like).data_ptr() == address  # the first one is no longer referenced
    monkeypatch.setattr(torch_compat, "_storage_use_count", None)
    assert torch_compat.count_storage_users(like.untyped_storage()) is None
    first, second = buffer.allocate_like(like), buffer.allocate_like(like)
    assert len({address, first.data_ptr(), second.data_ptr()}) == 3
    assert_same(wanted, compute_gradients("stream"))


def test_without_operations_on_lists_of_tensors_there_is_a_loop(monkeypatch):
    results = []
    for _ in range(2):
        tensors = [torch.arange(n, dtype=torch.float64) for n in (1, 4, 0)]
        torch_compat.multiply_all_(tensors, 0.7)
        torch_compat.multiply_all_([], 2.0)
        results.append(tensors)
        monkeypatch.setattr(torch_compat, "_foreach_mul_", None)
    assert_same(*results)


def test_without_what_tracing_needs_plain_functions_do_the_work(monkeypatch):
    monkeypatch.setattr(compiled, "_kernel_cache", OrderedDict())
    monkeypatch.setattr(compiled, "_warnings_given", set())
    monkeypatch.setattr(compiled, "can_compile", lambda device: True)
    native_source.get_source.cache_clear()
    hide(monkeypatch, "make_fx")
    with pytest.warns(UserWarning, match=r"\.make_fx$"):
        got = compute_gradients("stream", 256, 300, compile=True)
    assert_same(compute_gradients("dense", 256, 300), got, rtol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compute_gradients("stream", 256, 300, compile=True)


def hide(monkeypatch, name):
    """Make torch look as if it had no such interface."""
    real = torch_compat.find_private
    monkeypatch.setattr(
        torch_compat, "find_private", lambda module, wanted: None if wanted == name else real(module, wanted)
    )
    assert torch_compat.find_private("torch.fx.experimental.proxy_tensor", name) is None


def test_what_torch_does_not_have_is_none():
    assert torch_compat.find_private("torch._no_such_module", "anything") is None
    assert torch_compat.find_private("torch", "_no_such_name") is None
