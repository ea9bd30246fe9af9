"""The list of functions whose backward pass is written by hand, and what each is good for.

Everything else is differentiated by autograd. A backward pass is written by hand only where autograd's would lose
digits, divide by zero, hold too much memory, be a measurable part of a training step slower, or not know that other
processes take part. Each such `torch.autograd.Function` is declared with `@custom_autograd`, which keeps it in
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
    """A function with a backward pass of its own."""

    function: type[torch.autograd.Function]
    serves: str
    """What it is for: "speed", "memory", "digits", or "ranks" for an exchange between processes."""
    why: str
    """What autograd would do instead."""
    definition: Callable[..., Any] | None
    """The same function of the same arguments for plain autograd; None for an exchange between processes."""

    @property
    def name(self) -> str:
        """Name of the class."""
        return self.function.__name__

    @property
    def file(self) -> str:
        """The file it stands in, from the package's root."""
        return self.function.__module__.partition(".")[2].replace(".", "/") + ".py"


CUSTOM_FUNCTIONS: dict[str, CustomFunction] = {}
"""Every one of them by name, once the module that defines it was imported."""


def custom_autograd(serves: str, why: str, definition: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """Class decorator that keeps a `torch.autograd.Function` in the list.

    Args:
        serves: "speed", "memory", "digits" or "ranks".
        why: what autograd of the definition would do instead, in one line.
        definition: the same function of the same arguments, for plain autograd.
    """

    def declare(function: F) -> F:
        CUSTOM_FUNCTIONS[function.__name__] = CustomFunction(function, serves, why, definition)
        return function

    return declare
