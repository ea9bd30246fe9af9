"""MarginState: the numbers of a head (schedules, adaptive state, learnable and per-class numbers, `class_weight`).

They are in one small module, so that checkpoints contain them, evaluation freezes them, and the margin itself stays a
value. Buffers are replaced and never modified in place: a backward pass may still need the old value, and
`torch.compile` (2.13) silently uses the new one if it was overwritten.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..losses.base import PerClass
from ..losses.margin import Margin
from ..losses.schedule import Learnable, Schedule
from ..numerics.distributed import check_unsharded
from ..numerics.precision import widest_float_dtype

_step_lock = threading.Lock()  # shared by all heads, since a module with a lock can be neither copied nor pickled


class MarginState(nn.Module):
    """Step counter, adaptive state, learnable and per-class numbers of one margin.

    For a stack of K models (`num_models=K`) adaptive and learnable numbers are [K, 1], one per model.
    """

    steps: Tensor
    class_weight: Tensor | None
    class_offset: Tensor | None

    def __init__(
        self,
        margin: Margin,
        device: torch.device,
        dtype: torch.dtype,
        class_weight: Tensor | None = None,
        num_models: int | None = None,
    ) -> None:
        super().__init__()
        self.margin = margin
        self._shape = () if num_models is None else (num_models, 1)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=device))
        self._wide_buffers: list[str] = []
        self._register_wide_buffer("class_weight", class_weight)
        for name, value in margin.named_values():
            if isinstance(value, Learnable):
                # At least one dimension: FSDP does not shard parameters without any.
                shape = self._shape or (1,)
                empty = torch.empty(shape, device=device, dtype=torch.promote_types(dtype, torch.float32))
                self.register_parameter(f"log_{name}", nn.Parameter(empty))
            elif isinstance(value, PerClass) and name not in margin.table_fields:
                self._register_wide_buffer(f"per_class_{name}", self._initial_value(f"per_class_{name}", device), False)
        for name in margin.adaptive_fields:
            self._register_wide_buffer(f"state_{name}", self._initial_value(f"state_{name}", device))
        for name in margin.learnt_fields:
            empty = torch.empty(self._shape or (1,), device=device, dtype=torch.promote_types(dtype, torch.float32))
            self.register_parameter(f"learnt_{name}", nn.Parameter(empty))
        offsets = margin.class_offsets()
        self._register_wide_buffer("class_offset", None if offsets is None else self._class_offset(device), False)
        varying_types = (Learnable, PerClass, Schedule)
        self._is_constant = not (margin.adaptive_fields or margin.learnt_fields) and not any(
            isinstance(value, varying_types) and name not in margin.table_fields
            for name, value in margin.named_values()
        )
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Reset every number to its value before the first training call."""
        self.steps = torch.zeros_like(self.steps)
        for name, value in self.margin.named_values():
            if isinstance(value, Learnable):
                getattr(self, f"log_{name}").fill_(math.log(value.start))
        for name in self.margin.learnt_fields:
            getattr(self, f"learnt_{name}").fill_(float(getattr(self.margin, name)))
        for buffer in self._wide_buffers:
            if buffer != "class_weight" and getattr(self, buffer) is not None:
                setattr(self, buffer, self._initial_value(buffer, self.steps.device))

    def _class_offset(self, device: torch.device) -> Tensor:
        return torch.tensor(self.margin.class_offsets(), dtype=widest_float_dtype(device), device=device)

    def _initial_value(self, buffer: str, device: torch.device) -> Tensor:
        """Return the initial value of a buffer from the margin: state_s, per_class_m, class_offset."""
        if buffer == "class_offset":
            return self._class_offset(device)
        value = getattr(self.margin, buffer.removeprefix("state_").removeprefix("per_class_"))
        if isinstance(value, PerClass):
            return torch.tensor(value.values, dtype=widest_float_dtype(device), device=device)
        return torch.full(self._shape, float(value), dtype=widest_float_dtype(device), device=device)

    def _register_wide_buffer(self, name: str, value: Tensor | None, persistent: bool = True) -> None:
        self.register_buffer(name, value, persistent=persistent)
        self._wide_buffers.append(name)

    def current_margin(self, y: Tensor | None, dtype: torch.dtype) -> Margin:
        """Return the margin of this step with the current value of every number; per-class ones are indexed by `y`."""
        if self._is_constant:
            return self.margin
        values: dict[str, Tensor] = {}
        for name, value in self.margin.named_values():
            if isinstance(value, Learnable):
                learnt: Tensor = getattr(self, f"log_{name}")
                check_unsharded(learnt, "learnable numbers")
                values[name] = learnt.exp().to(dtype).reshape(self._shape)
            elif isinstance(value, PerClass) and name not in self.margin.table_fields:
                values[name] = getattr(self, f"per_class_{name}")
        for name in self.margin.adaptive_fields:
            state: Tensor = getattr(self, f"state_{name}")
            # A single number takes the dtype of its operand; one number per model of a stack would not.
            values[name] = state.to(dtype) if self._shape else state
        for name in self.margin.learnt_fields:
            number: Tensor = getattr(self, f"learnt_{name}")
            check_unsharded(number, "learnable numbers")
            values[name] = number.to(dtype).reshape(self._shape)
        return self.margin.at_step(self.steps, y, dtype, values)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in self._parameters:
            stored = state_dict.get(prefix + name)
            if isinstance(stored, Tensor) and stored.ndim == 0:  # written before 0.1.1
                state_dict = {**state_dict, prefix + name: stored.reshape(1)}
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @torch.no_grad()
    def store_adaptive(self, adapted_margin: Margin) -> None:
        """Store the adaptive numbers of a training batch."""
        for name in adapted_margin.adaptive_fields:
            state: Tensor = getattr(self, f"state_{name}")
            self._set_buffer(f"state_{name}", torch.as_tensor(getattr(adapted_margin, name)).to(state))

    def advance(self) -> None:
        """Count one more training call; safe with several threads."""
        if torch.compiler.is_compiling():
            self.steps = self.steps + 1
            return
        with _step_lock:
            self._buffers["steps"] = self.steps + 1

    def _set_buffer(self, name: str, value: Tensor) -> None:
        """Set a buffer without `Module.__setattr__`, which takes a hundredth of a small head's step."""
        if torch.compiler.is_compiling():
            setattr(self, name, value)
        else:
            self._buffers[name] = value

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MarginState:
        # `head.half()` must not round an adaptive scale or a margin of 0.3: these buffers follow the
        # others to their device but keep the widest dtype there.
        wide_buffers = {name: self._buffers.pop(name) for name in self._wide_buffers}
        learnt = {name: parameter.data for name, parameter in self.named_parameters()}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = self.steps.device
        for name, parameter in self.named_parameters():
            if parameter.dtype in (torch.float16, torch.bfloat16) and not learnt[name].is_meta:
                parameter.data = learnt[name].to(device)
        for name, value in wide_buffers.items():
            if value is None or not value.is_meta:
                moved = None if value is None else value.to(device=device, dtype=widest_float_dtype(device))
            elif name == "class_weight":
                moved = torch.empty_like(value, device=device)  # a checkpoint has the value
            else:
                moved = self._initial_value(name, device)  # no checkpoint has the value: initialise it
            self._buffers[name] = moved
        return self
