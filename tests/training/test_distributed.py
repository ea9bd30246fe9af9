"""Batch norm over processes: what the conversion keeps. The sums over GPUs themselves need GPUs and are torch's."""

import pytest
import torch
from torch import nn

import widemargin.models.torchvision_compat  # noqa: F401  timm needs torchvision
from widemargin.head.objective import Objective
from widemargin.io.errors import InputError
from widemargin.models.attach import MarginModel
from widemargin.models.build import build_backbone
from widemargin.models.neck import Neck
from widemargin.training.distributed import convert_sync_batchnorm

NAMES = ["fast(width=0.125)", "resnet18", "timm:resnet18", "timm:efficientnet_b0", "timm:regnety_002"]


def batch_norms(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("neck", [False, True], ids=["bare", "neck"])
def test_a_synced_model_is_the_same_model(name, neck):
    """In one process it computes what it did, in training and in evaluation: gains, momentum, activations are kept."""
    torch.manual_seed(0)
    plain = build_backbone(name, size=32)
    plain = Neck(plain) if neck else plain
    other = build_backbone(name, size=32)
    other = Neck(other) if neck else other
    other.load_state_dict(plain.state_dict())
    model = convert_sync_batchnorm(MarginModel(other, Objective("arcgrad", other.embedding_dim, 3))).backbone
    assert batch_norms(plain)
    assert len(batch_norms(plain)) == len(batch_norms(model))
    assert all(isinstance(norm, nn.SyncBatchNorm) for norm in batch_norms(model))
    assert list(model.state_dict()) == list(plain.state_dict())
    learned = [{key for key, p in each.named_parameters() if p.requires_grad} for each in (plain, model)]
    assert learned[0] == learned[1]
    x = torch.randn(4, 3, 32, 32)
    for _ in range(2):
        torch.manual_seed(1)
        first = plain.train()(x)
        torch.manual_seed(1)
        second = model.train()(x)
        assert torch.equal(first, second)
    assert torch.equal(plain.eval()(x), model.eval()(x))
    for key, value in plain.state_dict().items():
        assert torch.equal(value, model.state_dict()[key]), key


def test_what_is_synced_stays():
    model = convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(3)))
    assert isinstance(convert_sync_batchnorm(model)[0], nn.SyncBatchNorm)


def test_a_norm_that_does_more_is_refused():
    class Odd(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x) + 1

    with pytest.raises(InputError, match=r"0, a Odd, cannot be synchronised over processes: .*sync_bn=False"):
        convert_sync_batchnorm(nn.Sequential(Odd(3)))
