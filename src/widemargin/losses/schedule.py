"""Schedules, numbers that change during training: `arcface(m=warmup(0, 0.5, steps=1000))`.

A schedule is a pure function of the number of training calls so far. The head stores that number in a buffer, so it
is part of checkpoints and constant in evaluation. A schedule can be used wherever a loss accepts one; its end points
are checked against the domain.
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
    """Format a value as in a loss string: `64`, `0.3`, `semihard`, `[0.1, 0.2]`.

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
        """Return the value after `step` training calls, as a tensor without a gradient."""
        raise NotImplementedError

    def bounds(self) -> tuple[float, ...]:
        """Return the values between which the schedule stays."""
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
    """Linear from `start` to `end` over `steps` training calls, then constant.

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
    """Half a cosine from `start` to `end` over `steps` training calls, then constant.

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
    """Exponential from `start` to `end` over `steps` training calls, then constant.

    The paper's remedy for a small scale that starts slowly: train with a large `s` first and let it decay,
    `arcgrad(s=decay(40, 5, steps=2000))`.

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

    The original layers increment the count before using it, so the first call has t = 1.

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
            raise InputError(f"{self!r}: the initial value of a learnable number must be above 0")

    def value_at(self, step: Tensor) -> Tensor:
        return torch.full_like(_step_as_float(step), self.start)

    def bounds(self) -> tuple[float, ...]:
        return (self.start,)


SCHEDULES: dict[str, type[Schedule]] = {kind.name: kind for kind in (Warmup, Cosine, Decay, Anneal, Learnable)}


def build_schedule(name: str, positional: list[Any], keywords: dict[str, Any]) -> Schedule:
    """Build the schedule `name(…)` of a loss string; unknown options raise an InputError."""
    kind = SCHEDULES[name]
    names = [spec.name for spec in fields(kind)]
    if len(positional) > len(names):
        raise InputError(f"{name} takes at most {len(names)} numbers ({', '.join(names)}), got {len(positional)}")
    values = dict(zip(names, positional, strict=False))
    for key, value in keywords.items():
        if key not in names:
            raise unknown_name_error(f"option of {name}", key, names)
        if key in values:
            raise InputError(f"{name}: {key} is given twice")
        values[key] = value
    try:
        return kind(**values)
    except TypeError:
        raise InputError(f"{name} needs {', '.join(names)}; got {', '.join(values) or 'nothing'}") from None
