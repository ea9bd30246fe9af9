"""How much memory there is, asked before something large is read: one line instead of a killed process."""

from __future__ import annotations

from pathlib import Path

from .errors import InputError

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


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
