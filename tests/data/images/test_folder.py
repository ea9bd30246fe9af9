"""Image folders: layouts, kinds of images, damaged ones, batches of what is decoded on the way, real faces."""

import io
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from widemargin.data.images.augment import Augment, build_augment
from widemargin.data.images.batches import TensorBatches
from widemargin.data.images.decode import MAX_PIXELS, crop_and_resize, read_image, resize_and_centre_crop
from widemargin.data.images.folder import load_folder, scan_folder
from widemargin.data.images.image_files import FolderBatches
from widemargin.data.images.sets import stratified_subset
from widemargin.io.errors import InputError


def picture(seed=0, size=(40, 30)) -> Image.Image:
    small = np.random.default_rng(seed).integers(40, 215, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


def fill(folder: Path, counts, ending="png"):
    for k, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for place in range(count):
            size = (40 + 3 * place, 30 + k)
            picture(100 * k + place, size).save(folder / name / f"{place}.{ending}")
    return folder


@pytest.fixture
def folder(tmp_path):
    fill(tmp_path / "set" / "train", {"cat": 6, "dog": 5, "owl": 4})
    fill(tmp_path / "set" / "test", {"cat": 2, "owl": 3}, "jpg")
    return tmp_path / "set"


def one_line(caught) -> str:
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------- layouts


def test_train_and_test_folders(folder):
    found = load_folder(folder)
    assert (found.name, found.class_names) == ("set", ("cat", "dog", "owl"))
    assert (len(found.train), len(found.test)) == (15, 5)
    assert found.train.y.tolist() == [0] * 6 + [1] * 5 + [2] * 4
    assert found.test.y.tolist() == [0] * 2 + [2] * 3
    assert found.train.paths[0] == folder / "train" / "cat" / "0.png"
    assert len(found.mean) == len(found.std) == 3


def test_val_stands_in_for_test(folder):
    (folder / "test").rename(folder / "val")
    assert len(load_folder(folder).test) == 5


def test_a_folder_of_classes_alone_is_split(folder):
    found = load_folder(folder / "train", test_fraction=0.25, seed=1)
    assert torch.bincount(found.test.y).tolist() == [2, 1, 1]
    assert set(found.train.paths) | set(found.test.paths) == set(load_folder(folder).train.paths)
    assert not set(found.train.paths) & set(found.test.paths)
    assert load_folder(folder / "train", test_fraction=0.25, seed=1).test.paths == found.test.paths
    assert load_folder(folder / "train", test_fraction=0.25, seed=2).test.paths != found.test.paths


def test_deeper_folders_count_and_other_files_do_not(folder):
    (folder / "train" / "cat" / "deep").mkdir()
    picture().save(folder / "train" / "cat" / "deep" / "1.PNG", "PNG")
    (folder / "train" / "cat" / "notes.txt").write_text("no image")
    (folder / "train" / "cat" / ".hidden.png").write_text("no image")
    (folder / "train" / ".git").mkdir()
    assert len(load_folder(folder).train) == 16


def test_what_systems_and_editors_leave_in_a_folder_is_no_image_and_no_class(folder):
    plain = load_folder(folder)
    fill(folder / "train" / "cat", {".ipynb_checkpoints": 2})
    (folder / "train" / "cat" / "._0.png").write_bytes(b"\0\5\x16\7")
    (folder / "train" / "__MACOSX" / "cat").mkdir(parents=True)
    (folder / "train" / "dog" / "Thumbs.db").write_bytes(b"")
    found = load_folder(folder)
    assert (found.train.paths, found.class_names) == (plain.train.paths, plain.class_names)


def test_links_to_folders_are_followed_once(folder, tmp_path):
    fill(tmp_path / "elsewhere", {"a": 1, "b": 1, "c": 1, "d": 1, "more": 3, "yak": 2})
    (folder / "train" / "cat" / "more").symlink_to(tmp_path / "elsewhere" / "more")
    (folder / "train" / "cat" / "again").symlink_to(folder / "train" / "cat")
    (folder / "train" / "yak").symlink_to(tmp_path / "elsewhere" / "yak")
    found = load_folder(folder)
    assert torch.bincount(found.train.y).tolist() == [9, 5, 4, 2]
    assert len(set(found.train.paths)) == len(found.train)


@pytest.mark.parametrize(("train", "test"), [("Train", "Test"), ("TRAIN", "val"), ("training", "Testing")])
def test_parts_are_known_in_other_spellings(folder, train, test):
    (folder / "train").rename(folder / train)
    (folder / "test").rename(folder / test)
    found = load_folder(folder)
    assert (len(found.train), len(found.test), found.class_names) == (15, 5, ("cat", "dog", "owl"))


def test_a_class_may_be_called_train(tmp_path):
    assert load_folder(fill(tmp_path, {"bus": 4, "train": 4})).class_names == ("bus", "train")
    flat = fill(tmp_path / "flat", {"train": 4, "test": 2})  # no classes, rather than the classes train and test
    with pytest.raises(InputError, match="no folder per class"):
        load_folder(flat)


def test_images_in_formats_that_are_not_read_are_said(folder):
    (folder / "train" / "cat" / "a.HEIC").write_bytes(b"")
    (folder / "test" / "owl" / "b.avif").write_bytes(b"")
    tree = scan_folder(folder)
    assert tree.unread == ("train/cat/a.HEIC", "test/owl/b.avif")
    (said,) = tree.describe_unread()
    assert all(word in said for word in ("2 images", "a.HEIC", ".avif", ".heic"))
    assert scan_folder(folder / "test").describe_unread()[0].startswith("1 image ")


def test_parts_of_a_folder(folder):
    train = load_folder(folder).train
    some = stratified_subset(train, 0.5, 0)
    assert torch.bincount(some.y).tolist() == [3, 2, 2]
    assert all(path.parent.name == train.class_names[y] for path, y in zip(some.paths, some.y.tolist(), strict=True))


@pytest.mark.parametrize(("spoil", "words"), [
    (lambda f: (f / "train" / "ant").mkdir(), "train: class 'ant' has no images (bmp, gif, jfif"),
    (lambda f: (f / "test" / "dog").mkdir(), "test: class 'dog' has no images"),
    (lambda f: fill(f / "test", {"yak": 1}), "such as 'yak', are not among the 3 training classes"),
    (lambda f: [p.rename(f / p.name) for p in (f / "test").iterdir()] and (f / "test" / "x.txt").write_text(""),
     "test: no folder per class in it"),
])  # fmt: skip
def test_a_folder_that_lacks_something_is_one_line(folder, spoil, words):
    spoil(folder)
    with pytest.raises(InputError) as caught:
        load_folder(folder)
    assert words in one_line(caught)


def test_no_folder_no_classes_one_class_one_image_are_one_line(tmp_path):
    with pytest.raises(InputError, match="nowhere is not a folder of images"):
        load_folder(tmp_path / "nowhere")
    picture().save(tmp_path / "1.png")
    with pytest.raises(InputError, match=r"no folder per class in it; images are expected at .*CLASS/\*\.png"):
        load_folder(tmp_path)
    fill(tmp_path, {"cat": 1})
    with pytest.raises(InputError, match="only one class, 'cat', in it"):
        load_folder(tmp_path)
    fill(tmp_path, {"dog": 1})
    with pytest.raises(InputError, match="one image per class leaves no test images"):
        load_folder(tmp_path)


# ---------------------------------------------------------------- kinds of images


def save_image(image, tmp_path, ending, **options) -> Path:
    path = tmp_path / f"image.{ending}"
    image.save(path, **options)
    return path


def test_every_kind_becomes_rgb(tmp_path):
    colour = picture()
    grey = np.asarray(colour.convert("L"))
    kinds = "L.png 1.png P.png P.gif LA.png RGBA.png CMYK.jpg CMYK.tif YCbCr.jpg RGB.webp L.pgm"
    for mode, ending in (kind.split(".") for kind in kinds.split()):
        found = read_image(save_image(colour.convert(mode), tmp_path, ending))
        assert (found.mode, found.size) == ("RGB", (40, 30))
        reference = colour if mode not in ("L", "1", "LA") else colour.convert("L").convert("RGB")
        difference = np.abs(np.asarray(found).astype(int) - np.asarray(reference)).mean()
        assert difference < {"1": 130, "P": 25}.get(mode, 5)
    deep = read_image(save_image(Image.fromarray(grey.astype(np.uint16) * 257), tmp_path, "png"))
    np.testing.assert_array_equal(np.asarray(deep)[..., 0], grey)
    real = read_image(save_image(Image.fromarray((grey / 255).astype(np.float32)), tmp_path, "tif"))
    np.testing.assert_array_equal(np.asarray(real)[..., 1], grey)
    whole = read_image(save_image(Image.fromarray(grey.astype(np.int32) * 257), tmp_path, "tif"))
    np.testing.assert_array_equal(np.asarray(whole)[..., 2], grey)


def test_a_palette_with_transparency_is_no_trouble(tmp_path):
    palette = picture().convert("P")
    path = save_image(palette, tmp_path, "png", transparency=bytes(range(256)))
    assert read_image(path).mode == "RGB"


def test_a_photograph_is_turned_as_its_camera_says(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn clockwise
    found = read_image(save_image(picture(), tmp_path, "jpg", exif=exif, quality=100, subsampling=0))
    assert found.size == (30, 40)
    expected = np.asarray(picture().rotate(-90, expand=True)).astype(int)
    assert np.abs(np.asarray(found) - expected).mean() < 3


def bomb(width, height) -> bytes:
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [10_000, 30_000])
def test_a_decompression_bomb_is_refused(tmp_path, side):
    (tmp_path / "bomb.png").write_bytes(bomb(side, side))
    with pytest.raises(InputError) as caught:
        read_image(tmp_path / "bomb.png")
    assert f"bomb.png: more than {MAX_PIXELS:,} pixels" in one_line(caught)


def damaged_files():
    stream = io.BytesIO()
    picture(size=(200, 200)).save(stream, "PNG")
    png = stream.getvalue()
    stream = io.BytesIO()
    picture(size=(200, 200)).save(stream, "JPEG")
    jpg = stream.getvalue()
    return {
        "empty": b"", "text": b"<html>moved</html>", "cut png": png[: len(png) // 2], "cut jpg": jpg[: len(jpg) // 2],
        "spoilt": png[:60] + bytes(40) + png[100:], "header": png[:20], "other": b"\x89PNG\r\n\x1a\n" + bytes(90),
    }  # fmt: skip


@pytest.mark.parametrize("kind", damaged_files())
def test_a_damaged_image_is_one_line_that_names_it(folder, kind):
    path = folder / "train" / "dog" / "3.png"
    path.write_bytes(damaged_files()[kind])
    found = load_folder(folder)
    for read in (
        lambda: read_image(path),
        lambda: found.load_into_memory(16),
        lambda: list(FolderBatches(found.train, 5, Augment(size=16), 0).iter_epoch(0)),
    ):
        with pytest.raises(InputError) as caught:
            read()
        message = one_line(caught)
        assert message.startswith(f"{path}: cannot be read as an image (")
        assert message.endswith("repair or remove it")


def test_a_missing_image_is_one_line(folder):
    found = load_folder(folder)
    found.train.paths[2].unlink()
    with pytest.raises(InputError, match=r"2\.png: no such file"):
        found.load_into_memory(8)


def test_fitted_and_cut_are_the_middle_and_the_box():
    image = picture(size=(80, 40))
    whole = np.asarray(image)
    np.testing.assert_array_equal(resize_and_centre_crop(image, 40), whole[:, 20:60])
    assert resize_and_centre_crop(image, 16, zoom=1.25).shape == (16, 16, 3)
    np.testing.assert_array_equal(resize_and_centre_crop(image, 32, zoom=1.25), whole[4:36, 24:56])
    np.testing.assert_array_equal(crop_and_resize(image, (5, 10, 20, 20), 20), whole[5:25, 10:30])
    assert resize_and_centre_crop(picture(size=(7, 300)), 16).shape == (16, 16, 3)


# ---------------------------------------------------------------- batches


def test_in_memory_is_every_image_fitted(folder):
    found = load_folder(folder).load_into_memory(20)
    assert found.train.x.shape == (15, 3, 20, 20)
    assert found.test.y.tolist() == [0, 0, 2, 2, 2]
    for path, pixels in zip(load_folder(folder).train.paths, found.train.x, strict=True):
        np.testing.assert_array_equal(pixels.permute(1, 2, 0).numpy(), resize_and_centre_crop(read_image(path), 20))
    assert load_folder(folder).train.fits_in_memory(20)
    assert not load_folder(folder).train.fits_in_memory(20, max_bytes=15 * 3 * 400 - 1)


@pytest.mark.parametrize("name", ["none", "paper", "fast"])
def test_batches_of_a_folder_are_those_of_its_images_in_memory(folder, name):
    found = load_folder(folder)
    augment = build_augment(name, found, 20)
    lazy = FolderBatches(found.train, 4, augment, 3, repeated_augmentation=2, workers=3)
    quick = TensorBatches(found.train.load_into_memory(20), 4, augment, 3, repeated_augmentation=2)
    assert len(lazy) == len(quick) == 7
    for one, other in zip(lazy.iter_epoch(1), quick.iter_epoch(1), strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


@pytest.mark.parametrize("name", ["paper", "seed"])
def test_folders_too_are_resumed_and_shared_bit_for_bit(folder, name):
    found = load_folder(folder)
    augment = build_augment(name, found, 24)
    whole = list(FolderBatches(found.train, 4, augment, 1, repeated_augmentation=3).iter_epoch(2))
    resumed = list(FolderBatches(found.train, 4, augment, 1, repeated_augmentation=3, workers=1).iter_epoch(2, 5))
    parts = [
        list(FolderBatches(found.train, 2, augment, 1, rank=r, world_size=2, repeated_augmentation=3).iter_epoch(2))
        for r in range(2)
    ]
    for one, other in zip(whole[5:], resumed, strict=True):
        assert torch.equal(one[0], other[0])
    for one, *shares in zip(whole, *parts, strict=True):
        assert torch.equal(one[0], torch.cat([share[0] for share in shares]))
        assert torch.equal(one[1], torch.cat([share[1] for share in shares]))
        if name == "seed":
            assert torch.equal(one[2][0], torch.cat([share[2][0] for share in shares]))


def test_a_random_crop_is_made_at_the_images_own_size(folder):
    found = load_folder(folder)
    augment = Augment(size=20, scale=(0.1, 0.2))
    x, y, _ = next(iter(FolderBatches(found.train, 15, augment, 0).iter_epoch(0)))
    assert x.shape == (15, 3, 20, 20)
    assert sorted(y.tolist()) == sorted(found.train.y.tolist())
    assert 0 <= float(x.min()) < float(x.max()) <= 1


def test_evaluation_of_a_folder(folder):
    found = load_folder(folder)
    augment = build_augment("seed", found, 16, scale=(0.8, 1.0)).for_evaluation()
    batches = FolderBatches(found.test, 2, augment, 0, shuffle=False, drop_last=False)
    x = torch.cat([batch[0] for batch in batches.iter_epoch(0)])
    assert len(batches) == 3
    for path, image in zip(found.test.paths, x, strict=True):
        pixels = torch.tensor(resize_and_centre_crop(read_image(path), 16, 256 / 224)).permute(2, 0, 1).float() / 255
        expected = (pixels - torch.tensor(found.mean).view(3, 1, 1)) / torch.tensor(found.std).view(3, 1, 1)
        torch.testing.assert_close(image, expected, atol=1e-5, rtol=1e-5)
    parts = [
        FolderBatches(found.test, 2, augment, 0, rank=r, world_size=4, shuffle=False, drop_last=False) for r in range(4)
    ]
    assert sum(len(x) for part in parts for x, _, _ in part.iter_epoch(0)) == 5


def test_a_loop_over_a_folder_that_is_left_early_leaves_no_thread(folder):
    before = set(threading.enumerate())
    for _ in FolderBatches(load_folder(folder).train, 2, Augment(size=16), 0).iter_epoch(0):
        break
    assert set(threading.enumerate()) <= before


def test_a_folder_needs_a_size(folder):
    with pytest.raises(InputError, match="choose their size with input_size"):
        FolderBatches(load_folder(folder).train, 2, Augment(), 0)


def test_real_faces(data_dir):
    if not (data_dir / "orl_faces").is_dir():
        pytest.skip("no faces")
    found = load_folder(data_dir / "orl_faces", test_fraction=0.2)
    assert len(found.class_names) == 40
    assert torch.bincount(found.test.y).tolist() == [2] * 40
    images = found.load_into_memory(48)
    assert images.train.x.shape == (320, 3, 48, 48)
    assert torch.equal(images.train.x[:, 0], images.train.x[:, 2])  # grey
