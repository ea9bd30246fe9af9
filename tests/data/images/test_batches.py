"""Batches in memory: resumed at any step, shared among processes, made ahead, and left early."""

import threading
import time

import pytest
import torch

import widemargin as wm
from widemargin.data.images import batches as module
from widemargin.data.images.augment import Augment, build_augment
from widemargin.data.images.batches import TensorBatches, prefetch
from widemargin.data.images.sets import Images, ImageSet
from widemargin.io.errors import InputError


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (103, 3, 8, 8), generator=generator, dtype=torch.uint8)
    x[:, 0, 0, 0] = torch.arange(103)  # every image holds its number
    return Images("made", x, torch.arange(103) % 10, tuple("0123456789"))


@pytest.fixture(scope="module")
def augments(images):
    data = ImageSet("made", images, images, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    return {
        "none": Augment(),
        "paper": build_augment("paper", data),
        "fast": build_augment("fast", data),
        "seed": build_augment("seed", data, 12),
    }


NAMES = pytest.mark.parametrize("name", ["none", "paper", "fast", "seed"])


def numbers(x) -> list[int]:
    """The numbers of images that nothing was done to."""
    return (x[:, 0, 0, 0] * 255).round().int().tolist()


def epoch_order(batches, epoch) -> list[int]:
    return [number for x, _, _ in batches.iter_epoch(epoch) for number in numbers(x)]


def is_same_batch(one, other) -> bool:
    (x, y, mix), (x2, y2, mix2) = one, other
    pairs = zip(mix or (), mix2 or (), strict=True)
    return torch.equal(x, x2) and torch.equal(y, y2) and all(torch.equal(a, b) for a, b in pairs)


def test_an_epoch_shows_every_image_once_with_its_label(images):
    found = TensorBatches(images, 10, Augment(), 0, drop_last=False)
    assert len(found) == 11
    batches = list(found.iter_epoch(0))
    seen = [number for x, _, _ in batches for number in numbers(x)]
    assert sorted(seen) == list(range(103))
    assert seen != sorted(seen)
    for x, y, mix in batches:
        assert [number % 10 for number in numbers(x)] == y.tolist()
        assert mix is None
        assert x.dtype == torch.float32
        assert x.is_contiguous(memory_format=torch.channels_last)
    dropped = TensorBatches(images, 10, Augment(), 0)
    assert len(dropped) == len(list(dropped.iter_epoch(0))) == 10


def test_evaluation_goes_in_order(images):
    found = TensorBatches(images, 50, Augment(), 0, shuffle=False, drop_last=False)
    assert [number for x, _, _ in found.iter_epoch(4) for number in numbers(x)] == list(range(103))


def test_epochs_and_seeds_differ_and_repeat(images):
    orders = {
        (seed, epoch): epoch_order(TensorBatches(images, 20, Augment(), seed), epoch)
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(set(map(tuple, orders.values()))) == 4
    assert epoch_order(TensorBatches(images, 20, Augment(), 1), 1) == orders[1, 1]


@NAMES
@pytest.mark.parametrize("repeats", [1, 3])
def test_a_run_resumed_at_any_step_sees_the_same_batches(images, augments, name, repeats):
    whole = list(TensorBatches(images, 16, augments[name], 7, repeated_augmentation=repeats).iter_epoch(2))
    for start in (0, 1, len(whole) - 1, len(whole)):
        resumed = list(TensorBatches(images, 16, augments[name], 7, repeated_augmentation=repeats).iter_epoch(2, start))
        assert len(resumed) == len(whole) - start
        assert all(map(is_same_batch, resumed, whole[start:]))


@NAMES
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("repeats", [1, 3])
def test_processes_have_the_batches_of_one_in_parts(images, augments, name, world_size, repeats):
    one = TensorBatches(images, 24, augments[name], 3, repeated_augmentation=repeats)
    ranks = ({"rank": rank, "world_size": world_size, "repeated_augmentation": repeats} for rank in range(world_size))
    parts = [TensorBatches(images, 24 // world_size, augments[name], 3, **rank) for rank in ranks]
    assert {len(part) for part in parts} == {len(one)}
    for whole, *shares in zip(one.iter_epoch(1), *(part.iter_epoch(1) for part in parts), strict=True):
        x, y, mix = (torch.cat([share[k] for share in shares]) if k < 2 else shares[0][2] for k in range(3))
        assert torch.equal(x, whole[0])
        assert torch.equal(y, whole[1])
        if mix is not None:
            for k in range(2):
                assert torch.equal(torch.cat([share[2][k] for share in shares]), whole[2][k])


def test_without_a_full_last_batch_processes_still_share_it_without_overlap(images):
    parts = [TensorBatches(images, 16, Augment(), 0, rank=r, world_size=3, drop_last=False) for r in range(3)]
    seen = [number for part in parts for x, _, _ in part.iter_epoch(0) for number in numbers(x)]
    assert sorted(seen) == list(range(103))
    assert {len(list(part.iter_epoch(0))) for part in parts} == {3}


def test_repeated_samples_stand_in_a_row_and_are_augmented_differently(images, augments):
    repeated = TensorBatches(images, 12, Augment(), 0, repeated_augmentation=3)
    assert len(repeated) == 309 // 12
    seen = epoch_order(repeated, 0)
    assert all(len(set(seen[k : k + 3])) == 1 for k in range(0, len(seen), 3))
    assert len(set(seen[::3])) == len(seen) // 3
    x, _, _ = next(iter(TensorBatches(images, 12, augments["paper"], 0, repeated_augmentation=3).iter_epoch(0)))
    assert not torch.equal(x[0], x[1])


def test_repeated_samples_are_not_mixed_with_themselves_for_the_most_part(images):
    augment = Augment(mixup=1.0)
    alone = total = 0
    for x, y, (other, lam) in TensorBatches(images, 48, augment, 0, repeated_augmentation=3).iter_epoch(0):
        assert lam.shape == other.shape == y.shape == (48,)
        assert len(x) == 48
        alone += int((y == other).sum())
        total += 48
    assert alone / total < 0.4  # ten classes, and one chance in 24 for a twin; side by side it were two in three


def test_a_batch_is_what_heads_take(images, augments):
    head = wm.Head(3, 10, "cosface(s=8)")
    for x, y, mix in TensorBatches(images, 50, augments["seed"], 0).iter_epoch(0):
        assert head(x.mean((2, 3)), y, mix=mix).shape == (50,)
    x, y, mix = next(iter(TensorBatches(images, 50, augments["paper"], 0).iter_epoch(0)))
    assert head(x.mean((2, 3)), y, mix=mix).shape == (50,)


# ---------------------------------------------------------------- ahead


def test_the_next_batch_is_made_while_the_last_one_is_used():
    made = []
    running = prefetch(lambda step: made.append((step, threading.current_thread().name)) or step, range(2, 6))
    assert next(running) == 2
    deadline = time.monotonic() + 5
    while len(made) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)
    assert [step for step, _ in made] == [2, 3]  # one ahead, no more
    assert all(name.startswith("batches") for _, name in made)
    assert list(running) == [3, 4, 5]
    assert list(prefetch(lambda step: step, range(3, 3))) == []


def test_a_loop_that_is_left_early_leaves_no_thread(images, augments):
    before = set(threading.enumerate())
    for _ in TensorBatches(images, 10, augments["paper"], 0).iter_epoch(0):
        break
    iterator = TensorBatches(images, 10, augments["paper"], 0).iter_epoch(0)
    next(iterator)
    iterator.close()
    TensorBatches(images, 10, augments["paper"], 0).iter_epoch(0)  # never begun
    assert set(threading.enumerate()) <= before


def test_an_error_while_a_batch_is_made_comes_out_of_the_loop():
    def make(step):
        if step == 2:
            raise InputError("broken")
        return step

    seen = []
    with pytest.raises(InputError, match="broken"):
        seen.extend(prefetch(make, range(5)))
    assert seen == [0, 1]


def test_the_networks_threads_stay_as_many_as_they_were(images):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        counts = []
        for _ in prefetch(lambda step: counts.append(torch.get_num_threads()), range(3)):
            assert torch.get_num_threads() == 2
            thread = threading.Thread(target=lambda: counts.append(-torch.get_num_threads()))
            thread.start()
            thread.join()
        assert sorted(counts) == [-2, -2, -2, 1, 1, 1]
    finally:
        torch.set_num_threads(threads)


def test_making_ahead_changes_nothing(images, augments, monkeypatch):
    found = TensorBatches(images, 16, augments["seed"], 5)
    threaded = list(found.iter_epoch(1))
    monkeypatch.setattr(module, "prefetch", lambda make, steps: map(make, steps))
    assert all(map(is_same_batch, threaded, found.iter_epoch(1)))


@pytest.mark.parametrize(("options", "words"), [
    ({"batch_size": 0}, "batch_size=0 must be a whole number of at least 1"),
    ({"batch_size": 104}, "103 images are fewer than a batch of 104; lower the batch size"),
    ({"batch_size": 60, "world_size": 2}, "103 images are fewer than a batch of 60 in each of 2 processes"),
    ({"seed": -1}, "seed=-1 must be a whole number of at least 0"),
    ({"repeated_augmentation": 1.5}, "repeated_augmentation=1.5 must be a whole number"),
    ({"rank": 2, "world_size": 2}, "rank=2 must be below the number of processes, 2"),
])  # fmt: skip
def test_mistakes_are_one_line(images, options, words):
    values = {"batch_size": 10, "seed": 0, **options}
    with pytest.raises(InputError) as caught:
        TensorBatches(images, values.pop("batch_size"), Augment(), values.pop("seed"), **values)
    assert words in str(caught.value)


def test_a_step_that_does_not_exist_is_one_line(images):
    with pytest.raises(InputError, match=r"step 11.* 10 steps"):
        TensorBatches(images, 10, Augment(), 0).iter_epoch(0, 11)
