"""Augmentation of whole batches against one image at a time, PIL and timm; the order of things; every mistake."""

import json
import random
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import widemargin as wm
import widemargin.models.torchvision_compat  # before timm
from widemargin.data.images import rand_augment as rand_augment_module
from widemargin.data.images.augment import (
    Augment,
    alternating_flip,
    augment_names,
    build_augment,
    cutmix,
    erase,
    flip,
    mix,
    mixup,
    normalize,
    pad_crop,
    rand_augment,
    random_resized_crop,
    resize,
    translate,
)
from widemargin.data.images.transforms import BOX_ATTEMPTS, compute_crop_boxes, draw_crop_uniforms
from widemargin.io.errors import InputError
from widemargin.numerics.random import BatchSlice, beta, integers, uniform

DATA = SimpleNamespace(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
POLICY = "rand-m9-mstd0.5-inc1"


def make_generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(n=12, channels=3, height=8, width=None, dtype=torch.uint8):
    x = torch.randint(256, (n, channels, height, width or height), generator=make_generator(9), dtype=torch.uint8)
    return x if dtype == torch.uint8 else x.to(dtype) / 255


def smooth_images(n=16, size=32):
    """Images like photographs, far from black and white, which bicubic would overshoot and PIL clip on its way."""
    return resize(images(n, height=8) // 2 + 64, size)


BOTH = pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])


# ---------------------------------------------------------------- crops and flips


@BOTH
@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_pad_crop_is_a_crop_of_the_padded_image(dtype, mode):
    x = images(200, height=6, width=7, dtype=dtype)
    found = pad_crop(x, make_generator(), 3, mode)
    assert found.dtype == dtype
    shifts = torch.randint(7, (200, 2), generator=make_generator())
    for image, cropped, (dy, dx) in zip(x.numpy(), found.numpy(), shifts.tolist(), strict=True):
        padded = np.pad(image, ((0, 0), (3, 3), (3, 3)), mode="constant" if mode == "zeros" else "reflect")
        np.testing.assert_array_equal(cropped, padded[:, dy : dy + 6, dx : dx + 7])
    assert set(shifts.flatten().tolist()) == set(range(7))


def test_translate_is_a_reflecting_crop():
    assert torch.equal(translate(images(), make_generator(), 2), pad_crop(images(), make_generator(), 2, "reflect"))


@BOTH
def test_flip_mirrors_some_images_whole(dtype):
    x = images(400, dtype=dtype)
    found = flip(x, make_generator(), 0.3)
    which = (found == x.flip(-1)).flatten(1).all(1)
    assert torch.equal(found[~which], x[~which])
    assert 0.2 < which.float().mean() < 0.4
    assert torch.equal(flip(x, make_generator(), 0.0), x)
    assert torch.equal(flip(x, make_generator(), 1.0), x.flip(-1))


def test_alternating_flip_shows_both_sides_in_two_epochs():
    x, indices = images(2000, height=4), torch.randperm(50000, generator=make_generator())[:2000]
    even, odd = (alternating_flip(x, indices, epoch) for epoch in (0, 1))
    assert torch.equal(odd, even.flip(-1))
    assert torch.equal(alternating_flip(x, indices, 2), even)
    which = (even == x.flip(-1)).flatten(1).all(1)
    assert 0.46 < which.float().mean() < 0.54
    # The side belongs to the image, not to its place in the batch, and neighbours say nothing about each other.
    order = torch.randperm(2000, generator=make_generator(1))
    assert torch.equal(alternating_flip(x[order], indices[order], 0), even[order])
    every = alternating_flip(torch.tensor([1, 0]).view(1, 1, 1, 2).expand(50000, 1, 1, 2), torch.arange(50000), 0)
    side = every[:, 0, 0, 0].float()
    assert abs(float(side.mean()) - 0.5) < 0.01
    for step in (1, 2, 3, 10, 5000):
        assert abs(float((side[step:] == side[:-step]).float().mean()) - 0.5) < 0.02


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize(("before", "after"), [((32, 32), 32), ((32, 32), 64), ((40, 24), 16)])
def test_random_resized_crop_is_pils(interpolation, before, after):
    x = smooth_images(24, 48)[:, :, : before[0], : before[1]].contiguous()
    found = random_resized_crop(x, make_generator(), after, (0.2, 1.0), (0.5, 2.0), interpolation)
    assert found.dtype == torch.uint8
    assert found.shape == (24, 3, after, after)
    drawn = torch.rand(24, BOX_ATTEMPTS + 1, 2, generator=make_generator())
    for k, (image, row) in enumerate(zip(x, drawn, strict=True)):
        top, left, tall, wide = reference_crop_box(row.tolist(), *before, (0.2, 1.0), (0.5, 2.0))
        whole = Image.fromarray(image.permute(1, 2, 0).numpy())
        part = whole.crop((left, top, left + wide, top + tall))
        expected = np.asarray(part.resize((after, after), Image.Resampling[interpolation.upper()]))
        difference = np.abs(found[k].permute(1, 2, 0).numpy().astype(int) - expected)
        assert difference.max() <= (0 if interpolation == "nearest" else 2)  # PIL rounds between the two directions
        assert difference.mean() < 0.3


