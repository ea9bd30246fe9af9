"""Draws and augmented batches are the same bits under any process-wide defaults, also if these change."""

import contextlib
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from colours import draw
from stress.trainings import difference
from widemargin import data, numerics
from widemargin.data.images.augment import Augment
from widemargin.data.images.batches import EpochSampler, TensorBatches, make_sampler
from widemargin.data.images.folder import FolderBatches, load_folder
from widemargin.data.images.identities import split_identities
from widemargin.data.images.sets import Images, stratified_split, stratified_subset
from widemargin.head.backends.sampled import sample_classes
from widemargin.numerics.random import BatchSlice, beta, integers, make_generator, normal, permutation, uniform
from widemargin.recognition.evaluation import evaluate_embeddings, sampled_pairs
from widemargin.training.config import TrainConfig
from widemargin.training.train import train

POLICY = "rand-m9-mstd0.5-inc1"


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# What another library, or Fabric in another thread, may have set.
STATES = {
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "meta": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference": torch.inference_mode,
}


def parts(value) -> list:
    """Every tensor in a nest of tuples and lists, as (dtype, bytes); everything else as it is."""
    if isinstance(value, Tensor):
        return [(value.dtype, value.contiguous().view(torch.uint8).numpy().tobytes() if value.ndim else value.item())]
    if isinstance(value, tuple | list):
        return [part for inner in value for part in parts(inner)]
    if isinstance(value, dict):
        return [part for key, inner in value.items() for part in (key, *parts(inner))]
    return [value]


def assert_same_in_every_state(make, names=tuple(STATES)) -> None:
    wanted = parts(make())
    for name in names:
        with STATES[name]():
            found = make()
        assert parts(found) == wanted, name


def images(n=24, channels=3, size=9, classes=4) -> Images:
    x = torch.randint(256, (n, channels, size, size), generator=make_generator(5), dtype=torch.uint8, device="cpu")
    y = torch.arange(n, dtype=torch.int64, device="cpu") % classes
    return Images("made", x, y, tuple(map(str, range(classes))))


augments = st.builds(
    Augment,
    size=st.sampled_from([0, 6, 13]),
    pad=st.sampled_from([0, 2]),
    pad_mode=st.sampled_from(["zeros", "reflect"]),
    flip=st.sampled_from(["none", "random", "alternating"]),
    scale=st.sampled_from([None, (0.08, 1.0), (0.5, 0.9)]),
    interpolation=st.sampled_from(["nearest", "bilinear", "bicubic"]),
    rand=st.sampled_from(["", POLICY]),
    erase=st.sampled_from([0.0, 0.5, 1.0]),
    mixup=st.sampled_from([0.0, 0.8]),
    cutmix=st.sampled_from([0.0, 1.0]),
    mix_prob=st.sampled_from([0.5, 1.0]),
    mix_each=st.booleans(),
    mean=st.just((0.4, 0.5, 0.6)),
    std=st.just((0.2, 0.3, 0.4)),
)


@given(augment=augments, seed=st.integers(0, 2**31), start=st.sampled_from([0, 4]))
@example(Augment(size=6, scale=(0.08, 1.0), erase=0.5, mixup=0.8, cutmix=1.0, mix_each=True), 0, 0)
@example(Augment(erase=1.0, cutmix=1.0), 0, 4)
def test_an_augmented_batch_is_the_same_bits_in_every_state(augment, seed, start):
    some = images()
    indices = torch.arange(8)

    def make():
        return augment(some.x[:8], indices, 1, BatchSlice(make_generator(seed, 1), 16, start))

    assert make()[0].dtype == torch.float32
    assert_same_in_every_state(make)
    assert_same_in_every_state(lambda: augment.for_evaluation().transform_for_evaluation(some.x))


@given(seed=st.integers(0, 2**63 - 1), n=st.integers(1, 40), alpha=st.sampled_from([0.1, 0.8, 1.0, 5.0]))
def test_draws_are_the_same_bits_in_every_state(seed, n, alpha):
    def make():
        rows = BatchSlice(make_generator(seed, 3), n + 2, 1)
        drawn_so = uniform(rows, n, 2), integers(rows, n, 9, 3), normal(rows.generator, n, 2), beta(rows, n, alpha)
        return *drawn_so, permutation(rows.generator, n)

    assert_same_in_every_state(make)


