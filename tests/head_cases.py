"""What a head can be, as data: for laws/test_heads.py and its ranks.

A case is a loss with its numbers, a backend, compiled kernels or not, a dtype, a size, one operation of a head's life,
and class weights of ordinary or extreme length. `run` puts a head through three training calls; what it must see then
is in head_references.py.
"""

from __future__ import annotations

import copy
import itertools
import pickle
import random
import warnings
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import widemargin as wm
from later_cases import NO_CROSS_ENTROPY, STATE, uneven_counts, weight_shape

STEPS = 3
MORE = 3  # classes that `extend` adds
# Samples, classes, dimensions; the second has over 2^20 logits, from which kernels are compiled.
SIZES = {"small": (9, 7, 6), "beyond": (96, 12_000, 16)}
BACKENDS = ("dense", "stream", "auto", "sampled", "sharded")
WEIGHTS = ("ordinary", "zero row", "all zero", "tiny", "huge", "some subcenters")
OPERATIONS = (
    "none",
    "extend",
    "deepcopy",
    "pickle",
    "state_dict",
    "assign_from",
    "double",
    "evaluate",
    "accumulate",
    "two forwards",
    "mix",
    "frozen",
)

# Every loss of the registry has its entries here: options as the reference reads them.
LOSSES: dict[str, tuple[dict[str, Any], ...]] = {
    "softmax": ({}, {"bias": True}),
    "modified_softmax": ({},),
    "m_softmax": ({"m": 0.5}, {"m": "per class"}),
    "l_softmax": ({}, {"m": 1}, {"m": 3, "lam": 0.0}),
    "a_softmax": ({}, {"m": 1}, {"m": 2, "lam": 0.0}),
    "normface": ({"s": 12.0}, {"s": "learnable"}),
    "cosface": ({"s": 12.0, "m": 0.2}, {"s": "learnable", "m": "warmup"}, {"s": 12.0, "m": "per class"}),
    "arcface": (
        {"s": 12.0, "m": 0.3},
        {"s": 12.0, "m": 0.3, "gradient": "straight_through"},
        {"s": 9.0, "m": "per class"},
    ),
    "combined": (
        {"s": 8.0, "m1": 1.1, "m2": 0.2, "m3": 0.1},
        {"s": "learnable", "m1": 1.0, "m2": 0.3, "m3": "per class"},
    ),
    "adacos": ({}, {"fixed": True}, {"floor": 5.0}),
    "adaacos": ({}, {"s": 6.0}),
    # The third: all logits far below 0.
    "arcgrad": ({"s": 8.0}, {"s": "learnable"}, {"s": 120.0}, {"s": 8.0, "m": "per class"}),
    "subcenter_arcface": ({"s": 9.0, "m": 0.3}, {"s": "learnable", "m": "per class", "k": 2}),
    "ldam": ({"s": 9.0, "counts": "counts"}, {"s": "learnable", "max_m": 0.3, "counts": "counts"}),
    "logit_adjusted": (
        {"counts": "counts"},
        {"counts": "counts", "tau": 0.6, "bias": True},
        {"counts": "counts", "cosine": True, "s": 7.0},
    ),
    "curricularface": ({"s": 9.0, "alpha": 0.4}, {"s": "learnable", "m": "warmup", "t": 0.3}),
    "mv_softmax": (
        {"s": 9.0},
        {"s": "learnable", "form": "arc", "m": 0.4, "t": "warmup"},
        {"s": 9.0, "easy": True},
    ),
    "adaface": (
        {"s": 9.0, "mean": 2.0, "std": 0.8, "alpha": 0.3},
        {"s": "learnable", "m": "warmup", "h": 0.9, "mean": 2.0, "std": 0.3},
    ),
    "magface": (
        {"s": 9.0, "l_a": 1.5, "u_a": 3.5, "lambda_g": 6.0},
        {"s": 9.0, "l_a": 1.5, "u_a": 3.5, "lambda_g": 6.0, "easy": True},
    ),
    "elasticface": (
        {"s": 9.0, "sigma": 0.1},
        {"s": "learnable", "form": "cos", "plus": True, "sigma": "warmup"},
        {"s": 9.0, "form": "cos", "sigma": 0.2},
    ),
    "sphereface_r": (
        {"s": 9.0, "m": 1.4},
        {"s": "learnable", "version": "v2", "weight": 20.0},
        {"s": 9.0, "version": "v2", "gradient": "detached"},
        {"s": 9.0, "gradient": "detached"},
    ),
    "sphereface2": ({"s": 9.0}, {"s": 9.0, "form": "a", "weight": 5.0}, {"s": 9.0, "form": "m", "m": 1.4, "b": -3.0}),
    "uniface": ({"s": 9.0}, {"s": "learnable", "m": "per class", "l": 0.6, "b": 2.0}),
    "circle": ({"s": 12.0}, {"s": "learnable", "m": 0.4}),
    "p2sgrad": ({}, {"mean": True}),
    "lm_softmax": ({"s": 9.0}, {"s": "learnable"}),
    "proxy_nca": ({}, {"s": 8.0}),
    "proxy_nca_pp": ({}, {"s": 8.0}),
    "soft_triple": ({"k": 3}, {"s": "learnable", "m": "per class", "k": 2, "tau": "warmup"}),
    "aam_softmax": (
        {"s": 9.0},
        {"s": "learnable", "m": "warmup", "topk": 2, "penalty": 0.2},
        {"s": 9.0, "m": "per class", "k": 3, "topk": 3, "penalty": 0.1},
    ),
}
LEARNABLE_START = 9.0
WARMUP = (0.0, 0.3, 2)  # start, end, steps


