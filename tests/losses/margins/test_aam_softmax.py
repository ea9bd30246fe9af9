"""AAM-Softmax: ArcFace with sub-centres and a penalty on the nearest other classes."""

from __future__ import annotations

import math

import pytest
import torch

import widemargin as wm
from margin_cases import BACKENDS, make_batch, make_head

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_curve_goes_on_without_a_jump():
    theta = torch.linspace(0, math.pi, 20001, dtype=torch.float64)
    steps = wm.AAMSoftmax(m=0.5).psi(theta).diff()
    assert steps.max() <= 1e-12
    assert steps.min() >= -1.01 * math.pi / 20000


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_other_classes_may_have_the_penalty(backend):
    head = make_head(4, 3, "aam_softmax(s=4, topk=2, penalty=0.2)", backend).eval()
    x, y = make_batch(head, 6)
    cos = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(head.weight.detach()).T
    theta = torch.acos(cos)
    own = torch.nn.functional.one_hot(y, 3).bool()
    past = torch.cos(theta) - 1 + math.cos(0.2)
    z = torch.where(own, torch.where(theta <= math.pi - 0.2, torch.cos(theta + 0.2), past), torch.cos(theta - 0.2))
    torch.testing.assert_close(head(x, y), torch.nn.functional.cross_entropy(4 * z, y, reduction="none"))


def test_a_penalty_for_more_classes_than_there_are_is_refused():
    with pytest.raises(wm.InputError, match="topk=3"):
        make_head(4, 3, "aam_softmax(topk=3)")


@pytest.mark.parametrize("backend", BACKENDS)
def test_classes_that_tie_for_the_last_place_have_no_penalty(backend):
    """Two equal weights at the edge: no order of classes or of blocks may decide between them."""
    plain, head = (make_head(4, 5, f"aam_softmax(s=4, topk={k})", backend).eval() for k in (0, 1))
    with torch.no_grad():
        for one in (plain, head):
            one.weight[1:] = torch.eye(4, dtype=torch.float64)[0]
    x, y = make_batch(head, 6)
    torch.testing.assert_close(head(x, torch.zeros_like(y)), plain(x, torch.zeros_like(y)))
