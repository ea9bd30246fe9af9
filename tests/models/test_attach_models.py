"""attach on one model of every family of timm and torchvision, and on models of transformers (benchmarks/attach.py)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import widemargin as wm
from benchmarks.attach import NUM_CLASSES, check_attach
from benchmarks.attach_models import ModelCase, list_cases

TIMM, TORCHVISION, TRANSFORMERS = (list_cases(library) for library in ("timm", "torchvision", "transformers"))
PARTS = 6  # tests that the workers share; four of them, a hundred models, are in .ci/run
# Their embeddings are not timm's "pre-logits": those of a hidden layer of the classifier, or with the tokens added.
OTHER_EMBEDDINGS = {"caformer_s18", "convformer_s18", "volo_d1_224"}


def find_failures(cases: list[ModelCase]) -> dict[str, str]:
    return {case.name: failure for case in cases if (failure := check_attach(case))}


def test_the_lists_are_long():
    assert len({case.name for case in TIMM}) == len(TIMM) >= 150
    assert len(TORCHVISION) >= 25
    assert len(TRANSFORMERS) >= 30


@pytest.mark.parametrize(
    "part", [pytest.param(k, marks=pytest.mark.slow if k < 4 else pytest.mark.exhaustive) for k in range(PARTS)]
)
def test_every_family_of_timm(part):
    assert find_failures(TIMM[part::PARTS]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_every_family_of_torchvision(part):
    assert find_failures(TORCHVISION[part::2]) == {}


@pytest.mark.slow
def test_models_of_transformers():
    assert find_failures(TRANSFORMERS) == {}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_embeddings_are_what_timm_gives_its_classifier(part):
    for case in TIMM[part::8]:
        backbone, images = case.build().eval(), case.make_inputs()["x"]
        with torch.no_grad():
            wanted = backbone.forward_head(backbone.forward_features(images), pre_logits=True).flatten(1)
            x = wm.attach(backbone, "arcface", NUM_CLASSES).eval().embed(images)
        if case.name not in OTHER_EMBEDDINGS:
            assert torch.allclose(x, wanted, atol=1e-5), case.name


class Wrong(nn.Module):
    """A model whose classifier cannot be taken off."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.body, self.fc = kind, nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        if self.kind == "detached":
            x = x.detach()
        return torch.cat([self.fc(x)] * 2, 1) if self.kind == "wide" else self.fc(x * (self.kind != "infinite" or 1e39))


@pytest.mark.parametrize(
    ("kind", "said"), [("", ""), ("detached", "no gradient"), ("wide", "16"), ("infinite", "infinite")]
)
def test_what_does_not_work_is_counted_as_a_failure(kind, said):
    failure = check_attach(ModelCase("", kind, lambda: Wrong(kind), lambda: {"x": torch.randn(2, 4)}))
    assert said in failure
    assert bool(failure) == bool(kind)
