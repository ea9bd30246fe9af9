"""IResNets and MobileFaceNet: parameters counted from their definitions, shapes, names; gradient checkpointing."""

import copy

import pytest
import torch

from widemargin.io.errors import InputError
from widemargin.models.build import build_backbone
from widemargin.models.grad_checkpointing import enable_grad_checkpointing

PUBLISHED_MILLIONS = {"iresnet18": 24.03, "iresnet34": 34.14, "iresnet50": 43.59, "iresnet100": 65.16}
BLOCKS = {
    "iresnet18": (2, 2, 2, 2),
    "iresnet34": (3, 4, 6, 3),
    "iresnet50": (3, 4, 14, 3),
    "iresnet100": (3, 13, 30, 3),
}


def iresnet_parameters(blocks: tuple[int, ...]) -> int:
    """By hand: a norm has 2 numbers per channel, a PReLU 1, a 3×3 convolution 9·in·out."""
    total, before = 9 * 3 * 64 + 2 * 64 + 64, 64
    for width, count in zip((64, 128, 256, 512), blocks, strict=True):
        for k in range(count):
            inside = before if k == 0 else width
            total += 2 * inside + 9 * inside * width + 2 * width + width + 9 * width * width + 2 * width
            total += inside * width + 2 * width if k == 0 else 0  # the shortcut of the block with the stride
        before = width
    return total + 2 * 512 + (512 * 49 * 512 + 512) + 2 * 512


def mobilefacenet_parameters(scale: int, dim: int) -> int:
    def conv(before: int, after: int, kernel: int, groups: int = 1, prelu: bool = True) -> int:
        return before * after * kernel**2 // groups + 2 * after + (after if prelu else 0)

    width = 64 * scale
    total = conv(3, width, 3) + conv(width, width, 3, 64)
    for inner, after in [(128, 64)] * 5 + [(256, 128)] * 7 + [(512, 128)] + [(256, 128)] * 2:
        total += conv(width, inner, 1) + conv(inner, inner, 3, inner) + conv(inner, after * scale, 1, prelu=False)
        width = after * scale
    return total + conv(width, 512, 1) + conv(512, 512, 7, 512, prelu=False) + 512 * dim + 2 * dim


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", PUBLISHED_MILLIONS)
def test_an_iresnet_has_as_many_parameters_as_published(name):
    with torch.device("meta"):
        model = build_backbone(name, size=112)
        assert model(torch.empty(2, 3, 112, 112)).shape == (2, 512)
    assert count(model) == iresnet_parameters(BLOCKS[name])
    assert count(model) / 1e6 == pytest.approx(PUBLISHED_MILLIONS[name], abs=0.006)
    names = model.state_dict().keys()  # insightface's
    assert {"conv1.weight", "prelu.weight", "layer1.0.downsample.1.bias", "layer4.1.bn3.weight"} < names
    assert {"bn2.running_var", "fc.bias", "features.weight"} < names
    assert not model.features.weight.requires_grad


@pytest.mark.parametrize(
    ("spec", "scale", "dim", "millions"),
    [
        ("mobilefacenet", 2, 512, 2.06),  # insightface's, of 0.45 GFLOPs
        ("mobilefacenet(scale=1, num_features=128)", 1, 128, 1.00),  # the paper: 0.99 million
        ("mobilefacenet(scale=1)", 1, 512, 1.20),
    ],
)
def test_a_mobilefacenet_has_as_many_parameters_as_published(spec, scale, dim, millions):
    with torch.device("meta"):
        model = build_backbone(spec, size=112)
        assert model(torch.empty(2, 3, 112, 112)).shape == (2, dim)
    assert count(model) == mobilefacenet_parameters(scale, dim)
    assert count(model) / 1e6 == pytest.approx(millions, abs=0.006)


def test_an_iresnet_block_is_the_formula():
    block = build_backbone("iresnet18(width=0.25)", size=16).layer1[0].double().eval()
    x = torch.randn(2, 16, 8, 8, dtype=torch.float64)
    inner = block.conv2(block.prelu(block.bn2(block.conv1(block.bn1(x)))))
    shortcut = torch.nn.functional.conv2d(x, block.downsample[0].weight, stride=2)
    assert torch.allclose(block(x), block.bn3(inner) + block.downsample[1](shortcut))
    assert block(x).shape == (2, 16, 4, 4)


@pytest.mark.parametrize("size", [(32, 48), (33, 17)])
def test_other_sizes_and_channels_fit(size):
    for name in ("iresnet18(width=0.25, num_features=24)", "mobilefacenet(scale=1, num_features=24)"):
        assert build_backbone(name, channels=1, size=size).eval()(torch.randn(2, 1, *size)).shape == (2, 24)


@pytest.mark.parametrize(
    ("spec", "size", "message"),
    [
        ("iresnet18", 8, "from 16×16"),
        ("iresnet50(width=0.1)", 112, "width=0.1"),
        ("iresnet50(dropout=1)", 112, "dropout=1"),
        ("mobilefacenet(scale=0)", 112, "scale=0"),
        ("mobilefacenet(num_features=0)", 112, "num_features=0"),
        ("iresnet18(depth=3)", 112, "option of iresnet18"),
    ],
)
def test_options_that_do_not_fit_are_one_line(spec, size, message):
    with pytest.raises(InputError, match=message):
        build_backbone(spec, size=size)


@pytest.mark.parametrize(
    "spec", ["resnet18", "iresnet18(width=0.25, dropout=0.4)", "mobilefacenet(scale=1)", "fast(width=0.25)"]
)
def test_recomputed_activations_give_the_same_gradients_and_statistics(spec):
    torch.manual_seed(0)
    plain = build_backbone(spec, size=16)
    saving = copy.deepcopy(plain)
    assert enable_grad_checkpointing(saving) >= 3
    x = torch.randn(4, 3, 16, 16)
    for model in (plain, saving):
        torch.manual_seed(1)  # of the dropout
        model(x).square().sum().backward()
    assert plain.state_dict().keys() == saving.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), saving.buffers(), strict=True))
    for one, other in zip(plain.parameters(), saving.parameters(), strict=True):
        assert (one.grad is None and other.grad is None) or torch.equal(one.grad, other.grad)


def test_a_network_without_blocks_cannot_save_activations():
    with pytest.raises(InputError, match="no sequence of blocks of the same class"):
        enable_grad_checkpointing(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()))
