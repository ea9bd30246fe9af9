"""The margin losses as a textbook writes them: full logits [N, C], then plain cross-entropy.

Nothing here comes from the package. Every function takes embeddings x [N, D], class weights W [C, D] and labels
y [N] in double precision and returns the logits with the target's entry replaced; gradients are autograd's.
Adaptive losses are small simulations with a method per training batch.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# ---------------------------------------------------------------- pieces


def lengths(v: Tensor) -> Tensor:
    """Euclidean length of every row, as a column; a row of length 0 has no slope."""
    squares = v.pow(2).sum(1, keepdim=True)
    nothing = squares == 0
    return torch.where(nothing, torch.zeros_like(squares), torch.where(nothing, 1.0, squares).sqrt())


def unit(v: Tensor) -> Tensor:
    """Every row divided by its length; a row of length 0 has no direction, and cosines of 0 with everything."""
    length = lengths(v)
    return torch.where(length == 0, torch.zeros_like(v), v / torch.where(length == 0, 1.0, length))


def cosines(x: Tensor, W: Tensor) -> Tensor:
    """All cosines [N, C] between embeddings and class weights."""
    return unit(x) @ unit(W).T


def target_of(full: Tensor, y: Tensor) -> Tensor:
    """Entry of each row's own class [N]."""
    return full[torch.arange(len(y)), y]


