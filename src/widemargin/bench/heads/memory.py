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

_STATUS_PATH, _CLEAR_REFS_PATH = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure_extra_memory(name: str, shape: tuple[int, int, int], threads: int) -> float:
    """MiB of a contestant, by its name, in a process of its own."""
    words = [sys.executable, "-m", __name__, name, json.dumps(shape), str(threads)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"bench head: {name} could not be measured: {done.stderr.strip().splitlines()[-1:]}")
    return float(done.stdout.split()[-1])


def resident_kib() -> int:
    """KiB of memory that the process has now."""
    return _read_status_kib("VmRSS")


def peak_resident_kib() -> int:
    """KiB that it had at most since the mark was reset."""
    return _read_status_kib("VmHWM")


def reset_peak_resident() -> None:
    """Begin a new mark."""
    _CLEAR_REFS_PATH.write_text("5")


def _read_status_kib(field: str) -> int:
    return next(int(line.split()[1]) for line in _STATUS_PATH.read_text().splitlines() if line.startswith(field))


def _measure_step_memory(name: str, shape: tuple[int, int, int], threads: int) -> float:
    import gc

    import torch

    from ...others import choose, fused, sweep
    from .contestants import EAGER_LOSSES, eager_head, linear_head, metric_learning_heads, widemargin_head
    from .timing import batch, make_step

    torch.set_num_threads(threads)
    known = {c.name: c for c in (linear_head(), *(eager_head(loss) for loss in EAGER_LOSSES), *metric_learning_heads())}
    contestant = known[name] if name in known else widemargin_head(*name.rsplit(", ", 1))
    samples, dim, classes = shape
    if fused.should_compile(samples * classes, torch.device("cpu")):
        fused.MIN_COMPILE_LOGITS = choose.MIN_STREAM_LOGITS = (
            0  # the small head shall warm up the kernels of the large one
        )
    few = min(classes, 2 * sweep.balance_block_rows(classes, sweep.max_block_rows(samples, dim)))
    x, y = batch(samples, dim, few)
    warm = contestant.make(dim, few)
    make_step(warm, x, y)()
    del warm
    x, y = batch(samples, dim, classes)
    head = contestant.make(dim, classes)
    step = make_step(head, x, y)
    x.grad = torch.zeros_like(x)
    gc.collect()
    before = resident_kib()
    reset_peak_resident()
    step()
    return (peak_resident_kib() - before) / 1024 - classes * dim * 4 / 2**20


if __name__ == "__main__":
    print(_measure_step_memory(sys.argv[1], tuple(json.loads(sys.argv[2])), int(sys.argv[3])))
