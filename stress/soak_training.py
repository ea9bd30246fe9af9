"""Training, resuming and evaluating for a long time in one process, and the resources of that process."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any


def read_process_usage() -> dict[str, int]:
    """Memory in KiB, file handles, threads and children of this process."""
    gc.collect()
    own = Path("/proc/self")
    pages = int((own / "statm").read_text().split()[1])
    children = (own / "task" / str(os.getpid()) / "children").read_text().split()
    return {
        "memory": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
        "handles": len(os.listdir(own / "fd")),
        "threads": threading.active_count(),
        "children": len(children),
    }


def soak(argv: list[str]) -> int:
    """`data out minutes cycles result`: resume and evaluate until both the minutes and the cycles are over."""
    from widemargin.io.resources import keep_freed_memory
    from widemargin.training.config import TrainConfig
    from widemargin.training.run_loading import load_run
    from widemargin.training.train import train

    data, out, minutes, cycles, result = argv
    keep_freed_memory()
    config = TrainConfig(
        data=data,
        model="fast(width=0.125)",
        loss="arcgrad(s=10) + 0.02*center",
        input_size=16,
        batch_size=12,
        augment="fast",
        opt="sgd",
        lr=0.01,
        schedule="constant",
        ema=0.9,
        val_fraction=0.2,
        epochs=1_000_000,
        repeated_augmentation=10,
    )
    usage_samples: list[dict[str, int]] = []
    each = max(1.0, 60.0 * float(minutes) / int(cycles) / 2)  # seconds of a cycle, for twice as many cycles as required
    end = time.monotonic() + 60.0 * float(minutes)
    while time.monotonic() < end or len(usage_samples) < int(cycles):
        until, epochs = time.monotonic() + each, 0
        while time.monotonic() < until or not epochs:
            train(config, out, resume=True, stop_after=1, quiet=True)
            epochs += 1
        load_run(out).evaluate()
        usage_samples.append(read_process_usage())
        print(json.dumps(usage_samples[-1]), file=sys.stderr, flush=True)
    summary = {"usage_samples": usage_samples, "epochs": _count_epochs(Path(out))}
    Path(result).write_text(json.dumps(summary), encoding="utf-8")
    return 0


def _count_epochs(out: Path) -> int:
    """Number of epochs in the log."""
    return len((out / "metrics.jsonl").read_text(encoding="utf-8").splitlines())


def growth(usage_samples: list[dict[str, int]]) -> dict[str, Any]:
    """Growth from a quarter of the cycles to the end: memory in percent, the rest in numbers.

    Means of several cycles, because memory fluctuates by some pages.
    """
    quarter = max(1, len(usage_samples) // 4)
    early, late = usage_samples[quarter : 2 * quarter] or usage_samples[:1], usage_samples[-quarter:]
    memory = [sum(one["memory"] for one in part) / len(part) for part in (early, late)]
    increase: dict[str, Any] = {"memory": 100.0 * (memory[1] / memory[0] - 1.0)}
    for name in ("handles", "threads", "children"):
        increase[name] = max(one[name] for one in late) - max(one[name] for one in early)
    return increase
