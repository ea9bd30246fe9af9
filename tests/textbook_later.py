"""The losses that came after ArcFace, as their formulas write them, in double precision.

Nothing here comes from the package. Every loss is a `Reference` that takes embeddings x [N, D], class weights W
([C, D], or [C, K, D] for K sub-centres per class) and labels y [N]; gradients are autograd's. c_j is the cosine to
class j, θ_j its angle, y the sample's own class, r = ‖x‖, σ₊(z) = log(1 + e^z); "detached" is meant as in PyTorch.
Angles go through `torch.acos`, so nothing here is for cosines of exactly ±1.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

import textbook
from textbook import cosines, of_class, target_of, with_target, without_target

# ---------------------------------------------------------------- pieces


def softplus(z: Tensor) -> Tensor:
    """σ₊(z) = log(1 + e^z); `F.softplus` drops e^−z past z = 20."""
    return -F.logsigmoid(-z)


def subcenter_cosines(x: Tensor, W: Tensor) -> Tensor:
    """All cosines [N, C, K] between embeddings and sub-centres; class weights [C, D] are K = 1."""
    rows = W.unsqueeze(1) if W.dim() == 2 else W
    classes, k, _ = rows.shape
    return cosines(x, rows.flatten(0, 1)).reshape(len(x), classes, k)


def nearest_cosines(x: Tensor, W: Tensor) -> Tensor:
    """The cosine to the nearest sub-centre of every class [N, C]."""
    return subcenter_cosines(x, W).max(2).values


def straight_through(value: Tensor, slope_of: Tensor) -> Tensor:
    """One tensor's values with the other's gradient."""
    return slope_of + (value - slope_of).detach()


def squared_distances(x: Tensor, W: Tensor) -> Tensor:
    """‖x̂ − ŵ_j‖² [N, C] of unit vectors; a row of length 0 is none, and not for this function."""
    return (textbook.unit(x).unsqueeze(1) - textbook.unit(W).unsqueeze(0)).pow(2).sum(2)


def anneal_after(t: int, start: float = 1000.0, gamma: float = 0.12, power: float = 1.0, floor: float = 5.0) -> float:
    """λ of the training call that follows t training calls, as the original layers have it.

    They count before they use the count, so the first training call (t = 0) has λ(1) = start (1 + gamma)^−power.
    """
    return textbook.anneal(t + 1, start, gamma, power, floor)


def refuse(loss: Reference, bias: Tensor | None, label_smoothing: float) -> None:
    """For losses that are not a cross-entropy of logits: neither a bias nor label smoothing is defined."""
    if label_smoothing > 0:
        raise ValueError(f"{type(loss).__name__} is no cross-entropy: label_smoothing must be 0")
    if bias is not None:
        raise ValueError(f"{type(loss).__name__} takes no bias")


# ---------------------------------------------------------------- interface


class Reference:
    """One loss with its options, its state and what it learns beside W."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.learnt: dict[str, Tensor] = {}  # leaves that require a gradient

    def observe(self, x: Tensor, W: Tensor, y: Tensor) -> None:
        """One training batch: moves the state before that batch's loss is computed."""

    def loss(
        self,
        x: Tensor,
        W: Tensor,
        y: Tensor,
        *,
        bias: Tensor | None = None,
        training: bool = False,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """Loss of every sample [N]."""
        raise NotImplementedError

    def logits(self, x: Tensor, W: Tensor) -> Tensor:
        """Logits for inference [N, C], without margin."""
        raise NotImplementedError


class Softmax(Reference):
    """Cross-entropy of full logits. A bias [C] is added to the logits as they enter the cross-entropy."""

    def margin_logits(self, x: Tensor, W: Tensor, y: Tensor) -> Tensor:
        """The logits [N, C] whose cross-entropy is the loss."""
        raise NotImplementedError

    def loss(self, x, W, y, *, bias=None, training=False, label_smoothing=0.0):
        z = self.margin_logits(x, W, y)
        return textbook.loss(z if bias is None else z + bias, y, label_smoothing)


class CosineSoftmax(Softmax):
    """Logits for inference are s cos θ_j."""

    def __init__(self, num_classes: int, s: float) -> None:
        super().__init__(num_classes)
        self.s = s

    def logits(self, x, W):
        return self.s * cosines(x, W)


# ---------------------------------------------------------------- a margin of the class or none: S0, S6


class ArcGrad(Softmax):
    """z_y = −s (θ_y + m), z_j = −s θ_j. Li-ArcFace s′ (1 − 2 (θ_y + m) / π) is this with s = 2 s′ / π."""

    def __init__(self, num_classes: int, *, s: float = 10.0, m: float | Tensor = 0.0) -> None:
        super().__init__(num_classes)
        self.s, self.m = s, m

    def margin_logits(self, x, W, y):
        theta = torch.acos(cosines(x, W))
        return -self.s * with_target(theta, y, target_of(theta, y) + of_class(self.m, y))

    def logits(self, x, W):
        return -self.s * torch.acos(cosines(x, W))


class Combined(CosineSoftmax):
    """`textbook.combined`; "straight_through": these values with the slope of s cos θ_y."""

    def __init__(
        self,
        num_classes: int,
        *,
        s: float = 64.0,
        m1: float = 1.0,
        m2: float | Tensor = 0.5,
        m3: float | Tensor = 0.0,
        gradient: str = "exact",
    ) -> None:
        super().__init__(num_classes, s)
        self.m1, self.m2, self.m3, self.gradient = m1, m2, m3, gradient

    def margin_logits(self, x, W, y):
        z = textbook.combined(x, W, y, s=self.s, m1=self.m1, m2=self.m2, m3=self.m3)
        return {"exact": z, "straight_through": straight_through(z, self.s * cosines(x, W))}[self.gradient]


class LDAM(CosineSoftmax):
    """Target c_y − m_y with m_c = max_m (n_c / min n)^−¼: the rarest class has max_m."""

    def __init__(self, num_classes: int, *, counts: Tensor, max_m: float = 0.5, s: float = 30.0) -> None:
        super().__init__(num_classes, s)
        n = torch.as_tensor(counts, dtype=torch.float64)
        self.m = max_m * (n / n.min()) ** -0.25

    def margin_logits(self, x, W, y):
        c = cosines(x, W)
        return self.s * with_target(c, y, target_of(c, y) - self.m[y])


class LogitAdjusted(Softmax):
    """z_j + τ log(n_j / Σ n) for every j, the target too; z_j = x·W_j, or s cos θ_j if s is given (log after s)."""

    def __init__(self, num_classes: int, *, counts: Tensor, tau: float = 1.0, s: float | None = None) -> None:
        super().__init__(num_classes)
        n = torch.as_tensor(counts, dtype=torch.float64)
        self.adjustment = tau * torch.log(n / n.sum())
        self.s = s

    def margin_logits(self, x, W, y):
        return self.logits(x, W) + self.adjustment

    def logits(self, x, W, bias=None):
        z = x @ W.T if self.s is None else self.s * cosines(x, W)
        return z if bias is None else z + bias


class Circle(CosineSoftmax):
    """Target [1 + m − c_y]₊ (c_y − (1 − m)), others [c_j + m]₊ (c_j − m), the factors [·]₊ detached."""

    def __init__(self, num_classes: int, *, s: float = 256.0, m: float = 0.25) -> None:
        super().__init__(num_classes, s)
        self.m = m

    def margin_logits(self, x, W, y):
        c = cosines(x, W)
        own = target_of(c, y)
        target = (1.0 + self.m - own).clamp(min=0.0).detach() * (own - (1.0 - self.m))
        others = (c + self.m).clamp(min=0.0).detach() * (c - self.m)
        return self.s * with_target(others, y, target)


class SphereFaceR(CosineSoftmax):
    """v1: target cos(min(m θ_y, π)), others cos θ_j. v2: target cos θ_y, others cos(θ_j / m).

    "detached": these values with the slope of the plain cosine, target and others. A weight lw: the loss times lw / s.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        version: str = "v1",
        s: float = 30.0,
        m: float = 1.5,
        weight: float | None = None,
        gradient: str = "exact",
    ) -> None:
        super().__init__(num_classes, s)
        self.version, self.m, self.weight, self.gradient = version, m, weight, gradient

    def margin_logits(self, x, W, y):
        c = cosines(x, W)
        theta = torch.acos(c)
        value = {
            "v1": with_target(c, y, torch.cos((self.m * target_of(theta, y)).clamp(max=math.pi))),
            "v2": with_target(torch.cos(theta / self.m), y, target_of(c, y)),
        }[self.version]
        return self.s * {"exact": value, "detached": straight_through(value, c)}[self.gradient]

    def loss(self, x, W, y, *, bias=None, training=False, label_smoothing=0.0):
        each = super().loss(x, W, y, bias=bias, training=training, label_smoothing=label_smoothing)
        return each if self.weight is None else each * self.weight / self.s


class ProxyNCAPlusPlus(Softmax):
    """Softmax over −‖x̂ − p̂_j‖² / T with the target in the denominator: NormFace with s = 2 / T."""

    def __init__(self, num_classes: int, *, temperature: float = 1.0 / 9.0) -> None:
        super().__init__(num_classes)
        self.temperature = temperature

    def margin_logits(self, x, W, y):
        return self.logits(x, W)

    def logits(self, x, W):
        return -squared_distances(x, W) / self.temperature


class Annealed(Softmax):
    """L- and A-Softmax with λ as the original layers count: one training call more before λ is used."""

    def __init__(
        self,
        num_classes: int,
        *,
        m: int,
        lam: float | None = None,
        start: float = 1000.0,
        gamma: float = 0.12,
        power: float = 1.0,
        floor: float = 5.0,
    ) -> None:
        super().__init__(num_classes)
        self.m, self.fixed_lam = m, lam
        self.schedule = (start, gamma, power, floor)
        self.calls = 0  # training calls so far, the one under way included

    def observe(self, x, W, y):
        self.calls += 1

    @property
    def lam(self) -> float:
        """λ now; λ(0) = start before the first training call."""
        return textbook.anneal(self.calls, *self.schedule) if self.fixed_lam is None else self.fixed_lam


class LSoftmax(Annealed):
    """`textbook.l_softmax`."""

    def __init__(self, num_classes: int, *, m: int = 2, **options: float) -> None:
        super().__init__(num_classes, m=m, **options)

    def margin_logits(self, x, W, y):
        return textbook.l_softmax(x, W, y, self.m, self.lam)

    def logits(self, x, W):
        return x @ W.T


class ASoftmax(Annealed):
    """`textbook.a_softmax`."""

    def __init__(self, num_classes: int, *, m: int = 4, **options: float) -> None:
        super().__init__(num_classes, m=m, **options)

    def margin_logits(self, x, W, y):
        return textbook.a_softmax(x, W, y, self.m, self.lam)

    def logits(self, x, W):
        return x @ textbook.unit(W).T


# ---------------------------------------------------------------- the others know the target: S2


class CurricularFace(CosineSoftmax):
    """Target ArcFace; others c_j, but c_j (t + c_j) where c_j > cos(θ_y + m), with the gradient of both factors.

    The comparison takes cos(θ_y + m) as it is, also past π − m where the target's curve leaves it.
    t follows the mean target cosine of the training batches.
    """

    def __init__(
        self, num_classes: int, *, s: float = 64.0, m: float | Tensor = 0.5, alpha: float = 0.01, t: float = 0.0
    ) -> None:
        super().__init__(num_classes, s)
        self.m, self.alpha, self.t = m, alpha, t

    @torch.no_grad()
    def observe(self, x, W, y):
        self.t = self.alpha * target_of(cosines(x, W), y).mean().item() + (1.0 - self.alpha) * self.t

    def margin_logits(self, x, W, y):
        c = cosines(x, W)
        theta = torch.acos(target_of(c, y))
        m = of_class(self.m, y)
        hard = c > torch.cos(theta + m).unsqueeze(1)
        others = torch.where(hard, c * (self.t + c), c)
        return self.s * with_target(others, y, textbook.arcface_curve(theta, m))


class MVSoftmax(CosineSoftmax):
    """Target c_y − m ("am") or cos(θ_y + m) ("arc", not guarded past π − m); others (1 + t) c_j + t above the target.

    `easy`: the target is c_y where c_y ≤ 0, as in the authors' code, which compares as if it had its margin.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        s: float = 32.0,
        m: float | Tensor = 0.35,
        t: float = 0.2,
        kind: str = "am",
        easy: bool = False,
    ) -> None:
        super().__init__(num_classes, s)
        self.m, self.t, self.kind, self.easy = m, t, kind, easy

    def margin_logits(self, x, W, y):
        c = cosines(x, W)
        own, m = target_of(c, y), of_class(self.m, y)
        target = {"am": own - m, "arc": torch.cos(torch.acos(own) + m)}[self.kind]
        hard = c > target.unsqueeze(1)
        if self.easy:
            target = torch.where(own <= 0.0, own, target)
        return self.s * with_target(torch.where(hard, (1.0 + self.t) * c + self.t, c), y, target)


