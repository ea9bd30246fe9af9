"""A loss is a frozen value; its options know their domain and are checked when it is built.

`option(...)` declares a field of such a value, as scikit-learn's `Interval` makes a legal domain a
value: the constructor checks against it, the documentation prints it, the tests draw from it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
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
    """One number per class, in class order; printable and comparable, unlike a tensor."""

    values: tuple[float, ...]

    def __repr__(self) -> str:
        return f"[{', '.join(format_number(v) for v in self.values)}]"

    def __len__(self) -> int:
        return len(self.values)


Number: TypeAlias = Any
"""What an option holds: a number, a `Schedule` or `PerClass`; inside a step, a tensor."""


@dataclass(frozen=True)
class Option(options.Option):
    """An option of a loss: its number may also be a schedule, learnable, one per class, or a tensor of these."""

    allows_schedule: bool = False
    allows_learnable: bool = False
    per_class: bool = False
    hide_default: bool = False
    """Whether the repr leaves the value out where it is the default."""
    holds_loss: bool = False
    """Whether the value is another loss, which the parse string gives first and without a name: `xbm(supcon)`."""

    def domain(self) -> str:
        """The domain in words.

        >>> Option(low=0, high=1.0).domain(), Option(low=0, open_low=True).domain()
        ('0 ≤ value ≤ 1', 'value > 0')
        """
        if self.holds_loss:
            return "a pair loss"
        if self.choices:
            return " | ".join(self.choices)
        if self.kind is bool:
            return "True | False"
        low = "" if self.low == -math.inf else f"{format_number(float(self.low))} {'<' if self.open_low else '≤'} "
        high = "" if self.high == math.inf else f" ≤ {format_number(round(float(self.high), 4))}"
        if low and not high:
            body = f"value {'>' if self.open_low else '≥'} {format_number(float(self.low))}"
        else:
            body = f"{low}value{high}" if low or high else "any number"
        return f"whole number, {body}" if self.kind is int else body

    def check_value(self, where: str, value: Any) -> Any:
        """`value` in its normal form, or an error that says what is allowed."""
        if self.holds_loss:
            return _check_pair_loss(where, value)
        if isinstance(value, Tensor):
            if value.is_meta or value.is_complex() or value.layout != torch.strided:
                raise InputError(f"{where}: a tensor of real numbers with values is wanted, got {format_value(value)}")
            value = value.detach().cpu().to(torch.float64).tolist()
        elif isinstance(value, np.ndarray | np.generic):
            value = value.tolist()
        if value is None and self.optional:
            return None
        if self.choices:
            if isinstance(value, str) and value in self.choices:
                return value
            raise unknown_name_error(
                f"value for {where}", value if isinstance(value, str) else format_value(value), self.choices
            )
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
            raise InputError(f"{where}: one number per class is not possible here, give one number")
        numbers = value.values if isinstance(value, PerClass) else value
        if not numbers:
            raise InputError(f"{where}: an empty list; give one number per class")
        return PerClass(tuple(self._check_number(f"{where}[{i}]", v) for i, v in enumerate(numbers)))

    def _check_schedule(self, where: str, value: Schedule) -> Schedule:
        if not self.allows_schedule:
            raise InputError(f"{where}={value!r}: this option is fixed, give one number")
        if isinstance(value, Learnable) and not self.allows_learnable:
            raise InputError(f"{where}={value!r}: only a scale can be learnable, its domain has no upper end")
        for end in value.bounds():
            self._check_number(where, end)
        return value

    def _check_number(self, where: str, value: Any) -> float | int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{where}={format_value(value)} must be a number ({self.domain()})")
        # Half a float32 step of slack above, so that `math.pi / 2` computed elsewhere passes.
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


def _check_pair_loss(where: str, value: Any) -> Any:
    from .grammar import parse
    from .pair_loss import PairLoss

    value = parse(value) if isinstance(value, str) else value
    if not isinstance(value, PairLoss):
        raise InputError(f"{where}={format_value(value)} must be a pair loss, such as supcon")
    return value


def option(default: Any, meaning: str, *, kind: type | None = None, **constraints: Any) -> Any:
    """A field of a loss with its domain; see `Option` for the constraints. Numbers are of kind float unless said."""
    known = bool if isinstance(default, bool) else str if "choices" in constraints else float
    rule = Option(meaning, default, kind or known, **constraints)
    return field(default=default, metadata={"option": rule})


class Loss:
    """A loss as a frozen value: printable, comparable, hashable.

    `repr` is its parse string: `parse(repr(loss)) == loss`. Subclasses are frozen dataclasses whose
    fields are made by `option`; `name` is the name of the file the class stands in.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    reference: ClassVar[str] = ""
    group: ClassVar[str] = ""
    """For whom it is: one of `registry.LOSS_GROUPS`."""
    kind: ClassVar[str] = "loss"

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if cls.__doc__ is None:  # `help(ArcFace)` shows the page of its file
            cls.__doc__ = sys.modules[cls.__module__].__doc__

    def __new__(cls, *values: Any, **named: Any) -> Self:
        options.check_option_names(cls, f"option of {cls.name}", named)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        options.check_options(self, f"{self.name}({{}})")

    @classmethod
    def options(cls) -> dict[str, tuple[Option, Any]]:
        """Every option by name: its domain and its default."""
        return {name: (rule, rule.default) for name, rule in options.options_of(cls).items()}

    def named_values(self) -> Iterator[tuple[str, Any]]:
        """Every option's name and value."""
        for spec in fields(self):  # type: ignore[arg-type]
            yield spec.name, getattr(self, spec.name)

    def with_values(self, **values: Any) -> Self:
        """The same loss with some numbers replaced by this step's tensors, unchecked."""
        new = object.__new__(type(self))
        for name, value in self.named_values():
            object.__setattr__(new, name, values.get(name, value))
        return new

    def __repr__(self) -> str:
        known = self.options()
        parts = []
        for name, value in self.named_values():
            rule, default = known[name]
            if value is None or (rule.hide_default and not isinstance(value, Tensor) and value == default):
                continue
            parts.append(repr(value) if rule.holds_loss else f"{name}={format_number(value)}")
        return f"{self.name}({', '.join(parts)})" if parts else self.name
