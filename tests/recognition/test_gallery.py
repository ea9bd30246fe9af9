"""Galleries: exact search, atomic changes, no trace of what was removed, and damaged folders in one line."""

import json
import multiprocessing
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch
from PIL import Image

from gallery_worker import DIM, PixelEmbedder, draw_vectors, enrol_until_killed
from widemargin.io.errors import InputError
from widemargin.recognition import gallery_files
from widemargin.recognition.calibration import Calibration
from widemargin.recognition.gallery import Gallery
from widemargin.recognition.gallery_images import encode_picture


def draw_image(identity, number):
    rng = np.random.default_rng([identity, 7])
    base = rng.integers(0, 256, (8, 8))
    noise = np.random.default_rng([identity, number]).integers(-20, 21, (8, 8))
    return Image.fromarray(np.clip(base + noise, 0, 255).astype(np.uint8)).resize((24, 24), Image.Resampling.NEAREST)


@pytest.fixture
def photos(tmp_path):
    root = tmp_path / "photos"
    for identity in range(6):
        for number in range(3):
            path = root / f"person {identity}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            draw_image(identity, number).save(path)
    return root


@pytest.fixture
def gallery(tmp_path, photos):
    found = Gallery.create(tmp_path / "g", PixelEmbedder())
    found.add(photos)
    return found


def reference_matches(gallery, x, top):
    """Nearest identities written from the definition, in fp64."""
    unit = torch.nn.functional.normalize(x.double())
    vectors = torch.from_numpy(np.concatenate(gallery.vectors())).double()
    names = [entry.identity for entry in gallery.entries]
    rows = []
    for probe in unit:
        scores = {}
        for identity in sorted(set(names)):
            own = vectors[[name == identity for name in names]]
            mean = torch.nn.functional.normalize(own.mean(0), dim=0)
            scores[identity] = float(mean @ probe if gallery.state.reduce == "mean" else (own @ probe).max())
        rows.append(sorted(scores.items(), key=lambda item: -item[1])[:top])
    return rows


@pytest.mark.parametrize("reduce", ["best", "mean"])
@pytest.mark.parametrize("top", [1, 4, 10])
def test_matches_are_those_of_the_definition(tmp_path, photos, reduce, top):
    gallery = Gallery.create(tmp_path / "g", PixelEmbedder(), reduce=reduce)
    gallery.add(photos)
    probes = PixelEmbedder().embed([draw_image(k, 99) for k in range(8)])
    for found, wanted in zip(gallery.search(probes, top), reference_matches(gallery, probes, top), strict=True):
        assert [match.identity for match in found] == [name for name, _ in wanted]
        assert [match.cosine for match in found] == pytest.approx([value for _, value in wanted], abs=1e-6)
        assert all(match.picture is not None and match.picture.is_file() for match in found)


def test_probes_are_named_or_unknown(gallery):
    probes = [draw_image(2, 50), draw_image(40, 0)]
    known, unknown = gallery.identify(probes, threshold=0.9)
    assert known.identity == "person 2"
    assert unknown.identity is None
    assert "unknown" in str(unknown)
    rows = known.to_rows()
    assert [row["rank"] for row in rows] == list(range(1, 6))
    assert gallery.identify(probes)[1].identity is not None  # nothing decides without threshold and calibration


def test_the_threshold_comes_from_the_models_calibration(tmp_path, photos):
    model = PixelEmbedder()
    images = [draw_image(100 + k, n) for k in range(60) for n in range(2)]
    model.calibration = Calibration.fit(model.embed(images), torch.arange(60).repeat_interleave(2))
    gallery = Gallery.create(tmp_path / "g", model)
    gallery.add(photos)
    opened = Gallery(tmp_path / "g", lambda: model)
    assert opened.calibration == model.calibration
    found = opened.acceptance_threshold(target_far=0.3)
    assert found == model.calibration.threshold(0.3, num_comparisons=18)
    with pytest.raises(InputError, match="not supported"):
        opened.identify([draw_image(1, 1)], target_far=1e-5)
    with pytest.raises(InputError, match="use one of them"):
        opened.identify([draw_image(1, 1)], target_far=0.1, threshold=0.5)
    assert opened.identify([draw_image(1, 1)])[0].threshold is not None  # the smallest supported rate
    rate, count = opened.stranger_rate(-1.0)
    assert (rate, count) == (1.0, 18)
    assert opened.stranger_rate(1.0)[0] == 0.0