# ---------------------------------------------------------------- numbers of the sample: S1


class AdaFace(CosineSoftmax):
    """Target cos(θ_y − m q) − (m + m q), the angle clipped to [0, π]; q = h (r − mean) / (std + 0.001) in [−1, 1].

    r is the length of x clipped to [0.001, 100], detached. Mean and standard deviation (unbiased) of r follow the
    training batches; a batch of one sample has no deviation and moves the mean alone.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        s: float = 64.0,
        m: float | Tensor = 0.4,
        h: float = 0.333,
        alpha: float = 0.01,
        mean: float = 20.0,
        std: float = 100.0,
    ) -> None:
        super().__init__(num_classes, s)
        self.m, self.h, self.alpha, self.mean, self.std = m, h, alpha, mean, std

    @staticmethod
    def clipped_lengths(x: Tensor) -> Tensor:
        return x.detach().norm(dim=1).clamp(1e-3, 100.0)

    def observe(self, x, W, y):
        r = self.clipped_lengths(x)
        self.mean = self.alpha * r.mean().item() + (1.0 - self.alpha) * self.mean
        if len(r) > 1:
            self.std = self.alpha * r.std(correction=1).item() + (1.0 - self.alpha) * self.std

    def margin_logits(self, x, W, y):
        c = cosines(x, W)
        q = (self.h * (self.clipped_lengths(x) - self.mean) / (self.std + 1e-3)).clamp(-1.0, 1.0)
        m = of_class(self.m, y)
        theta = (torch.acos(target_of(c, y)) - m * q).clamp(0.0, math.pi)
        return self.s * with_target(c, y, torch.cos(theta) - (m + m * q))


class MagFace(CosineSoftmax):
    """ArcFace with m(a) = l_m + (u_m − l_m) (a − l_a) / (u_a − l_a), plus λ_g (1/a + a/u_a²); a = clip(r, l_a, u_a).

    Nothing is detached: r has the gradient of the margin, on both branches of ArcFace's curve, and of the added term;
    none outside [l_a, u_a]. `easy`: the target is cos θ_y for θ_y > 90°.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        s: float = 64.0,
        l_a: float = 10.0,
        u_a: float = 110.0,
        l_m: float = 0.45,
        u_m: float = 0.8,
        lambda_g: float = 35.0,
        easy: bool = False,
    ) -> None:
        super().__init__(num_classes, s)
        self.l_a, self.u_a, self.l_m, self.u_m = l_a, u_a, l_m, u_m
        self.lambda_g, self.easy = lambda_g, easy

    def clipped_lengths(self, x: Tensor) -> Tensor:
        return textbook.lengths(x).squeeze(1).clamp(self.l_a, self.u_a)

    def margin_logits(self, x, W, y):
        c = cosines(x, W)
        own = target_of(c, y)
        m = self.l_m + (self.u_m - self.l_m) * (self.clipped_lengths(x) - self.l_a) / (self.u_a - self.l_a)
        target = textbook.arcface_curve(torch.acos(own), m)
        if self.easy:
            target = torch.where(own < 0.0, own, target)
        return self.s * with_target(c, y, target)

    def loss(self, x, W, y, *, bias=None, training=False, label_smoothing=0.0):
        a = self.clipped_lengths(x)
        each = super().loss(x, W, y, bias=bias, training=training, label_smoothing=label_smoothing)
        return each + self.lambda_g * (1.0 / a + a / self.u_a**2)


