"""Backbones: shapes, sizes, what makes the fast one fast, timm's models, and one line for every mistake."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from widemargin.io.errors import InputError
from widemargin.models.build import build_backbone, builtin_backbones, parse_model
from widemargin.models.fast import FastNet
from widemargin.models.neck import Neck
from widemargin.models.resnet import ResNet
from widemargin.models.timm_models import TimmBackbone

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@pytest.fixture(scope="module")
def photographs(data_dir: Path) -> Tensor:
    """The first thousand training images of CIFAR-10, normalised, read byte by byte from the official file."""
    file = data_dir / "cifar-10-batches-bin" / "data_batch_1.bin"
    if not file.is_file():
        pytest.skip("CIFAR-10 is not at hand")
    rows = np.fromfile(file, dtype=np.uint8, count=1000 * 3073).reshape(1000, 3073)
    images = torch.from_numpy(rows[:, 1:].reshape(1000, 3, 32, 32)).float() / 255
    return (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def weights(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def basic_resnet_weights(blocks: tuple[int, ...], channels: int) -> int:
    """Counted from the definition: 3×3 and 1×1 convolutions, two numbers per channel of each norm."""
    total, inside = channels * 64 * 9 + 2 * 64, 64
    for width, count in zip((64, 128, 256, 512), blocks, strict=True):
        for _ in range(count):
            total += 9 * inside * width + 9 * width * width + 4 * width
            total += inside * width + 2 * width if inside != width else 0
            inside = width
    return total


@pytest.mark.parametrize(("name", "blocks"), [("resnet18", (2, 2, 2, 2)), ("resnet34", (3, 4, 6, 3))])
def test_the_papers_resnets_have_the_weights_of_their_definition(name, blocks):
    model = build_backbone(name)
    assert isinstance(model, ResNet)
    assert weights(model) == basic_resnet_weights(blocks, 3)
    if name == "resnet18":
        assert weights(model) == 11_168_832
    assert model.embedding_dim == 512
    places: list[torch.Size] = []
    for block in model.blocks:
        block.register_forward_hook(lambda _m, _i, out: places.append(out.shape[1:]))
    assert model.eval()(torch.randn(1, 3, 32, 32)).shape == (1, 512)
    assert (places[0], places[-1]) == ((64, 32, 32), (512, 4, 4))  # no pixel is lost before the first block


def test_a_resnets_start():
    model = build_backbone("resnet18")
    stem = model.blocks[0].conv1.weight
    assert stem.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)  # He, fan out
    assert all((block.norm2.weight == 1).all() for block in model.blocks)
    zero = build_backbone("resnet18", zero_init_last=True)
    assert isinstance(zero, ResNet)
    assert all((block.norm2.weight == 0).all() for block in zero.blocks)


@pytest.mark.parametrize(
    ("text", "widths"),
    [
        ("fast", (64, 256, 256)),
        ("fast(width=0.5)", (32, 128, 128)),
        ("fast(widths=(32, 96, 96))", (32, 96, 96)),
        ("Fast( widths = [8, 16, 12] )", (8, 16, 12)),  # narrower than the 24 whitened channels
        ("fast(width=0.01)", (8, 8, 8)),
    ],
)
def test_widths_of_the_fast_network(text, widths):
    model = build_backbone(text)
    assert isinstance(model, FastNet)
    assert tuple(block.conv2.out_channels for block in model.blocks) == widths
    assert model.embedding_dim == widths[-1]
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, widths[-1])


@pytest.mark.parametrize("text", ["fast(width=0.25)", "resnet18"])
@pytest.mark.parametrize(("channels", "size"), [(1, (28, 28)), (3, (17, 40))])
def test_channels_and_images_that_are_not_square(text, channels, size):
    model = build_backbone(text, channels=channels, size=size)
    x = torch.randn(2, channels, *size)
    assert model(x).shape == (2, model.dim)


@pytest.mark.parametrize("text", ["fast(width=0.25)", "resnet18"])
def test_channels_last_gives_the_same_embeddings_and_stays_channels_last(text):
    model = build_backbone(text).eval()
    x = torch.randn(3, 3, 32, 32)
    before = model(x)
    model = model.to(memory_format=torch.channels_last)
    inner: list[Tensor] = []
    model.blocks[-1].register_forward_hook(lambda _m, _i, out: inner.append(out))
    after = model(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    assert inner[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("text", ["fast(width=0.25)", "resnet18", "timm:resnet10t(zero_init_last=False)"])
def test_gradients_reach_everything_that_learns(text):
    model = build_backbone(text)
    model(torch.randn(4, 3, 32, 32)).square().sum().backward()
    for name, p in model.named_parameters():
        assert (p.grad is not None and p.grad.abs().sum() > 0) == p.requires_grad, name


@pytest.mark.parametrize("text", ["fast(width=0.25)", "resnet18", "timm:vit_tiny_patch16_224"])
def test_a_state_dict_carries_all_of_it(text):
    one, two = build_backbone(text), build_backbone(text)
    x = torch.randn(4, 3, 32, 32)
    if isinstance(one, FastNet):
        one.whiten(torch.randn(20, 3, 32, 32))
    one(x)  # moves running statistics
    two.load_state_dict(one.state_dict())
    assert torch.equal(one.eval()(x), two.eval()(x))


def test_whitening_whitens_photographs(photographs):
    model = build_backbone("fast")
    assert isinstance(model, FastNet)
    plain = patches_power(photographs)
    assert plain[0, 1] > 0.8 * plain[0, 0]  # neighbouring pixels are nearly the same
    model.whiten(photographs)
    z = F.conv2d(photographs.double(), model.filters.double())
    assert torch.equal(model.filters[:12], -model.filters[12:])
    z = z[:, :12].transpose(0, 1).flatten(1)
    power = z @ z.T / z.shape[1]
    values = torch.linalg.eigvalsh(plain)
    wanted = values / (values + 5e-4)  # eps takes a little from the faintest directions
    torch.testing.assert_close(power, wanted.diag(), rtol=0, atol=1e-5)
    assert wanted.min() > 0.5


def patches_power(images: Tensor) -> Tensor:
    """Second moment of all 2×2 patches, from four shifted copies."""
    x = images.double()
    shifted = [x[:, :, i : i + 31, j : j + 31] for i in (0, 1) for j in (0, 1)]
    flat = torch.stack(shifted, 2).flatten(1, 2).transpose(0, 1).flatten(1)  # channel first, then place
    return flat @ flat.T / flat.shape[1]


def test_whitening_is_the_same_for_the_same_images_and_belongs_to_no_optimizer(photographs):
    one, two = build_backbone("fast(width=0.25)"), build_backbone("fast(width=0.25)")
    assert isinstance(one, FastNet)
    assert isinstance(two, FastNet)
    one.whiten(photographs[:600])
    two.whiten(photographs[:600].to(memory_format=torch.channels_last))
    torch.testing.assert_close(one.filters, two.filters, rtol=1e-5, atol=1e-6)
    assert all(p is not one.filters for p in one.parameters())
    assert "filters" in one.state_dict()


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(4, 3, 8, 8, dtype=torch.uint8), "normalised; got torch.uint8"),
        (torch.zeros(4, 1, 8, 8), r"takes images \[N, 3, H, W\], got \[4, 1, 8, 8\]"),
        (torch.zeros(3, 8, 8), r"got \[3, 8, 8\]"),
        (torch.zeros(0, 3, 8, 8), "no patches"),
        (torch.full((2, 3, 8, 8), float("nan")), "not finite"),
        ([1, 2], "got list"),
    ],
)
def test_what_cannot_be_whitened(images, message):
    model = build_backbone("fast(width=0.25)")
    assert isinstance(model, FastNet)
    with pytest.raises(InputError, match=message):
        model.whiten(images)
    assert model.filters.isfinite().all()


def test_blank_images_leave_finite_filters():
    model = build_backbone("fast(width=0.25)")
    assert isinstance(model, FastNet)
    model.whiten(torch.zeros(2, 3, 8, 8))
    assert model.filters.isfinite().all()


def test_the_fast_networks_start_and_what_it_learns():
    model = build_backbone("fast")
    assert isinstance(model, FastNet)
    block = model.blocks[0]
    x = torch.randn(1, 24, 9, 9)
    torch.testing.assert_close(block.conv1(x)[:, :24], x)  # new convolutions hand their input on
    assert (block.conv1.weight[24:].abs().sum((1, 2, 3)) > 0).all()
    assert block.norm1.momentum == 0.4
    learned = {name for name, p in model.named_parameters() if p.requires_grad}
    assert "bias" in learned
    assert "blocks.0.norm1.bias" in learned
    assert "blocks.0.norm1.weight" not in learned
    without = build_backbone("fast(bias=False)")
    assert without.bias is None
    x = torch.randn(2, 3, 32, 32)
    assert without.load_state_dict(model.state_dict(), strict=False).unexpected_keys == ["bias"]
    with torch.no_grad():
        model.bias.zero_()
        torch.testing.assert_close(without.eval()(x), model.eval()(x))
    with pytest.raises(InputError, match="bias='no'"):
        build_backbone("fast(bias=no)")


def test_the_neck_is_the_seeds():
    model = Neck(build_backbone("fast(width=0.25)"))
    assert model.embedding_dim == 512
    kinds = [type(layer) for layer in model.layers]
    assert kinds == [nn.Linear, nn.ReLU, nn.BatchNorm1d, nn.Linear, nn.BatchNorm1d]
    assert (model.layers[0].in_features, model.layers[0].out_features) == (64, 2048)
    assert not model.layers[4].affine
    x = model(torch.randn(16, 3, 32, 32))
    assert x.shape == (16, 512)
    assert x.mean(0).abs().max() < 1e-4  # centred
    before = model.backbone.filters.clone()
    model.whiten(torch.randn(8, 3, 32, 32))
    assert not torch.equal(model.backbone.filters, before)
    Neck(build_backbone("resnet18")).whiten(torch.randn(8, 3, 32, 32))  # nothing to whiten, no error
    with pytest.raises(InputError, match="Neck wants a backbone with a dim"):
        Neck(nn.Linear(3, 3))


def test_the_first_seeds_model():
    model = build_backbone("vit_tiny_patch16_224", size=32, patch_size=2, img_size=32)
    assert isinstance(model, TimmBackbone)
    assert model.training
    assert (model.embedding_dim, model(torch.randn(2, 3, 32, 32)).shape) == (192, (2, 192))
    assert model.model.patch_embed.num_patches == 256
    assert model.no_weight_decay() == {"model.pos_embed", "model.cls_token"}


def test_the_second_seeds_model_is_timms_resnet():
    model = build_backbone("resnet18", size=64, stem_type="deep", output_stride=8)
    assert isinstance(model, TimmBackbone)
    assert len(model.model.conv1) > 1  # a deep stem
    assert model.model.forward_features(torch.randn(1, 3, 64, 64)).shape[-1] == 8  # 64 / 8
    assert (model.embedding_dim, model(torch.randn(2, 3, 64, 64)).shape) == (512, (2, 512))
    assert model.no_weight_decay() == set()


def test_whose_model_a_name_means():
    assert isinstance(build_backbone("resnet18"), ResNet)
    assert isinstance(build_backbone("resnet18", pretrained=False), ResNet)
    assert isinstance(build_backbone("timm:resnet18"), TimmBackbone)
    assert builtin_backbones() == ["fast", "resnet18", "resnet34"]


def test_a_timm_model_follows_the_images():
    wide = build_backbone("vit_tiny_patch16_224", channels=1, size=(32, 64))
    assert wide(torch.randn(2, 1, 32, 64)).shape == (2, 192)
    from_option = build_backbone("vit_tiny_patch16_224(img_size=48)")
    assert from_option(torch.randn(1, 3, 48, 48)).shape == (1, 192)
    small = build_backbone("mobilenetv3_small_050")  # its embedding is wider than its last feature map
    assert (small.dim, small.eval()(torch.randn(1, 3, 32, 32)).shape) == (1024, (1, 1024))


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            "resnet81",
            {},
            "unknown model 'resnet81'; did you mean 'resnet18'\\? \\(known: fast, resnet18, resnet34 and ",
        ),
        ("timm:fast", {}, "unknown model 'timm:fast'"),
        ("hf-hub:some/where", {}, "unknown model 'hf-hub:some/where'"),
        ("resnet18.nothing", {}, "resnet18.nothing: Invalid pretrained tag \\(nothing\\)"),
        ("fast", {"widht": 0.5}, "unknown option of fast 'widht'; did you mean 'width'\\?"),
        ("fast", {"pretrained": True}, "fast has no pretrained weights"),
        ("fast(width=0.5)", {"width": 0.5}, "fast: width is given twice"),
        ("fast(width=0.5, width=1)", {}, "fast: width is given twice"),
        ("fast(width=0.5, widths=(8, 8, 8))", {}, "width and widths both"),
        ("fast(widths=(8, 8))", {}, "must be three whole numbers"),
        ("fast(widths=(8, 8, 0.5))", {}, "must be three whole numbers"),
        ("fast(widths=8)", {}, "must be three whole numbers"),
        ("fast(width=0)", {}, "width=0 must be a number above 0"),
        ("fast(width=True)", {}, "width=True must be a number"),
        ("fast(0.5)", {}, "options are given by name"),
        ("fast(**x)", {}, "\\*\\* is not part of the language"),
        ("fast(width=print())", {}, "cannot read 'width=print\\(\\)'"),
        ("fast(width=1)(width=2)", {}, "fast: cannot read"),
        ("fast(width=0.5", {}, "cannot read the model 'fast\\(width=0.5'"),
        ("", {}, "an empty model"),
        (None, {}, "a model is written as text"),
        ("x" * 5000, {}, "cannot read the model"),
        ("fast", {"size": 8}, "fast takes images from 9×9 pixels, got 8×8"),
        ("fast", {"size": (32, 32, 32)}, "an image size of"),
        ("fast", {"size": "32"}, "an image size of '32' is not possible"),
        ("fast", {"channels": 0}, "channels=0 must be"),
        ("resnet18", {"zero_init_last": 1}, "zero_init_last=1 must be True or False"),
        (
            "resnet18",
            {"zero_init_lsat": True},
            "unknown option of timm's resnet18 'zero_init_lsat'; did you mean 'zero_i",
        ),
        ("resnet18", {"stem_type": "dep"}, "stem_type='dep' is not one of '', 'deep', 'deep_tiered'"),
        ("resnet18", {"output_stride": 7}, "timm cannot make resnet18\\(output_stride=7\\)"),
        ("resnet18", {"num_classes": 10, "stem_type": "deep"}, "num_classes cannot be given here, the head holds"),
        ("resnet18", {"stem_type": None}, "stem_type=None is no choice"),
        ("timm:resnet18", {"global_pool": ""}, "gives \\[1, 512, 1, 1\\] and not one embedding"),
        ("vit_tiny_patch16_224", {"patch_sise": 2}, "vit_tiny_patch16_224 'patch_sise'; did you mean 'patch_size'\\?"),
        ("vit_tiny_patch16_224", {"size": 64, "img_size": 32}, "cannot take images of 64×64 pixels: Input height"),
        ("vit_tiny_patch16_224", {"patch_size": "a"}, "timm cannot make vit_tiny_patch16_224\\(patch_size='a'"),
        ("caformer_s18", {"nothing": 1}, "unknown option of timm's caformer_s18 'nothing'"),  # timm takes it in silence
    ],
)
def test_a_mistake_is_one_line(text, options, message):
    with pytest.raises(InputError, match=message) as caught:
        build_backbone(text, **options)
    assert "\n" not in str(caught.value)


def test_pretrained_weights_without_a_connection_are_one_line(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "/nonexistent")
    with pytest.raises(InputError, match="resnet18: pretrained weights cannot be fetched") as caught:
        build_backbone("resnet18", pretrained=True)
    assert "\n" not in str(caught.value)


def test_without_timm_a_line_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "timm":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match='vit_tiny needs timm: pip install "widemargin\\[vision\\]"'):
        build_backbone("vit_tiny")
    assert build_backbone("fast(width=0.25)").dim == 64


def test_reading_a_model_builds_nothing():
    assert parse_model(" vit_tiny_patch16_224 ( patch_size = 2, img_size=32 ) ") == (
        "vit_tiny_patch16_224",
        {"patch_size": 2, "img_size": 32},
    )
    assert parse_model("ResNet18()") == ("resnet18", {})
