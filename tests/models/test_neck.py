"""The seeds' neck."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from widemargin.io.errors import InputError
from widemargin.models.build import build_backbone
from widemargin.models.neck import Neck


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
    with pytest.raises(InputError, match="Neck needs a backbone with the attribute embedding_dim"):
        Neck(nn.Linear(3, 3))
