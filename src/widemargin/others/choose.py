"""Which road a head takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..errors import InputError, unknown
from ..ranks import check_group
from . import fused
from .dense import Dense
from .rays import Rays
from .road import Road
from .sampled import Sampled
from .shard import Shard
from .sharded import Sharded
from .stream import Stream

if TYPE_CHECKING:
    from ..head import Head

ROADS = ("dense", "stream", "sharded", "sampled")
# Above this many logits auto streams: there the streamed road has compiled kernels and is the faster one, and the dense
# road holds several copies of the logits.
DENSE_ENTRIES = fused.FROM
_WITHOUT_KERNELS = 8  # times as many where nothing can be compiled


def checked_road(road: str, rate: float, group: Any, smoothing: float, classes: int) -> tuple[float, Shard | None]:
    """The rate, and the part of the classes that is here where they are split."""
    if road not in ("auto", *ROADS):
        raise unknown("road", str(road), ("auto", *ROADS))
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0.0 < rate <= 1.0:
        raise InputError(f"rate={rate!r} must be a number above 0 and at most 1")
    if rate < 1.0 and road not in ("sampled", "sharded"):
        raise InputError(f'rate={rate:g} belongs to road="sampled" or road="sharded", not to {road!r}')
    if rate < 1.0 and smoothing:
        raise InputError("label smoothing needs the logits of all classes: it cannot go with a rate below 1")
    check_group(group)
    return float(rate), Shard.here(classes, group) if road == "sharded" else None


def taken(road: str, samples: int, classes: int, device: torch.device) -> str:
    """The road that `auto` takes for so many samples and classes; any other name is its own."""
    if road != "auto":
        return road
    logits = samples * classes
    if torch.compiler.is_compiling():  # what traces a step cannot look for a compiler
        return "stream" if logits >= DENSE_ENTRIES else "dense"
    if logits < DENSE_ENTRIES:
        return "stream" if fused.asked(logits) else "dense"
    enough = logits >= _WITHOUT_KERNELS * DENSE_ENTRIES or fused.available(device)
    return "stream" if enough else "dense"


def road_of(head: Head, rays: Rays) -> Road:
    """The road of a head for a batch."""
    head.taken = taken(head.road, len(rays), head.classes, head.weight.device)
    if head.taken == "dense":
        return Dense(head.margin, rays, head.weight, head.bias)
    if head.taken == "sharded":
        assert head.shard is not None
        learns = any(parameter.requires_grad for parameter in head.parameters())
        return Sharded(rays, head.shard, learns, lambda everyone: _streamed(head, everyone))
    return _streamed(head, rays)


def _streamed(head: Head, rays: Rays) -> Road:
    """Over the classes that are here: a part of them in training where a rate is given, else all."""
    if head.rate < 1.0 and head.training:
        return Sampled(head.margin, rays, head.weight, head.bias, head.rate, head.room)
    return Stream(head.margin, rays, head.weight, head.bias, head.room)
