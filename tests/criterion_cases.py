"""Classical losses as formulas in plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import widemargin as wm

POINTWISE = ("l1", "l2", "huber", "bce", "focal")


def random_values(*shape: int, seed: int = 0, spread: float = 2.0) -> Tensor:
    """Random numbers in double precision."""
    random = torch.Generator().manual_seed(seed)
    return spread * torch.randn(*shape, dtype=torch.float64, generator=random)


def slope(loss, prediction: list[float], target: Tensor) -> list[float]:
    """∂ loss / ∂ prediction in single precision."""
    leaf = torch.tensor(prediction, requires_grad=True)
    loss(leaf, target).sum().backward()
    return leaf.grad.tolist()


def softplus(z: float) -> float:
    return max(z, 0.0) + math.log1p(math.exp(-abs(z)))


def focal_of_lead(lead: float, gamma: float) -> float:
    """−(1 − p)^γ log p with p = sigmoid(lead)."""
    return math.exp(-gamma * softplus(lead)) * softplus(-lead)


def focal_slope_of_lead(lead: float, gamma: float) -> float:
    """Its derivative: −q^γ (γ p (−log p) + q), q = 1 − p."""
    q = math.exp(-softplus(lead))
    return -(q**gamma) * (gamma * (1 - q) * softplus(-lead) + q)


def cross_entropy_of(row: list[float], target: int) -> float:
    top = max(row)
    return top + math.log(sum(math.exp(z - top) for z in row)) - row[target]


def huber_of(error: float, delta: float) -> float:
    return 0.5 * error**2 if abs(error) <= delta else delta * (abs(error) - delta / 2)


REFERENCES = {
    "l1": lambda p, t: abs(t - p),
    "l2": lambda p, t: 0.5 * (t - p) ** 2,
    "l2(half=False)": lambda p, t: (t - p) ** 2,
    "huber": lambda p, t: huber_of(t - p, 1.0),
    "huber(delta=0.3)": lambda p, t: huber_of(t - p, 0.3),
}
BINARY = {
    "bce": lambda z, t: t * softplus(-z) + (1 - t) * softplus(z),
    "focal": lambda z, t: focal_of_lead(z if t else -z, 2.0),
    "focal(gamma=0)": lambda z, t: focal_of_lead(z if t else -z, 0.0),
    "focal(gamma=0.5)": lambda z, t: focal_of_lead(z if t else -z, 0.5),
    "focal(gamma=5)": lambda z, t: focal_of_lead(z if t else -z, 5.0),
}


def assert_regression_formula(spec: str) -> None:
    prediction, target = random_values(40), random_values(40, seed=1)
    wanted = [REFERENCES[spec](p, t) for p, t in zip(prediction.tolist(), target.tolist(), strict=True)]
    assert wm.parse(spec)(prediction, target).tolist() == pytest.approx(wanted, rel=1e-12)


def assert_binary_formula(spec: str) -> None:
    z, target = random_values(40, spread=4.0), (random_values(40, seed=1) > 0).double()
    wanted = [BINARY[spec](a, b) for a, b in zip(z.tolist(), target.tolist(), strict=True)]
    assert wm.parse(spec)(z, target).tolist() == pytest.approx(wanted, rel=1e-10)
