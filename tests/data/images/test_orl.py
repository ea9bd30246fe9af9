"""ORL faces by name: from the folder, from the archive, and what is not them."""

import shutil
import zipfile

import pytest
import torch

from widemargin.data.images import sets
from widemargin.data.images.sets import load_images
from widemargin.io.errors import InputError


def test_faces_are_the_faces(data_dir):
    found = load_images("ORL-faces", data_dir)
    assert found.train.x.shape == (320, 1, 92, 92)
    assert found.test.x.shape == (80, 1, 92, 92)
    assert torch.bincount(found.train.y).tolist() == [8] * 40
    assert found.class_names[0] == "s01"
    assert found.mean[0] == pytest.approx(float(found.train.x.double().mean() / 255))


def test_the_archive_gives_the_same_faces(data_dir, tmp_path):
    with zipfile.ZipFile(tmp_path / sets.ORL_ARCHIVE, "w") as archive:
        archive.writestr("att_faces/README", "not a picture")
        for path in sorted((data_dir / "orl_faces").glob("s*/*.pgm")):
            archive.write(path, f"att_faces/{path.parent.name}/{path.name}")
    one, other = load_images("orl_faces", tmp_path), load_images("orl_faces", data_dir)
    assert torch.equal(one.train.x, other.train.x)
    assert torch.equal(one.test.y, other.test.y)


def test_what_is_missing_cut_or_changed_is_one_line(data_dir, tmp_path):
    copy = tmp_path / "orl_faces"
    shutil.copytree(data_dir / "orl_faces", copy)
    path = copy / "s7" / "3.pgm"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(InputError, match=r"s7/3\.pgm: not a grey PGM picture"):
        load_images("orl_faces", tmp_path)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(InputError, match="not the data set 'orl_faces'"):
        load_images("orl_faces", tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"s7/3\.pgm: cannot be read"):
        load_images("orl_faces", tmp_path)
    with zipfile.ZipFile(tmp_path / sets.ORL_ARCHIVE, "w") as archive:
        archive.writestr("att_faces/s1/1.pgm", whole)
    shutil.rmtree(copy)
    with pytest.raises(InputError, match=r"s1/10\.pgm is missing"):
        load_images("orl_faces", tmp_path)
