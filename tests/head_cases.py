"""What a head can be, as data, and an independent fp64 reference for all of it: for laws/test_heads.py and its ranks.

A case is a loss with its numbers, a backend, compiled kernels or not, a dtype, a size, one operation of a head's life,
and class weights of ordinary or extreme length. `run` puts a head through three training calls; `compute_expected` does
the same with full logits and autograd in double precision, from the formulas in textbook.py and nothing of the package.
"""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import random
import warnings
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import textbook
import widemargin as wm

STEPS = 3
MORE = 3  # classes that `extend` adds
# Samples, classes, dimensions; the second has over 2^20 logits, from which kernels are compiled.
SIZES = {"small": (9, 7, 6), "beyond": (96, 12_000, 16)}
BACKENDS = ("dense", "stream", "auto", "sampled", "sharded")
WEIGHTS = ("ordinary", "zero row", "all zero", "tiny", "huge")
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
    "arcgrad": ({"s": 8.0}, {"s": "learnable"}, {"s": 120.0}),  # the last: all logits far below 0
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

    def per_class(self, classes: int) -> Tensor:
        """One margin per class; the first ones stay as they are when classes are added."""
        return 0.1 + 0.05 * (torch.arange(classes, dtype=torch.float64) % 4)

    def spec(self, classes: int) -> str:
        """The parse string."""
        written = {
            "learnable": f"learnable({LEARNABLE_START})",
            "warmup": f"warmup({WARMUP[0]}, {WARMUP[1]}, steps={WARMUP[2]})",
            "per class": [round(number, 6) for number in self.per_class(classes).tolist()],
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

    x, weight = normal(samples, dim), normal(classes, dim) * dim**-0.5
    y, other = (torch.randint(classes, (samples,), generator=draw) for _ in range(2))
    some = torch.unique(y)[::2]  # targets among them
    if case.weights == "zero row":
        weight[some] = 0.0
    elif case.weights == "all zero":
        weight.zero_()
    elif case.weights in ("tiny", "huge"):
        weight[some] *= 2.0 ** (-66 if case.weights == "tiny" else 66)
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
    if case.operation == "frozen" and hasattr(head.margin_state, "log_s"):
        head.margin_state.log_s.requires_grad_(False)
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
        for _ in range(calls):
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
    if case.operation == "frozen" and hasattr(head.margin_state, "log_s"):
        assert not head.margin_state.log_s.requires_grad, "a frozen scale learns again"
    return seen


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
        more = {}
        if "per class" in case.options.values():
            (name,) = (name for name, value in case.options.items() if value == "per class")
            more[name] = case.per_class(head.num_classes + MORE)[-MORE:].tolist()
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
        other = make_head(case, head.num_classes, group, backend="stream", label_smoothing=0.25)
        other.eval()
        other.assign_from(head)
        assert (other.backend, other.label_smoothing, other.training) == (
            head.backend,
            head.label_smoothing,
            head.training,
        )
        return other
    return head.double() if operation == "double" else head


# ---------------------------------------------------------------- the reference


class Reference:
    """The loss of a case by full logits in double precision, with its numbers moving from call to call."""

    def __init__(self, case: Case, classes: int) -> None:
        self.case, self.options, self.calls = case, dict(case.options), 0
        self.log_s = torch.tensor([math.log(LEARNABLE_START)], dtype=torch.float64, requires_grad=True)
        self.adaptive: Any = None
        if case.loss == "adacos":
            self.adaptive = textbook.AdaCos(classes, self.options.get("fixed", False), self.options.get("floor", 0.0))
        elif case.loss == "adaacos":
            self.adaptive = textbook.AdaAcos(classes, self.options.get("s"))

    def extend(self, classes: int) -> None:
        """Scales that follow from the number of classes do so; what was adapted stays."""
        if self.case.loss == "adaacos" and "s" not in self.options:
            self.adaptive.s = textbook.AdaAcos(classes).s

    def current_options(self, classes: int) -> dict[str, Any]:
        """The options as they stand in this call."""
        now = dict(self.options)
        for name, value in now.items():
            if value == "learnable":
                now[name] = self.log_s.exp()
            elif value == "warmup":
                start, end, steps = WARMUP
                now[name] = start + (end - start) * min(1.0, self.calls / steps)
            elif value == "per class":
                now[name] = self.case.per_class(classes)
        return now

    def loss(self, x: Tensor, W: Tensor, bias: Tensor, y: Tensor, seen_as: Tensor | None = None) -> Tensor:
        """Losses [N]; numbers per class and the target are looked up at `y`."""
        case, now = self.case, self.current_options(len(W))
        if self.adaptive is not None:
            z = self.adaptive.logits(x, W, y)
        elif case.loss == "softmax":
            z = textbook.softmax(x, W, y, bias if now.get("bias") else None)
        elif case.loss in ("l_softmax", "a_softmax"):
            m = now.get("m", 2 if case.loss == "l_softmax" else 4)
            if m == 1:  # by definition the plain loss, whose logit needs no angle
                z = (textbook.softmax if case.loss == "l_softmax" else textbook.modified_softmax)(x, W, y)
            else:
                z = getattr(textbook, case.loss)(x, W, y, m, now.get("lam"), t=self.calls)
        elif now.pop("gradient", None) == "straight_through":
            z = textbook.arcface_straight_through(x, W, y, **now)
        else:
            z = getattr(textbook, case.loss)(x, W, y, **now)
        return textbook.loss(z, y, case.label_smoothing)

    def train(self, x: Tensor, W: Tensor, bias: Tensor, y: Tensor, other: Tensor | None) -> Tensor:
        """One training call; with `other` labels 0.7 of the one and 0.3 of the other loss."""
        if self.adaptive is not None:
            self.adaptive.observe(x.detach(), W.detach(), y)
        found = self.loss(x, W, bias, y)
        if other is not None:
            found = 0.7 * found + 0.3 * self.loss(x, W, bias, other)
        self.calls += 1
        return found


def compute_expected(case: Case) -> Record:
    """What `run` must see, of all ranks together."""
    samples, classes, _ = SIZES[case.size]
    reference, seen = Reference(case, classes), Record()
    for step in range(STEPS):
        if step == 1 and case.operation in ("extend", "frozen"):
            classes += MORE
            reference.extend(classes)
        given = inputs(case, step, classes)
        x, W = given.x.requires_grad_(), given.weight.requires_grad_()
        bias = given.bias.requires_grad_()
        reference.log_s.grad = None
        if case.operation == "evaluate":
            seen.evaluated.append(reference.loss(x, W, bias, given.y).detach())
        calls = 2 if case.operation in ("accumulate", "two forwards") else 1
        other = given.other if case.operation == "mix" else None
        losses = [reference.train(x, W, bias, given.y, other) for _ in range(calls)]
        (sum(loss.sum() for loss in losses) / samples).backward()
        seen.loss.append(losses[-1].detach())
        seen.to_x.append(x.grad)
        seen.to_weight.append(W.grad if W.grad is not None else torch.zeros_like(W))
        if case.options.get("bias"):
            seen.to_bias.append(bias.grad)
        if "learnable" in case.options.values() and case.operation != "frozen":
            seen.to_scale.append(reference.log_s.grad.clone())
    return seen


# ---------------------------------------------------------------- compared


def merge_ranks(case: Case, ranks: list[Record]) -> Record:
    """What several ranks saw, as one process would have: parts put together, and the mean of what each has whole."""
    whole, split = Record(), case.backend == "sharded"
    for name in ("loss", "to_x", "evaluated", "to_weight", "to_bias", "to_scale"):
        for step in range(len(getattr(ranks[0], name))):
            parts = [getattr(rank, name)[step] for rank in ranks]
            if split and name == "to_scale":
                assert all(torch.allclose(part, parts[0], rtol=1e-5) for part in parts), "ranks learn different scales"
            in_parts = name in ("loss", "to_x", "evaluated") or (split and name != "to_scale")
            getattr(whole, name).append(torch.cat(parts) if in_parts else torch.stack(parts).mean(0))
    return whole


def find_errors(case: Case, got: Record, wanted: Record) -> list[str]:
    """Everything that is further from the reference than the tolerance."""
    found = []
    keeps_w = case.loss in ("softmax", "m_softmax", "l_softmax")
    classes = SIZES[case.size][1]
    for name in ("loss", "evaluated", "to_x", "to_weight", "to_bias", "to_scale"):
        ours, theirs = getattr(got, name), getattr(wanted, name)
        if len(ours) != len(theirs):
            found.append(f"{name}: {len(ours)} of {len(theirs)} calls")
            continue
        for step in range(len(theirs)):
            one, reference = ours[step].double(), theirs[step]
            if name == "to_weight" and not keeps_w:
                # On the sphere a gradient goes with 1/‖w‖: every row counts alike.
                count = len(reference) if len(reference) != classes else classes
                length = inputs(case, step, count).weight.norm(dim=1, keepdim=True)
                scale = torch.where(length == 0, torch.ones_like(length), length)
                one, reference = one * scale, reference * scale
            # What cancels to nothing is compared with the size of what it was a sum of.
            least = {"loss": 1.0, "evaluated": 1.0, "to_scale": LEARNABLE_START}  # a scale's is a sum of p·s·θ
            size = reference.norm().item() + least.get(name, 0.01)
            error = (one - reference).norm().item() / size
            # Class weights of zero make all terms of a scale's gradient equal, which round the same way in fp32.
            if not error <= case.tolerance * (5 if name == "to_scale" else 1):
                found.append(f"{name} in call {step + 1}: relative error {error:.2g}")
    return found


# ---------------------------------------------------------------- which cases


def is_possible(case: Case) -> bool:
    """Whether a case says something: a conversion to double starts from single, and so on."""
    if case.operation == "double" and case.dtype == "float64":
        return False
    if case.compiled and case.backend == "dense":
        return False
    if case.size == "beyond" and "per class" in case.options.values():
        return False  # a spec of twelve thousand numbers; small heads have them
    # Logits of 2^66 are differences of very large numbers: what they cancel to is no number of single precision.
    return not (case.weights == "huge" and case.dtype == "float32" and case.loss in ("l_softmax",))


def generate_cases(count: int, seed: int, **fixed: Any) -> list[Case]:
    """Seeded cases in which every loss and variant meets every value of every other dimension before any repeats."""
    draw = random.Random(seed)
    kinds = [(loss, variant) for loss, variants in LOSSES.items() for variant in range(len(variants))]
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