def test_a_gallery_grows_in_few_segments_and_keeps_the_order(tmp_path):
    gallery = Gallery.create(tmp_path / "g", PixelEmbedder())
    x = torch.nn.functional.normalize(torch.randn(33, DIM, generator=torch.Generator().manual_seed(1)))
    for row in range(33):
        gallery.add({f"p{row}": x[row : row + 1]})
    assert len(gallery.state.segments) <= 6
    assert [entry.identity for entry in gallery.entries] == [f"p{row}" for row in range(33)]
    assert torch.allclose(torch.from_numpy(np.concatenate(gallery.vectors())), x, atol=1e-6)
    files = {path.name for path in (tmp_path / "g").glob("segment-*")}
    assert len(files) == 2 * len(gallery.state.segments)


def test_many_embeddings_are_enrolled_at_once(tmp_path):
    gallery = Gallery.create(tmp_path / "g", PixelEmbedder())
    x = torch.randn(3000, DIM, generator=torch.Generator().manual_seed(4))
    names = [f"p{row // 2}" for row in range(3000)]
    report = gallery.add_embeddings(x, names, sources=[f"row {row}" for row in range(3000)])
    assert (report.added, report.identities) == (3000, 1500)
    found = gallery.search(x[10:12], 1)
    assert [(row[0].identity, row[0].source) for row in found] == [("p5", "row 10"), ("p5", "row 11")]
    grouped = Gallery.create(tmp_path / "h", PixelEmbedder())
    grouped.add({f"p{k}": x[2 * k : 2 * k + 2] for k in range(1500)})
    assert np.array_equal(np.concatenate(gallery.vectors()), np.concatenate(grouped.vectors()))
    with pytest.raises(InputError, match="3,000 embeddings need as many identities"):
        gallery.add_embeddings(x, names[:-1])
    with pytest.raises(InputError, match="other"):
        gallery.add_embeddings(x, names, model=PixelEmbedder(seed=1))
    with pytest.raises(InputError, match="zero or not finite"):
        gallery.add_embeddings(torch.zeros(1, DIM), ["nobody"])
    assert len(gallery) == 3000


def test_segments_stay_within_what_can_be_read(tmp_path, monkeypatch):
    """A segment is bounded in rows and in the text of its entries; long names make shorter segments."""
    monkeypatch.setattr(gallery_files, "SEGMENT_ROWS", 64)
    monkeypatch.setattr(gallery_files, "SEGMENT_TEXT_BYTES", 10_000)
    gallery = Gallery.create(tmp_path / "g", PixelEmbedder())
    x = torch.randn(600, DIM, generator=torch.Generator().manual_seed(5))
    names = [f"p{row}" if row < 300 else "ü\n" * 100 + str(row) for row in range(600)]
    for rows in torch.arange(600).split(150):
        gallery.add_embeddings(x[rows], [names[row] for row in rows])
    assert max(part.rows for part in gallery.state.segments) == 64
    assert all(path.stat().st_size <= 10_000 for path in gallery.folder.glob("segment-*.json"))
    opened = Gallery(gallery.folder)
    assert [entry.identity for entry in opened.entries] == names
    assert torch.allclose(torch.from_numpy(np.concatenate(opened.vectors())), torch.nn.functional.normalize(x))
    opened.remove(names[450])
    assert sorted(entry.identity for entry in opened.entries) == sorted(names[:450] + names[451:])
    assert opened.search(x[599:], 1)[0][0].identity == names[599]


