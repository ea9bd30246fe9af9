"""Bad input of every surface: the checks of `stress` on few cases, hypothesis on top, and what once failed."""

import json
import mmap
import struct
import subprocess
import sys
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import widemargin as wm
from stress import check, fuzzing, mutate
from stress.check import CheckContext
from widemargin.io import errors
from widemargin.io.bounded import parse_json
from widemargin.io.text import escape_unprintable
from widemargin.training.config import TrainConfig

INPUTS = [name for name in check.list_check_names() if name.startswith("input_") and name != "input_calls"]


@pytest.mark.parametrize("name", INPUTS)
def test_few_cases_of_every_surface_survive(name, tmp_path):
    found = check.load_check(name)
    assert found.kind == "input"
    outcome = found.run(CheckContext(long=False, folder=tmp_path, seed=1))
    assert outcome.tried >= 60
    assert outcome.has_passed, outcome.note


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", INPUTS)
def test_many_cases_of_every_surface_survive(name, tmp_path):
    outcome = check.load_check(name).run(CheckContext(long=True, folder=tmp_path, seed=2))
    assert outcome.has_passed, outcome.note


def test_all_surfaces_together_are_a_hundred_thousand_cases():
    modules = [check.importlib.import_module(f"stress.checks.{name}") for name in INPUTS]
    assert sum(module.COUNTS[1] for module in modules) >= 100_000


def test_the_corpus_is_small():
    assert sum(path.stat().st_size for path in fuzzing.CORPUS_DIR.rglob("*") if path.is_file()) <= 200_000


# ---------------------------------------------------------------- the instruments themselves


def test_the_same_seed_makes_the_same_cases():
    one, other = (mutate.Mutator(7, ("arcface",)) for _ in range(2))
    good = ["arcface(m=0.3)", "softmax + 0.1*center"]
    assert [one.mutate_text(good) for _ in range(50)] == [other.mutate_text(good) for _ in range(50)]
    assert [one.mutate_bytes([b"abc,def\n" * 9]) for _ in range(50)] == [
        other.mutate_bytes([b"abc,def\n" * 9]) for _ in range(50)
    ]
    value = {"a": [1, {"b": None}], "c": "word"}
    assert [repr(one.mutate_json(value)) for _ in range(50)] == [repr(other.mutate_json(value)) for _ in range(50)]
    assert value == {"a": [1, {"b": None}], "c": "word"}


def _run_case(attempt, place="", **options):
    found = fuzzing.FuzzTally("surface", **options)
    with fuzzing.limit_memory(found):
        found.run_case("case", attempt, place)
    return found.outcome()


def _make_raiser(error):
    def attempt():
        raise error

    return attempt


@pytest.mark.parametrize(
    ("attempt", "place", "said"),
    [
        (_make_raiser(KeyError("x")), "", "KeyError"),
        (_make_raiser(wm.InputError("no words of the place")), "file.csv", "'file.csv' is not named"),
        (_make_raiser(wm.InputError("   ")), "", "without words"),
        (_make_raiser(SystemExit(1)), "", "SystemExit"),
    ],
)
def test_a_tally_sees_what_is_wrong(attempt, place, said):
    outcome = _run_case(attempt, place)
    assert (outcome.tried, outcome.survived) == (1, 0)
    assert said in outcome.note


def test_a_tally_sees_a_hang_and_memory(monkeypatch):
    monkeypatch.setattr(fuzzing, "MAX_CPU_SECONDS", 0.3)

    def endless():
        while True:
            with suppress(Exception):  # a reader that takes everything for a damaged file
                sum(range(10_000))

    assert "hangs" in _run_case(endless).note
    kept = []

    def grow():
        # Mapped by itself: an allocator that was told to keep what is freed may have room for an array already.
        kept.append(mmap.mmap(-1, 64 << 20))
        for start in range(0, 64 << 20, 4096):
            kept[-1][start] = 1

    assert "grew beyond the bound" in _run_case(grow, max_megabytes=32).note


# ---------------------------------------------------------------- one line, always


@given(st.text(max_size=3000))
def test_whatever_an_error_is_told_it_is_one_printable_line(text):
    said = str(wm.InputError(f"file.csv: {text}"))
    assert fuzzing.message_problem(said, "file.csv") == ""


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=20))
def test_any_value_can_be_shown(value):
    assert len(errors.format_value(value)) <= 80
    assert escape_unprintable(errors.format_value(value)) == errors.format_value(value)


def test_a_number_that_python_does_not_write_can_be_shown():
    assert errors.format_value(1 << 99_999) == "a number of 100000 bits"
    assert errors.format_value([1 << 99_999]) == "a list"


