"""What this process takes of the machine: available memory, environment variables, the allocator.

Available memory is asked for before something large is read: one line instead of a killed process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .errors import InputError

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def peak_memory() -> int | None:
    """Most bytes of memory that this process has held; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def available_memory() -> int | None:
    """Bytes that can be used, swap included, in the machine and in the container; None where nobody tells."""
    known = [found for found in (_machine_available_memory(), _cgroup_available_memory()) if found is not None]
    return min(known, default=None)


def check_memory(needed: int, what: str) -> None:
    """Refuse what needs more than there is; `what` begins the message."""
    there = available_memory()
    if there is not None and needed > there:
        raise InputError(f"{what}: {needed:,} bytes of memory are needed, {there:,} are available")


def _machine_available_memory() -> int | None:
    try:
        text = _MEMINFO.read_text("ascii")
    except (OSError, ValueError):
        return None
    sizes = {line.partition(":")[0]: line.split()[1] for line in text.splitlines() if ":" in line}
    if "MemAvailable" not in sizes:
        return None
    return (int(sizes["MemAvailable"]) + int(sizes.get("SwapFree", 0))) << 10


def _cgroup_available_memory() -> int | None:
    """What the control group leaves (version 2), its clean file pages counted as free."""
    try:
        most, used = ((_CGROUP / f"memory.{name}").read_text("ascii").strip() for name in ("max", "current"))
        if most == "max":
            return None
        stats = dict(line.split() for line in (_CGROUP / "memory.stat").read_text("ascii").splitlines())
        return max(0, int(most) - int(used) + int(stats.get("inactive_file", 0)))
    except (OSError, ValueError):
        return None


@contextmanager
def temporary_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables set inside the block, for this process and those it starts; restored afterwards.

    >>> with temporary_environment({"WIDEMARGIN_EXAMPLE": "1"}):
    ...     os.environ["WIDEMARGIN_EXAMPLE"]
    '1'
    >>> "WIDEMARGIN_EXAMPLE" in os.environ
    False
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # names of mallopt's parameters in malloc.h
_INT_MAX = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell this process's allocator to keep what is freed; False where it is another than glibc's.

    A training step on a CPU frees and takes hundreds of megabytes. glibc hands blocks of that size back to the system
    each time, and the pages are faulted in and zeroed again: up to a seventh of the step's time.

    For commands, which own their process: a library must not change its host's allocator.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _INT_MAX))
