"""timm's transforms on folders: timm's own numbers, the same for the same seeds, in processes that leave no trace."""

import gc
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import widemargin.models.torchvision_compat  # noqa: F401  before timm
from runs import assert_same
from widemargin.cli.main import main
from widemargin.data.images import timm_transforms
from widemargin.data.images.augment import Augment, build_augment
from widemargin.data.images.batches import TensorBatches
from widemargin.data.images.decode import read_image
from widemargin.data.images.folder import load_folder
from widemargin.data.images.image_files import IMAGENET_MEAN, IMAGENET_STD, FolderBatches, FolderImages
from widemargin.data.images.sets import Images
from widemargin.io.errors import InputError
from widemargin.numerics.random import make_generator
from widemargin.training.config import TrainConfig
from widemargin.training.inputs import load_inputs
from widemargin.training.train import train

SIZE = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three classes of blurred noise, PNG and JPEG, each file of its own size."""
    root = tmp_path_factory.mktemp("data") / "Noise"
    draw = np.random.default_rng(0)
    for part, count in (("train", 8), ("test", 3)):
        for word in ("ant", "bee", "cow"):
            place = root / part / word
            place.mkdir(parents=True)
            for index in range(count):
                small = Image.fromarray(draw.integers(60, 195, (5, 5, 3), dtype=np.uint8))
                size = (int(draw.integers(30, 60)), int(draw.integers(30, 60)))
                ending = "png" if index % 2 else "jpg"
                small.resize(size, Image.Resampling.BICUBIC).save(place / f"{index}.{ending}")
    return root


@pytest.fixture(scope="module")
def folder_set(folder):
    return load_folder(folder)


@pytest.fixture(scope="module")
def timm_batches(folder_set):
    """Batches of 8 with two processes, shared by the tests below: starting processes takes seconds."""
    return FolderBatches(folder_set.train, 8, build_augment("timm", folder_set, SIZE), 5, workers=2)


def share_executor(timm_batches: FolderBatches, batches: FolderBatches) -> FolderBatches:
    """The batches, with the processes that are there already."""
    batches._timm_loader._executor = timm_batches._timm_loader._get_executor()
    return batches


def generator_states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def wait_until(condition) -> bool:
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def one_line(caught) -> str:
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------- what comes out


@pytest.mark.slow
def test_every_image_is_what_timm_makes_of_it_under_its_seed(timm_batches, folder_set):
    """The reference is timm itself in this process, with the three generators set by hand."""
    from timm.data import create_transform

    transform = create_transform(
        SIZE,
        is_training=True,
        scale=(0.08, 1.0),
        ratio=(3 / 4, 4 / 3),
        hflip=0.5,
        color_jitter=None,
        auto_augment="rand-m9-mstd0.5-inc1",
        interpolation="bicubic",
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        re_prob=0.25,
        re_mode="pixel",
    )
    order = torch.randperm(24, generator=make_generator(0, 5, 1))  # order of epoch 1 under seed 5
    compared = 0
    before = generator_states()
    batches = list(timm_batches.iter_epoch(1))
    assert generator_states() == before  # nothing was drawn here
    for step, (x, y, pair) in enumerate(batches):
        rows = order[8 * step : 8 * step + 8]
        seeds = torch.randint(2**31, (8,), generator=make_generator(1, 5, 1, step)).tolist()
        assert pair is None
        assert x.shape == (8, 3, SIZE, SIZE)
        assert x.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(y, folder_set.train.y[rows])
        for image, row, seed in zip(x, rows.tolist(), seeds, strict=True):
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002  as timm draws
            torch.manual_seed(seed)
            try:
                expected = transform(read_image(folder_set.train.paths[row]))
            except ValueError:  # timm asks Pillow to keep no bit of a pixel, which newer ones refuse
                continue
            assert torch.equal(image, expected)
            compared += 1
    assert compared >= 20


@pytest.mark.slow
def test_images_differ_over_epochs_seeds_and_repeats(folder_set, timm_batches):
    whole = torch.cat([x for x, _, _ in timm_batches.iter_epoch(0)])
    later = torch.cat([x for x, _, _ in timm_batches.iter_epoch(1)])
    order = [timm_batches.sampler.epoch_indices(epoch) for epoch in (0, 1)]
    for row in range(24):
        assert not torch.equal(whole[order[0] == row], later[order[1] == row])
    repeated = share_executor(
        timm_batches, FolderBatches(folder_set.train, 4, timm_batches.augment, 5, repeated_augmentation=2)
    )
    x = next(iter(repeated.iter_epoch(0)))[0]
    assert not torch.equal(x[0], x[1])
    assert not torch.equal(x[2], x[3])


@pytest.mark.slow
def test_resumed_and_shared_bit_for_bit_with_mixing(folder_set, timm_batches):
    """From any step on, by any number of processes, on any number of ranks; mixing stays ours."""
    augment = build_augment("timm", folder_set, SIZE, mixup=0.8, cutmix=1.0)
    whole = list(share_executor(timm_batches, FolderBatches(folder_set.train, 8, augment, 1)).iter_epoch(2))
    resumed = list(FolderBatches(folder_set.train, 8, augment, 1, workers=1).iter_epoch(2, 1))
    both = [
        share_executor(timm_batches, FolderBatches(folder_set.train, 4, augment, 1, rank=rank, world_size=2))
        for rank in range(2)
    ]
    ranks = [list(batches.iter_epoch(2)) for batches in both]
    assert len(whole) == 3
    for one, other in zip(whole[1:], resumed, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
        assert torch.equal(one[2][0], other[2][0])
        assert torch.equal(one[2][1], other[2][1])
    for one, *parts in zip(whole, *ranks, strict=True):
        assert torch.equal(one[0], torch.cat([part[0] for part in parts]))
        assert torch.equal(one[1], torch.cat([part[1] for part in parts]))
        assert torch.equal(one[2][0], torch.cat([part[2][0] for part in parts]))
    assert any(float(pair[1].min()) < 1 for _, _, pair in whole)


@pytest.mark.slow
def test_our_evaluation_is_timms(folder_set, timm_batches):
    from timm.data import create_transform

    transform = create_transform(
        SIZE, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD, crop_pct=224 / 256
    )
    plain = timm_batches.augment.for_evaluation()
    assert not plain.timm
    batches = FolderBatches(folder_set.test, 4, plain, 0, drop_last=False, shuffle=False)
    x = torch.cat([x for x, _, _ in batches.iter_epoch(0)])
    expected = torch.stack([transform(read_image(path)) for path in folder_set.test.paths])
    torch.testing.assert_close(x, expected, atol=1e-5, rtol=1e-5)


def test_a_value_says_what_timm_is_asked_for(folder_set):
    augment = build_augment(
        "timm", folder_set, 32, scale=[0.5, 1], hflip=0.0, rand="", erase=0.0, interpolation="bilinear"
    )
    assert Augment(**asdict(augment)) == augment
    options = timm_transforms.timm_transform_options(augment)
    assert (options["input_size"], options["scale"], options["interpolation"]) == (32, (0.5, 1), "bilinear")
    assert [options[name] for name in ("hflip", "auto_augment", "re_prob", "color_jitter")] == [0.0, None, 0.0, None]
    assert [type(t).__name__ for t in timm_transforms.make_timm_transform(augment).transforms] == [
        "RandomResizedCropAndInterpolation",
        "MaybeToTensor",
        "Normalize",
    ]


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.slow
def test_a_damaged_file_is_one_line_and_the_processes_go_on(folder_set, timm_batches, tmp_path):
    path = tmp_path / "broken.png"
    path.write_bytes(b"<html>")
    images = timm_batches._timm_loader
    good = folder_set.train.paths[0]
    x, problems = images([good, path], [1, 2])
    assert problems[0] is None
    assert re.search(r"broken\.png: cannot be read as an image .*; repair or remove it", problems[1])
    again, _ = images([good], [1])
    assert again.shape == (1, 3, SIZE, SIZE)
    assert torch.equal(x[:1], again)
    spoilt = FolderImages("spoilt", (good, path), torch.tensor([0, 1]), folder_set.class_names)
    batches = FolderBatches(spoilt, 2, timm_batches.augment, 0, workers=1, shuffle=False)
    with pytest.raises(InputError, match=r"broken\.png") as caught:
        list(batches.iter_epoch(0))
    one_line(caught)
    batches.on_bad_image = "replace"
    ((x, y, _),) = batches.iter_epoch(0)
    assert torch.equal(x[0], x[1])
    assert y.tolist() == [0, 0]


@pytest.mark.slow
def test_a_process_that_dies_is_one_line_and_others_end_with_their_batches(folder_set):
    before = set(multiprocessing.active_children())
    batches = FolderBatches(folder_set.train, 4, build_augment("timm", folder_set, SIZE), 0, workers=1)
    steps = batches.iter_epoch(0)
    next(steps)
    (child,) = set(multiprocessing.active_children()) - before
    steps.close()  # a loop that leaves early keeps the processes for the next epoch
    assert not has_ended(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(InputError, match="a process that decodes images died") as caught:
        list(batches.iter_epoch(0))
    one_line(caught)
    assert len(list(batches.iter_epoch(0))) == 6  # with a new one
    (child,) = set(multiprocessing.active_children()) - before
    del batches, steps, caught  # which knows the frame it comes from
    gc.collect()
    assert wait_until(lambda: child not in multiprocessing.active_children())


@pytest.mark.slow
def test_processes_leave_with_a_killed_first_one(folder):
    code = (
        "import multiprocessing, sys, time\n"
        "from widemargin.data.images.augment import build_augment\n"
        "from widemargin.data.images.folder import load_folder\n"
        "from widemargin.data.images.image_files import FolderBatches\n"
        "if __name__ == '__main__':\n"
        "    found = load_folder(sys.argv[1])\n"
        "    batches = FolderBatches(found.train, 4, build_augment('timm', found, 16), 0, workers=1)\n"
        "    next(iter(batches.iter_epoch(0)))\n"
        "    print(*[child.pid for child in multiprocessing.active_children()], flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        pids = [int(word) for word in process.stdout.readline().split()]
        process.kill()
    assert pids
    assert wait_until(lambda: all(map(has_ended, pids)))


@pytest.mark.slow
def test_a_script_needs_no_main_guard(folder, tmp_path):
    """Processes that are started do not run the script again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import widemargin as wm\n"
        "print('started', flush=True)\n"
        f"config = wm.TrainConfig({str(folder)!r}, 'fast(widths=(8, 8, 8))', 'softmax', input_size=32, batch_size=8,\n"
        "    augment='timm(rand=rand-m9-mstd0.5-inc1)', epochs=1)\n"
        "wm.train(config, 'run', quiet=True, workers=2)\n"
    )
    done = subprocess.run([sys.executable, script], check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("started") == 1
    assert (tmp_path / "run" / "record.json").exists()


def test_images_in_memory_are_refused(folder_set, tmp_path, data_dir, capsys):
    images = Images("made", torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4) % 2, ("a", "b"))
    with pytest.raises(InputError, match="augment='timm' is for folders of image files; made is in memory") as caught:
        TensorBatches(images, 2, build_augment("timm", folder_set, 8), 0)
    one_line(caught)
    words = ["train", "mnist", "fast", "softmax", "--augment", "timm", "--out", str(tmp_path / "run")]
    assert main([*words, "--data-dir", str(data_dir)]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("widemargin: --augment timm is for folders")
    assert "\n" not in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [{"pad": 4}, {"flip": "alternating"}, {"scale": None}])
