"""RowOptimizer: applies any optimizer to just those rows of a matrix that have a gradient.

The optimizer's state (momentum, second moments) is stored for all rows; a step loads the rows with a gradient, updates
them, and stores them again. Rows without a gradient neither move nor decay. A row of [C, K, D] is a class with its K
sub-centres. Step counts (Adam's bias correction) are those of the whole matrix. The initial state of a row (Adagrad's
first sums, Rprop's first step sizes) is determined by running the optimizer on a small matrix; an optimizer that
couples rows (Muon), has state of other shapes than the rows (Adafactor), or needs more than a gradient (LBFGS) is
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..io.errors import InputError


class RowOptimizer:
    """Applies `optimizer_factory` (such as `torch.optim.AdamW`) to the rows of `parameter` that have a gradient.

    Takes a sparse gradient, as a sampled head produces; a dense one updates every row. `param_groups` are those of the
    inner optimizer, so that schedulers and `group["lr"] = …` work.

    >>> weight = nn.Parameter(torch.ones(4, 2))
    >>> optimizer = RowOptimizer(weight, torch.optim.SGD, lr=0.1, momentum=0.9)
    >>> weight.grad = torch.sparse_coo_tensor([[1, 3]], torch.ones(2, 2), (4, 2), check_invariants=True)
    >>> optimizer.step(); [round(v, 1) for v in weight[:, 0].tolist()]
    [1.0, 0.9, 1.0, 0.9]
    """

    def __init__(
        self, parameter: Tensor, optimizer_factory: Callable[..., torch.optim.Optimizer], **options: Any
    ) -> None:
        if not isinstance(parameter, Tensor) or parameter.ndim not in (2, 3):
            raise InputError("RowOptimizer takes one matrix, such as head.weight ([C, D], or [C, K, D] of sub-centres)")
        self.parameter = parameter
        self._initial_state = _probe_initial_state(optimizer_factory, options, parameter)
        self._row_parameter = nn.Parameter(parameter.detach()[:0].clone())
        self.inner = optimizer_factory([self._row_parameter], **options)
        self.row_state: dict[str, Tensor] = {}
        self.scalars: dict[str, Any] = {}
        self._store_row_state(torch.arange(0, device=parameter.device))  # state that exists before the first step

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of the inner optimizer: learning rates and other options."""
        return self.inner.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradient."""
        self.parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update the rows that have a gradient."""
        gradient = self.parameter.grad
        if gradient is None:
            return
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            rows, values = gradient.indices()[0], gradient.values()
        else:
            rows, values = torch.arange(len(self.parameter), device=gradient.device), gradient
        self._row_parameter.data, self._row_parameter.grad = self.parameter.index_select(0, rows), values
        self._load_row_state(rows)
        self.inner.step()
        self._store_row_state(rows)
        self.parameter.index_copy_(0, rows, self._row_parameter.data)
        self._row_parameter.grad = None

    def _load_row_state(self, rows: Tensor) -> None:
        if self.row_state or self.scalars:
            state = {name: value.index_select(0, rows) for name, value in self.row_state.items()}
            self.inner.state[self._row_parameter] = {**self.scalars, **state}

    def _store_row_state(self, rows: Tensor) -> None:
        for name, value in self.inner.state[self._row_parameter].items():
            if isinstance(value, Tensor) and value.shape == self._row_parameter.shape:
                if name not in self.row_state:
                    first = self._initial_state.get(name, 0.0)
                    self.row_state[name] = torch.full_like(self.parameter, first, dtype=value.dtype)
                self.row_state[name].index_copy_(0, rows, value)
            else:
                self.scalars[name] = value
        self.inner.state[self._row_parameter] = {}

    def state_dict(self) -> dict[str, Any]:
        """State of all rows, step counts and options, for `load_state_dict`."""
        options = [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]
        return {"memory": dict(self.row_state), "scalars": dict(self.scalars), "param_groups": options}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state_dict`."""
        parts: list[Any] = [state.get(key) for key in ("memory", "scalars", "param_groups")] if state else []
        if [type(part) for part in parts] != [dict, dict, list] or len(parts[2]) != len(self.param_groups):
            raise InputError(
                "not the state of a RowOptimizer with the same number of groups; pass the result of its state_dict()"
            )
        for name, value in state["memory"].items():
            if value.shape != self.parameter.shape:
                raise InputError(f"{name} is {list(value.shape)}, the weights are {list(self.parameter.shape)}")
        self.row_state = {name: value.clone() for name, value in state["memory"].items()}
        self.scalars = {n: v.clone() if isinstance(v, Tensor) else v for n, v in state["scalars"].items()}
        for group, options in zip(self.param_groups, state["param_groups"], strict=True):
            group.update(options)


# Shape of the probe matrix: rows, and the sizes of a row; all different, so that dimensions cannot be confused.
_PROBE_ROWS, _PROBE_SIZES = 5, (7, 3)
_SUPPORTED_HINT = "SGD, Adam, AdamW, Adagrad, RMSprop, Adadelta, Adamax, NAdam, RAdam, Rprop and ASGD can"


def _probe_initial_state(
    optimizer_factory: Callable[..., torch.optim.Optimizer], options: dict[str, Any], like: Tensor
) -> dict[str, float]:
    """Return the initial value of each state tensor of an optimizer, by name, for rows without a gradient so far.

    Determined by its first step with zero gradients. An optimizer that cannot work on rows alone is refused.
    """
    name = getattr(optimizer_factory, "__name__", type(optimizer_factory).__name__)
    whole = slice(0, _PROBE_ROWS)
    try:
        with torch.random.fork_rng(devices=[]):
            moved, again = (_run_probe(optimizer_factory, options, like, [whole])[0] for _ in range(2))
            apart, _ = _run_probe(optimizer_factory, options, like, [slice(0, 2), slice(2, _PROBE_ROWS)])
            _, state = _run_probe(optimizer_factory, options, like, [whole], steps=1, scale=0.0)
    except InputError:
        raise
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"RowOptimizer: {name} cannot update rows with these options ({error}); {_SUPPORTED_HINT}"
        ) from None
    shapes = {key: list(value.shape) for key, value in state.items() if isinstance(value, Tensor) and value.ndim}
    for key, shape in shapes.items():
        if shape != list(_probe_shape(like)):
            raise InputError(f"RowOptimizer: {name} keeps {key}, which is not per row; {_SUPPORTED_HINT}")
    # An optimizer with random steps differs each time, so nothing can be concluded.
    if torch.equal(moved, again) and float((moved - apart).abs().max()) > 0.01 * float(moved.abs().max()):
        raise InputError(f"RowOptimizer: {name} couples the updates of different rows; {_SUPPORTED_HINT}")
    return {key: float(state[key].flatten()[0]) for key in shapes}


def _probe_shape(like: Tensor) -> tuple[int, ...]:
    return (_PROBE_ROWS, *_PROBE_SIZES[: like.ndim - 1])


def _run_probe(
    optimizer_factory: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
    like: Tensor,
    parts: list[slice],
    steps: int = 2,
    scale: float = 1.0,
) -> tuple[Tensor, dict[str, Any]]:
    """Run some steps on a small matrix, each part with a separate optimizer; return the updates and the last state."""
    generator = torch.Generator().manual_seed(0)
    start, *gradients = (scale * torch.randn(_probe_shape(like), generator=generator) for _ in range(steps + 1))
    moved, state = [], dict[str, Any]()
    for part in parts:
        weight = nn.Parameter(start[part].to(like.device, like.dtype, copy=True))
        optimizer = optimizer_factory([weight], **options)
        for gradient in gradients:
            weight.grad = gradient[part].to(weight)
            optimizer.step()
        moved.append(weight.detach().float() - start[part].to(weight).float())
        state = dict(optimizer.state[weight])
    return torch.cat(moved), state