class ElasticFace(CosineSoftmax):
    """Target cos(θ_y + m_i) ("arc", not guarded) or c_y − m_i ("cos"), m_i = m + sigma · draw_i in training, else m.

    The draws [N] are standard normals, given by the caller. `plus`: the margins of the batch are dealt out anew so
    that the smallest target cosine has the largest margin (the intended form; no gradient through the order).
    """

    def __init__(
        self,
        num_classes: int,
        *,
        kind: str = "arc",
        s: float = 64.0,
        m: float | None = None,
        sigma: float | None = None,
        plus: bool = False,
    ) -> None:
        super().__init__(num_classes, s)
        if sigma is None:
            sigma = {"arc": 0.0175, "cos": 0.02}[kind] if plus else 0.05
        self.kind, self.sigma, self.plus = kind, sigma, plus
        self.m = {"arc": 0.5, "cos": 0.35}[kind] if m is None else m

    def margins(self, own: Tensor, draws: Tensor | None) -> Tensor:
        """The margin of every sample [N], for target cosines [N]; without draws it is m."""
        if draws is None:
            return torch.full_like(own, self.m).detach()
        m = self.m + self.sigma * draws
        if self.plus:
            dealt = torch.empty_like(m)
            dealt[own.detach().argsort()] = m.sort(descending=True).values
            return dealt
        return m

    def loss(self, x, W, y, *, bias=None, training=False, label_smoothing=0.0, draws=None):
        if training and draws is None:
            raise ValueError("ElasticFace in training needs draws, a standard normal number per sample")
        c = cosines(x, W)
        own = target_of(c, y)
        m = self.margins(own, draws if training else None)
        target = {"arc": torch.cos(torch.acos(own) + m), "cos": own - m}[self.kind]
        z = self.s * with_target(c, y, target)
        return textbook.loss(z if bias is None else z + bias, y, label_smoothing)