def reference_crop_box(numbers, height, width, scale, ratio):
    """The usual random resized crop of one image, from given random numbers."""
    for u, v in numbers[:BOX_ATTEMPTS]:
        area = (scale[0] + (scale[1] - scale[0]) * u) * height * width
        aspect = float(np.exp(np.log(ratio[0]) + (np.log(ratio[1]) - np.log(ratio[0])) * v))
        wide, tall = (max(1, round(side**0.5)) for side in (area * aspect, area / aspect))
        if wide <= width and tall <= height:
            place = numbers[BOX_ATTEMPTS]
            return int(place[0] * (height - tall + 1)), int(place[1] * (width - wide + 1)), tall, wide
    if width / height < ratio[0]:
        tall, wide = round(width / ratio[0]), width
    elif width / height > ratio[1]:
        tall, wide = height, round(height * ratio[1])
    else:
        tall, wide = height, width
    return (height - tall) // 2, (width - wide) // 2, tall, wide


@pytest.mark.parametrize(("height", "width"), [(30, 30), (10, 50), (50, 10), (7, 9), (1, 1)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.8, 1.0), (1.0, 1.0)])
def test_boxes_are_those_of_one_image_at_a_time(height, width, scale):
    drawn = draw_crop_uniforms(make_generator(), 100)
    found = torch.stack(compute_crop_boxes(drawn, height, width, scale, (3 / 4, 4 / 3)), 1)
    expected = [reference_crop_box(row, height, width, scale, (3 / 4, 4 / 3)) for row in drawn.tolist()]
    assert (found == torch.tensor(expected)).all(1).float().mean() > 0.97  # a root on the verge may round either way
    top, left, tall, wide = found.T
    assert bool(((top >= 0) & (left >= 0) & (top + tall <= height) & (left + wide <= width)).all())


def test_a_crop_of_everything_changes_nothing_and_keeps_floats_exact():
    x = images(5, height=16, dtype=torch.float32)
    found = random_resized_crop(x, make_generator(), 16, (1.0, 1.0), (1.0, 1.0))
    torch.testing.assert_close(found, x, atol=1e-6, rtol=0)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("size", [20, 36, 64])
def test_resize_is_pils(interpolation, size):
    x = smooth_images()
    found = resize(x, size, interpolation)
    for image, resized in zip(x, found, strict=True):
        whole = Image.fromarray(image.permute(1, 2, 0).numpy())
        expected = np.asarray(whole.resize((size, size), Image.Resampling[interpolation.upper()])).astype(int)
        difference = np.abs(resized.permute(1, 2, 0).numpy() - expected)
        if interpolation == "nearest":  # a place on the verge of two pixels may be either's
            assert (difference == 0).mean() > 0.6
        else:
            assert difference.max() <= 2


# ---------------------------------------------------------------- numbers, erasing, mixing


