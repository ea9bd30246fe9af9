"""SphereFace-R: a factor of the angle on the unit sphere."""

from __future__ import annotations

import pytest
import torch

import textbook
import widemargin as wm
from margin_cases import (
    head_result,
    make_batch,
    make_head,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_detached_gradients_are_those_of_plain_cosines_at_these_logits(version):
    """∂loss/∂cos is p − 1 at the target and p elsewhere, times s."""
    head = make_head(4, 5, f"sphereface_r(s=8, version={version}, gradient=detached)").eval()
    x, y = make_batch(head, 9)
    probability = head.logits(x, y).detach().softmax(1)
    unit = torch.nn.functional.normalize(x).requires_grad_()
    slope = 8 * (probability - torch.nn.functional.one_hot(y, 5))
    cos = textbook.cosines(unit, head.weight.detach())
    (wanted,) = torch.autograd.grad((cos * slope).sum(), unit)
    _, (to_x, _) = head_result(head, unit.detach(), y, torch.ones(9, dtype=torch.float64))
    torch.testing.assert_close(to_x, wanted)


def test_a_factor_below_one_is_refused():
    with pytest.raises(wm.InputError, match="outside its domain"):
        wm.parse("sphereface_r(m=0.9)")