def test_what_timm_does_not_do_is_one_line(options, folder_set):
    with pytest.raises(InputError, match="timm=True crops by scale and flips at random") as caught:
        build_augment("timm", folder_set, 16, **options)
    one_line(caught)


def test_nonsense_and_a_missing_timm_are_one_line(folder_set, monkeypatch):
    for options, words in (
        ({"rand": "rand-q7"}, "timm cannot read rand='rand-q7'; write it like rand-m9"),
        ({"rand": "nonsense"}, "timm cannot read rand='nonsense'"),
        ({"mean": (0.5, 0.5)}, "mean has 2 numbers, the images have 3 channels"),
    ):
        with pytest.raises(InputError) as caught:
            next(
                FolderBatches(folder_set.train, 4, build_augment("timm", folder_set, SIZE, **options), 0).iter_epoch(0)
            )
        assert words in one_line(caught)
    for module in ("timm", "torchvision"):
        timm_transforms.make_timm_transform.cache_clear()
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "timm.data", None)
            patch.setitem(sys.modules, module, None)
            with pytest.raises(InputError, match=r"augment='timm' needs timm: pip install \"widemargin\[vision\]\""):
                next(FolderBatches(folder_set.train, 4, build_augment("timm", folder_set, SIZE), 0).iter_epoch(0))
    with pytest.raises(InputError, match="unknown option of an augmentation 'timm'"):
        build_augment("none", folder_set, timm=True)