@BOTH
def test_normalize_is_the_z_score_and_leaves_its_input(dtype):
    x = images(dtype=dtype)
    before = x.clone()
    found = normalize(x, DATA.mean, DATA.std)
    pixels = x.double() / (255 if dtype == torch.uint8 else 1)
    for channel in range(3):
        expected = (pixels[:, channel] - DATA.mean[channel]) / DATA.std[channel]
        torch.testing.assert_close(found[:, channel].double(), expected, atol=1e-6, rtol=1e-6)
    assert found.dtype == torch.float32
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x, before)


@BOTH
def test_erase_replaces_one_box_by_noise(dtype):
    x = torch.zeros(2000, 3, 20, 30, dtype=dtype) + (7 if dtype == torch.uint8 else 7.0)
    before = x.clone()
    found = erase(x, make_generator(), 0.25)
    assert torch.equal(x, before)
    changed = (found != x).any(1)
    hit = changed.flatten(1).any(1)
    assert 0.22 < hit.float().mean() < 0.28
    shares = []
    for mask in changed[hit].numpy():
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        tall, wide = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
        assert mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        assert tall < 20
        assert wide < 30
        shares.append(tall * wide / 600)
    assert 0.005 < min(shares) < 0.05
    assert 0.28 < max(shares) < 0.40
    noise = found.permute(0, 2, 3, 1)[changed].double()
    if dtype == torch.uint8:
        assert abs(float(noise.mean()) - 127.5) < 1
    else:
        assert abs(float(noise.mean())) < 0.02
        assert abs(float(noise.std()) - 1) < 0.02
    assert torch.equal(erase(x, make_generator(), 0.0), x)