def test_a_failed_add_leaves_no_picture(gallery, photos, monkeypatch):
    before = {path.name for path in gallery.folder.rglob("*")}

    def fail(*_):
        raise OSError("disk full")

    (photos / "somebody else").mkdir()
    draw_image(77, 0).save(photos / "somebody else" / "0.png")
    monkeypatch.setattr(gallery_files, "write_state", fail)
    with pytest.raises(OSError, match="disk full"):
        gallery.add(photos)
    assert {path.name for path in gallery.folder.rglob("*")} == before
    assert len(gallery) == 18


def test_an_interrupt_after_the_state_was_written_loses_nothing(gallery, photos, monkeypatch):
    write = gallery_files.write_state

    def write_and_stop(*arguments):
        write(*arguments)
        raise KeyboardInterrupt

    (photos / "somebody else").mkdir()
    draw_image(77, 0).save(photos / "somebody else" / "0.png")
    monkeypatch.setattr(gallery_files, "write_state", write_and_stop)
    with pytest.raises(KeyboardInterrupt):
        gallery.add(photos)
    found = Gallery(gallery.folder, PixelEmbedder())
    assert found.identities["somebody else"] == 1
    assert all(found.picture_path(entry).is_file() for entry in found.entries)
    assert found.search(PixelEmbedder().embed([draw_image(77, 0)]), 1)[0][0].identity == "somebody else"


def test_names_that_are_not_utf_8(gallery, photos):
    (photos / "person 1" / "0.png").rename(photos / "person 1" / "caf\udce9.png")
    draw_image(90, 0).save(photos / "person 1" / "caf\udce8.png")
    assert gallery.add(photos).added == 1
    assert Gallery(gallery.folder).entries[-1].source.endswith("caf\\xe8.png")
    with pytest.raises(InputError, match="UTF-8"):
        gallery.add({"\udce9": torch.ones(1, DIM)})


def test_an_image_counts_once_per_identity(gallery, photos):
    report = gallery.add(photos)
    assert report.added == 0
    assert "18 images" in report.notes[0]
    assert gallery.add({"somebody": photos / "person 1" / "0.png"}).added == 1


def test_a_bad_image_stops_everything_or_is_skipped(gallery, photos):
    (photos / "person 9").mkdir()
    draw_image(9, 0).save(photos / "person 9" / "0.png")
    (photos / "person 9" / "1.png").write_bytes(b"no picture")
    before = (gallery.folder / "gallery.json").read_text()
    with pytest.raises(InputError, match=r"1\.png"):
        gallery.add(photos)
    assert (gallery.folder / "gallery.json").read_text() == before
    report = gallery.add(photos, on_bad_image="skip")
    assert report.added == 1
    assert any("1.png" in note for note in report.notes)


def test_removal_leaves_no_byte_of_vector_or_picture(gallery, photos):
    secret_rows = [k for k, entry in enumerate(gallery.entries) if entry.identity == "person 3"]
    secrets = [np.concatenate(gallery.vectors())[row].tobytes() for row in secret_rows]
    secrets += [encode_picture(Image.open(photos / "person 3" / f"{n}.png").convert("RGB")) for n in range(3)]
    secrets.append(b"person 3")

    def contains(secret):
        return any(secret in path.read_bytes() for path in gallery.folder.rglob("*") if path.is_file())

    assert all(contains(secret) for secret in secrets)
    assert gallery.remove("person 3") == 3
    assert not any(contains(secret) for secret in secrets)
    assert "person 3" not in gallery.identities
    assert len(gallery) == 15
    assert gallery.search(PixelEmbedder().embed([draw_image(4, 77)]), 1)[0][0].identity == "person 4"
    with pytest.raises(InputError, match="no identity"):
        gallery.remove("person 3")


