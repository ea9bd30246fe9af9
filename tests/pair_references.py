"""Pair losses written from their papers' formulas, one pair at a time: (x [N, D], y, options) → [N] for autograd."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Reference = Callable[..., Tensor]


def unit(x: Tensor) -> Tensor:
    return x / x.square().sum(1, keepdim=True).sqrt()


def positives(y: list[int], i: int) -> list[int]:
    return [j for j in range(len(y)) if j != i and y[j] == y[i]]


def negatives(y: list[int], i: int) -> list[int]:
    return [j for j in range(len(y)) if y[j] != y[i]]


def each_anchor(x: Tensor, y: Tensor, loss_of_anchor: Callable[[int, list[int], list[int]], Tensor | float]) -> Tensor:
    labels = y.tolist()
    found = [loss_of_anchor(i, positives(labels, i), negatives(labels, i)) for i in range(len(labels))]
    return torch.stack([torch.as_tensor(v, dtype=x.dtype) + 0.0 * x.sum() for v in found])


def cosine(u: Tensor, i: int, j: int) -> Tensor:
    return (u[i] * u[j]).sum()


def distance(u: Tensor, i: int, j: int) -> Tensor:
    return (u[i] - u[j]).square().sum().sqrt()


def log_sum(values: list[Tensor]) -> Tensor:
    return torch.logsumexp(torch.stack(values), 0)


def log1p_sum(values: list[Tensor]) -> Tensor:
    """log(1 + Σ exp v)."""
    return log_sum([torch.zeros_like(values[0]), *values])


def supcon(x: Tensor, y: Tensor, tau: float = 0.1) -> Tensor:
    u = unit(x)

    def loss(i: int, p: list[int], n: list[int]) -> Tensor | float:
        every = log_sum([cosine(u, i, j) / tau for j in p + n]) if p + n else 0.0
        return -sum(cosine(u, i, j) / tau - every for j in p) / len(p) if p else 0.0

    return each_anchor(x, y, loss)


def nt_xent(x: Tensor, y: Tensor, tau: float = 0.07) -> Tensor:
    u = unit(x)

    def loss(i: int, p: list[int], n: list[int]) -> Tensor | float:
        if not p or not n:
            return 0.0
        terms = [log1p_sum([(cosine(u, i, k) - cosine(u, i, j)) / tau for k in n]) for j in p]
        return sum(terms) / len(p)

    return each_anchor(x, y, loss)


def multi_similarity(
    x: Tensor, y: Tensor, alpha: float = 2, beta: float = 50, lam: float = 0.5, epsilon: float | None = 0.1
) -> Tensor:
    u = unit(x)

    def loss(i: int, p: list[int], n: list[int]) -> Tensor | float:
        if epsilon is not None:
            if not p or not n:
                return 0.0
            hardest = max(cosine(u, i, k).item() for k in n)
            easiest = min(cosine(u, i, j).item() for j in p)
            p = [j for j in p if cosine(u, i, j).item() < hardest + epsilon]
            n = [k for k in n if cosine(u, i, k).item() > easiest - epsilon]
        total = torch.zeros((), dtype=x.dtype)
        if p:
            total = total + log1p_sum([-alpha * (cosine(u, i, j) - lam) for j in p]) / alpha
        if n:
            total = total + log1p_sum([beta * (cosine(u, i, k) - lam) for k in n]) / beta
        return total

    return each_anchor(x, y, loss)


def circle_pairs(x: Tensor, y: Tensor, s: float = 80, m: float = 0.4) -> Tensor:
    u = unit(x)

    def loss(i: int, p: list[int], n: list[int]) -> Tensor | float:
        if not p or not n:
            return 0.0
        of_positives, of_negatives = [], []
        for j in p:
            c = cosine(u, i, j)
            of_positives.append(-s * max(0.0, 1 + m - c.item()) * (c - (1 - m)))
        for k in n:
            c = cosine(u, i, k)
            of_negatives.append(s * max(0.0, c.item() + m) * (c - m))
        return log1p_sum([a + b for a in of_positives for b in of_negatives])

    return each_anchor(x, y, loss)


def margin_pairs(x: Tensor, y: Tensor, alpha: float = 0.2, beta: float = 1.2) -> Tensor:
    """Of every pair (`mining=all`)."""
    u = unit(x)

    def loss(i: int, p: list[int], n: list[int]) -> Tensor | float:
        if not p or not n:
            return 0.0
        costs = [distance(u, i, j) - beta + alpha for j in p] + [beta - distance(u, i, k) + alpha for k in n]
        active = [cost for cost in costs if cost.item() > 0]
        return sum(active) / len(active) if active else 0.0

    return each_anchor(x, y, loss)


def smooth_ap(x: Tensor, y: Tensor, tau: float = 0.01, include_query: bool = True) -> Tensor:
    u = unit(x)

    def loss(i: int, p: list[int], n: list[int]) -> Tensor | float:
        p = [i, *p] if include_query else p
        if not p:
            return 0.0

        def rank(j: int, among: list[int]) -> Tensor:
            steps = [torch.sigmoid((cosine(u, i, k) - cosine(u, i, j)) / tau) for k in among if k != j]
            return 1.0 + sum(steps)

        return 1.0 - sum(rank(j, p) / rank(j, p + n) for j in p) / len(p)

    return each_anchor(x, y, loss)


def recall_at_k(x: Tensor, y: Tensor, k: int = 16, tau: float = 0.01, tau_k: float = 1.0) -> Tensor:
    u = unit(x)
    ks = [one for one in (1, 2, 4, 8, 16, 32) if one < k] + [k]

    def loss(i: int, p: list[int], n: list[int]) -> Tensor | float:
        if not p:
            return 0.0
        ranks = []
        for j in p:
            steps = [torch.sigmoid((cosine(u, i, q) - cosine(u, i, j)) / tau) for q in p + n if q != j]
            ranks.append(1.0 + sum(steps))
        recalls = []
        for one in ks:
            hits = sum(torch.sigmoid((one - rank) / tau_k) for rank in ranks)
            recalls.append(torch.minimum(hits, torch.tensor(float(one), dtype=x.dtype)) / min(one, len(p)))
        return 1.0 - sum(recalls) / len(ks)

    return each_anchor(x, y, loss)


def tuplet(x: Tensor, y: Tensor, s: float = 64, m: float = 0.1) -> Tensor:
    u = unit(x)

    def loss(i: int, p: list[int], n: list[int]) -> Tensor | float:
        if not p or not n:
            return 0.0
        eased = [torch.cos(torch.acos(cosine(u, i, j)) - m) for j in p]
        return sum(log1p_sum([s * (cosine(u, i, k) - own) for k in n]) for own in eased) / len(p)

    return each_anchor(x, y, loss)


def n_pair(x: Tensor, y: Tensor, l2: float = 0.002) -> Tensor:
    labels = y.tolist()
    pairs = []  # (first, second) of each class
    for c in sorted(set(labels)):
        own = [i for i, label in enumerate(labels) if label == c]
        pairs += [(own[k], own[k + 1]) for k in range(0, len(own) - 1, 2)]
    total = [0.5 * l2 * x[i].square().sum() for i in range(len(labels))]
    for a, p in pairs:
        others = [(b, q) for b, q in pairs if labels[b] != labels[a]]
        if others:
            loss = log1p_sum([(x[a] * x[q]).sum() - (x[a] * x[p]).sum() for _, q in others])
            total[a], total[p] = total[a] + loss, total[p] + loss
    return torch.stack(total)


def lifted(x: Tensor, y: Tensor, m: float = 1.0, form: str = "song") -> Tensor:
    u, labels = unit(x), y.tolist()

    def loss(i: int, p: list[int], n: list[int]) -> Tensor | float:
        if not p or not n:
            return 0.0
        if form == "generalized":
            near, far = [distance(u, i, j) for j in p], [m - distance(u, i, k) for k in n]
            return torch.relu(log_sum(near) + log_sum(far))
        total = 0.0
        for j in p:
            terms = [m - distance(u, i, k) for k in n] + [m - distance(u, j, k) for k in negatives(labels, j)]
            total = total + 0.5 * torch.relu(log_sum(terms) + distance(u, i, j)) ** 2
        return total / len(p)

    return each_anchor(x, y, loss)


def angular(x: Tensor, y: Tensor, alpha: float = 0.6981) -> Tensor:
    u, t = unit(x), math.tan(alpha) ** 2

    def loss(i: int, p: list[int], n: list[int]) -> Tensor | float:
        if not p or not n:
            return 0.0
        terms = []
        for j in p:
            own = 2 * (1 + t) * cosine(u, i, j)
            terms.append(log1p_sum([4 * t * ((u[i] + u[j]) * u[k]).sum() - own for k in n]))
        return sum(terms) / len(p)

    return each_anchor(x, y, loss)


def ranked_list(
    x: Tensor, y: Tensor, alpha: float = 1.2, m: float = 0.4, temperature: float = 10, lam: float = 0.5
) -> Tensor:
    u = unit(x)

    def loss(i: int, p: list[int], n: list[int]) -> Tensor | float:
        far = [distance(u, i, j) for j in p if distance(u, i, j).item() > alpha - m]
        near = [distance(u, i, k) for k in n if distance(u, i, k).item() < alpha]
        total = 0.0
        if far:
            total = total + (1 - lam) * sum(d - (alpha - m) for d in far) / len(far)
        if near:
            weights = [math.exp(temperature * (alpha - d.item())) for d in near]
            total = total + lam * sum(w * (alpha - d) for w, d in zip(weights, near, strict=True)) / sum(weights)
        return total

    return each_anchor(x, y, loss)


def fast_ap(x: Tensor, y: Tensor, bins: int = 10) -> Tensor:
    u, width = unit(x), 4.0 / bins

    def loss(i: int, p: list[int], n: list[int]) -> Tensor | float:
        if not p:
            return 0.0

        def pulse(j: int, edge: int) -> Tensor:
            return torch.relu(1.0 - (distance(u, i, j) ** 2 - edge * width).abs() / width)

        own = [sum(pulse(j, b) for j in p) for b in range(bins + 1)]
        every = [sum(pulse(j, b) for j in p + n) for b in range(bins + 1)]
        average = 0.0
        for b in range(bins + 1):
            total = sum(every[: b + 1])
            if total.item() > 0:
                average = average + own[b] * sum(own[: b + 1]) / total
        return 1.0 - average / len(p)

    return each_anchor(x, y, loss)


def proxy_anchor(x: Tensor, y: Tensor, proxies: Tensor, alpha: float = 32, delta: float = 0.1) -> Tensor:
    u, w, labels = unit(x), unit(proxies), y.tolist()
    positive, negative = [], []
    for c in range(len(w)):
        own = [-alpha * ((u[i] * w[c]).sum() - delta) for i, label in enumerate(labels) if label == c]
        others = [alpha * ((u[i] * w[c]).sum() + delta) for i, label in enumerate(labels) if label != c]
        if own:
            positive.append(log1p_sum(own))
        if others:
            negative.append(log1p_sum(others))
    return (sum(positive) / len(positive) + sum(negative) / len(w)).expand(len(labels))


REFERENCES: dict[str, Reference] = {
    function.__name__: function
    for function in (
        supcon,
        nt_xent,
        multi_similarity,
        circle_pairs,
        margin_pairs,
        smooth_ap,
        recall_at_k,
        tuplet,
        n_pair,
        lifted,
        angular,
        ranked_list,
        fast_ap,
    )
}
