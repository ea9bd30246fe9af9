"""How much memory a step of a head takes beyond the gradient of its weights, in a fresh process each.

The process warms up on a small head of the same kind (libraries, compiled kernels), resets the system's high-water
mark, makes one step of the real head, and reads the mark. What is left after taking off what was there before and
the gradient itself is what the head needed on the way. Linux only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ...errors import InputError

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def beyond_gradient(name: str, shape: tuple[int, int, int], threads: int) -> float:
    """MiB of a contestant, by its name, in a process of its own."""
    words = [sys.executable, "-m", __name__, name, json.dumps(shape), str(threads)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"bench head: {name} could not be measured: {done.stderr.strip().splitlines()[-1:]}")
    return float(done.stdout.split()[-1])


def resident() -> int:
    """KiB of memory that the process has now."""
    return _kib("VmRSS")


def high_water() -> int:
    """KiB that it had at most since the mark was reset."""
    return _kib("VmHWM")


def reset_high_water() -> None:
    """Begin a new mark."""
    _RESET.write_text("5")


def _kib(field: str) -> int:
    return next(int(line.split()[1]) for line in _STATUS.read_text().splitlines() if line.startswith(field))


def _measure(name: str, shape: tuple[int, int, int], threads: int) -> float:
    import gc

    import torch

    from ...others import choose, fused, sweep
    from .contestants import EAGER, eager, metric_learning, ours, plain
    from .timing import batch, step_of

    torch.set_num_threads(threads)
    known = {c.name: c for c in (plain(), *(eager(loss) for loss in EAGER), *metric_learning())}
    contestant = known[name] if name in known else ours(*name.rsplit(", ", 1))
    samples, dim, classes = shape
    if fused.wanted(samples * classes, torch.device("cpu")):
        fused.FROM = choose.DENSE_ENTRIES = 0  # the small head shall warm up the kernels of the large one
    few = min(classes, 2 * sweep.even_rows(classes, sweep.rows_of_a_block(samples, dim)))
    x, y = batch(samples, dim, few)
    warm = contestant.make(dim, few)
    step_of(warm, x, y)()
    del warm
    x, y = batch(samples, dim, classes)
    head = contestant.make(dim, classes)
    step = step_of(head, x, y)
    x.grad = torch.zeros_like(x)
    gc.collect()
    before = resident()
    reset_high_water()
    step()
    return (high_water() - before) / 1024 - classes * dim * 4 / 2**20


if __name__ == "__main__":
    print(_measure(sys.argv[1], tuple(json.loads(sys.argv[2])), int(sys.argv[3])))
