"""What the heads of head_cases.py must see: full logits and autograd in double precision, batch after batch.

From the formulas in textbook.py and textbook_later.py, and nothing of the package.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import textbook
from head_cases import LEARNABLE_START, MORE, SIZES, STEPS, WARMUP, Case, Record, inputs, seed_of_draws, shares
from later_cases import LEARNT, STATE, draw_normals, keeps_weight_lengths, make_reference, translate
from textbook_later import REFERENCES

# In evaluation the annealed ones have λ of the training call that follows; those of textbook_later the last one's.
LATER = set(REFERENCES) - {"l_softmax", "a_softmax"}


class Numbers:
    """The options of a case as they stand in a call: learnt, scheduled and per-class numbers."""

    def __init__(self, case: Case) -> None:
        self.case, self.calls = case, 0
        self.log_s = torch.tensor([math.log(LEARNABLE_START)], dtype=torch.float64, requires_grad=True)

    def current_options(self, classes: int) -> dict[str, Any]:
        now = dict(self.case.options)
        for name, value in now.items():
            if value == "learnable":
                now[name] = self.log_s.exp()
            elif value == "warmup":
                start, end, steps = WARMUP
                now[name] = start + (end - start) * min(1.0, self.calls / steps)
            elif name in self.case.per_class_options:
                now[name] = self.case.per_class(name, classes)
        return now


class Reference:
    """The loss of a case, with its numbers moving from call to call."""

    def __init__(self, case: Case, classes: int) -> None:
        self.case, self.numbers = case, Numbers(case)
        self.adaptive: Any = None
        options = case.options
        if case.loss == "adacos":
            self.adaptive = textbook.AdaCos(classes, options.get("fixed", False), options.get("floor", 0.0))
        elif case.loss == "adaacos":
            self.adaptive = textbook.AdaAcos(classes, options.get("s"))

    @property
    def learnt(self) -> dict[str, Tensor]:
        return {}

    @property
    def state(self) -> list[float]:
        return []

    def extend(self, classes: int) -> None:
        """Scales that follow from the number of classes do so; what was adapted stays."""
        if self.case.loss == "adaacos" and "s" not in self.case.options:
            self.adaptive.s = textbook.AdaAcos(classes).s

    def observe(self, x: Tensor, W: Tensor, y: Tensor) -> None:
        if self.adaptive is not None:
            self.adaptive.observe(x, W, y)

    def loss(
        self, x: Tensor, W: Tensor, bias: Tensor, y: Tensor, training: bool = False, draws: Tensor | None = None
    ) -> Tensor:
        """Losses [N]; numbers per class and the target are looked up at `y`."""
        case, now = self.case, self.numbers.current_options(len(W))
        if self.adaptive is not None:
            z = self.adaptive.logits(x, W, y)
        elif case.loss == "softmax":
            z = textbook.softmax(x, W, y, bias if now.get("bias") else None)
        elif case.loss in ("l_softmax", "a_softmax"):
            m = now.get("m", 2 if case.loss == "l_softmax" else 4)
            if m == 1:  # by definition the plain loss, whose logit needs no angle
                z = (textbook.softmax if case.loss == "l_softmax" else textbook.modified_softmax)(x, W, y)
            else:
                z = getattr(textbook, case.loss)(x, W, y, m, now.get("lam"), t=self.numbers.calls)
        elif now.pop("gradient", None) == "straight_through":
            z = textbook.arcface_straight_through(x, W, y, **now)
        else:
            z = getattr(textbook, case.loss)(x, W, y, **now)
        return textbook.loss(z, y, case.label_smoothing)


class LaterReference(Reference):
    """The same by textbook_later.py, whose references hold their state themselves."""

    def __init__(self, case: Case, classes: int) -> None:
        super().__init__(case, classes)
        self.inner = self._make_inner(classes)

    def _make_inner(self, classes: int) -> Any:
        options = self.numbers.current_options(classes)
        options.pop("bias", None)
        return make_reference(self.case.loss, classes, **options)

    @property
    def learnt(self) -> dict[str, Tensor]:
        return self.inner.learnt

    @property
    def state(self) -> list[float]:
        return [getattr(self.inner, name) for name in STATE.get(self.case.loss, ())]

    def extend(self, classes: int) -> None:
        old, self.inner = self.inner, self._make_inner(classes)
        self.inner.learnt = old.learnt
        for name in STATE.get(self.case.loss, ()):
            setattr(self.inner, name, getattr(old, name))

    def observe(self, x: Tensor, W: Tensor, y: Tensor) -> None:
        self.inner.observe(x, W, y)

    def loss(
        self, x: Tensor, W: Tensor, bias: Tensor, y: Tensor, training: bool = False, draws: Tensor | None = None
    ) -> Tensor:
        moving = {name for name, value in self.case.options.items() if value in ("learnable", "warmup")}
        now = self.numbers.current_options(len(W))
        for name, value in translate(self.case.loss, {name: now[name] for name in moving}).items():
            setattr(self.inner, name, value)
        more: dict[str, Any] = {"draws": draws} if draws is not None else {}
        return self.inner.loss(
            x,
            W,
            y,
            bias=bias if now.get("bias") else None,
            training=training,
            label_smoothing=self.case.label_smoothing,
            **more,
        )


def _train(reference: Reference, given: tuple[Tensor, ...], parts: list[slice], draws: list[Any]) -> Tensor:
    """One training call of all ranks; with `other` labels 0.7 of the one and 0.3 of the other loss.

    What a loss deals out among the samples of a batch it deals out on each rank.
    """
    x, W, bias, y, other = given
    reference.observe(x.detach(), W.detach(), y)
    found = []
    for part, normals in zip(parts, draws, strict=True):
        loss = reference.loss(x[part], W, bias, y[part], True, None if normals is None else normals[0])
        if other is not None:
            more = reference.loss(x[part], W, bias, other[part], True, None if normals is None else normals[1])
            loss = 0.7 * loss + 0.3 * more
        found.append(loss)
    reference.numbers.calls += 1
    return torch.cat(found)


def _draws(case: Case, step: int, call: int, sizes: list[int]) -> list[Any]:
    """The normals that each rank draws in a call, for both labels of a mixup."""
    if case.loss != "elasticface":
        return [None] * len(sizes)
    is_double = case.dtype == "float64" or (case.operation == "double" and step > 0)
    dtype = torch.float64 if is_double else torch.float32
    return [draw_normals(seed_of_draws(case, step, call), (2, size), dtype) for size in sizes]


def compute_expected(case: Case, world: int = 1) -> Record:
    """What `run` must see, of all ranks together."""
    samples, classes, _ = SIZES[case.size]
    reference = (LaterReference if case.loss in LATER else Reference)(case, classes)
    seen = Record()
    for step in range(STEPS):
        if step == 1 and case.operation in ("extend", "frozen"):
            classes += MORE
            reference.extend(classes)
        given = inputs(case, step, classes)
        x, W = given.x.requires_grad_(), given.weight.requires_grad_()
        bias = given.bias.requires_grad_()
        for leaf in (reference.numbers.log_s, *reference.learnt.values()):
            leaf.grad = None
        if case.operation == "evaluate":
            seen.evaluated.append(reference.loss(x, W, bias, given.y).detach())
        calls = 2 if case.operation in ("accumulate", "two forwards") else 1
        other = given.other if case.operation == "mix" else None
        parts = shares(world, samples, step)
        sizes = [part.stop - part.start for part in parts]
        losses = [
            _train(reference, (x, W, bias, given.y, other), parts, _draws(case, step, call, sizes))
            for call in range(calls)
        ]
        (sum(loss.sum() for loss in losses) / samples).backward()
        seen.loss.append(losses[-1].detach())
        seen.to_x.append(x.grad)
        seen.to_weight.append(W.grad if W.grad is not None else torch.zeros_like(W))
        if case.options.get("bias"):
            seen.to_bias.append(bias.grad)
        if case.operation != "frozen":
            if "learnable" in case.options.values():
                seen.to_scale.append(reference.numbers.log_s.grad.clone())
            if case.loss in LEARNT:
                seen.to_learnt.append(reference.learnt["b"].grad.reshape(1).clone())
        seen.state += [torch.tensor([number], dtype=torch.float64) for number in reference.state]
    return seen


# ---------------------------------------------------------------- compared


def merge_ranks(case: Case, ranks: list[Record]) -> Record:
    """What several ranks saw, as one process would have: parts put together, and the mean of what each has whole."""
    whole, split = Record(), case.backend == "sharded"
    of_samples, of_numbers = ("loss", "to_x", "evaluated"), ("to_scale", "to_learnt", "state")
    for name in (*of_samples, "to_weight", "to_bias", *of_numbers):
        for step in range(len(getattr(ranks[0], name))):
            parts = [getattr(rank, name)[step] for rank in ranks]
            if name == "state" or (split and name in of_numbers):
                assert all(torch.allclose(part, parts[0], rtol=1e-5) for part in parts), f"ranks differ in {name}"
            in_parts = name in of_samples or (split and name not in of_numbers)
            getattr(whole, name).append(torch.cat(parts) if in_parts else torch.stack(parts).mean(0))
    return whole


def find_errors(case: Case, got: Record, wanted: Record) -> list[str]:
    """Everything that is further from the reference than the tolerance."""
    found = []
    keeps_w = keeps_weight_lengths(case.loss, case.options)
    for name in ("loss", "evaluated", "to_x", "to_weight", "to_bias", "to_scale", "to_learnt", "state"):
        ours, theirs = getattr(got, name), getattr(wanted, name)
        if len(ours) != len(theirs):
            found.append(f"{name}: {len(ours)} of {len(theirs)} calls")
            continue
        for step in range(len(theirs)):
            one, reference = ours[step].double(), theirs[step]
            if name == "to_weight" and not keeps_w:
                # On the sphere a gradient goes with 1/‖w‖: every row counts alike.
                length = inputs(case, step, len(reference)).weight.norm(dim=-1, keepdim=True)
                scale = torch.where(length == 0, torch.ones_like(length), length)
                one, reference = one * scale, reference * scale
            # What cancels to nothing is compared with the size of what it was a sum of.
            least = dict.fromkeys(("loss", "evaluated", "to_learnt", "state"), 1.0)
            least["to_scale"] = LEARNABLE_START  # a sum of p·s·θ
            size = reference.norm().item() + least.get(name, 0.01)
            error = (one - reference).norm().item() / size
            # Class weights of zero make all terms of a scale's gradient equal, which round the same way in fp32.
            if not error <= case.tolerance * (5 if name == "to_scale" else 1):
                found.append(f"{name} in call {step + 1}: relative error {error:.2g}")
    return found
