"""Image sets by name: the real CIFAR-10 and MNIST, generated CIFAR-100 and Fashion-MNIST, downloads, every mistake."""

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from file_server import FileServer
from widemargin.data.images.originals import IMAGE_SETS, OriginalFile
from widemargin.data.images.sets import Images, image_set_names, load_images, stratified_split, stratified_subset
from widemargin.io.errors import InputError

pytestmark = pytest.mark.usefixtures("empty_cache")
CIFAR_FILES = [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]


@pytest.fixture
def server(monkeypatch):
    running = FileServer({})
    monkeypatch.setenv("WIDEMARGIN_MIRROR", running.address)
    yield running
    running.stop()


def one_line(caught) -> str:
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


# ---------------------------------------------------------------- the real ones


@pytest.fixture(scope="module")
def cifar10(data_dir):
    if not (data_dir / "cifar-10-batches-bin").is_dir():
        pytest.skip("no CIFAR-10")
    return load_images("cifar10", data_dir)


@pytest.fixture(scope="module")
def mnist(data_dir):
    if not (data_dir / "MNIST" / "raw").is_dir():
        pytest.skip("no MNIST")
    return load_images("mnist", data_dir)


def check_statistics(images):
    for channel, (mean, std) in enumerate(zip(images.mean, images.std, strict=True)):
        values = images.train.x[:, channel].numpy()
        found, squares = values.mean(), np.square(values, dtype=np.uint16).mean()
        assert abs(found / 255 - mean) < 6e-5
        assert abs((squares - found**2) ** 0.5 / 255 - std) < 6e-5


