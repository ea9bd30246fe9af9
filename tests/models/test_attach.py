"""attach: heads on models of timm and torchvision, and on any other."""

from __future__ import annotations

# isort: off
import widemargin.models.torchvision_compat  # before timm and torchvision

# isort: on
import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

import widemargin as wm

CLASSES = 7

# Name → model, size of its embeddings, path of its classifier, side of its images.
MODELS = {
    "timm resnet18": (lambda: timm.create_model("resnet18"), 512, "fc", 64),
    "timm vit_tiny": (lambda: timm.create_model("vit_tiny_patch16_224", img_size=32), 192, "head", 32),
    "timm convnext_atto": (lambda: timm.create_model("convnext_atto"), 320, "head.fc", 64),
    "timm resnet18 without classifier": (lambda: timm.create_model("resnet18", num_classes=0), 512, "fc", 64),
    "timm convnext_atto without classifier": (
        lambda: timm.create_model("convnext_atto", num_classes=0),
        320,
        "head.fc",
        64,
    ),
    "timm mobilenetv3 without classifier": (
        lambda: timm.create_model("mobilenetv3_small_050", num_classes=0),
        1024,
        "classifier",
        64,
    ),
    "torchvision resnet18": (lambda: torchvision.models.resnet18(), 512, "fc", 64),
    "torchvision mobilenet_v3_small": (lambda: torchvision.models.mobilenet_v3_small(), 1024, "classifier.3", 64),
    "torchvision vit_b_32": (lambda: torchvision.models.vit_b_32(image_size=64), 768, "heads.head", 64),
}


