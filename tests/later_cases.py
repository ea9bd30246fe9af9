"""References of textbook_later.py under the names that the package's options have.

`make_reference("mv_softmax", 7, form="arc")` is the reference of `mv_softmax(form=arc)` for seven classes. What the two
sides call differently is listed here and nowhere else.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from textbook_later import REFERENCES, Reference

STATE = {"curricularface": ("t",), "adaface": ("mean", "std")}  # what training calls move
# How many weights a class has where none is given.
SUBCENTERS = {"subcenter_arcface": 3, "soft_triple": 10}
# Losses that are not a cross-entropy of logits and have no label smoothing.
NO_CROSS_ENTROPY = ("lm_softmax", "p2sgrad", "proxy_nca", "sphereface2", "uniface")
ONE_VS_ALL = ("p2sgrad", "sphereface2", "uniface")
LEARNT = ("sphereface2", "uniface")  # both a number b


def translate(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options of the package as the reference takes them."""
    found = dict(options)
    if "form" in found:
        found["kind"] = found.pop("form")
    if name == "logit_adjusted" and found.pop("cosine", False):
        found.setdefault("s", 30.0)
    if name == "proxy_nca" and "s" in found:
        found["scale"] = (found.pop("s") / 2.0) ** 0.5
    if name == "proxy_nca_pp" and "s" in found:
        found["temperature"] = 2.0 / found.pop("s")
    return found


def make_reference(name: str, classes: int, **options: Any) -> Reference:
    """The reference of a loss with options as the package names them."""
    return REFERENCES[name](classes, **translate(name, options))


def count_subcenters(name: str, options: dict[str, Any]) -> int:
    """Weights per class."""
    return int(options.get("k", SUBCENTERS.get(name, 1)))


def weight_shape(name: str, options: dict[str, Any], classes: int, dim: int) -> tuple[int, ...]:
    """Shape of the class weights: [C, D], or [C, K, D] with sub-centres."""
    k = count_subcenters(name, options)
    return (classes, dim) if k == 1 else (classes, k, dim)


def keeps_weight_lengths(name: str, options: dict[str, Any]) -> bool:
    """Whether the lengths of class weights are in the loss."""
    if name == "logit_adjusted":
        return not options.get("cosine", False)
    return name in ("softmax", "m_softmax", "l_softmax")


# Options of every loss after ArcFace; those of the first entry are its defaults. "counts" stands for uneven counts.
SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "aam_softmax": (
        {},
        {"s": 9.0, "m": 0.6, "topk": 1, "penalty": 0.2},
        {"s": 9.0, "k": 3, "topk": 1, "penalty": 0.1},
    ),
    "adaface": ({}, {"s": 9.0, "m": 0.3, "h": 0.8, "mean": 3.0, "std": 1.5, "alpha": 0.3}),
    "arcgrad": ({"m": 0.0}, {"s": 8.0, "m": 0.4}),
    "circle": ({}, {"s": 12.0, "m": 0.4}),
    "combined": ({"gradient": "straight_through"}, {"s": 8.0, "m1": 1.2, "m3": 0.1, "gradient": "straight_through"}),
    "curricularface": ({}, {"s": 9.0, "m": 0.9, "t": 0.5, "alpha": 0.3}),
    "elasticface": (
        {},
        {"s": 9.0, "form": "cos"},
        {"s": 9.0, "sigma": 0.3, "plus": True},
        {"s": 9.0, "form": "cos", "plus": True, "m": 0.2},
    ),
    "ldam": ({"counts": "counts"}, {"s": 9.0, "max_m": 0.9, "counts": "counts"}),
    "lm_softmax": ({}, {"s": 9.0}),
    "logit_adjusted": (
        {"counts": "counts"},
        {"tau": 1.7, "counts": "counts"},
        {"cosine": True, "counts": "counts"},
        {"cosine": True, "s": 9.0, "tau": 0.4, "counts": "counts"},
    ),
    "magface": (
        {},
        {"s": 9.0, "l_a": 1.0, "u_a": 5.0, "lambda_g": 3.0},
        {"s": 9.0, "l_a": 1.0, "u_a": 5.0, "lambda_g": 3.0, "easy": True},
    ),
    "mv_softmax": (
        {},
        {"s": 9.0, "t": 0.7},
        {"s": 9.0, "form": "arc", "m": 0.6},
        {"s": 9.0, "easy": True},
        {"s": 9.0, "form": "arc", "easy": True},
    ),
    "p2sgrad": ({}, {"mean": True}),
    "proxy_nca": ({}, {"s": 8.0}),
    "proxy_nca_pp": ({}, {"s": 8.0}),
    "soft_triple": ({}, {"s": 9.0, "m": 0.2, "gamma": 0.3, "k": 3, "tau": 1.1}, {"k": 1}),
    "sphereface2": (
        {},
        {"s": 9.0, "lam": 0.4, "t": 2.0, "weight": 7.0},
        {"s": 9.0, "form": "a"},
        {"s": 9.0, "form": "m", "m": 1.6, "b": -1.0},
    ),
    "sphereface_r": (
        {},
        {"s": 9.0, "version": "v2", "weight": 20.0},
        {"s": 9.0, "gradient": "detached"},
        {"s": 9.0, "version": "v2", "gradient": "detached"},
    ),
    "subcenter_arcface": ({}, {"s": 9.0, "m": 0.9, "k": 2}, {"k": 1}),
    "uniface": ({}, {"s": 9.0, "m": 0.1, "l": 0.3, "b": 1.5}),
}


def spell(name: str, options: dict[str, Any]) -> str:
    """A parse string; in place of counts, which depend on the number of classes, stands {counts}."""
    words = [f"{key}={'{counts}' if value == 'counts' else value}" for key, value in options.items()]
    return f"{name}({', '.join(words)})" if words else name


def with_counts(options: dict[str, Any], classes: int) -> dict[str, Any]:
    """The options with counts for so many classes in their place."""
    return {name: uneven_counts(classes) if value == "counts" else value for name, value in options.items()}


def draw_normals(seed: int, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """The standard normals of so many draws from as many samples [draws, N], in order, when torch was seeded so."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        draws, samples = shape
        return torch.stack([torch.randn(samples, dtype=dtype) for _ in range(draws)]).double()


def uneven_counts(classes: int) -> Tensor:
    """Samples of each class, from many to few and back; the first ones stay as they are when classes are added."""
    return torch.tensor([float(math.ceil(300 * 0.4 ** (c % 6))) for c in range(classes)], dtype=torch.float64)