def test_cifar10_is_cifar10(cifar10, data_dir):
    assert cifar10.train.x.shape == (50000, 3, 32, 32)
    assert cifar10.test.x.shape == (10000, 3, 32, 32)
    assert cifar10.train.x.dtype == torch.uint8
    assert cifar10.train.y.dtype == torch.int64
    assert cifar10.train.y[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert cifar10.test.y[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert torch.bincount(cifar10.train.y).tolist() == [5000] * 10
    assert torch.bincount(cifar10.test.y).tolist() == [1000] * 10
    assert cifar10.class_names[:3] == ("airplane", "automobile", "bird")
    # Back to the original bytes: labels and pixels stand where the format says.
    first = np.concatenate([cifar10.train.y[:10000, None].numpy(), cifar10.train.x[:10000].flatten(1).numpy()], axis=1)
    found = hashlib.sha256(first.astype(np.uint8).tobytes()).hexdigest()
    assert found == "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"
    check_statistics(cifar10)


def test_mnist_is_mnist(mnist):
    assert mnist.train.x.shape == (60000, 1, 28, 28)
    assert mnist.test.x.shape == (10000, 1, 28, 28)
    assert mnist.train.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert mnist.test.y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert mnist.class_names == tuple("0123456789")
    check_statistics(mnist)


@pytest.mark.parametrize("name", ["MNIST", "Mnist", "m-nist"])
def test_names_are_read_generously(name, mnist, data_dir):
    assert load_images(name, data_dir).name == "mnist"


def test_the_folder_may_be_the_sets_own_its_parent_or_theirs(mnist, data_dir, monkeypatch):
    for folder in (data_dir / "MNIST" / "raw", data_dir / "MNIST", data_dir, str(data_dir)):
        assert len(load_images("mnist", folder).test) == 10000
    if data_dir.name == "data":
        assert len(load_images("mnist", data_dir.parent).test) == 10000
    monkeypatch.setenv("WIDEMARGIN_DATA", str(data_dir))
    assert len(load_images("mnist").test) == 10000


def test_unzipped_files_are_read_too(mnist, data_dir, tmp_path):
    for path in (data_dir / "MNIST" / "raw").glob("*.gz"):
        (tmp_path / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    assert torch.equal(load_images("mnist", tmp_path).train.x, mnist.train.x)


def test_mnists_files_are_not_taken_for_fashion_mnist(mnist, data_dir):
    with pytest.raises(InputError) as caught:
        load_images("fashion-mnist", data_dir / "MNIST" / "raw")
    assert "belongs to 'mnist', not to 'fashion_mnist'" in one_line(caught)


def test_a_changed_pixel_is_noticed(cifar10, data_dir, tmp_path):
    for name in CIFAR_FILES:
        (tmp_path / name).symlink_to(data_dir / "cifar-10-batches-bin" / name)
    damaged = bytearray((tmp_path / "test_batch.bin").read_bytes())
    damaged[1000] ^= 1
    (tmp_path / "test_batch.bin").unlink()
    (tmp_path / "test_batch.bin").write_bytes(damaged)
    with pytest.raises(InputError) as caught:
        load_images("cifar10", tmp_path)
    assert "not the data set 'cifar10': SHA-256 is" in one_line(caught)


# ---------------------------------------------------------------- generated files in the official layout


def cifar_bytes(count, labels, generator):
    """Records of a CIFAR file: label bytes, then red, green and blue; `labels` are the numbers of classes."""
    records = generator.integers(0, 256, (count, len(labels) + 3072), dtype=np.uint8)
    for place, classes in enumerate(labels):
        records[:, place] = generator.integers(0, classes, count)
    return records


def idx_bytes(array):
    header = bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture(scope="module")
def cifar100(tmp_path_factory):
    """CIFAR-100 as it lies on the server, at full size, with random pixels."""
    folder = tmp_path_factory.mktemp("data") / "cifar-100-binary"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for name, count in (("train.bin", 50000), ("test.bin", 10000)):
        cifar_bytes(count, (20, 100), generator).tofile(folder / name)
    return folder


def test_cifar100_has_the_fine_label_and_three_colours(cifar100):
    found = load_images("CIFAR100", cifar100.parent)
    raw = np.fromfile(cifar100 / "train.bin", dtype=np.uint8).reshape(-1, 3074)
    assert found.train.x.shape == (50000, 3, 32, 32)
    assert len(found.test) == 10000
    np.testing.assert_array_equal(found.train.y.numpy(), raw[:, 1])
    np.testing.assert_array_equal(found.train.x[123, 2, 31, 7].numpy(), raw[123, 2 + 2 * 1024 + 31 * 32 + 7])
    assert len(found.class_names) == len(set(found.class_names)) == 100
    assert (found.class_names[0], found.class_names[83], found.class_names[99]) == ("apple", "sweet_pepper", "worm")
    assert list(found.class_names) == sorted(found.class_names)


def test_class_names_come_from_the_sets_own_file(cifar100):
    names = [f"class {k}" for k in range(100)]
    try:
        (cifar100 / "fine_label_names.txt").write_text("\n".join(names) + "\n\n")
        assert load_images("cifar100", cifar100).class_names == tuple(names)
        (cifar100 / "fine_label_names.txt").write_text("\n".join(names[:99]))
        with pytest.raises(InputError) as caught:
            load_images("cifar100", cifar100)
        assert "99 class names, expected 100 different ones" in one_line(caught)
    finally:
        (cifar100 / "fine_label_names.txt").unlink()


@pytest.mark.parametrize(("place", "label", "words"), [(0, 20, "coarse label 20"), (1, 100, "label 100")])
def test_a_label_out_of_range_is_one_line(cifar100, tmp_path, place, label, words):
    (tmp_path / "train.bin").symlink_to(cifar100 / "train.bin")
    records = np.fromfile(cifar100 / "test.bin", dtype=np.uint8).reshape(-1, 3074)
    records[77, place] = label
    records.tofile(tmp_path / "test.bin")
    with pytest.raises(InputError) as caught:
        load_images("cifar100", tmp_path)
    assert f"test.bin: {words} of image 77 is out of range 0 to {label - 1}" in one_line(caught)


@pytest.fixture
def small(monkeypatch):
    """The same sets with few images each and no known hashes: files by set, as the servers name them."""
    generator = np.random.default_rng(1)
    files = {}
    for name, count in (("cifar10", 20), ("cifar100", 50), ("mnist", 30), ("fashion_mnist", 30)):
        entry = IMAGE_SETS[name]
        entry = replace(
            entry,
            train=tuple(OriginalFile(file.name, count) for file in entry.train),
            test=tuple(OriginalFile(file.name, 10) for file in entry.test),
            download_sha256=(),
        )
        monkeypatch.setitem(IMAGE_SETS, name, entry)
        files[name] = {}
        for file in entry.files:
            if entry.file_format == "cifar":
                labels = (20, 100) if name == "cifar100" else (10,)
                files[name][file.name] = cifar_bytes(file.num_items, labels, generator).tobytes()
            elif "images" in file.name:
                files[name][file.name] = idx_bytes(generator.integers(0, 256, (file.num_items, 28, 28)))
            else:
                files[name][file.name] = idx_bytes(generator.integers(0, 10, file.num_items))
    return files


def archive(files, folder="cifar-10-batches-bin") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as pack:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            pack.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def put(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(("name", "spoil", "words"), [
    ("cifar10", lambda data: data[:-1], "cut short; download it again"),
    ("cifar10", lambda data: data[:-3073], "cut short; download it again"),
    ("cifar10", lambda data: data + b"x", "another file; download it again"),
    ("cifar10", lambda data: b"", "0 bytes, 'cifar10' has 30,730"),
    ("mnist", lambda data: data[:-1], "cut short after 17 of the 18 bytes of 'mnist'"),
    ("mnist", lambda data: data + b"x", "longer than"),
    ("mnist", lambda data: b"\0\0\x09" + data[3:], "not the IDX file of"),
    ("mnist", lambda data: b"", "cut short after 0 of"),
    ("mnist", lambda data: data[:7] + b"\xff" + data[8:], "not the IDX file of"),
    ("fashion_mnist", lambda data: data[:-1] + b"\x0a", None),
])  # fmt: skip
def test_a_damaged_file_is_one_line_that_names_it(small, tmp_path, name, spoil, words):
    last = list(small[name])[-1]
    folder = put(tmp_path / "set", {**small[name], last: spoil(small[name][last])})
    with pytest.raises(InputError) as caught:
        load_images(name, folder)
    message = one_line(caught)
    assert message.startswith(str(folder / last))
    assert (words or "label 10 of image 9 is out of range 0 to 9") in message


def test_a_damaged_gz_is_one_line(small, tmp_path):
    files = {f"{name}.gz": gzip.compress(content) for name, content in small["mnist"].items()}
    last = "t10k-labels-idx1-ubyte.gz"
    for content, words in ((files[last][:-9], "damaged"), (b"not gzip", "damaged"), (files[last][:12], "damaged")):
        folder = put(tmp_path / "set", {**files, last: content})
        with pytest.raises(InputError) as caught:
            load_images("mnist", folder)
        assert words in one_line(caught)


def test_a_gz_that_unpacks_to_too_much_is_refused_early(small, tmp_path):
    files = {f"{name}.gz": gzip.compress(content) for name, content in small["mnist"].items()}
    name = "train-images-idx3-ubyte"
    files[f"{name}.gz"] = gzip.compress(small["mnist"][name] + bytes(1 << 26))
    with pytest.raises(InputError) as caught:
        load_images("mnist", put(tmp_path / "set", files))
    assert "longer than" in one_line(caught)


def test_a_missing_file_is_one_line(small, tmp_path):
    folder = put(tmp_path / "cifar-10-batches-bin", small["cifar10"])
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(InputError) as caught:
        load_images("cifar10", tmp_path)
    assert f"{folder}: no data_batch_3.bin, which belongs to 'cifar10'" in one_line(caught)


def test_names_and_folders_that_do_not_exist_are_one_line(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        load_images("cifer10")
    with pytest.raises(InputError, match=r"data_dir: .* is not a folder"):
        load_images("cifar10", tmp_path / "nowhere")
    monkeypatch.setenv("WIDEMARGIN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"WIDEMARGIN_DATA: .* is not a folder"):
        load_images("mnist")
    assert image_set_names() == ("cifar10", "cifar100", "fashion_mnist", "mnist", "omniglot", "orl_faces")


# ---------------------------------------------------------------- downloads


def test_cifar_is_downloaded_unpacked_and_kept(small, server, empty_cache):
    names = "\n".join(f"c{k}" for k in range(100)).encode()
    files = {**small["cifar100"], "fine_label_names.txt": names}
    server.files["/~kriz/cifar-100-binary.tar.gz"] = archive(files, "cifar-100-binary")
    found = load_images("cifar100")
    assert (len(found.train), len(found.test), found.class_names[7]) == (50, 10, "c7")
    kept = empty_cache / "images" / "cifar100"
    assert sorted(path.name for path in kept.iterdir()) == ["fine_label_names.txt", "test.bin", "train.bin"]
    assert [path.name for path in kept.parent.iterdir()] == ["cifar100"]
    asked = len(server.asked)
    assert torch.equal(load_images("cifar100").train.x, found.train.x)
    assert len(server.asked) == asked
    (kept / "test.bin").write_bytes(b"damaged")
    assert torch.equal(load_images("cifar100").test.x, found.test.x)
    assert len(server.asked) == asked + 1


def test_mnist_is_downloaded_from_the_next_place_that_has_it(small, server, empty_cache):
    for name, content in small["mnist"].items():
        server.files[f"/cvdf-datasets/mnist/{name}.gz"] = gzip.compress(content)
    server.answers = [404, 503, 503]
    assert len(load_images("mnist").train) == 30
    assert server.asked[0].startswith("/mnist/")
    assert (empty_cache / "images" / "mnist" / "train-images-idx3-ubyte.gz").is_file()
    server.files.clear()
    assert len(load_images("mnist").train) == 30


FASHION = "/tensorflow/tf-keras-datasets/"


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "fashion_mnist"])
def test_a_download_with_another_hash_is_refused_and_not_kept(small, server, empty_cache, name, monkeypatch):
    files = {
        "/~kriz/cifar-10-binary.tar.gz": archive(small["cifar10"]),
        "/~kriz/cifar-100-binary.tar.gz": archive(small["cifar100"]),
        **{f"{FASHION}{file}.gz": gzip.compress(content) for file, content in small["fashion_mnist"].items()},
    }
    server.files = files
    assert len(load_images(name).test) == 10
    packed = tuple((path.rpartition("/")[2], "0" * 64) for path in files)
    monkeypatch.setitem(IMAGE_SETS, name, replace(IMAGE_SETS[name], download_sha256=packed))
    monkeypatch.setenv("WIDEMARGIN_CACHE", str(empty_cache / "other"))
    with pytest.raises(InputError) as caught:
        load_images(name)
    assert f"expected {'0' * 64}" in one_line(caught)
    assert list((empty_cache / "other" / "images" / name).iterdir()) == []
    assert [path.name for path in (empty_cache / "other" / "images").iterdir()] == [name]


def test_official_hashes_are_known():
    for name in ("cifar10", "mnist"):
        assert all(len(file.sha256) == 64 for file in IMAGE_SETS[name].files)
    for name in ("cifar10", "cifar100"):
        assert dict(IMAGE_SETS[name].download_sha256).keys() == {IMAGE_SETS[name].urls[0].rpartition("/")[2]}
    assert {name for name, _ in IMAGE_SETS["fashion_mnist"].download_sha256} == {
        f"{f.name}.gz" for f in IMAGE_SETS["fashion_mnist"].files
    }
    for entry in IMAGE_SETS.values():
        assert all(len(sha256) == 64 for _, sha256 in entry.download_sha256)
        assert len(entry.mean) == len(entry.std) == entry.shape[0]


def test_an_archive_fetched_by_hand_is_unpacked_after_its_hash_is_checked(small, tmp_path, monkeypatch):
    pack = archive(small["cifar10"])
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(pack)
    assert len(load_images("cifar10", tmp_path).train) == 100
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"broken")
    assert len(load_images("cifar10", tmp_path).train) == 100  # kept
    monkeypatch.setenv("WIDEMARGIN_CACHE", str(tmp_path / "other"))
    with pytest.raises(InputError, match=r"binary\.tar\.gz: a damaged archive"):
        load_images("cifar10", tmp_path)
    monkeypatch.setitem(
        IMAGE_SETS, "cifar10", replace(IMAGE_SETS["cifar10"], download_sha256=(("cifar-10-binary.tar.gz", "0" * 64),))
    )
    with pytest.raises(InputError, match="not the original of 'cifar10': SHA-256 is"):
        load_images("cifar10", tmp_path)


def test_an_archive_writes_nothing_but_the_wanted_files(small, tmp_path, empty_cache):
    evil = {"../../evil.bin": b"x", "/etc/evil.bin": b"x", "readme.html": b"x"}
    link = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as pack:
        pack.addfile(link)
        for name, content in {**evil, **small["cifar10"]}.items():
            member = tarfile.TarInfo(name if name in evil else f"../../{name}")
            member.size = len(content)
            pack.addfile(member, io.BytesIO(content))
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(stream.getvalue())
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert len(load_images("cifar10", tmp_path).test) == 10
    made = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert {path.parent for path in made} == {empty_cache / "images" / "cifar10"}
    assert sorted(path.name for path in made) == CIFAR_FILES


@pytest.mark.parametrize("change", ["larger", "without"])
def test_an_archive_with_the_wrong_members_is_one_line(small, tmp_path, change):
    files = dict(small["cifar10"])
    last = files.pop("test_batch.bin")
    if change == "larger":
        files["test_batch.bin"] = last + b"x"
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(archive(files))
    with pytest.raises(InputError) as caught:
        load_images("cifar10", tmp_path)
    expected = "test_batch.bin has 30,731 bytes" if change == "larger" else "no test_batch.bin in the archive"
    assert expected in one_line(caught)


def test_offline_is_one_line_with_the_address_and_what_to_do():
    with pytest.raises(InputError) as caught:
        load_images("cifar10")
    message = one_line(caught)
    assert "'cifar10': cannot download http://127.0.0.1:9/~kriz/cifar-10-binary.tar.gz: no connection" in message
    assert message.endswith("pass the folder with 'cifar-10-binary.tar.gz' as data_dir")


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WIDEMARGIN_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cannot be written .* set WIDEMARGIN_CACHE"):
        load_images("cifar10")


# ---------------------------------------------------------------- parts of a set


def make_labelled(counts) -> Images:
    y = torch.cat([torch.full((count,), k) for k, count in enumerate(counts)])
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(5))]
    x = torch.arange(len(y)).view(-1, 1, 1, 1).to(torch.uint8)
    return Images("made", x, y, tuple(map(str, range(len(counts)))))


def test_a_held_out_part_has_its_share_of_every_class_and_nothing_twice():
    images = make_labelled([100, 51, 10, 2, 1])
    rest, held = stratified_split(images, 0.2, seed=3)
    assert torch.bincount(held.y, minlength=5).tolist() == [20, 10, 2, 1, 0]
    assert sorted(torch.cat([rest.x, held.x]).flatten().tolist()) == list(range(164))
    for part in (rest, held):
        places = part.x.flatten().tolist()
        assert places == sorted(places)
        assert torch.equal(part.y, images.y[part.x.flatten().long()])
    again, _ = stratified_split(images, 0.2, seed=3)
    other, _ = stratified_split(images, 0.2, seed=4)
    assert torch.equal(again.x, rest.x)
    assert not torch.equal(other.x, rest.x)


def test_fractions_are_stratified_and_lie_within_each_other(cifar10):
    tenth, fifth = (stratified_subset(cifar10.train, share, seed=0) for share in (0.1, 0.2))
    assert torch.bincount(tenth.y).tolist() == [500] * 10
    assert torch.bincount(fifth.y).tolist() == [1000] * 10
    images = make_labelled([100, 51, 3])
    small, large = (set(stratified_subset(images, share, 7).x.flatten().tolist()) for share in (0.1, 0.5))
    assert small < large
    assert torch.bincount(stratified_subset(images, 0.01, 7).y).tolist() == [1, 1, 1]
    assert len(stratified_subset(images, 1.0, 7)) == len(images)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_that_leaves_nothing_is_one_line(share):
    with pytest.raises(InputError, match="must lie between 0 and 1"):
        stratified_split(make_labelled([5, 5]), share, 0)
    if share != 1.0:
        with pytest.raises(InputError, match="must be above 0 and at most 1"):
            stratified_subset(make_labelled([5, 5]), share, 0)


def test_tables_are_read_without_torch():
    code = "import sys, widemargin.data.tabular.read; assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", code], check=True)