# ---------------------------------------------------------------- a run


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("widemargin.data.images.image_files.default_num_workers", lambda: 1)
    run = TrainConfig(
        data=str(folder),
        model="vit_tiny_patch16_224(patch_size=8, depth=1, embed_dim=24, num_heads=2)",
        model_options={"drop_rate": 0.3, "proj_drop_rate": 0.2},  # draws from torch's generator meanwhile
        augment="timm",
        augment_options={"mixup": 0.2, "scale": (0.3, 1.0)},
        input_size=16,
        batch_size=8,
        epochs=3,
        opt="adamw",
    )
    assert not hasattr(load_inputs(run, None).train, "x")  # files are cropped at their full size
    train(run, tmp_path / "whole", stop_after=2)
    train(run, tmp_path / "parts", stop_after=1)
    torch.rand(7)
    train(run, tmp_path / "parts", stop_after=1, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
def test_the_command_trains_judges_and_names(folder, tmp_path, capsys):
    words = ["fast(width=0.125)", "arcgrad(s=10)", "--augment", "timm", "--input-size", "16", "--batch-size", "8"]
    assert main(["train", str(folder), *words, "--epochs", "1", "--out", str(tmp_path / "run")]) == 0
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    assert main(["predict", str(tmp_path / "run"), str(folder / "test" / "ant" / "0.jpg")]) == 0
    assert "top-1" in capsys.readouterr().out
