"""Backbones by name: whose model a name means, what holds for all of them, one line for every mistake."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from widemargin.io.errors import InputError
from widemargin.models.build import build_backbone, builtin_backbones, parse_model
from widemargin.models.fast import FastNet
from widemargin.models.resnet import ResNet
from widemargin.models.timm_models import TimmBackbone


@pytest.mark.parametrize("text", ["fast(width=0.25)", "resnet18"])
@pytest.mark.parametrize(("channels", "size"), [(1, (28, 28)), (3, (17, 40))])
def test_channels_and_images_that_are_not_square(text, channels, size):
    model = build_backbone(text, channels=channels, size=size)
    x = torch.randn(2, channels, *size)
    assert model(x).shape == (2, model.embedding_dim)


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


def test_whose_model_a_name_means():
    assert isinstance(build_backbone("resnet18"), ResNet)
    assert isinstance(build_backbone("resnet18", pretrained=False), ResNet)
    assert isinstance(build_backbone("timm:resnet18"), TimmBackbone)
    assert set(builtin_backbones()) >= {"fast", "resnet18", "resnet34", "iresnet50", "mobilefacenet"}


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            "resnet81",
            {},
            "unknown model 'resnet81'; did you mean 'resnet18'\\? \\(known: fast, ",
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
        ("fast(**x)", {}, "cannot read .*; options are given by name"),
        ("fast(width=print())", {}, "cannot read 'width=print\\(\\)'"),
        ("fast(width=1)(width=2)", {}, "fast: cannot read"),
        ("fast(width=0.5", {}, "cannot read the model 'fast\\(width=0.5'"),
        ("", {}, "the model is an empty string"),
        (None, {}, "a model must be a string"),
        ("x" * 5000, {}, "cannot read the model"),
        ("fast", {"size": 8}, "fast takes images from 9×9 pixels, got 8×8"),
        ("fast", {"size": (32, 32, 32)}, "an image size of"),
        ("fast", {"size": "32"}, "an image size of '32' is invalid"),
        ("fast", {"channels": 0}, "channels=0 must be"),
        ("resnet18", {"zero_init_last": 1}, "zero_init_last=1 must be True or False"),
        (
            "resnet18",
            {"zero_init_lsat": True},
            "unknown option of timm's resnet18 'zero_init_lsat'; did you mean 'zero_i",
        ),
        ("resnet18", {"stem_type": "dep"}, "stem_type='dep' is not one of '', 'deep', 'deep_tiered'"),
        ("resnet18", {"output_stride": 7}, "timm cannot create resnet18\\(output_stride=7\\)"),
        ("resnet18", {"num_classes": 10, "stem_type": "deep"}, "num_classes cannot be given here, the head holds"),
        ("resnet18", {"stem_type": None}, "stem_type=None is not a value"),
        ("timm:resnet18", {"global_pool": ""}, "returns \\[1, 512, 1, 1\\] instead of one embedding"),
        ("vit_tiny_patch16_224", {"patch_sise": 2}, "vit_tiny_patch16_224 'patch_sise'; did you mean 'patch_size'\\?"),
        ("vit_tiny_patch16_224", {"size": 64, "img_size": 32}, "cannot take images of 64×64 pixels: Input height"),
        ("vit_tiny_patch16_224", {"patch_size": "a"}, "timm cannot create vit_tiny_patch16_224\\(patch_size='a'"),
        ("caformer_s18", {"nothing": 1}, "unknown option of timm's caformer_s18 'nothing'"),  # timm takes it in silence
    ],
)
def test_a_mistake_is_one_line(text, options, message):
    with pytest.raises(InputError, match=message) as caught:
        build_backbone(text, **options)
    assert "\n" not in str(caught.value)


def test_reading_a_model_builds_nothing():
    assert parse_model(" vit_tiny_patch16_224 ( patch_size = 2, img_size=32 ) ") == (
        "vit_tiny_patch16_224",
        {"patch_size": 2, "img_size": 32},
    )
    assert parse_model("ResNet18()") == ("resnet18", {})