def test_orders_and_parts_are_the_same_in_every_state():
    some, embedded = images(60), torch.randn(60, 5, generator=make_generator(1))
    for share in (0.05, 0.1, 0.3, 0.5, 0.7):

        def make(share=share):
            held, rest = stratified_split(some, share, 3)
            return (
                held.x,
                rest.x,
                stratified_subset(some, share, 3).x,
                [part.x for part in split_identities(some, share, 3)],
            )

        assert_same_in_every_state(make)
    order = EpochSampler(60, 8, 0, repeated_augmentation=2)
    per_class = make_sampler(some.y, 2, 8, 0)
    assert_same_in_every_state(
        lambda: [order.epoch_indices(2), order.step_indices(order.epoch_indices(1), 1, 2, shuffle_batch=True)[0]]
    )
    assert_same_in_every_state(lambda: per_class.epoch_indices(2))
    assert_same_in_every_state(lambda: sampled_pairs(some.y, 0, 500))
    assert_same_in_every_state(lambda: repr(evaluate_embeddings(embedded, some.y)), names=("float64", "bfloat16"))

    def sample():
        torch.manual_seed(0)
        return sample_classes(some.y, 100, 0.3)

    assert_same_in_every_state(sample)


EVERYTHING = Augment(
    size=8,
    scale=(0.3, 1.0),
    flip="random",
    erase=0.5,
    mixup=0.8,
    cutmix=1.0,
    mix_each=True,
    mean=(0.5,),
    std=(0.2,),
)


@pytest.mark.parametrize("kind", ["memory", "folder", pytest.param("timm", marks=pytest.mark.exhaustive)])
def test_batches_made_while_a_thread_changes_the_default_dtype(kind, tmp_path):
    """What Fabric does in every step of `--precision 64-true`, while the next batch is made."""
    if kind == "memory":
        batches = TensorBatches(images(144, size=12), 12, EVERYTHING, 0)
    else:
        pytest.importorskip("widemargin.models.torchvision_compat")  # timm needs torchvision
        augment = replace(EVERYTHING, timm=True) if kind == "timm" else EVERYTHING
        batches = FolderBatches(load_folder(draw(tmp_path)).train, 12, augment, 0, workers=1, repeated_augmentation=3)
    wanted = [parts(batch) for batch in batches.iter_epoch(0)]
    assert len(wanted) == 12
    found = []
    with default_dtype(torch.float32):
        for batch in batches.iter_epoch(0):
            torch.set_default_dtype(torch.float64)
            found.append(parts(batch))
            threading.Event().wait(0.003)  # the other thread has half its time in either state
            torch.set_default_dtype(torch.float32)
    assert found == wanted
    with default_dtype(torch.float64):
        assert [parts(batch) for batch in batches.iter_epoch(0)] == wanted


def test_two_trainings_in_64_true_are_the_same_bits(tmp_path):
    run = TrainConfig(
        data=str(draw(tmp_path)),
        model="fast(width=0.125)",
        loss="arcgrad(s=10)",
        input_size=16,
        batch_size=12,
        augment="paper",
        augment_options={"erase": 0.5, "mixup": 0.8, "cutmix": 1.0},
        opt="sgd",
        lr=0.05,
        epochs=2,
        repeated_augmentation=6,
        precision="64-true",
        ema=0.9,
        val_fraction=0.2,
    )
    for name in ("one", "again"):
        train(run, tmp_path / name, quiet=True)
    assert difference(tmp_path / "one", tmp_path / "again") == ""


def test_whoever_makes_batches_draws_in_one_place():
    """A draw that does not name its dtype looks like any other and is right nearly always: so there is one place."""
    places = [*Path(data.__file__).parent.rglob("*.py"), *Path(numerics.__file__).parent.rglob("*.py")]
    drawing = re.compile(r"torch\.(rand\w*|normal|bernoulli|multinomial)\(|\.(uniform|normal|bernoulli|random)_\(")
    assert {path.name for path in places if drawing.search(path.read_text())} == {"random.py"}