class Small(nn.Module):
    """A network with a classifier under a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 10), nn.ReLU())
        self.scores = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.body(x))


def blobs(samples: int = 60) -> tuple[Tensor, Tensor]:
    """Three classes of points that a line can tell apart."""
    random = torch.Generator().manual_seed(0)
    y = torch.arange(samples) % 3
    return 2.0 * torch.eye(3, 6)[y] + 0.2 * torch.randn(samples, 6, generator=random), y


# ---------------------------------------------------------------- vision models


@pytest.mark.parametrize("name", MODELS)
def test_a_vision_model_becomes_backbone_and_head(name):
    make, dim, path, side = MODELS[name]
    torch.manual_seed(0)
    backbone = make()
    classifier = backbone.get_submodule(path)
    had_classifier = isinstance(classifier, nn.Linear)
    model = wm.attach(backbone, "arcface(s=16, m=0.3)", CLASSES)
    images, y = torch.randn(2, 3, side, side), torch.tensor([1, 6])

    assert model.backbone is backbone
    assert isinstance(backbone.get_submodule(path), nn.Identity)
    assert not had_classifier or not any(module is classifier for module in model.modules())
    assert model.head.weight.shape == (CLASSES, dim)

    loss = model(images, labels=y)
    assert loss.shape == (2,)
    loss.mean().backward()
    first = next(backbone.parameters())
    for parameter in (first, model.head.weight):
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().sum() > 0

    model.eval()
    with torch.no_grad():
        x = model.embed(images)
        assert x.shape == (2, dim)
        assert torch.equal(model(images), model.objective.logits(x))
        assert model(images).shape == (2, CLASSES)
        assert torch.allclose(model(images, labels=y), model.head(x, y))
        assert torch.equal(model(images, labels=y), model(images, labels=y))


def test_nothing_else_of_the_model_changes():
    torch.manual_seed(0)
    backbone = timm.create_model("resnet18").eval()
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        wanted = backbone.forward_head(backbone.forward_features(images), pre_logits=True)
        model = wm.attach(backbone, "arcface", CLASSES).eval()
        assert torch.equal(model.embed(images), wanted)


def test_a_timm_model_says_that_its_classifier_is_gone():
    backbone = timm.create_model("resnet18")
    wm.attach(backbone, "arcface", CLASSES)
    assert backbone.num_classes == 0


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "pit_ti_distilled_224"])
def test_a_distilled_model_gives_the_mean_of_its_two_embeddings(name):
    backbone = timm.create_model(name, img_size=32).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        wanted = backbone.forward_features(images)
        wanted = (wanted[:, 0] + wanted[:, 1]) / 2  # class token and distillation token
    model = wm.attach(backbone, "arcface", CLASSES)
    with torch.no_grad():
        assert torch.allclose(model.embed(images), wanted, atol=1e-6)
        backbone.distilled_training = True  # as set_distilled_training(True): a pair of tensors in train mode
        assert isinstance(backbone.train()(images), tuple)
        assert torch.allclose(model.embed(images), wanted, atol=1e-6)


def test_a_pair_of_tensors_is_no_embedding_elsewhere():
    class Pair(Small):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(x), super().forward(x)

    model = wm.attach(Pair(), "arcface", CLASSES, at="scores")
    with pytest.raises(wm.InputError, match="tuple, not embeddings"):
        model(torch.zeros(1, 6))


def test_two_branches_are_joined():
    backbone = timm.create_model("crossvit_tiny_240").eval()
    images = torch.randn(1, 3, 240, 240)
    with torch.no_grad():
        tokens = [x[:, 0] for x in backbone.forward_features(images)]
        model = wm.attach(backbone, "arcface", CLASSES).eval()
        assert torch.allclose(model.embed(images), torch.cat(tokens, 1), atol=1e-6)


@pytest.mark.parametrize("name", ["resnetv2_18", "dla46x_c"])
def test_a_convolution_as_classifier_leaves_the_pooled_features(name):
    backbone = timm.create_model(name).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        wanted = backbone.forward_features(images).mean((2, 3))
        assert torch.allclose(wm.attach(backbone, "arcface", CLASSES).eval().embed(images), wanted, atol=1e-6)


def test_squeezenet_gives_the_mean_of_its_last_map():
    backbone = torchvision.models.squeezenet1_1().eval()
    images = torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        wanted = backbone.features(images).mean((2, 3))
        assert torch.allclose(wm.attach(backbone, "arcface", CLASSES).eval().embed(images), wanted, atol=1e-6)


def test_the_pooling_of_a_model_stays():
    backbone = timm.create_model("resnetv2_18", global_pool="max").eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        wanted = backbone.forward_features(images).amax((2, 3))
        assert torch.allclose(wm.attach(backbone, "arcface", CLASSES).eval().embed(images), wanted, atol=1e-6)


def test_classifiers_on_inner_layers_go_too():
    backbone = torchvision.models.googlenet(init_weights=False)
    model = wm.attach(backbone, "arcface(s=8)", CLASSES)
    assert (backbone.aux1, backbone.aux2, backbone.aux_logits) == (None, None, False)
    model(torch.randn(2, 3, 64, 64), torch.tensor([0, 1])).mean().backward()  # in train mode, where they would answer
    assert all(p.grad is not None for p in model.parameters())


# ---------------------------------------------------------------- any model


def test_a_layer_is_named_by_its_path():
    network = Small()
    model = wm.attach(network, "cosface", CLASSES, at="scores")
    assert isinstance(network.scores, nn.Identity)
    assert model.head.weight.shape == (CLASSES, 10)
    assert model(torch.randn(4, 6)).shape == (4, CLASSES)


def test_a_path_may_lead_into_the_model():
    network = nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)), nn.Identity())
    model = wm.attach(network, "cosface", CLASSES, at="0.1")
    assert isinstance(network[0][1], nn.Identity)
    assert model.embed(torch.randn(4, 6)).shape == (4, 5)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_convolution_may_be_named(dims):
    convolution, pool = getattr(nn, f"Conv{dims}d"), getattr(nn, f"AdaptiveAvgPool{dims}d")
    network = nn.Sequential(convolution(3, 4, 3), pool(1), convolution(4, 9, 1))
    model = wm.attach(network, "arcface", CLASSES, at="2")
    assert model.head.embedding_dim == 4
    assert model(torch.randn(2, 3, *[8] * dims), torch.tensor([0, 1])).shape == (2,)


def test_a_layer_that_is_not_linear_needs_its_size():
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 9)))

    with pytest.raises(wm.InputError, match=r"at='1\.1', or give its input size as embedding_dim=") as caught:
        wm.attach(network(), "arcface", CLASSES, at="1")
    assert "\n" not in str(caught.value)
    for options in ({"at": "1.1"}, {"at": "1", "embedding_dim": 4}):  # both remedies work
        model = wm.attach(network(), "arcface", CLASSES, **options)
        assert model(torch.randn(2, 6), torch.tensor([0, 1])).shape == (2,)


def test_a_wrong_size_names_the_right_one():
    model = wm.attach(nn.Sequential(nn.Linear(6, 4), nn.ReLU()), "arcface", CLASSES, at="1", embedding_dim=5)
    with pytest.raises(wm.InputError, match="embedding_dim=4"):
        model(torch.randn(2, 6))


@pytest.mark.parametrize("name", ["fc", "classifier", "head", "heads", "last_linear"])
def test_usual_names_are_found(name):
    network = nn.Sequential()
    network.add_module("body", nn.Linear(6, 5))
    network.add_module(name, nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)))
    model = wm.attach(network, "arcface", CLASSES)
    assert model.head.weight.shape == (CLASSES, 4)
    assert isinstance(network.get_submodule(f"{name}.2"), nn.Identity)


def test_no_classifier_found_names_the_linear_layers():
    with pytest.raises(wm.InputError, match=r"no classifier found in Small.*at=.*body\.0, scores") as caught:
        wm.attach(Small(), "arcface", CLASSES)
    assert "\n" not in str(caught.value)
    assert "wm.MarginModel(model, wm.Objective(" in str(caught.value)  # for a model that returns embeddings
    model = wm.MarginModel(Small(), wm.Objective("arcface", 3, CLASSES))
    assert model(torch.randn(4, 6), torch.tensor([0, 1, 2, 3])).shape == (4,)


def test_no_linear_layer_at_all_is_said():
    with pytest.raises(wm.InputError, match="no classifier found in Conv2d"):
        wm.attach(nn.Conv2d(3, 4, 1), "arcface", CLASSES)


@pytest.mark.parametrize("at", ["score", "", "body.7"])
def test_a_wrong_path_names_the_linear_layers(at):
    network = Small()
    with pytest.raises(wm.InputError, match=r"no module.*body\.0, scores") as caught:
        wm.attach(network, "arcface", CLASSES, at=at)
    assert "\n" not in str(caught.value)
    assert isinstance(network.scores, nn.Linear)


def test_a_wrong_loss_leaves_the_model_as_it_was():
    network = Small()
    with pytest.raises(wm.InputError, match="did you mean 'arcface'"):
        wm.attach(network, "arcfase", CLASSES, at="scores")
    assert isinstance(network.scores, nn.Linear)


def test_a_model_with_several_outputs_is_refused():
    class Pair(Small):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(x), x

    model = wm.attach(Pair(), "arcface", CLASSES, at="scores")
    with pytest.raises(wm.InputError, match="tuple, not embeddings"):
        model(torch.zeros(1, 6))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_class_weights_are_float32_whatever_the_model_is(dtype):
    model = wm.attach(Small().to(dtype), "arcface", CLASSES, at="scores")
    assert model.head.weight.dtype == torch.float32
    loss = model(torch.ones(2, 6, dtype=dtype), torch.tensor([0, 1]))
    loss.mean().backward()
    assert loss.dtype == torch.float32
    assert model.backbone.body[0].weight.grad.dtype == dtype


def test_options_of_the_head_and_of_the_call_are_passed_on():
    network, (x, y) = Small(), blobs(6)
    model = wm.attach(network, "arcface + 0.1*center", 3, at="scores", label_smoothing=0.1, ignore_index=-1).eval()
    assert (model.head.label_smoothing, model.head.ignore_index) == (0.1, -1)
    weight = torch.arange(6.0)
    assert torch.allclose(model(x, y, sample_weight=weight), model(x, y) * weight)
    assert model(x, torch.full((6,), -1)).tolist() == [0.0] * 6


def test_a_loss_without_a_margin_has_no_head_and_no_logits():
    model = wm.attach(Small(), "triplet", 3, at="scores")
    assert model(*blobs(9)).shape == (9,)
    with pytest.raises(wm.InputError, match="no head"):
        _ = model.head
    with pytest.raises(wm.InputError, match="no logits"):
        model(blobs(9)[0])


def test_a_state_dict_brings_everything_back():
    trained, fresh = (wm.attach(Small(), "arcface + 0.1*center", 3, at="scores") for _ in range(2))
    x, y = blobs()
    trained(x, y)
    fresh.load_state_dict(trained.state_dict())
    assert torch.equal(fresh.eval()(x, y), trained.eval()(x, y))


@pytest.mark.parametrize(
    "loss", ["arcface(s=16, m=0.3)", "arcgrad(s=10)", "softmax + 0.02*center", "triplet(alpha=1, mining=all)"]
)
def test_a_short_training_lowers_the_loss(loss):
    torch.manual_seed(0)
    model = wm.attach(Small(), loss, 3, at="scores")
    x, y = blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    seen = []
    for _ in range(20):
        optimizer.zero_grad()
        batch_loss = model(x, y).mean()
        batch_loss.backward()
        optimizer.step()
        seen.append(batch_loss.item())
    assert seen[-1] < 0.7 * seen[0]


def test_a_short_training_finds_the_classes():
    torch.manual_seed(0)
    model = wm.attach(Small(), "arcface(s=16, m=0.3)", 3, at="scores")
    x, y = blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        model(x, y).mean().backward()
        optimizer.step()
    assert (model.eval()(x).argmax(1) == y).float().mean() > 0.95


def test_a_model_refuses_options_that_need_labels():
    model = wm.attach(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), "arcface", num_classes=3, at="1")
    with pytest.raises(wm.InputError, match="sample_weight is given without labels"):
        model(torch.randn(2, 4), sample_weight=torch.ones(2))
    with pytest.raises(wm.InputError, match="labels="):
        model(torch.randn(2, 4), y=torch.tensor([0, 1]))
    groups = model.parameter_groups(weight_decay=0.1)
    assert [(g["weight_decay"], len(g["params"])) for g in groups] == [(0.1, 1), (0.0, 2)]


class Recurrent(nn.Module):
    """Two inputs, both needed: sequences and their lengths."""

    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x, lengths):
        return self.fc(self.rnn(x)[0][torch.arange(len(x)), lengths - 1])


class Conditioned(nn.Module):
    """A second input that may be left out."""

    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x, kind=None):
        hidden = self.body(x)
        return self.fc(hidden if kind is None else hidden * (1 + kind.unsqueeze(1)))


def test_inputs_of_a_model_that_takes_two_are_not_taken_for_labels():
    torch.manual_seed(0)
    model = wm.attach(Recurrent(), "arcface(s=8)", 3).eval()
    x, lengths, y = torch.randn(5, 6, 4), torch.tensor([3, 6, 1, 2, 5]), torch.tensor([0, 1, 2, 0, 1])
    logits = model.head.logits(model.embed(x, lengths))
    assert torch.equal(model(x, lengths), logits)
    assert torch.equal(model(x, lengths=lengths), logits)
    assert torch.equal(model(x, lengths, labels=y), model.head(model.embed(x, lengths), y))
    assert torch.equal(model(x, lengths=lengths, labels=y), model(x, lengths, labels=y))


def test_an_optional_second_input_is_named_or_refused():
    torch.manual_seed(0)
    model = wm.attach(Conditioned(), "arcface(s=8)", 3).eval()
    x, kind, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0]), torch.tensor([0, 1, 2, 0, 1])
    with pytest.raises(wm.InputError, match=r"labels=.*kind="):
        model(x, kind)
    assert model(x, kind=kind).shape == (5, 3)
    assert torch.equal(model(x, kind, labels=y), model.head(model.embed(x, kind), y))
    assert torch.equal(model(x, labels=y), model.head(model.embed(x), y))
    assert model(x, torch.rand(5)).shape == (5, 3)  # no labels: an input