@dataclass(frozen=True)
class Case:
    """One head and what happens to it."""

    loss: str
    variant: int = 0
    backend: str = "dense"
    compiled: bool = False
    dtype: str = "float64"
    size: str = "small"
    operation: str = "none"
    weights: str = "ordinary"
    label_smoothing: float = 0.0
    seed: int = 0

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in LOSSES[self.loss][self.variant].items())
        compiled = ", compiled" if self.compiled else ""
        smooth = f", label_smoothing {self.label_smoothing}" if self.label_smoothing else ""
        return (
            f"{self.loss}({options}), {self.backend}{compiled}, {self.dtype}, {self.size}, {self.operation}, "
            f"{self.weights} weights{smooth}"
        )

    @property
    def tolerance(self) -> float:
        """Largest relative error: in fp32 that of sums over thousands of classes, in fp64 far below."""
        return 1e-9 if self.dtype == "float64" else 2e-5

    @property
    def options(self) -> dict[str, Any]:
        return LOSSES[self.loss][self.variant]

    def per_class(self, name: str, classes: int) -> Tensor:
        """Numbers per class of an option, margins or counts; the first stay as they are when classes are added."""
        if self.options[name] == "counts":
            return uneven_counts(classes)
        return 0.1 + 0.05 * (torch.arange(classes, dtype=torch.float64) % 4)

    @property
    def per_class_options(self) -> list[str]:
        return [name for name, value in self.options.items() if value in ("per class", "counts")]

    def spec(self, classes: int) -> str:
        """The parse string."""
        written = {
            "learnable": f"learnable({LEARNABLE_START})",
            "warmup": f"warmup({WARMUP[0]}, {WARMUP[1]}, steps={WARMUP[2]})",
        }
        written |= {
            self.options[name]: [round(number, 6) for number in self.per_class(name, classes).tolist()]
            for name in self.per_class_options
        }
        words = [f"{name}={written.get(value, value)}" for name, value in self.options.items()]
        return f"{self.loss}({', '.join(words)})" if words else self.loss


@dataclass
class Step:
    """The input of one training call, for all ranks."""

    x: Tensor
    y: Tensor
    other: Tensor
    weight: Tensor
    bias: Tensor


def inputs(case: Case, step: int, classes: int) -> Step:
    """Embeddings, labels and class weights of a call, the same in every process."""
    samples, _, dim = SIZES[case.size]
    draw = torch.Generator().manual_seed(1000 * case.seed + 10 * step + 1)

    def normal(*shape: int) -> Tensor:
        # Numbers of single precision, so that both precisions are given the very same.
        return torch.randn(*shape, generator=draw, dtype=torch.float32).double()

    shape = weight_shape(case.loss, case.options, classes, dim)
    x, weight = normal(samples, dim), normal(*shape) * dim**-0.5
    y, other = (torch.randint(classes, (samples,), generator=draw) for _ in range(2))
    some = torch.unique(y)[::2]  # targets among them
    if case.weights == "zero row":
        weight[some] = 0.0
    elif case.weights == "all zero":
        weight.zero_()
    elif case.weights in ("tiny", "huge"):
        weight[some] *= 2.0 ** (-66 if case.weights == "tiny" else 66)
    elif case.weights == "some subcenters" and weight.ndim == 3:
        weight[some, 0] = 0.0
        weight[some, 1] *= 2.0**66
    return Step(x, y, other, weight, normal(classes))


