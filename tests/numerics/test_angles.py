"""Angles: arccos by a polynomial, in one thread only."""

import threading

import pytest
import torch

from widemargin.numerics import angles


def test_the_short_arccos_is_as_good_as_single_precision():
    cos = torch.linspace(-1.0, 1.0, 200_001, dtype=torch.float64)
    with angles.use_polynomial_arccos():
        found = angles.safe_arccos(cos.float())
        odd = angles.safe_arccos(torch.tensor([1.0000001, -1.0000001, float("nan")]))
        wide = angles.safe_arccos(cos)
    exact = torch.acos(cos.float().double())
    assert (found.double() - exact).abs().max() < 5e-7
    near = exact > 1e-3
    assert ((found.double() - exact).abs() / exact)[near].max() < 1e-6
    assert odd[0] == 0
    assert odd[1] == pytest.approx(torch.pi, abs=1e-6)
    assert odd[2].isnan()
    assert torch.equal(wide, torch.acos(cos))  # double precision keeps the library's
    assert torch.equal(angles.safe_arccos(cos.float()), torch.acos(cos.float()))


def test_a_thread_that_compiles_changes_no_bit_of_another():
    cos = torch.linspace(-0.99, 0.99, 1000)
    alone, concurrent = angles.safe_arccos(cos), []
    with angles.use_polynomial_arccos():
        thread = threading.Thread(target=lambda: concurrent.append(angles.safe_arccos(cos)))
        thread.start()
        thread.join()
        assert not torch.equal(angles.safe_arccos(cos), alone)
    assert torch.equal(concurrent[0], alone)
