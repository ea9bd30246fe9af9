"""Long-tailed training sets: the profile of Cui et al., of named sets, folders and given datasets."""

import math
from collections import Counter

import pytest
import torch

import widemargin as wm
from image_folders import class_counts, draw_manifest, fill_folder, paths_in, take_in_changes, write_image
from widemargin.data.images.long_tail import long_tailed_counts, long_tailed_subset
from widemargin.data.images.manifest import TEST, TRAIN, UNUSED
from widemargin.data.images.sets import Images, load_images
from widemargin.training.input_splits import split_images
from widemargin.training.inputs import load_inputs

# imbalance 100 of CIFAR-10, as printed by the loader of LDAM-DRW (imbalance_cifar.py, get_img_num_per_cls)
CIFAR10_100 = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]


def profile(largest, imbalance, classes):
    """The authors' loop."""
    return [int(largest * ((1 / imbalance) ** (c / (classes - 1.0)))) for c in range(classes)]


def test_the_published_profiles():
    assert long_tailed_counts([5000] * 10, 100) == CIFAR10_100
    assert sum(CIFAR10_100) == 12_406
    assert long_tailed_counts([5000] * 10, 50) == profile(5000, 50, 10)
    hundred = long_tailed_counts([500] * 100, 100)
    assert hundred == profile(500, 100, 100)
    assert (hundred[0], hundred[-1], sum(hundred)) == (500, 5, 10_847)


@pytest.mark.parametrize("imbalance", [1, 1.0, 2, 10, 7.3])
def test_the_last_class_has_the_first_ones_over_the_imbalance(imbalance):
    found = long_tailed_counts([1000] * 7, imbalance)
    assert found[0] == 1000
    assert found[-1] == math.floor(1000 / imbalance)
    assert found == sorted(found, reverse=True)


def test_unequal_classes_keep_the_profile():
    found = long_tailed_counts([100, 5, 80], 4)
    assert found == [10, 5, 2]  # the second class has 5, so that the first can have 10
    assert long_tailed_counts([30, 1000, 1000], 9) == [30, 10, 3]


@pytest.mark.parametrize(
    ("counts", "imbalance", "message"),
    [
        ([50] * 3, 51, "imbalance=51 leaves no training image of class 2; use a smaller value"),
        ([50, 0, 50], 2, "imbalance=2: there is no training image of class 1"),
        ([50, 50], 0.5, "imbalance must be a number of at least 1, got 0.5"),
        ([50, 50], math.nan, "must be a number of at least 1"),
        ([50, 50], math.inf, "must be a number of at least 1"),
    ],
)
def test_what_cannot_be_is_one_line(counts, imbalance, message):
    with pytest.raises(wm.InputError, match=message):
        long_tailed_counts(counts, imbalance)


def make_images(counts):
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]
    x = torch.arange(len(y)).view(-1, 1, 1, 1)
    return Images("made", x, y, tuple("abcdefgh"[: len(counts)]))


def test_images_are_drawn_from_the_seed():
    images = make_images([40, 40, 40])
    first, again, other = (long_tailed_subset(images, 10, seed, "abc") for seed in (0, 0, 1))
    assert first.x.flatten().tolist() == again.x.flatten().tolist()
    assert set(first.x.flatten().tolist()) != set(other.x.flatten().tolist())
    assert torch.bincount(first.y).tolist() == torch.bincount(other.y).tolist() == [40, 12, 4]
    assert (images.y[first.x.flatten()] == first.y).all()  # an image keeps its label
    steeper = long_tailed_subset(images, 40, 0, "abc")
    assert set(steeper.x.flatten().tolist()) < set(first.x.flatten().tolist())


def test_cifar_10(data_dir):
    """Training images only: the test set stays as it is, and held-out images are drawn before, so equally many."""
    whole = load_images("cifar10", data_dir)
    config = wm.TrainConfig("cifar10", imbalance=100)
    train, val, test = split_images(config, whole)
    assert torch.bincount(train.y).tolist() == CIFAR10_100
    assert val is None
    assert test is whole.test
    held_out = wm.TrainConfig("cifar10", imbalance=100, val_fraction=0.1)
    train, val, test = split_images(held_out, whole)
    assert torch.bincount(train.y).tolist() == long_tailed_counts([4500] * 10, 100)
    assert torch.bincount(val.y).tolist() == [500] * 10
    assert len(test) == 10_000
    train, _, _ = split_images(wm.TrainConfig("cifar10", imbalance=100, train_fraction=0.1), whole)
    assert torch.bincount(train.y).tolist() == long_tailed_counts([500] * 10, 100)
    inputs = load_inputs(config, data_dir)
    assert inputs.class_counts == CIFAR10_100


def test_a_folder_leaves_the_rest_unused(tmp_path):
    """Which images are drawn depends on their contents alone; new files join where there is room for them."""
    fill_folder(tmp_path, a=50, b=50, c=50)
    manifest = draw_manifest(tmp_path, imbalance=10, seed=2)
    assert class_counts(manifest, TEST) == Counter(a=10, b=10, c=10)
    assert class_counts(manifest, TRAIN) == Counter(dict(zip("abc", long_tailed_counts([40] * 3, 10), strict=True)))
    assert class_counts(manifest, UNUSED) == Counter(b=28, c=36)
    assert paths_in(draw_manifest(tmp_path, imbalance=20, seed=2), TRAIN) < paths_in(manifest, TRAIN)
    both = draw_manifest(tmp_path, imbalance=10, train_fraction=0.5, seed=2)
    assert class_counts(both, TRAIN) == Counter(dict(zip("abc", long_tailed_counts([20] * 3, 10), strict=True)))
    for number in range(50):
        write_image(tmp_path, f"c/new{number}.png", f"new {number}")
    now = take_in_changes(tmp_path, manifest, imbalance=10, seed=2)[1]
    assert paths_in(manifest, TRAIN) <= paths_in(now, TRAIN)
    assert class_counts(now, TRAIN)["c"] <= 8  # 4 of the profile, and as many of the new ones at most


def test_a_folder_without_images_for_the_last_class(tmp_path):
    fill_folder(tmp_path, a=50, b=50, c=50)
    with pytest.raises(wm.InputError, match="imbalance=100 leaves no training image of 'c'"):
        draw_manifest(tmp_path, imbalance=100)


def test_a_given_dataset(tmp_path):
    y = torch.arange(3).repeat_interleave(40)
    x = torch.nn.functional.one_hot(y, 3).float()
    config = {"loss": "ldam(s=8)", "epochs": 2, "batch_size": 7, "imbalance": 10, "class_weight": "balanced"}
    net = torch.nn.Linear(3, 4)
    run = wm.train(config, tmp_path / "run", train=(x, y), test=(x, y), model=net, at=None, quiet=True)
    assert run.input_spec["class_counts"] == [40, 12, 4]
    assert run.model.objective.head.spec.counts.values == (40.0, 12.0, 4.0)
    assert run.evaluate(test=(x, y)).metrics["balanced_accuracy"] == pytest.approx(run.record["test"]["top1"])