@pytest.mark.parametrize("each", [False, True])
@BOTH
def test_mix_is_mixup_or_cutmix_of_neighbours(dtype, each):
    x = images(64, height=10, width=14, dtype=dtype)
    blended = cut = plain = 0
    for seed in range(20):
        found, (partner, lam) = mix(x, make_generator(seed), 0.8, 1.0, prob=0.8, switch=0.4, per_sample=each)
        assert found.dtype == dtype
        assert partner.tolist() == [k ^ 1 for k in range(64)]
        assert lam.shape == (64,)
        assert each or len(set(lam.tolist())) == 1
        for k in range(64):
            ours, theirs, share = x[k].float(), x[partner[k]].float(), float(lam[k])
            taken = (found[k] == x[partner[k]]).all(0) & (found[k] != x[k]).any(0)
            kept = (found[k] == x[k]).all(0)
            if share == 1.0:
                plain += 1
                assert bool(kept.all())
            elif abs(share * 140 - round(share * 140)) < 1e-4 and bool((taken | kept).all()):
                cut += 1
                rows, columns = torch.nonzero(taken.any(1)), torch.nonzero(taken.any(0))
                size = (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
                assert abs(share - (1 - float(size) / 140)) < 1e-6
            else:
                blended += 1
                expected = share * ours + (1 - share) * theirs
                tolerance = 0.51 if dtype == torch.uint8 else 1e-6
                torch.testing.assert_close(found[k].float(), expected, atol=tolerance, rtol=0)
    assert blended > cut > 100
    assert plain > 60


def test_shares_are_beta_and_boxes_have_them():
    lam = beta(make_generator(), 200_000, 0.8)
    assert abs(float(lam.mean()) - 0.5) < 0.005
    assert abs(float(lam.var()) - 1 / (4 * 2.6)) < 0.002  # Beta(a, a): 1 / (4 (2 a + 1))
    _, (_, kept) = cutmix(torch.zeros(20_000, 1, 8, 8), BatchSlice(make_generator(), 20_000))
    assert kept.unique().numel() == 1
    shares = mix(torch.zeros(20_000, 1, 32, 32), make_generator(), 0.0, 1.0, per_sample=True)[1][1]
    # A box that reaches over the border is smaller than meant: more stays than the half that Beta(1, 1) means.
    assert 0.55 < float(shares.mean()) < 0.70


def test_mixup_and_cutmix_alone():
    x = images(9, dtype=torch.float32)
    blended, (partner, lam) = mixup(x, make_generator(), 0.8)
    share = float(lam[0])
    torch.testing.assert_close(blended[:8], share * x[:8] + (1 - share) * x[partner[:8]], atol=1e-6, rtol=0)
    torch.testing.assert_close(blended[8], x[8], atol=1e-6, rtol=0)  # the odd one out is its own partner
    assert partner[8] == 8
    assert bool((cutmix(x, make_generator(), 1.0)[0][:, :, None] == torch.stack([x, x[partner]], 2)).any(2).all())


def test_a_mix_is_what_heads_take():
    head = wm.Head(3, 5, "arcface(s=8)")
    x, y = images(8, dtype=torch.float32), torch.arange(8) % 5
    mixed, (partner, lam) = mixup(x, make_generator())
    embedded = mixed.mean((2, 3))
    expected = lam * head(embedded, y) + (1 - lam) * head(embedded, y[partner])
    torch.testing.assert_close(head(embedded, y, mix=(y[partner], lam)), expected)


# ---------------------------------------------------------------- RandAugment


def test_rand_augment_is_timms():
    from timm.data.auto_augment import rand_augment_transform

    fill = tuple(round(255 * value) for value in DATA.mean)
    transform = rand_augment_transform(
        POLICY, {"translate_const": 14, "img_mean": fill, "interpolation": Image.Resampling.BICUBIC}
    )
    x, seeds = smooth_images(200), torch.arange(200)
    found = rand_augment(x, POLICY, seeds, mean=DATA.mean)
    changed = 0
    for image, augmented, seed in zip(x, found, seeds.tolist(), strict=True):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  as timm draws
        try:
            expected = np.asarray(transform(Image.fromarray(image.permute(1, 2, 0).numpy())))
        except ValueError:  # timm asks Pillow to keep no bit of a pixel, which newer ones refuse
            expected = np.zeros((32, 32, 3), dtype=np.uint8)
        np.testing.assert_array_equal(augmented.permute(1, 2, 0).numpy(), expected)
        changed += not torch.equal(image, augmented)
    assert 100 < changed < 190


def generator_states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002


def test_rand_augment_leaves_the_process_alone_and_does_not_depend_on_threads(monkeypatch):
    x = smooth_images(40)
    states = generator_states()
    found = rand_augment(x, POLICY, 3)
    assert generator_states() == states
    monkeypatch.setattr(rand_augment_module, "MIN_PIXELS_FOR_THREADS", 0)
    assert torch.equal(rand_augment(x, POLICY, 3), found)
    assert not torch.equal(rand_augment(x, POLICY, 4), found)


def test_rand_augment_takes_grey_images_and_none():
    assert rand_augment(images(300, channels=1, height=28), POLICY, 0).shape == (300, 1, 28, 28)
    assert rand_augment(images(0), POLICY, 0).shape == (0, 3, 8, 8)


def test_rand_augment_without_timm_or_with_nonsense_is_one_line(monkeypatch):
    with pytest.raises(InputError, match=r"RandAugment 'rand-q7' cannot be read; write it like rand-m9"):
        rand_augment(images(), "rand-q7", 0)
    rand_augment_module._thread_local.__dict__.clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"RandAugment needs timm: pip install 'widemargin\[vision\]'"):
        rand_augment(images(), POLICY, 0)


# ---------------------------------------------------------------- the whole


EVERY = [
    Augment(),
    build_augment("paper", DATA),
    build_augment("fast", DATA),
    build_augment("seed", DATA, 12),
    build_augment("seed", DATA, mix_each=True, mix_prob=0.7, interpolation="bilinear", rand=""),
    build_augment("paper", DATA, 20, erase=0.5, mixup=0.3),
]