@pytest.mark.parametrize(
    "text",
    [
        "arcface(m=0x" + "f" * 4000 + ")",
        "arcface(m=warmup(0, 0x" + "f" * 4000 + ", steps=5))",
        "triplet(mining=0x" + "f" * 4000 + ")",
        "softmax(bias=0x" + "f" * 4000 + ")",
        "x" * 100_000,
        "arcface, " * 5000 + "arcface",
        "arcface(" + "x" * 5000 + "=1)",
    ],
)
def test_long_and_endless_spellings_are_short_lines(text):
    with pytest.raises(wm.InputError) as error:
        wm.parse(text)
    assert fuzzing.message_problem(str(error.value)) == ""


def test_odd_spellings_make_python_say_nothing(recwarn):
    with pytest.raises(wm.InputError):
        wm.parse(r"arcface(m='\d'), 0or arcface")
    assert not recwarn.list


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 10**40},
        {"epochs": 10**3000},
        {"lr": 10**400},
        {"lr": float("nan")},
        {"batch_size": 2**31},
        {"input_size": 10**9},
        {"neck": "false"},
        {"compile": 1},
        {"loss": ["softmax"]},
        {"model": None},
        {"data": 5},
        {"augment": {}},
        {"name": 7},
        {"init_from": False},
        {"name": "a\udcff"},
        {"model_options": {"x": float("nan")}},
        {"augment_options": {"scale": [0.5, float("inf")]}},
        {"augment_options": 7},
    ],
    ids=repr,
)
def test_settings_edited_by_hand_name_the_file_and_the_field(changes, tmp_path):
    whole = json.loads(TrainConfig().to_json())
    (tmp_path / "run.json").write_text(json.dumps({**whole, **changes}))
    with pytest.raises(wm.InputError) as error:
        TrainConfig.read(tmp_path)
    assert fuzzing.message_problem(str(error.value), "run.json") == ""
    with pytest.raises(wm.InputError):
        TrainConfig(**changes)


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 500 + "]" * 500, "1" * 5000, b"\xff", "{"])
def test_json_of_any_kind_is_one_line(text):
    with pytest.raises(wm.InputError, match=r"file\.json: not .*JSON"):
        parse_json(text, "file.json")