# ---------------------------------------------------------------- several rows per class: S3


class SubcenterArcFace(Softmax):
    """ArcFace on c_j = max_k cos θ_jk."""

    def __init__(self, num_classes: int, *, s: float = 64.0, m: float | Tensor = 0.5, k: int = 3) -> None:
        super().__init__(num_classes)
        self.s, self.m, self.k = s, m, k

    def margin_logits(self, x, W, y):
        c = nearest_cosines(x, W)
        return self.s * with_target(c, y, textbook.arcface_curve(torch.acos(target_of(c, y)), of_class(self.m, y)))

    def logits(self, x, W):
        return self.s * nearest_cosines(x, W)


class AAMSoftmax(Softmax):
    """c_j = max_k cos θ_jk; target cos(θ_y + m) up to π − m, past it cos θ_y − 1 + cos m.

    At θ = π − m both are −1 (cos(π − m) = −cos m): the curve is continuous there, its slope jumps from 0 to −sin m.
    The `topk` largest other cosines of each sample are cos(θ_j − penalty), as it stands for θ_j < penalty too. Where
    equal cosines make it more than `topk`, those equal to the last one are left as they are: no order decides.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        s: float = 32.0,
        m: float | Tensor = 0.2,
        k: int = 1,
        topk: int = 0,
        penalty: float = 0.06,
    ) -> None:
        super().__init__(num_classes)
        self.s, self.m, self.k, self.topk, self.penalty = s, m, k, topk, penalty

    def margin_logits(self, x, W, y):
        c = nearest_cosines(x, W)
        theta = torch.acos(target_of(c, y))
        m = torch.as_tensor(of_class(self.m, y), dtype=c.dtype)
        target = torch.where(theta <= math.pi - m, torch.cos(theta + m), torch.cos(theta) - 1.0 + torch.cos(m))
        others = c
        if self.topk:
            candidates = with_target(c.detach(), y, torch.full_like(theta, -math.inf))
            nearest = candidates > candidates.topk(self.topk + 1, dim=1).values[:, -1:]
            others = torch.where(nearest, torch.cos(torch.acos(c) - self.penalty), c)
        return self.s * with_target(others, y, target)

    def logits(self, x, W):
        return self.s * nearest_cosines(x, W)


class SoftTriple(Softmax):
    """CosFace on S_c = Σ_k softmax_k(c_k / gamma) c_k, plus a penalty on distances between the centres of a class.

    The penalty tau / (C K (K − 1)) · Σ_c Σ_{k<l} √(2 + 1e-5 − 2 ŵ_ck·ŵ_cl) is in every sample's loss, so that the
    mean over a batch has it once; with K = 1 there are no pairs and it is 0.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        s: float = 20.0,
        m: float | Tensor = 0.01,
        gamma: float = 0.1,
        k: int = 10,
        tau: float = 0.2,
    ) -> None:
        super().__init__(num_classes)
        self.s, self.m, self.gamma, self.k, self.tau = s, m, gamma, k, tau

    def similarities(self, x: Tensor, W: Tensor) -> Tensor:
        c = subcenter_cosines(x, W)
        return (torch.softmax(c / self.gamma, dim=2) * c).sum(2)

    def margin_logits(self, x, W, y):
        similarity = self.similarities(x, W)
        return self.s * with_target(similarity, y, target_of(similarity, y) - of_class(self.m, y))

    def penalty(self, W: Tensor) -> Tensor:
        rows = W.unsqueeze(1) if W.dim() == 2 else W
        classes, k, dim = rows.shape
        if k == 1:
            return torch.zeros((), dtype=W.dtype)
        unit = textbook.unit(rows.reshape(classes * k, dim)).reshape(classes, k, dim)
        pairs = torch.combinations(torch.arange(k), 2)
        total = (2.0 + 1e-5 - 2.0 * (unit[:, pairs[:, 0]] * unit[:, pairs[:, 1]]).sum(2)).sqrt().sum()
        return self.tau / (classes * k * (k - 1)) * total

    def loss(self, x, W, y, *, bias=None, training=False, label_smoothing=0.0):
        each = super().loss(x, W, y, bias=bias, training=training, label_smoothing=label_smoothing)
        return each + self.penalty(W)

    def logits(self, x, W):
        return self.s * self.similarities(x, W)