def with_target(z: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """The logits with each row's own class replaced."""
    own = F.one_hot(y, z.shape[1]).bool()
    return torch.where(own, target.unsqueeze(1), z)


def without_target(full: Tensor, y: Tensor) -> Tensor:
    """The other classes' entries [N, C − 1]."""
    n, classes = full.shape
    return full[~F.one_hot(y, classes).bool()].reshape(n, classes - 1)


def of_class(m: float | Tensor, y: Tensor) -> float | Tensor:
    """A number as it stands, or looked up where there is one per class."""
    return m[y] if isinstance(m, Tensor) else m


def loss(z: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy [N] of full logits."""
    return F.cross_entropy(z, y, reduction="none", label_smoothing=label_smoothing)


def psi_curve(theta: Tensor, m: int) -> Tensor:
    """(−1)^k cos(mθ) − 2k on the k-th of m equal parts of [0, π]."""
    value = torch.cos(m * theta)
    for k in range(1, m):
        value = torch.where(theta >= k * math.pi / m, (-1) ** k * torch.cos(m * theta) - 2 * k, value)
    return value


def arcface_curve(theta: Tensor, m: float | Tensor) -> Tensor:
    """cos(θ + m) up to π − m, past it cos θ − m sin m."""
    m = torch.as_tensor(m, dtype=theta.dtype)
    return torch.where(theta <= math.pi - m, torch.cos(theta + m), torch.cos(theta) - m * torch.sin(m))


def anneal(t: int, start: float = 1000.0, gamma: float = 0.12, power: float = 1.0, floor: float = 5.0) -> float:
    """λ in the t-th training call, counted from 1 as the original layers do."""
    return max(floor, start * (1.0 + gamma * t) ** -power)


# ---------------------------------------------------------------- losses that keep lengths


def softmax(x: Tensor, W: Tensor, y: Tensor, bias: Tensor | None = None) -> Tensor:
    z = x @ W.T
    return z if bias is None else z + bias


def modified_softmax(x: Tensor, W: Tensor, y: Tensor) -> Tensor:
    return x @ unit(W).T


def m_softmax(x: Tensor, W: Tensor, y: Tensor, m: float | Tensor = 0.5) -> Tensor:
    z = x @ W.T
    return with_target(z, y, target_of(z, y) - of_class(m, y))


def _annealed(theta: Tensor, m: int, lam: float) -> Tensor:
    return (lam * torch.cos(theta) + psi_curve(theta, m)) / (1.0 + lam)


def l_softmax(x: Tensor, W: Tensor, y: Tensor, m: int = 2, lam: float | None = None, *, t: int = 0) -> Tensor:
    lam = anneal(t + 1) if lam is None else lam  # of the call that follows t training calls
    z = x @ W.T
    theta = torch.acos(target_of(cosines(x, W), y))
    radius = lengths(x).squeeze(1) * lengths(W).squeeze(1)[y]
    return with_target(z, y, radius * _annealed(theta, m, lam))


def a_softmax(x: Tensor, W: Tensor, y: Tensor, m: int = 4, lam: float | None = None, *, t: int = 0) -> Tensor:
    lam = anneal(t + 1) if lam is None else lam  # of the call that follows t training calls
    c = cosines(x, W)
    radius = lengths(x)
    theta = torch.acos(target_of(c, y))
    return with_target(radius * c, y, radius.squeeze(1) * _annealed(theta, m, lam))


# ---------------------------------------------------------------- losses of the cosine alone


def normface(x: Tensor, W: Tensor, y: Tensor, s: float = 30.0) -> Tensor:
    return s * cosines(x, W)


def cosface(x: Tensor, W: Tensor, y: Tensor, s: float = 64.0, m: float | Tensor = 0.35) -> Tensor:
    c = cosines(x, W)
    return s * with_target(c, y, target_of(c, y) - of_class(m, y))


def arcface(x: Tensor, W: Tensor, y: Tensor, s: float = 64.0, m: float | Tensor = 0.5) -> Tensor:
    c = cosines(x, W)
    theta = torch.acos(target_of(c, y))
    return s * with_target(c, y, arcface_curve(theta, of_class(m, y)))


def arcface_straight_through(x: Tensor, W: Tensor, y: Tensor, s: float = 64.0, m: float = 0.5) -> Tensor:
    """ArcFace's values with the slope of the plain cosine at the target."""
    plain = normface(x, W, y, s)
    return plain + (arcface(x, W, y, s, m) - plain).detach()


def combined(
    x: Tensor,
    W: Tensor,
    y: Tensor,
    *,
    s: float = 64.0,
    m1: float = 1.0,
    m2: float | Tensor = 0.5,
    m3: float | Tensor = 0.0,
) -> Tensor:
    c = cosines(x, W)
    turned = m1 * torch.acos(target_of(c, y)) + of_class(m2, y)
    k = torch.floor(turned.detach() / math.pi)
    sign = torch.where(k % 2 == 0, 1.0, -1.0)
    return s * with_target(c, y, sign * torch.cos(turned) - 2.0 * k - of_class(m3, y))


def arcgrad(x: Tensor, W: Tensor, y: Tensor, s: float = 10.0) -> Tensor:
    return -s * torch.acos(cosines(x, W))


# ---------------------------------------------------------------- adaptive losses, batch after batch


class AdaCos:
    """The scale follows the batches. The floor holds for the starting scale too: it is the remedy at two classes."""

    def __init__(self, classes: int, fixed: bool = False, floor: float = 0.0) -> None:
        self.s = max(floor, math.sqrt(2.0) * math.log(classes - 1))
        self.fixed, self.floor = fixed, floor
        self.batches = 0

    def logits(self, x: Tensor, W: Tensor, y: Tensor) -> Tensor:
        return normface(x, W, y, self.s)

    @torch.no_grad()
    def observe(self, x: Tensor, W: Tensor, y: Tensor) -> None:
        """One training batch; the first leaves the scale alone."""
        self.batches += 1
        if self.fixed or self.batches == 1:
            return
        c = cosines(x, W)
        b_average = torch.exp(self.s * without_target(c, y)).sum(1).mean().item()
        median = torch.acos(target_of(c, y)).median().item()
        self.s = max(self.floor, math.log(b_average) / math.cos(min(math.pi / 4, median)))


class AdaAcos:
    """The margin is the median gap of the batch at hand; the scale is fixed."""

    def __init__(self, classes: int, s: float | None = None, floor: float = 0.0) -> None:
        self.s = max(floor, math.log(classes - 1) / math.cos(math.pi / 2.3)) if s is None else s
        self.m = 0.0

    def logits(self, x: Tensor, W: Tensor, y: Tensor) -> Tensor:
        return arcface(x, W, y, self.s, self.m)

    @torch.no_grad()
    def observe(self, x: Tensor, W: Tensor, y: Tensor) -> None:
        """One training batch, which sets the margin for itself."""
        theta = torch.acos(cosines(x, W))
        gap = without_target(theta, y).min(1).values - target_of(theta, y)
        self.m = min(max(gap.median().item(), 0.0), math.pi / 2)