@given(st.binary(max_size=200))
def test_any_bytes_as_settings_are_a_run_or_one_line(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("run")
    (folder / "run.json").write_bytes(data)
    outcome = _run_case(lambda: TrainConfig.read(folder), "run.json")
    assert outcome.has_passed, outcome.note


def test_a_command_with_rubbish_is_one_line_and_code_2(tmp_path):
    words = ["train", "cifar10", "fast", "softmax", "--seed", "9" * 4000]
    ended = subprocess.run([sys.executable, "-m", "widemargin", *words], capture_output=True, cwd=tmp_path, check=False)
    assert ended.returncode == 2
    assert fuzzing.message_problem(ended.stderr.decode().rstrip("\n"), "seed") == ""


# ---------------------------------------------------------------- pairs


@pytest.fixture
def two_images(tmp_path):
    for name in ("one.png", "two.png"):
        (tmp_path / name).write_bytes(fuzzing.load_corpus_files("images")["grey.png"])
    return tmp_path


def test_pairs_are_told_by_the_line_an_editor_shows(two_images):
    from widemargin.recognition.protocols import read_pairs

    path = two_images / "pairs.csv"
    path.write_text('a,b,same,note\none.png,two.png,1,"two\nlines"\n\none.png,two.png,perhaps,\n')
    with pytest.raises(wm.InputError, match=r"pairs.csv, line 5: same is 'perhaps'; write 1 or 0"):
        read_pairs(path)


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_names_in_a_pairs_file_are_pairs_or_one_line(tmp_path_factory, text):
    from widemargin.recognition.protocols import read_pairs

    path = tmp_path_factory.mktemp("pairs") / "pairs.csv"
    path.write_text(f"a,b,same\n{text},{text},1\n", encoding="utf-8", newline="")
    outcome = _run_case(lambda: read_pairs(path), "pairs.csv")
    assert outcome.has_passed, outcome.note


# ---------------------------------------------------------------- images


def _png(width, height, rows=b""):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def test_a_ribbon_is_fitted_without_making_it_whole(tmp_path):
    """60,000 × 1 pixels at 224 would be 224 × 13,440,000."""
    from widemargin.data.images.decode import read_image, resize_and_centre_crop

    path = tmp_path / "ribbon.png"
    line = bytes(range(256)) * 235
    path.write_bytes(_png(60_000, 1, b"\0" + line[:60_000]))
    outcome = _run_case(lambda: resize_and_centre_crop(read_image(path), 224), max_megabytes=64)
    assert outcome.has_passed, outcome.note


def test_the_middle_of_a_ribbon_is_that_of_the_whole(monkeypatch):
    from widemargin.data.images import decode

    draw = np.random.default_rng(0)
    image = Image.fromarray(draw.integers(0, 255, (8, 64, 3), dtype=np.uint8))
    whole = decode.resize_and_centre_crop(image, 16).astype(int)
    monkeypatch.setattr(decode, "MAX_PIXELS", 100)
    assert np.abs(decode.resize_and_centre_crop(image, 16).astype(int) - whole).max() <= 1


def test_sixteen_bits_are_scaled_as_before():
    from widemargin.data.images.decode import to_rgb

    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    found = np.asarray(to_rgb(Image.fromarray(values)))[:, :, 0]
    assert np.array_equal(found, (values.astype(np.float64) / 257).round().astype(np.uint8))


@pytest.mark.parametrize("name", ["bomb-50000.png", "bomb-50000.gif", "bomb-50000.ppm"])
def test_bombs_are_refused_by_their_header(name):
    from widemargin.data.images.decode import read_image

    outcome = _run_case(lambda: read_image(fuzzing.CORPUS_DIR / "images" / name), "89,478,485 pixels", max_megabytes=32)
    assert outcome.has_passed, outcome.note
    assert "1 refused" in outcome.note


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("name", ["far-time.parquet", "far-day.parquet", "not-utf8.parquet"])
def test_parquet_columns_that_python_cannot_hold_are_named(name, tmp_path):
    from widemargin.data.tabular.read import read_table

    path = fuzzing.CORPUS_DIR / "parquet" / name
    with pytest.raises(wm.InputError, match=r"column '(when|day|w)' cannot be read") as error:
        read_table(path)
    assert fuzzing.message_problem(str(error.value), name) == ""


# ---------------------------------------------------------------- run folders


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("metrics.jsonl", '{"loss": 1.0}\n', "line 1 is not an epoch of a run"),
        ("metrics.jsonl", '{"epoch": 1}\n[]\n', "line 2 is not an epoch of a run"),
        ("metrics.jsonl", '{"epoch": 1, "lr": "fast"}\n', "lr is not a number"),
        ("metrics.jsonl", '{"epoch": 1, "histogram": {"target": []}}\n', "histogram is not a list of counts"),
        ("record.json", "7", "not the record of a run"),
        ("record.json", '{"test": {"top1": {}}}', "top1 is not a number"),
        ("record.json", '{"confusion": [[1, 2]]}', "confusion is not a square"),
    ],
)
def test_a_report_of_an_edited_folder_is_one_line(name, text, said, tmp_path, capsys):
    from widemargin.cli.main import main

    for file in ("run.json", "metrics.jsonl", "record.json"):
        (tmp_path / file).write_bytes(fuzzing.load_corpus_files("run")[file])
    (tmp_path / name).write_text(text)
    assert main(["report", str(tmp_path), "--no-images", "--out", str(tmp_path / "report.html")]) == 2
    line = capsys.readouterr().err.rstrip("\n")
    assert fuzzing.message_problem(line, name) == ""
    assert said in line


def test_moments_of_another_shape_are_refused():
    import torch

    from widemargin.training.checkpoint import optimizer_state, restore_optimizer

    weights = [torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(2))]
    optimizer = torch.optim.AdamW(weights)
    sum(weight.sum() for weight in weights).backward()
    optimizer.step()
    tensors, numbers = optimizer_state(optimizer)
    restore_optimizer(optimizer, tensors, numbers)
    with pytest.raises(wm.InputError, match=r"optimizer.0.exp_avg in the checkpoint has the shape \[6\]"):
        restore_optimizer(optimizer, {**tensors, "optimizer.0.exp_avg": torch.ones(6)}, numbers)
    del tensors["optimizer.1.exp_avg_sq"]
    with pytest.raises(wm.InputError, match="exp_avg_sq are incomplete"):
        restore_optimizer(optimizer, tensors, numbers)


def test_a_folders_name_is_short_enough_for_any_file_system():
    from widemargin.training.run_files import default_run_folder

    run = TrainConfig(loss=f"cosface(m=[{', '.join(['0.1'] * 500)}])")
    assert len(default_run_folder(run).name) <= 200
    assert default_run_folder(run).parent == Path("runs")
