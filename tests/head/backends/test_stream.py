"""The streaming backend: where products are kept, whose memory the gradient takes, several threads."""

import copy
import pickle
import sys
import threading
import time

import pytest
import torch

import widemargin as wm
from stream_cases import C, D, assert_same, batch, gradients, pair
from widemargin.head.backends import class_blocks, compiled
from widemargin.head.backends.grad_buffer import GradBuffer


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(class_blocks, "max_block_rows", lambda samples, dim: 64)


SPECS = ["arcface(s=20)", "arcgrad", "softmax(bias=True)", "adacos", "adaacos", "a_softmax", "cosface(s=learnable(9))"]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("n", [3, D, D + 1, 40])
def test_more_samples_than_space_are_partly_computed_again(spec, n, small_blocks):
    x, y = batch(n)
    dense, streamed = pair(spec, label_smoothing=0.1)
    for _ in range(2):
        assert_same(gradients(dense, x, y), gradients(streamed, x, y))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [3, 7, 30])
@pytest.mark.parametrize("d", [16, 15])
def test_half_precision_weights_are_worked_on_in_fp32(dtype, n, d, small_blocks):
    x, y = batch(n, d, dtype=torch.float32)
    dense, streamed = pair("arcface(s=20)", dtype=dtype, d=d)
    wanted, got = gradients(dense, x, y), gradients(streamed, x, y)
    assert_same(wanted[:2], got[:2], rtol=1e-4, atol=1e-5)
    assert got[2].dtype == dtype
    torch.testing.assert_close(wanted[2], got[2], rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("spec", ["arcface(s=20)", "arcgrad", "softmax"])
def test_lengths_whose_squares_overflow(spec, small_blocks):
    x, y = batch(5, dtype=torch.float32)
    dense, streamed = pair(spec, dtype=torch.float32)
    for head in (dense, streamed):
        with torch.no_grad():
            head.weight[3] *= 1e-25
            head.weight[70] *= 1e25 if spec != "softmax" else 1.0
            head.weight[71] = 0.0
    y[0], y[1], y[2] = 3, 70, 71
    wanted, got = gradients(dense, x, y), gradients(streamed, x, y)
    assert_same(wanted[:2], got[:2], rtol=1e-4, atol=1e-5)
    scale = wanted[2].abs().amax(1, keepdim=True).clamp_min(1e-30)
    torch.testing.assert_close(got[2] / scale, wanted[2] / scale, rtol=1e-4, atol=1e-4)


def test_a_later_block_far_above_the_first(small_blocks):
    """Sums are relative to the first block's logits; a class beyond e^88 of them restarts the pass."""
    x, y = batch(4, dtype=torch.float32)
    dense, streamed = pair("softmax", dtype=torch.float32)
    for head in (dense, streamed):
        with torch.no_grad():
            head.weight[200:] *= 300.0
    assert_same(gradients(dense, x, y), gradients(streamed, x, y), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_later_block_far_above_the_first_with_compiled_kernels(small_blocks, monkeypatch):
    monkeypatch.setattr(compiled, "MIN_COMPILE_LOGITS", 0)
    test_a_later_block_far_above_the_first(None)
    assert not compiled._warnings_given


@pytest.mark.parametrize("compiling", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("loss", ["arcgrad(s=120)", "softmax(bias=True)"])
def test_a_first_block_that_is_the_target_alone(loss, compiling, monkeypatch):
    """The second label of a mixup walks from the last block on, which may hold one class: no other to begin with."""
    monkeypatch.setattr(class_blocks, "max_block_rows", lambda samples, dim: 64)
    if compiling:
        monkeypatch.setattr(compiled, "MIN_COMPILE_LOGITS", 0)
    classes = next(c for c in range(65, 1000) if c % class_blocks.balance_block_rows(c, 64) == 1)
    dense, streamed = pair(loss, torch.float32, c=classes)
    if dense.bias is not None:
        for head in (dense, streamed):
            torch.nn.init.constant_(head.bias, -150.0)
    x, y = batch(c=classes, dtype=torch.float32)
    mix = (torch.full_like(y, classes - 1), 0.5)
    assert_same(gradients(dense, x, y, mix=mix), gradients(streamed, x, y, mix=mix), rtol=1e-4, atol=1e-4)


def test_mixup_takes_both_labels_from_one_pass(small_blocks):
    x, y = batch()
    dense, streamed = pair("arcface(s=20)")
    mix = (torch.randint(C, y.shape), 0.3)
    assert_same(gradients(dense, x, y, mix=mix), gradients(streamed, x, y, mix=mix))


def test_the_gradient_lies_in_the_same_memory_step_after_step():
    x, y = batch(dtype=torch.float32)
    head = wm.Head(D, C, "arcface", backend="stream")
    places = []
    for _ in range(3):
        head.zero_grad()
        loss = head(x, y).sum()  # lives on into the next step, as in most loops
        loss.backward()
        places.append(head.weight.grad.data_ptr())
    assert len(set(places)) == 1
    assert head.grad_buffer.storage.data_ptr() == places[0]  # no copy was made on the way


def test_memory_that_somebody_holds_is_left_alone():
    x, y = batch(dtype=torch.float32)
    head = wm.Head(D, C, "arcface", backend="stream")
    head(x, y).sum().backward()
    held = head.weight.grad
    before = held.clone()
    row = held[5]
    head.zero_grad()
    del held
    head(x, y.flip(0)).sum().backward()
    torch.testing.assert_close(row, before[5])
    array = head.weight.grad.numpy()
    copied = array.copy()
    head.zero_grad()
    head(x, y).sum().backward()
    assert (array == copied).all()


def test_two_uses_before_one_backward_pass():
    x, y = batch()
    dense, streamed = pair("arcface(s=20)")
    for head in (dense, streamed):
        (head(x, y).sum() + head(x.flip(0), y).sum()).backward()
    torch.testing.assert_close(streamed.weight.grad, dense.weight.grad)


def test_a_graph_can_be_walked_twice():
    x, y = batch()
    head = wm.Head(D, C, "arcgrad", backend="stream", dtype=torch.float64)
    loss = head(x, y).sum()
    once = torch.autograd.grad(loss, (x, head.weight), retain_graph=True)
    kept = [g.clone() for g in once]
    assert_same(kept, torch.autograd.grad(loss, (x, head.weight)))
    assert_same(kept, once)  # the first gradient was not written over


def test_evaluation_gives_the_memory_back():
    x, y = batch(dtype=torch.float32)
    head = wm.Head(D, C, "arcface", backend="stream")
    head(x, y).sum().backward()
    assert head.grad_buffer.storage is not None
    head.eval()
    assert head.grad_buffer.storage is None


def test_copies_and_pickles_of_a_head_do_not_share_it():
    x, y = batch(dtype=torch.float32)
    head = wm.Head(D, C, "arcface", backend="stream")
    head(x, y).sum().backward()
    for other in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert other.grad_buffer.storage is None
        other(x, y).sum().backward()


def test_memory_for_another_shape_is_fresh():
    buffer = GradBuffer()
    first = buffer.allocate_like(torch.empty(3, 4))
    place = first.data_ptr()
    del first
    assert buffer.allocate_like(torch.empty(3, 4)).data_ptr() == place
    assert buffer.allocate_like(torch.empty(5, 4)).shape == (5, 4)


def test_two_threads_are_never_given_the_same_memory(monkeypatch):
    """Both would see that the kept storage is free before either has taken it."""
    buffer, like = GradBuffer(), torch.empty(50, 8)
    buffer.allocate_like(like)  # kept from now on, and free
    check = buffer._is_reusable

    def check_slowly(like):
        free = check(like)
        time.sleep(0.2)
        return free

    monkeypatch.setattr(buffer, "_is_reusable", check_slowly)
    taken = []
    threads = [threading.Thread(target=lambda: taken.append(buffer.allocate_like(like))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken[0].data_ptr() != taken[1].data_ptr()


def run_threads(count, switch_interval, work):
    """Run `work(number)` in several threads at once, switching between them every `switch_interval` seconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(switch_interval)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)


def test_training_calls_of_several_threads_are_all_counted():
    head = wm.Head(4, 3, "cosface(m=warmup(0, 0.3, steps=1000))")
    x, y = torch.randn(2, 4), torch.tensor([0, 1])
    run_threads(4, 1e-6, lambda number: [head(x, y) for _ in range(200)])
    assert int(head.margin_state.steps) == 800


def test_one_head_in_several_threads_has_each_threads_gradient():
    head, reference = (
        wm.Head(D, C, "normface(s=16)", backend="stream"),
        wm.Head(D, C, "normface(s=16)", backend="dense"),
    )
    reference.load_state_dict(head.state_dict())
    batches = [batch(dtype=torch.float32) for _ in range(3)]
    wanted = [torch.autograd.grad(reference(x, y).sum(), reference.weight)[0] for x, y in batches]
    errors = []

    def work(number):
        for _ in range(20):
            (got,) = torch.autograd.grad(head(*batches[number]).sum(), head.weight)
            errors.append(((got - wanted[number]).norm() / wanted[number].norm()).item())

    run_threads(3, 1e-5, work)
    assert len(errors) == 60
    assert max(errors) < 1e-5


def test_a_kept_storage_of_a_gradient_is_not_written_again():
    head = wm.Head(D, C, "arcface(s=8)", backend="stream")
    x, y = batch(dtype=torch.float32)
    head(x, y).sum().backward()
    kept = head.weight.grad.untyped_storage()
    before = torch.tensor(kept.tolist())
    head.zero_grad()
    head(torch.randn_like(x), y).sum().backward()
    assert torch.equal(torch.tensor(kept.tolist()), before)
