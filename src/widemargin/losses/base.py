"""Base of all losses: frozen values whose options declare their domain and are checked on construction.

`option(...)` declares a field with its domain, similar to scikit-learn's `Interval`: the constructor checks against
it, the documentation prints it, and the tests draw from it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..io import options
from ..io.errors import InputError, format_value, unknown_name_error
from .schedule import Learnable, Schedule, format_number


@dataclass(frozen=True, repr=False)
class PerClass:
    """One number per class, in class order; unlike a tensor it can be printed and compared."""

    values: tuple[float, ...]

    def __repr__(self) -> str:
        return f"[{', '.join(format_number(v) for v in self.values)}]"

    def __len__(self) -> int:
        return len(self.values)


Number: TypeAlias = Any
"""Value of an option: a number, a `Schedule` or `PerClass`; inside a training step, a tensor."""


@dataclass(frozen=True)
class Option(options.Option):
    """Option of a loss; if declared, it also accepts a schedule, a learnable scale or one number per class."""

    allows_schedule: bool = False
    allows_learnable: bool = False
    per_class: bool = False
    hide_default: bool = False
    """True if the repr omits a value equal to the default."""
    check_loss: Callable[[str, Any], Any] | None = None
    """Returns the checked value of an option that is another loss, which the loss string gives first and without a
    name: `xbm(supcon)`."""

    @property
    def holds_loss(self) -> bool:
        """True if the value is another loss."""
        return self.check_loss is not None

    def domain(self) -> str:
        """Describe the domain.

        >>> Option(low=0, high=1.0).domain(), Option(low=0, open_low=True).domain(), Option(high=1 - 1e-6).domain()
        ('0 ≤ value ≤ 1', 'value > 0', 'value < 1')
        """
        if self.holds_loss:
            return "a pair loss"
        if self.choices:
            return " | ".join(self.choices)
        if self.kind is bool:
            return "True | False"
        low = "" if self.low == -math.inf else f"{format_number(float(self.low))} {'<' if self.open_low else '≤'} "
        rounded = round(float(self.high), 4) if self.high < math.inf else math.inf
        below = self.high < rounded and rounded.is_integer()  # 1 − 1e-6: every number below 1
        high = "" if rounded == math.inf else f" {'<' if below else '≤'} {format_number(rounded)}"
        if low and not high:
            body = f"value {'>' if self.open_low else '≥'} {format_number(float(self.low))}"
        else:
            body = f"{low}value{high}" if low or high else "any number"
        return f"whole number, {body}" if self.kind is int else body

    def check_value(self, where: str, value: Any) -> Any:
        """Return `value` in normal form, or raise an InputError that states what is allowed."""
        if self.check_loss is not None:
            return self.check_loss(where, value)
        if isinstance(value, Tensor):
            if value.is_meta or value.is_complex() or value.layout != torch.strided:
                raise InputError(f"{where} must be a dense tensor of real numbers, got {format_value(value)}")
            value = value.detach().cpu().to(torch.float64).tolist()
        elif isinstance(value, np.ndarray | np.generic):
            value = value.tolist()
        if value is None and self.optional:
            return None
        if self.choices:
            if isinstance(value, str) and value in self.choices:
                return value
            text = value if isinstance(value, str) else format_value(value)
            raise InputError(f"{where}: {unknown_name_error('value', text, self.choices)}")
        if self.kind is bool:
            if isinstance(value, bool):
                return value
            hint = f" (write {value.title()})" if isinstance(value, str) and value.lower() in ("true", "false") else ""
            raise InputError(f"{where}={format_value(value)} must be True or False{hint}")
        if isinstance(value, PerClass | list | tuple):
            return self._check_per_class(where, value)
        if isinstance(value, Schedule):
            return self._check_schedule(where, value)
        return self._check_number(where, value)

    def _check_per_class(self, where: str, value: Any) -> PerClass:
        if not self.per_class:
            raise InputError(f"{where} does not take one number per class; give one number")
        numbers = value.values if isinstance(value, PerClass) else value
        if not numbers:
            raise InputError(f"{where} is an empty list; give one number per class")
        return PerClass(tuple(self._check_number(f"{where}[{i}]", v) for i, v in enumerate(numbers)))

    def _check_schedule(self, where: str, value: Schedule) -> Schedule:
        if not self.allows_schedule:
            raise InputError(f"{where} does not take a schedule; give one number")
        if isinstance(value, Learnable) and not self.allows_learnable:
            raise InputError(f"{where}={value!r}: only a scale without upper bound can be learnable")
        for end in value.bounds():
            self._check_number(where, end)
        return value

    def _check_number(self, where: str, value: Any) -> float | int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{where}={format_value(value)} must be a number ({self.domain()})")
        # Half a float32 ulp of tolerance at the upper end, so that `math.pi / 2` computed elsewhere is accepted.
        if not self.contains(value, slack=1e-7):
            hint = ""
            if "radian" in self.meaning and self.high < value <= 180:
                hint = f"; it is in radians: {value:g}° = {math.radians(value):.4g}"
            value_text = format_number(value) if abs(value) < options.MAX_FLOAT else "a number"
            raise InputError(f"{where}={value_text} is outside its domain: {self.domain()}{hint}")
        if self.kind is int:
            if value != int(value):
                raise InputError(f"{where}={format_number(value)} is outside its domain: {self.domain()}")
            return int(value)
        return float(value)


def option(default: Any, meaning: str, *, kind: type | None = None, **constraints: Any) -> Any:
    """Declare a field of a loss; see `Option` for the constraints. Numbers are floats unless `kind` is given."""
    inferred = bool if isinstance(default, bool) else str if "choices" in constraints else float
    rule = Option(meaning, default, kind or inferred, **constraints)
    return field(default=default, metadata={"option": rule})


class Loss:
    """Base of losses as frozen values: printable, comparable, hashable.

    `repr` is its loss string: `parse(repr(loss)) == loss`. Subclasses are frozen dataclasses with fields from
    `option`; `name` is the name of the file that defines the class.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    reference: ClassVar[str] = ""
    group: ClassVar[str] = ""
    """Group of the loss by use, one of `registry.LOSS_GROUPS`."""
    kind: ClassVar[str] = "loss"

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if cls.__doc__ is None:  # `help(ArcFace)` shows the page of its file
            cls.__doc__ = sys.modules[cls.__module__].__doc__

    def __new__(cls, *values: Any, **named: Any) -> Self:
        options.check_option_names(cls, f"option of {cls.name}", named)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        options.check_options(self, f"{self.name}: {{}}")

    @classmethod
    def options(cls) -> dict[str, tuple[Option, Any]]:
        """Return every option by name: its domain and its default."""
        return {name: (rule, rule.default) for name, rule in options.options_of(cls).items()}

    def named_values(self) -> Iterator[tuple[str, Any]]:
        """Yield every option's name and value."""
        for spec in fields(self):  # type: ignore[arg-type]
            yield spec.name, getattr(self, spec.name)

    def with_values(self, **values: Any) -> Self:
        """Return a copy with some numbers replaced by this step's tensors, without checks."""
        new = object.__new__(type(self))
        for name, value in self.named_values():
            object.__setattr__(new, name, values.get(name, value))
        return new

    def __repr__(self) -> str:
        options = self.options()
        parts = []
        for name, value in self.named_values():
            rule, default = options[name]
            if value is None or (rule.hide_default and not isinstance(value, Tensor) and value == default):
                continue
            parts.append(repr(value) if rule.holds_loss else f"{name}={format_number(value)}")
        return f"{self.name}({', '.join(parts)})" if parts else self.name
