"""Values of tensors read by Python: where reading is free, which shortcuts need it, and checks that are read late.

On a CPU a value can be read at once, and a branch on it may save work. On an accelerator reading waits for the device
(a host synchronisation), so a training step of a head reads nothing there: `SHORTCUTS` lists what only a CPU does, and
checks of labels and embeddings become one small tensor per call that is read later. `WIDEMARGIN_CHECK` in the
environment sets when:

- `sync`: at once, with the error in the call itself; the default on a CPU.
- `async`: in a later call, or by `wm.raise_deferred_errors()`; the default elsewhere. On CUDA nothing waits: the values
  are copied in the background, and looked at once they have arrived. Other devices wait once per step, for the values
  of the step before.
- `off`: never.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..io.errors import InputError, format_value

CHECK_VARIABLE = "WIDEMARGIN_CHECK"
CHECK_MODES = ("sync", "async", "off")
_MAX_PENDING = 8  # calls whose checks may be on their way; then the oldest is waited for

SHORTCUTS = {
    "norms": "no masks and no rescaling if all norms are far from 0 and from overflow",
    "cosines": "dense: products divided by norms as one node of the graph, instead of unit vectors",
    "target_angle": "dense: target angles from the cosines, from the chord only where a cosine has lost its digits",
    "arccos": "arccos without a clamp if all cosines are far from ±1, otherwise with a backward pass of its own",
    "log_sum": "log-sum of the other classes with a backward pass that keeps the exponentials",
    "arc_curve": "no second branch of ArcFace's curve if no angle is beyond π − m",
    "native_head": "dense: one native call forward and one back between the matrix products",
    "block_norms": "stream: blocks of class weights are not rescaled if their norms are far from 0 and from overflow",
    "anchor": "stream: one anchor for the sums of exp of all blocks, checked after the last one",
    "tiny_angles": "stream: gradients from the vectors only for samples at tiny angles",
    "pair_list": "pair losses: the places of pairs in a mask, without counting them first",
    "penalty": "stream: the penalty on class weights from their products, without unit vectors",
}
"""Branches on values that only a CPU takes, by name; `python -m benchmarks shortcuts` measures each."""

_disabled: set[str] = set()


@contextmanager
def without_shortcuts(*names: str) -> Iterator[None]:
    """Take the code path of an accelerator on a CPU, for the shortcuts with these names; for tests and benchmarks.

    Without names all of them, and checks of values are then late by default, as on an accelerator.
    """
    if unknown := set(names) - set(SHORTCUTS):
        raise ValueError(f"unknown shortcuts: {sorted(unknown)}")
    before = set(_disabled)
    _disabled.update(names or SHORTCUTS)
    try:
        yield
    finally:
        _disabled.clear()
        _disabled.update(before)


def is_read_free(tensor: Tensor, shortcut: str | None = None) -> bool:
    """True if reading values of a tensor does not wait for a device; False for a `shortcut` that is switched off."""
    if tensor.device.type != "cpu":
        return False
    return not _disabled or (shortcut not in _disabled if shortcut else len(_disabled) < len(SHORTCUTS))


def check_mode(tensor: Tensor) -> str:
    """Return when values on the device of `tensor` are checked: `sync`, `async` or `off`.

    >>> check_mode(torch.zeros(1))
    'sync'
    """
    mode = os.environ.get(CHECK_VARIABLE)
    if not mode:
        return "sync" if is_read_free(tensor) else "async"
    if mode not in CHECK_MODES:
        raise InputError(f"{CHECK_VARIABLE}={format_value(mode)} must be sync, async or off")
    return mode


class _PendingCheck(NamedTuple):
    values: Tensor
    """Some integers: on the host or on their way there, or on a device without events."""
    event: torch.cuda.Event | None
    """Done when the values have arrived."""
    explain: Callable[[Sequence[int]], str | None]
    """Returns what is wrong with these values, None if nothing is."""


_pending: deque[_PendingCheck] = deque()
_pending_lock = threading.Lock()


def defer_check(values: Tensor, explain: Callable[[Sequence[int]], str | None]) -> None:
    """Check `values` later: `explain` gets them as a list of integers and returns the error, if there is one."""
    values, event = values.detach(), None
    if values.is_cuda:
        # The copy goes into pinned memory, and nothing waits for it.
        stream = torch.cuda.current_stream(values.device)
        values, event = values.to("cpu", non_blocking=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(stream)
    with _pending_lock:
        _pending.append(_PendingCheck(values, event, explain))


def has_deferred_checks() -> bool:
    """True if some values have not been looked at."""
    return bool(_pending)


def raise_deferred_errors(*, wait: bool = True) -> None:
    """Raise the error of an earlier call of a head whose labels or embeddings were checked late, if there is one.

    Call it where a program waits for the device anyway, such as when a loss is printed or before a checkpoint is
    written. `wait=False` looks only at values that have arrived. Every call of a head does that, too.

    >>> raise_deferred_errors()
    """
    for message in _read_arrived(wait):
        if message is not None:
            with _pending_lock:
                _pending.clear()  # consequences of the same mistake
            raise InputError(f"{message} (found after the call, see {CHECK_VARIABLE})")


def read_integers(values: Tensor) -> list[int]:
    """Return a few integers at once; an accelerator is waited for.

    All pending checks are read in the same host synchronisation, and their error is raised.
    """
    with _pending_lock:
        checks = list(_pending)
        _pending.clear()
    for check in checks:
        if check.event is not None:
            check.event.synchronize()  # costs nothing: `values` are newer
    found, *rows = _read_together([values, *(check.values for check in checks)])
    for check, row in zip(checks, rows, strict=True):
        message = check.explain(row)
        if message is not None:
            raise InputError(message)
    return found


def _read_arrived(wait: bool) -> list[str | None]:
    """Take the checks whose values can be read from the queue; return their errors or None, in order."""
    arrived: list[_PendingCheck] = []
    with _pending_lock:
        while _pending:
            event = _pending[0].event
            if event is not None and not event.query():  # type: ignore[no-untyped-call]
                if not wait and len(_pending) <= _MAX_PENDING:
                    break
                event.synchronize()
            arrived.append(_pending.popleft())
    rows = _read_together([check.values for check in arrived])
    return [check.explain(row) for check, row in zip(arrived, rows, strict=True)]


def _read_together(values: Sequence[Tensor]) -> list[list[int]]:
    """Return integers of several tensors, with one host synchronisation for those of one device."""
    places: dict[torch.device, list[int]] = {}
    for place, one in enumerate(values):
        places.setdefault(one.device, []).append(place)
    rows: dict[int, list[int]] = {}
    for some in places.values():
        sizes = [values[place].numel() for place in some]
        numbers: list[Any] = torch.cat([values[place].flatten() for place in some]).tolist()
        for place, size in zip(some, sizes, strict=True):
            rows[place], numbers = numbers[:size], numbers[size:]
    return [rows[place] for place in range(len(values))]