def shares(world: int, samples: int, step: int) -> list[slice]:
    """Unequal shares of a batch; in the last call the last rank has nothing."""
    if world == 1:
        return [slice(0, samples)]
    cuts = [0, samples // 2 + 1, *([samples] * (world - 1))]
    if world == 3:
        cuts = [0, samples // 3, samples - 1 if step < STEPS - 1 else samples, samples]
    return [slice(a, b) for a, b in pairwise(cuts)]


@dataclass
class Record:
    """What three calls gave: losses of this rank's samples, gradients of the mean over all samples."""

    loss: list[Tensor] = field(default_factory=list)
    to_x: list[Tensor] = field(default_factory=list)
    to_weight: list[Tensor] = field(default_factory=list)
    to_bias: list[Tensor] = field(default_factory=list)
    to_scale: list[Tensor] = field(default_factory=list)
    to_learnt: list[Tensor] = field(default_factory=list)
    state: list[Tensor] = field(default_factory=list)
    evaluated: list[Tensor] = field(default_factory=list)


# ---------------------------------------------------------------- the head


def make_head(case: Case, classes: int, group: Any = None, **other: Any) -> wm.Head:
    options = {"backend": case.backend, "label_smoothing": case.label_smoothing, "group": group, **other}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return wm.Head(SIZES[case.size][2], classes, case.spec(classes), dtype=getattr(torch, case.dtype), **options)


def run(case: Case, rank: int = 0, world: int = 1, group: Any = None) -> Record:
    """A head through three training calls, with the case's operation after the first."""
    samples, classes, _ = SIZES[case.size]
    torch.manual_seed(case.seed)
    head = make_head(case, classes, group)
    if case.operation == "frozen":
        for parameter in head.margin_state.parameters():
            parameter.requires_grad_(False)
    seen = Record()
    for step in range(STEPS):
        if step == 1:
            head = _operate(case, head, group)
        given = inputs(case, step, head.num_classes)
        mine = shares(world, samples, step)[rank]
        _set_weights(head, given)
        dtype = head.weight.dtype
        x = given.x[mine].to(dtype).requires_grad_()
        y, other = given.y[mine], given.other[mine]
        head.zero_grad()
        mix = (other, 0.7) if case.operation == "mix" else None
        if case.operation == "evaluate":
            head.eval()
            seen.evaluated.append(head(x, y).detach())
            head.train()
        calls = 2 if case.operation in ("accumulate", "two forwards") else 1
        losses = []
        for call in range(calls):
            torch.manual_seed(seed_of_draws(case, step, call))
            losses.append(head(x, y, mix=mix))
            if case.operation != "two forwards":
                (losses[-1].sum() * world / samples).backward()
        if case.operation == "two forwards":
            ((losses[0].sum() + losses[1].sum()) * world / samples).backward()
        seen.loss.append(losses[-1].detach())
        seen.to_x.append(x.grad / world)
        seen.to_weight.append(head.weight.grad.detach().clone())
        if head.bias is not None:
            seen.to_bias.append(head.bias.grad.detach().clone())
        scale = getattr(head.margin_state, "log_s", None)
        if scale is not None and scale.requires_grad:
            seen.to_scale.append(scale.grad.detach().clone())
        learnt = getattr(head.margin_state, "learnt_b", None)
        if learnt is not None and learnt.requires_grad:
            seen.to_learnt.append(learnt.grad.detach().clone())
        seen.state += [getattr(head.margin_state, f"state_{name}").reshape(1) for name in STATE.get(case.loss, ())]
    if case.operation == "frozen":
        assert not any(p.requires_grad for p in head.margin_state.parameters()), "a frozen number learns again"
    return seen


def seed_of_draws(case: Case, step: int, call: int) -> int:
    return 100_000 + 100 * case.seed + 10 * step + call


def _set_weights(head: wm.Head, given: Step) -> None:
    here = slice(None) if head.shard is None else slice(head.shard.start, head.shard.stop)
    with torch.no_grad():
        head.weight.copy_(given.weight[here])
        if head.bias is not None:
            head.bias.copy_(given.bias[here])


def _operate(case: Case, head: wm.Head, group: Any) -> wm.Head:
    """The operation of a head's life that comes between the first and the second call."""
    operation = case.operation
    if operation in ("extend", "frozen"):
        before, taken = head.gather_weight().clone(), head.scale
        more = {name: case.per_class(name, head.num_classes + MORE)[-MORE:].tolist() for name in case.per_class_options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            head.extend(MORE, **more)
        assert torch.equal(head.gather_weight()[: len(before)], before), "extend changed weights that were there"
        assert case.loss == "adaacos" or abs(head.scale - taken) < 1e-6 * max(1.0, taken)
        return head
    if operation == "deepcopy":
        return copy.deepcopy(head)
    if operation == "pickle":
        if group is not None:  # a process group cannot be pickled: what is read again belongs to none
            return head
        return pickle.loads(pickle.dumps(head))
    if operation == "state_dict":
        fresh = make_head(case, head.num_classes, group)
        fresh.load_state_dict(head.state_dict())
        return fresh
    if operation == "assign_from":
        smoothing = 0.0 if case.loss in NO_CROSS_ENTROPY else 0.25
        other = make_head(case, head.num_classes, group, backend="stream", label_smoothing=smoothing)
        other.eval()
        other.assign_from(head)
        assert (other.backend, other.label_smoothing, other.training) == (
            head.backend,
            head.label_smoothing,
            head.training,
        )
        return other
    return head.double() if operation == "double" else head


# ---------------------------------------------------------------- which cases


def is_possible(case: Case) -> bool:
    """Whether a case says something: a conversion to double starts from single, and so on."""
    if case.operation == "double" and case.dtype == "float64":
        return False
    if case.size == "beyond" and "per class" in case.options.values():
        return False  # a spec of twelve thousand numbers; small heads have them
    if case.label_smoothing and case.loss in NO_CROSS_ENTROPY:
        return False
    if case.loss in ("proxy_nca", "proxy_nca_pp") and "zero" in case.weights:
        return False  # no distance is defined; as cosines these are lm_softmax and normface
    if case.weights == "some subcenters" and len(weight_shape(case.loss, case.options, 2, 2)) == 2:
        return False
    # Logits of 2^66 are differences of very large numbers: what they cancel to is no number of single precision.
    return not (case.weights == "huge" and case.dtype == "float32" and case.loss in ("l_softmax",))


def generate_cases(count: int, seed: int, **fixed: Any) -> list[Case]:
    """Seeded cases in which every loss and variant meets every value of every other dimension before any repeats."""
    draw = random.Random(seed)
    kinds = [(loss, variant) for loss, variants in LOSSES.items() for variant in range(len(variants))]
    draw.shuffle(kinds)  # so that few cases are of other losses with every seed
    dimensions: dict[str, tuple[Any, ...]] = {
        "backend": BACKENDS,
        "compiled": (False,),
        "dtype": ("float64", "float32"),
        "size": ("small",),
        "operation": OPERATIONS,
        "weights": WEIGHTS,
        "label_smoothing": (0.0, 0.1),
    }
    dimensions |= {name: value if isinstance(value, tuple) else (value,) for name, value in fixed.items()}
    covered: set[tuple[Any, ...]] = set()
    chosen: list[Case] = []

    def pairs(case: Case) -> set[tuple[Any, ...]]:
        words = [("kind", (case.loss, case.variant)), *((name, getattr(case, name)) for name in dimensions)]
        return {(a, b) for a, b in itertools.combinations(words, 2)}

    for number in range(count):
        best: Case | None = None
        gain = -1
        loss, variant = kinds[number % len(kinds)]
        for _ in range(30):  # the one of thirty random ones that adds the most new pairs
            values = {name: draw.choice(some) for name, some in dimensions.items()}
            case = Case(loss, variant, seed=draw.randrange(100), **values)
            if is_possible(case) and len(pairs(case) - covered) > gain:
                best, gain = case, len(pairs(case) - covered)
        if best is not None:  # a loss with one number per class has no case of very many classes
            covered |= pairs(best)
            chosen.append(best)
    return chosen
