"""Memory that is freed in one step is wanted again in the next: keep it instead of giving it back in between.

A CPU step frees and takes hundreds of megabytes. glibc hands blocks of that size back to the system each time, and
the pages are faulted in and zeroed again: up to a seventh of the step's time.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # names of mallopt's parameters in malloc.h
_INT_MAX = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell this process's allocator to keep what is freed; False where it is another than glibc's.

    For commands, which own their process: a library must not change its host's allocator.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _INT_MAX))
