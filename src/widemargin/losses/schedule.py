"""Numbers that change while training, as values: `arcface(m=warmup(0, 0.5, steps=1000))`.

A schedule is a pure function of the number of training calls so far. The head keeps that number
in a buffer, so checkpoints carry it and evaluation freezes it. Every schedule can be written
wherever a loss takes a number that may change; its end points are checked against the domain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..io.errors import InputError, format_value, unknown_name_error
from ..numerics.precision import widest_float_dtype


def format_number(value: Any) -> str:
    """A value as a loss string writes it: `64`, `0.3`, `semihard`, `[0.1, 0.2]`.

    >>> format_number(64.0), format_number(0.3), format_number("semihard"), format_number(True)
    ('64', '0.3', 'semihard', 'True')
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return value if isinstance(value, str) else repr(value)


@dataclass(frozen=True, repr=False)
class Schedule:
    """A number as a function of the training calls so far."""

    name: ClassVar[str]

    def value_at(self, step: Tensor) -> Tensor:
        """The value after `step` training calls, as a tensor without a gradient."""
        raise NotImplementedError

    def bounds(self) -> tuple[float, ...]:
        """The values between which the schedule stays."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
                raise InputError(f"{self.name}: {spec.name}={format_value(value)} must be a finite number")
        steps = getattr(self, "steps", 1)
        if steps < 1 or int(steps) != steps:
            raise InputError(f"{self.name}: steps={format_number(steps)} must be a whole number of at least 1")

    def __repr__(self) -> str:
        parts = (f"{spec.name}={format_number(getattr(self, spec.name))}" for spec in fields(self))
        return f"{self.name}({', '.join(parts)})"


def _step_as_float(step: Tensor) -> Tensor:
    return step.to(widest_float_dtype(step.device))


def _elapsed_fraction(step: Tensor, steps: float) -> Tensor:
    return (_step_as_float(step) / steps).clamp(max=1.0)


@dataclass(frozen=True, repr=False)
class Warmup(Schedule):
    """Straight line from `start` to `end` over `steps` training calls, then `end`.

    >>> Warmup(0, 0.5, steps=1000).value_at(torch.tensor(500)).item()
    0.25
    """

    name: ClassVar[str] = "warmup"
    start: float
    end: float
    steps: int

    def value_at(self, step: Tensor) -> Tensor:
        return self.start + (self.end - self.start) * _elapsed_fraction(step, self.steps)

    def bounds(self) -> tuple[float, ...]:
        return self.start, self.end


@dataclass(frozen=True, repr=False)
class Cosine(Schedule):
    """Half a cosine from `start` to `end` over `steps` training calls, then `end`.

    >>> round(Cosine(30, 10, steps=100).value_at(torch.tensor(50)).item(), 4)
    20.0
    """

    name: ClassVar[str] = "cosine"
    start: float
    end: float
    steps: int

    def value_at(self, step: Tensor) -> Tensor:
        wave = torch.cos(math.pi * _elapsed_fraction(step, self.steps))
        return self.end + 0.5 * (self.start - self.end) * (1.0 + wave)

    def bounds(self) -> tuple[float, ...]:
        return self.start, self.end


@dataclass(frozen=True, repr=False)
class Decay(Schedule):
    """From `start` to `end` by equal factors over `steps` training calls, then `end`.

    The paper's remedy for a small scale that is slow to start: train with a large `s` first and
    let it fall, `arcgrad(s=decay(40, 5, steps=2000))`.

    >>> round(Decay(40, 10, steps=100).value_at(torch.tensor(50)).item(), 4)
    20.0
    """

    name: ClassVar[str] = "decay"
    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.start > 0 and self.end > 0):
            raise InputError(f"{self!r}: start and end must be above 0")

    def value_at(self, step: Tensor) -> Tensor:
        ratio = math.log(self.end / self.start)
        return self.start * torch.exp(ratio * _elapsed_fraction(step, self.steps))

    def bounds(self) -> tuple[float, ...]:
        return self.start, self.end


@dataclass(frozen=True, repr=False)
class Anneal(Schedule):
    """SphereFace's λ: `max(floor, start (1 + gamma t)^(-power))` in the t-th training call, counted from 1.

    The original layers count a call before they use the count, so the first has t = 1.

    >>> Anneal(1000).value_at(torch.tensor(0)).item(), Anneal(1000).value_at(torch.tensor(10**6)).item()
    (892.8571428571428, 5.0)
    """

    name: ClassVar[str] = "anneal"
    start: float = 1000.0
    gamma: float = 0.12
    power: float = 1.0
    floor: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.start, self.gamma, self.power, self.floor) < 0:
            raise InputError(f"{self!r}: every number must be at least 0")

    def value_at(self, step: Tensor) -> Tensor:
        falling = (1.0 + self.gamma * (_step_as_float(step) + 1.0)) ** -self.power
        return (self.start * falling).clamp(min=self.floor)

    def bounds(self) -> tuple[float, ...]:
        return max(self.start, self.floor), self.floor


@dataclass(frozen=True, repr=False)
class Learnable(Schedule):
    """A positive number that the optimizer learns: `normface(s=learnable(30))`.

    The head holds its logarithm as a parameter, so it stays positive.
    """

    name: ClassVar[str] = "learnable"
    start: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.start > 0:
            raise InputError(f"{self!r}: a learnable number starts above 0")

    def value_at(self, step: Tensor) -> Tensor:
        return torch.full_like(_step_as_float(step), self.start)

    def bounds(self) -> tuple[float, ...]:
        return (self.start,)


SCHEDULES: dict[str, type[Schedule]] = {kind.name: kind for kind in (Warmup, Cosine, Decay, Anneal, Learnable)}


def build_schedule(name: str, positional: list[Any], keywords: dict[str, Any]) -> Schedule:
    """The schedule `name(…)` of a loss string; unknown options raise."""
    kind = SCHEDULES[name]
    known = [spec.name for spec in fields(kind)]
    if len(positional) > len(known):
        raise InputError(f"{name} takes at most {len(known)} numbers ({', '.join(known)}), got {len(positional)}")
    given = dict(zip(known, positional, strict=False))
    for key, value in keywords.items():
        if key not in known:
            raise unknown_name_error(f"option of {name}", key, known)
        if key in given:
            raise InputError(f"{name}: {key} is given twice")
        given[key] = value
    try:
        return kind(**given)
    except TypeError:
        raise InputError(f"{name} needs {', '.join(known)}; got {', '.join(given) or 'nothing'}") from None
