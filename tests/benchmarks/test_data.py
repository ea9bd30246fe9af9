"""The loaders that `benchmarks data` times give the same number of images, and its record has what it says."""

import widemargin.models.torchvision_compat  # noqa: F401  before torchvision
from benchmarks.data import make_loaders, measure_loaders, write_images


def test_every_loader_gives_whole_epochs_of_the_same_shape(tmp_path):
    images = write_images(tmp_path / "images", 24, 4, 20)
    loaders = make_loaders(tmp_path, images, 16, 8, 1)
    assert set(loaders) == {"folder", "rec", "tar", "torchvision"}
    for name, iter_epoch in loaders.items():
        shapes = [tuple(batch[0].shape) for batch in iter_epoch(0)]
        assert shapes == [(8, 3, 16, 16)] * 3, name


def test_the_record_has_a_ratio_for_each_format(capsys):
    found = measure_loaders(60, 20, 16, 8, 1, 1)
    assert set(found["ratio"]) == {"folder", "rec", "tar"}
    assert all(speed > 0 for speed in found["images_per_second"].values())
