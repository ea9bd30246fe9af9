"""Who is missing: when the line between processes breaks, those that are left call each other's numbers."""

from __future__ import annotations

import re
import threading
import time
from datetime import timedelta

import torch.distributed as dist

from .. import ranks
from ..errors import InputError

_CONNECTION_ERROR_PATTERN = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|timed out|timeout|pair closure|broken pipe", re.IGNORECASE
)
_STORE_KEY = "widemargin/here"


class LostRankError(InputError):
    """Another process of the run has gone, or does not answer; the last checkpoint is kept."""


def is_connection_error(error: RuntimeError) -> bool:
    """Whether an error says that the processes of a run have lost each other."""
    return ranks.has_multiple_ranks() and _CONNECTION_ERROR_PATTERN.search(str(error)) is not None


def find_silent_ranks(patience: float) -> list[int] | None:
    """Numbers of the processes that have not answered after so many seconds; None where nobody can be asked."""
    found: list[list[int] | None] = []
    # Apart, as asking a store whose process is stopped, which is rank 0's, waits for ever.
    asking = threading.Thread(target=lambda: found.append(_poll_ranks(patience)), daemon=True)
    asking.start()
    asking.join(patience + 1.0)
    return found[0] if found else None


def _poll_ranks(patience: float) -> list[int] | None:
    from torch.distributed.distributed_c10d import _get_default_store

    world, own = dist.get_world_size(), dist.get_rank()
    until = time.monotonic() + patience
    try:
        store = _get_default_store()
        store.set(f"{_STORE_KEY}/{own}", "1")
        silent = [rank for rank in range(world) if rank != own]
        while silent and time.monotonic() < until:
            silent = [rank for rank in silent if not store.check([f"{_STORE_KEY}/{rank}"])]
            time.sleep(0.05)
        return silent
    except (RuntimeError, ValueError):  # the store is gone, and with it the process that kept it
        return None


def lost_rank_error(patience: float, timeout: timedelta) -> LostRankError:
    """What to say: which processes are gone, and how to go on."""
    silent = find_silent_ranks(patience)
    if silent is None:
        who = "rank 0 has gone or does not answer"
    elif not silent:
        who = f"the processes lost each other, though all of them still answer (time-out {timeout.total_seconds():g} s)"
    elif len(silent) == 1:
        who = f"rank {silent[0]} has gone or does not answer"
    else:
        who = f"ranks {', '.join(map(str, silent))} have gone or do not answer"
    return LostRankError(f"{who}; go on from the last checkpoint with --resume")
