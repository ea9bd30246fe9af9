"""Omniglot by name: from the file of arrays, from the original archives, and what is not it."""

import io
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from widemargin.data.images import sets
from widemargin.data.images.sets import load_images
from widemargin.io.errors import InputError


@pytest.fixture(scope="module")
def arrays(data_dir):
    return sets._read_omniglot_npz(data_dir / "omniglot" / sets.OMNIGLOT_ARRAYS_FILE)


def archive(images, labels, drawer, names, keep) -> bytes:
    """An archive as the authors', of the characters that `keep` says: ink is black on white."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as pack:
        pack.writestr("images_background_small/README.txt", "not a picture")
        for image, label, who in zip(images, labels, drawer, strict=True):
            if keep(names[label]):
                file = io.BytesIO()
                Image.fromarray((1 - image) * np.uint8(255)).convert("1").save(file, "PNG")
                pack.writestr(f"images_background_small/{names[label]}/{label:04d}_{who:02d}.png", file.getvalue())
    return stream.getvalue()


def test_omniglot_is_omniglot(data_dir):
    found = load_images("Omniglot", data_dir)
    assert found.train.x.shape == (242 * 16, 1, 105, 105)
    assert found.test.x.shape == (242 * 4, 1, 105, 105)
    assert len(found.class_names) == 242
    assert found.class_names == tuple(sorted(found.class_names))
    assert set(found.train.x.unique().tolist()) == {0, 255}
    assert torch.bincount(found.train.y).tolist() == [16] * 242
    assert found.mean[0] == pytest.approx(float(found.train.x.float().mean() / 255), abs=0.01)


def test_the_original_archives_give_the_same_set(arrays, data_dir, tmp_path):
    images, labels, drawer, names = arrays
    halves = (lambda name: name < "J", lambda name: name >= "G")  # some characters are in both, as in the originals
    for name, keep in zip(sets.OMNIGLOT_ARCHIVES, halves, strict=True):
        (tmp_path / name).write_bytes(archive(images, labels, drawer, names, keep))
    one, other = load_images("omniglot", tmp_path), load_images("omniglot", data_dir)
    assert one.class_names == other.class_names
    assert torch.equal(one.train.x, other.train.x)
    assert torch.equal(one.test.y, other.test.y)


def test_what_is_not_omniglot_is_one_line(arrays, tmp_path):
    images, labels, drawer, names = arrays
    path = tmp_path / sets.OMNIGLOT_ARRAYS_FILE
    np.savez(path, images=images[:-1], labels=labels[:-1], drawer=drawer[:-1], names=np.array(names))
    with pytest.raises(InputError, match="4839 images of 242 characters, Omniglot has 4840 of 242"):
        load_images("omniglot", tmp_path)
    changed = images.copy()
    changed[7, 3, 3] ^= 1
    np.savez(path, images=changed, labels=labels, drawer=drawer, names=np.array(names))
    with pytest.raises(InputError, match="not the data set 'omniglot': SHA-256"):
        load_images("omniglot", tmp_path)
    np.savez(path, images=np.array([object()], dtype=object))  # a pickle inside is not read
    with pytest.raises(InputError, match="not Omniglot's arrays"):
        load_images("omniglot", tmp_path)
    path.unlink()
    for name in sets.OMNIGLOT_ARCHIVES:
        (tmp_path / name).write_bytes(b"not a zip")
    with pytest.raises(InputError, match="the archive cannot be read"):
        load_images("omniglot", tmp_path)


def test_nowhere_and_offline_is_one_line(empty_cache):
    with pytest.raises(InputError, match=r"put images_background_small1.zip and images_background_small2.zip"):
        load_images("omniglot")