def test_one_image_of_an_identity_can_be_removed(gallery, photos):
    source = str(photos / "person 0" / "1.png")
    assert gallery.remove("person 0", source=source) == 1
    assert gallery.identities["person 0"] == 2


def test_the_last_identity_can_be_removed(tmp_path):
    gallery = Gallery.create(tmp_path / "g", PixelEmbedder())
    gallery.add({"only": torch.ones(1, DIM)})
    gallery.remove("only")
    assert len(gallery) == 0
    with pytest.raises(InputError, match="empty"):
        gallery.search(torch.ones(1, DIM))


def test_embeddings_of_another_model_are_refused(gallery):
    with pytest.raises(InputError, match="another model"):
        gallery.add({"a": torch.ones(1, DIM)}, model=PixelEmbedder(seed=1))
    other = Gallery(gallery.folder, lambda: PixelEmbedder(seed=1))
    with pytest.raises(InputError, match="another model"):
        other.identify([draw_image(0, 0)])
    for wrong in (torch.ones(1, DIM + 1), torch.zeros(1, DIM), torch.full((1, DIM), torch.nan)):
        with pytest.raises(InputError):
            gallery.add({"a": wrong})


def test_an_index_file_names_the_identities(tmp_path, photos):
    index = tmp_path / "index.csv"
    index.write_text("path,label\nphotos/person 0/0.png,ann\nphotos/person 1/0.png,bob\n")
    gallery = Gallery.create(tmp_path / "g", PixelEmbedder())
    gallery.add(index)
    assert gallery.identities == {"ann": 1, "bob": 1}


def test_a_second_writer_is_refused_and_a_reader_is_not(gallery):
    code = f"""
        import sys, time
        from widemargin.io.locks import lock_folder
        with lock_folder({str(gallery.folder)!r}):
            print("locked", flush=True)
            time.sleep(60)
    """
    writer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout.readline() == "locked\n"
        with pytest.raises(InputError, match="process"):
            gallery.add({"a": torch.ones(1, DIM)})
        assert gallery.search(torch.ones(1, DIM))
    finally:
        writer.kill()
        writer.communicate()
    assert gallery.add({"a": torch.ones(1, DIM)}).added == 1


@pytest.mark.slow
def test_fifty_kills_lose_nothing(tmp_path):
    """A process that enrols identities one after the other is killed at random times; what it reported is there."""
    folder, log = tmp_path / "g", tmp_path / "log"
    Gallery.create(folder, PixelEmbedder())
    log.touch()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gallery_worker"])
    rng = np.random.default_rng(0)
    for kill in range(50):
        wanted = len(log.read_text().split()) + int(rng.integers(1, 4))
        process = context.Process(target=enrol_until_killed, args=(str(folder), str(log), 10**6 * kill), daemon=True)
        process.start()
        deadline = time.monotonic() + 60
        while len(log.read_text().split()) < wanted and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(float(rng.uniform(0, 0.02)))
        process.kill()
        process.join()
        found = Gallery(folder, PixelEmbedder())
        reported = {f"p{line}" for line in log.read_text().split()}
        assert len(reported) >= wanted
        assert reported <= set(found.identities)
        assert len(set(found.identities) - reported) <= kill + 1  # at most one per kill was not yet reported
        assert set(found.identities.values()) == {3}
    name, rows = found.entries[-1].identity, np.concatenate(found.vectors())[-3:]
    assert np.allclose(rows, torch.nn.functional.normalize(draw_vectors(int(name[1:]))).numpy(), atol=1e-6)
    found.remove(name)
    segments = {f"{part.name}{suffix}" for part in found.state.segments for suffix in (".f32", ".json")}
    assert {path.name for path in folder.glob("segment-*")} == segments  # leftovers of the killed are gone