@pytest.mark.parametrize("augment", EVERY, ids=range(len(EVERY)))
def test_same_numbers_same_images_and_other_numbers_others(augment):
    x, indices = images(16, height=10), torch.arange(16)
    first, again, other = (augment(x, indices, 1, make_generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(first[0], again[0])
    assert first[0].dtype == torch.float32
    size = augment.size or 10
    assert first[0].shape == (16, 3, size, size)
    assert bool(torch.isfinite(first[0]).all())
    assert (first[1] is not None) == augment.has_mixing
    if augment.pad or augment.scale:
        assert not torch.equal(first[0], other[0])
    if augment.has_mixing:
        assert torch.equal(first[1][1], again[1][1])


@pytest.mark.parametrize("augment", EVERY, ids=range(len(EVERY)))
@pytest.mark.parametrize("world", [2, 4])
def test_parts_of_a_batch_are_augmented_as_the_whole_is(augment, world):
    x, indices = images(16, height=10), torch.arange(100, 116)
    whole, mixed = augment(x, indices, 3, make_generator())
    n = 16 // world
    for rank in range(world):
        part = slice(rank * n, (rank + 1) * n)
        found, pair = augment(x[part], indices[part], 3, BatchSlice(make_generator(), 16, rank * n))
        torch.testing.assert_close(found, whole[part], atol=0, rtol=0)
        if pair is not None:
            assert torch.equal(pair[0] + rank * n, mixed[0][part])
            assert torch.equal(pair[1], mixed[1][part])


def test_the_named_ones_do_what_they_say():
    assert augment_names() == ("none", "paper", "fast", "seed", "timm")
    none, paper, fast, seed, timm = (build_augment(name, DATA) for name in augment_names())
    assert none == Augment(mean=DATA.mean, std=DATA.std)
    assert (paper.pad, paper.pad_mode, paper.flip, paper.hflip) == (4, "zeros", "random", 0.5)
    assert (fast.pad, fast.pad_mode, fast.flip) == (2, "reflect", "alternating")
    assert (seed.mixup, seed.cutmix, seed.mix_prob, seed.switch, seed.erase) == (0.8, 1.0, 1.0, 0.5, 0.25)
    assert (seed.rand, seed.scale, seed.interpolation) == (POLICY, (0.08, 1.0), "bicubic")
    assert (timm.timm, timm.rand, timm.scale, timm.erase, timm.has_mixing) == (
        True,
        POLICY,
        (0.08, 1.0),
        0.25,
        False,
    )
    assert not any(other.timm for other in (none, paper, fast, seed))
    x, indices = images(6), torch.arange(6)
    expected = normalize(flip(pad_crop(x, source := make_generator(), 4), source, 0.5), DATA.mean, DATA.std)
    assert torch.equal(paper(x, indices, 0, make_generator())[0], expected)
    expected = normalize(alternating_flip(translate(x, make_generator(), 2), indices, 5), DATA.mean, DATA.std)
    assert torch.equal(fast(x, indices, 5, make_generator())[0], expected)


def test_the_order_of_the_seeds_augmentation_is_timms():
    """Crop, flip, RandAugment on bytes; then the z-score; then erasing and mixing."""
    augment = build_augment("seed", DATA, 12, scale=(0.8, 1.0), erase=0.9)
    x, indices = images(6), torch.arange(6)
    source = make_generator()
    expected = flip(random_resized_crop(x, source, 12, (0.8, 1.0)), source)
    expected = rand_augment(expected, POLICY, integers(source, 6, 2**31), mean=DATA.mean)
    expected = erase(normalize(expected, DATA.mean, DATA.std), source, 0.9)
    expected, (_, lam) = mix(expected, source, 0.8, 1.0)
    found, (_, share) = augment(x, indices, 0, make_generator())
    assert torch.equal(found, expected)
    assert torch.equal(share, lam)


def test_options_come_from_json_and_a_flips_probability_means_random_flips():
    options = {"scale": [0.8, 1], "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2], "hflip": 0.25}
    augment = build_augment("none", DATA, 64, **json.loads(json.dumps(options)))
    assert augment.scale == (0.8, 1)
    assert (augment.mean, augment.flip, augment.hflip, augment.size) == ((0.5, 0.5, 0.5), "random", 0.25, 64)
    assert build_augment("fast", DATA, hflip=0.5).flip == "random"
    assert Augment(**asdict(augment)) == augment


@pytest.mark.parametrize(("size", "options", "large"), [
    (0, {}, 10),
    (20, {}, 20),
    (20, {"scale": (0.8, 1.0)}, 22),
    (10, {"scale": (0.8, 1.0)}, 10),
    (0, {"scale": (0.8, 1.0)}, 10),
    (10, {"scale": (0.8, 1.0), "eval_zoom": 256 / 224}, 11),
    (0, {"eval_zoom": 1.5}, 15),
])  # fmt: skip
def test_evaluation_resizes_keeps_the_centre_and_draws_nothing(size, options, large):
    x = resize(images(4, height=4), 10)
    augment = build_augment("paper", DATA, size, erase=0.5, mixup=1.0, rand=POLICY, **options)
    found = augment.transform_for_evaluation(x)
    side = size or 10
    edge = (large - side) // 2
    expected = normalize(resize(x, large)[:, :, edge : edge + side, edge : edge + side], DATA.mean, DATA.std)
    assert torch.equal(found, expected)
    plain = augment.for_evaluation()
    assert torch.equal(plain(x, torch.arange(4), 7, make_generator(3))[0], found)
    assert plain.for_evaluation() == plain
    assert not plain.has_mixing


def test_the_seeds_evaluation_is_256_to_224_at_any_size():
    x = resize(images(2, height=4), 32)
    expected = normalize(resize(x, 36)[:, :, 2:34, 2:34], DATA.mean, DATA.std)
    assert torch.equal(build_augment("seed", DATA, 32).transform_for_evaluation(x), expected)


@pytest.mark.parametrize(("options", "words"), [
    ({"flip": "sometimes"}, "unknown flip 'sometimes'"),
    ({"pad_mode": "reflex"}, "did you mean 'reflect'"),
    ({"interpolation": "bicubik"}, "did you mean 'bicubic'"),
    ({"erase": 1.5}, "erase=1.5 must be a probability from 0 to 1"),
    ({"mixup": -1.0}, "mixup=-1.0 must be a number of at least 0"),
    ({"size": -3}, "size=-3 must be a number of at least 0"),
    ({"scale": (1.0, 0.8)}, "scale=(1.0, 0.8) must be two increasing numbers"),
    ({"scale": (0.5, 1.2)}, "scale=(0.5, 1.2) must be two increasing numbers"),
    ({"ratio": (0.0, 1.0)}, "ratio=(0.0, 1.0) must be two increasing numbers"),
    ({"std": (0.2, 0.0, 0.2)}, "must be above 0 in every channel"),
    ({"eval_zoom": 0.5}, "eval_zoom=0.5 must be a number of at least 1"),
])  # fmt: skip
def test_an_option_that_cannot_be_is_one_line(options, words):
    with pytest.raises(InputError) as caught:
        Augment(**options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_mistakes_are_one_line():
    with pytest.raises(InputError, match="did you mean 'paper'"):
        build_augment("papier", DATA)
    with pytest.raises(InputError, match="unknown option of an augmentation 'reprob'"):
        build_augment("seed", DATA, reprob=0.1)
    with pytest.raises(InputError, match="mean has 3 numbers, the images have 1 channels"):
        build_augment("paper", DATA).transform_for_evaluation(images(channels=1))
    with pytest.raises(InputError, match="reflecting 8 pixels needs images larger"):
        translate(images(height=8), make_generator(), 8)


def test_an_augmentation_is_a_value():
    augment = build_augment("seed", DATA, 32)
    assert augment == build_augment("seed", DATA, 32)
    assert hash(augment) == hash(replace(augment))
    assert "rand-m9-mstd0.5-inc1" in repr(augment)


def test_rows_are_rows_of_the_whole():
    whole = uniform(make_generator(), 10, 3)
    assert torch.equal(uniform(BatchSlice(make_generator(), 10, 4), 5, 3), whole[4:9])
    assert torch.equal(integers(BatchSlice(make_generator(), 10, 4), 5, 100), integers(make_generator(), 10, 100)[4:9])
    assert torch.equal(beta(BatchSlice(make_generator(), 10, 4), 5, 0.8), beta(make_generator(), 10, 0.8)[4:9])
