"""Registry of functions with a hand-written backward pass, and the reason for each.

Everything else is differentiated by autograd. A backward pass is written by hand only if autograd's would lose digits,
divide by zero, use too much memory, measurably slow down a training step, or ignore that other processes take part.
Each such `torch.autograd.Function` is declared with `@custom_autograd`, which registers it in
`CUSTOM_FUNCTIONS` together with its plain definition: tests compare value, gradient and second derivative of both in
fp64, and `python -m benchmarks backward` measures a step with either. The table is in docs/numerics.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=type[torch.autograd.Function])


@dataclass(frozen=True)
class CustomFunction:
    """A function with a hand-written backward pass."""

    function: type[torch.autograd.Function]
    serves: str
    """Purpose: "speed", "memory", "digits", or "ranks" for communication between processes."""
    why: str
    """What plain autograd would do instead."""
    definition: Callable[..., Any] | None
    """The same function of the same arguments for plain autograd; None for communication between processes."""

    @property
    def name(self) -> str:
        """Name of the class."""
        return self.function.__name__

    @property
    def file(self) -> str:
        """Its file, relative to the package's root."""
        return self.function.__module__.partition(".")[2].replace(".", "/") + ".py"


CUSTOM_FUNCTIONS: dict[str, CustomFunction] = {}
"""All registered functions by name; a function is registered when its module is imported."""


def custom_autograd(serves: str, why: str, definition: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """Class decorator that registers a `torch.autograd.Function`.

    Args:
        serves: "speed", "memory", "digits" or "ranks".
        why: what autograd of the definition would do instead, in one line.
        definition: the same function of the same arguments, for plain autograd.
    """

    def declare(function: F) -> F:
        CUSTOM_FUNCTIONS[function.__name__] = CustomFunction(function, serves, why, definition)
        return function

    return declare