def test_leftovers_of_a_killed_writer_do_not_count(gallery):
    (gallery.folder / "segment-000099.f32").write_bytes(b"x")
    (gallery.folder / "pictures" / "stray.jpg").write_bytes(b"x")
    assert len(Gallery(gallery.folder)) == 18
    gallery.add({"new": torch.ones(1, DIM)})
    assert not (gallery.folder / "segment-000099.f32").exists()
    assert not (gallery.folder / "pictures" / "stray.jpg").exists()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("gallery.json", "{"),
        ("gallery.json", "[]"),
        ("gallery.json", '{"kind": "gallery", "format": 1}'),
        ("segment-000001.json", '{"identities": [], "identity": [], "source": [], "picture": []}'),
        ("segment-000001.json", "7"),
        ("segment-000001.f32", "short"),
    ],
)
def test_a_damaged_folder_is_one_line(gallery, file, text):
    (gallery.folder / file).write_text(text)
    with pytest.raises(InputError) as error:
        Gallery(gallery.folder).search(torch.ones(1, DIM))
    assert file in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["../../etc/passwd", "segment-1/../x", "segment-", "segment-0001.json", 3, "x"])
def test_a_path_in_a_strangers_gallery_is_refused(gallery, name):
    path = gallery.folder / "gallery.json"
    raw = json.loads(path.read_text())
    raw["segments"][0]["name"] = name
    path.write_text(json.dumps(raw))
    with pytest.raises(InputError):
        Gallery(gallery.folder)


def test_a_picture_name_in_a_strangers_gallery_is_no_path(gallery):
    path = gallery.folder / "segment-000001.json"
    raw = json.loads(path.read_text())
    raw["picture"][0] = "../../../etc/passwd"
    path.write_text(json.dumps(raw))
    with pytest.raises(InputError, match="malformed"):
        _ = Gallery(gallery.folder).entries


def test_creating_twice_and_wrong_choices_are_refused(gallery, tmp_path):
    with pytest.raises(InputError, match="already"):
        Gallery.create(gallery.folder, PixelEmbedder())
    with pytest.raises(InputError, match="reduce"):
        Gallery.create(tmp_path / "other", PixelEmbedder(), reduce="median")
    with pytest.raises(InputError, match="on_bad_image"):
        gallery.add({"a": torch.ones(1, DIM)}, on_bad_image="ignore")
    with pytest.raises(InputError, match="no folder with images"):
        gallery.add(tmp_path / "g" / "model")
    with pytest.raises(InputError, match="top"):
        gallery.search(torch.ones(1, DIM), 0)


@pytest.mark.parametrize("backend", ["faiss", "usearch"])
def test_an_index_finds_the_same_neighbours(tmp_path, backend):
    pytest.importorskip(backend)
    gallery = Gallery.create(tmp_path / "g", PixelEmbedder())
    x = torch.randn(500, DIM, generator=torch.Generator().manual_seed(2))
    for start in range(0, 500, 100):
        gallery.add({f"p{start}": x[start : start + 100]})
    exact = gallery.search(x[:20], 3)
    gallery.use_backend(backend)
    assert gallery.index_recall() >= (1.0 if backend == "faiss" else 0.9)
    found = gallery.search(x[:20], 3)
    assert [row[0].identity for row in found] == [row[0].identity for row in exact]
    assert [row[0].cosine for row in found] == pytest.approx([row[0].cosine for row in exact], abs=1e-5)


def test_search_reads_a_memory_mapped_gallery_block_by_block(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery_files, "_BLOCK_ROWS", 64)
    gallery = Gallery.create(tmp_path / "g", PixelEmbedder())
    x = torch.randn(1000, DIM, generator=torch.Generator().manual_seed(3))
    gallery.add({f"p{k}": x[k : k + 1] for k in range(1000)})
    assert all(isinstance(part, np.memmap) for part in gallery.vectors())
    found = gallery.search(x[::100], 1)
    assert [row[0].identity for row in found] == [f"p{k}" for k in range(0, 1000, 100)]
