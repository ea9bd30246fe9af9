"""timm's models as backbones: the seeds' models, image sizes, missing weights, a missing timm."""

from __future__ import annotations

import builtins
import sys

import pytest
import torch

from widemargin.io.errors import InputError
from widemargin.models.build import build_backbone
from widemargin.models.timm_models import TimmBackbone


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


def test_a_timm_model_follows_the_images():
    wide = build_backbone("vit_tiny_patch16_224", channels=1, size=(32, 64))
    assert wide(torch.randn(2, 1, 32, 64)).shape == (2, 192)
    from_option = build_backbone("vit_tiny_patch16_224(img_size=48)")
    assert from_option(torch.randn(1, 3, 48, 48)).shape == (1, 192)
    small = build_backbone("mobilenetv3_small_050")  # its embedding is wider than its last feature map
    assert (small.embedding_dim, small.eval()(torch.randn(1, 3, 32, 32)).shape) == (1024, (1, 1024))


def test_pretrained_weights_without_a_connection_are_one_line(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "/nonexistent")
    with pytest.raises(InputError, match=r"resnet18.*weights") as caught:
        build_backbone("resnet18", pretrained=True)
    assert "\n" not in str(caught.value)


def test_without_timm_a_line_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def import_without_timm(name, *args, **kwargs):
        if name == "timm":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.setattr(builtins, "__import__", import_without_timm)
    with pytest.raises(InputError, match='vit_tiny needs timm: pip install "widemargin\\[vision\\]"'):
        build_backbone("vit_tiny")
    assert build_backbone("fast(width=0.25)").embedding_dim == 64