# ---------------------------------------------------------------- one against all: S4


def sphereface2_bias(own: float, other: float, lam: float, num_classes: int) -> float:
    """The b at which ∂loss/∂b = 0 when the target has the score `own` and every other class the score `other`.

    λ σ(−(own + b)) = (1 − λ) (C − 1) σ(other + b). With u = e^b, A = e^own, B = e^other, z = λ / ((1 − λ) (C − 1))
    that is z (1 + B u) = B u (1 + A u), i.e. A B u² + (1 − z) B u − z = 0, and with q = √((1 − z)² + 4 z A / B) the
    positive root is 2 z / (B (1 − z + q)) = (z − 1 + q) / (2 A). Of the two forms the one that adds: for z > 1 (few
    classes) 1 − z + q is of the order of A / B, e^−32 by default, and rounding leaves little of it.
    """
    z = lam / ((1.0 - lam) * (num_classes - 1))
    q = math.sqrt((1.0 - z) ** 2 + 4.0 * z * math.exp(own - other))
    return math.log(2.0 * z) - other - math.log(1.0 - z + q) if z <= 1.0 else math.log((z - 1.0 + q) / 2.0) - own


class SphereFace2(Reference):
    """(weight / s) [λ σ₊(−(s target + b)) + (1 − λ) Σ_{j≠y} σ₊(s other_j + b)], g(c) = 2 ((c + 1) / 2)^t − 1, b learnt.

    "c": target g(c_y) − m, others g(c_j) + m. "a": target g(cos(min(θ_y + m, π))), "m": target g(cos(min(m θ_y, π))),
    others g(c_j) in both. b starts where its gradient is 0 with every angle at 90°.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        kind: str = "c",
        s: float = 40.0,
        m: float = 0.4,
        lam: float = 0.7,
        t: float = 3.0,
        weight: float = 1.0,
        b: float | None = None,
    ) -> None:
        super().__init__(num_classes)
        self.kind, self.s, self.m, self.lam, self.t, self.weight = kind, s, m, lam, t, weight
        if b is None:
            own, other = self.scores(torch.zeros((), dtype=torch.float64))
            b = sphereface2_bias(s * own.item(), s * other.item(), lam, num_classes)
        self.learnt["b"] = torch.tensor(b, dtype=torch.float64, requires_grad=True)

    def g(self, c: Tensor) -> Tensor:
        return 2.0 * ((c + 1.0) / 2.0) ** self.t - 1.0

    def scores(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """For every cosine, its score as the target's and as another class's."""
        if self.kind == "c":
            return self.g(c) - self.m, self.g(c) + self.m
        theta = torch.acos(c)
        turned = {"a": theta + self.m, "m": self.m * theta}[self.kind]
        return self.g(torch.cos(turned.clamp(max=math.pi))), self.g(c)

    def loss(self, x, W, y, *, bias=None, training=False, label_smoothing=0.0):
        refuse(self, bias, label_smoothing)
        own, others = self.scores(cosines(x, W))
        b = self.learnt["b"]
        positive = softplus(-(self.s * target_of(own, y) + b))
        negative = softplus(self.s * without_target(others, y) + b).sum(1)
        return self.weight / self.s * (self.lam * positive + (1.0 - self.lam) * negative)

    def logits(self, x, W):
        return self.s * self.g(cosines(x, W)) + self.learnt["b"]


class UniFace(Reference):
    """σ₊(b − s (c_y − m)) + l Σ_{j≠y} σ₊(s c_j − b), b learnt, at first log(10 C)."""

    def __init__(
        self,
        num_classes: int,
        *,
        s: float = 64.0,
        m: float | Tensor = 0.4,
        l: float = 1.0,  # noqa: E741 (the paper's name)
        b: float | None = None,
    ) -> None:
        super().__init__(num_classes)
        self.s, self.m, self.l = s, m, l
        start = math.log(10.0 * num_classes) if b is None else b
        self.learnt["b"] = torch.tensor(start, dtype=torch.float64, requires_grad=True)

    def loss(self, x, W, y, *, bias=None, training=False, label_smoothing=0.0):
        refuse(self, bias, label_smoothing)
        c = cosines(x, W)
        b = self.learnt["b"]
        positive = softplus(b - self.s * (target_of(c, y) - of_class(self.m, y)))
        return positive + self.l * softplus(self.s * without_target(c, y) - b).sum(1)

    def logits(self, x, W):
        return self.s * cosines(x, W) - self.learnt["b"]


class P2SGrad(Reference):
    """½ Σ_j (c_j − [j = y])² over all classes; `mean`: the mean over classes of the squares, 2 / C of it."""

    def __init__(self, num_classes: int, *, mean: bool = False) -> None:
        super().__init__(num_classes)
        self.mean = mean

    def loss(self, x, W, y, *, bias=None, training=False, label_smoothing=0.0):
        refuse(self, bias, label_smoothing)
        c = cosines(x, W)
        squares = (c - F.one_hot(y, c.shape[1])).pow(2)
        return squares.mean(1) if self.mean else 0.5 * squares.sum(1)

    def logits(self, x, W):
        return cosines(x, W)


# ---------------------------------------------------------------- the target not in the denominator: S5


class LMSoftmax(Reference):
    """log Σ_{j≠y} e^{s c_j} − s c_y: not bounded below."""

    def __init__(self, num_classes: int, *, s: float = 64.0) -> None:
        super().__init__(num_classes)
        self.s = s

    def loss(self, x, W, y, *, bias=None, training=False, label_smoothing=0.0):
        refuse(self, bias, label_smoothing)
        z = self.logits(x, W)
        return torch.logsumexp(without_target(z, y), 1) - target_of(z, y)

    def logits(self, x, W):
        return self.s * cosines(x, W)


class ProxyNCA(Reference):
    """d_y + log Σ_{j≠y} e^{−d_j}, d_j = scale² ‖x̂ − p̂_j‖²."""

    def __init__(self, num_classes: int, *, scale: float = 3.0) -> None:
        super().__init__(num_classes)
        self.scale = scale

    def loss(self, x, W, y, *, bias=None, training=False, label_smoothing=0.0):
        refuse(self, bias, label_smoothing)
        d = self.scale**2 * squared_distances(x, W)
        return target_of(d, y) + torch.logsumexp(-without_target(d, y), 1)

    def logits(self, x, W):
        """−d_j: 2 scale² cos θ_j less the constant 2 scale²."""
        return -(self.scale**2) * squared_distances(x, W)


REFERENCES: dict[str, type[Reference]] = {
    "arcgrad": ArcGrad,
    "combined": Combined,
    "l_softmax": LSoftmax,
    "a_softmax": ASoftmax,
    "subcenter_arcface": SubcenterArcFace,
    "ldam": LDAM,
    "logit_adjusted": LogitAdjusted,
    "curricularface": CurricularFace,
    "mv_softmax": MVSoftmax,
    "adaface": AdaFace,
    "magface": MagFace,
    "elasticface": ElasticFace,
    "sphereface_r": SphereFaceR,
    "sphereface2": SphereFace2,
    "uniface": UniFace,
    "circle": Circle,
    "p2sgrad": P2SGrad,
    "lm_softmax": LMSoftmax,
    "proxy_nca": ProxyNCA,
    "proxy_nca_pp": ProxyNCAPlusPlus,
    "soft_triple": SoftTriple,
    "aam_softmax": AAMSoftmax,
}
