"""`Callback`: hooks that are called after every step and every epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..io.errors import InputError
from .samplers import checked_state

if TYPE_CHECKING:
    from .trainer import Trainer

_HOOKS = ("on_step_end", "on_epoch_end")


class Callback:
    """Base class of callbacks; any object with one of the two methods is taken as well.

    `trainer` has `model` (a `MarginModel`), `config`, `epoch` (finished epochs), `step` (finished steps), `optimizer`,
    `rank` and `stop()`, which ends the training after this step or epoch and keeps a checkpoint that
    `resume=True` goes on from. With several processes each calls its own callbacks.

    A callback with `state_dict()` and `load_state_dict(state)` is restored when a run is resumed; its state is kept as
    JSON: numbers, texts, lists and mappings.

    >>> class StopWhenGood(Callback):
    ...     def on_epoch_end(self, trainer, metrics):
    ...         if metrics["loss"] < 0.1:
    ...             trainer.stop()
    """

    def on_step_end(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        """Called after every step with `step`, `epoch`, `loss` and `lr`.

        `epoch` counts from 1; `loss` is this process's mean over the batch, a tensor on the device: reading it waits
        for the step, so read it now and then only.
        """

    def on_epoch_end(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        """Called after every epoch, before its checkpoint, with its line of `metrics.jsonl`: `loss`, `val`, …"""


class CallbackList:
    """The callbacks of a run: only those hooks that a callback defines are called."""

    def __init__(self, callbacks: Iterable[Any]) -> None:
        self.callbacks = tuple(callbacks)
        for callback in self.callbacks:
            if isinstance(callback, type) or not any(callable(getattr(callback, hook, None)) for hook in _HOOKS):
                raise InputError(
                    f"callbacks: {getattr(callback, '__name__', type(callback).__name__)} must be an object with "
                    "on_step_end or on_epoch_end"
                )
        self.on_step_end, self.on_epoch_end = (
            [method for callback in self.callbacks if (method := _defined_hook(callback, hook)) is not None]
            for hook in _HOOKS
        )

    def state_dict(self) -> list[dict[str, Any]]:
        """State of those callbacks that have one."""
        return [
            {"index": k, "class": type(callback).__name__, "state": checked_state(callback.state_dict(), "callback")}
            for k, callback in enumerate(self.callbacks)
            if hasattr(callback, "state_dict")
        ]

    def load_state_dict(self, states: Iterable[Mapping[str, Any]]) -> None:
        """Restore the callbacks that stand in the same place as when the states were taken."""
        for kept in states:
            k, name = kept["index"], kept["class"]
            if k >= len(self.callbacks) or type(self.callbacks[k]).__name__ != name:
                raise InputError(
                    f"callbacks: the run had {name} in place {k + 1}; give the same callbacks to resume it"
                )
            self.callbacks[k].load_state_dict(kept["state"])

    @property
    def note(self) -> str:
        """Callbacks whose state a resumed run cannot restore; empty if there are none."""
        names = [type(callback).__name__ for callback in self.callbacks if not hasattr(callback, "state_dict")]
        return f"callbacks without state_dict begin anew: {', '.join(names)}" if names else ""


def _defined_hook(callback: Any, hook: str) -> Any:
    """The method, unless it is the base class's, which does nothing."""
    method = getattr(callback, hook, None)
    same = getattr(type(callback), hook, None) is getattr(Callback, hook)
    return None if same or not callable(method) else method
