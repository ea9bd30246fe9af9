"""A head split over two processes of one thread each, beside one process of one thread with all of it.

Ranks are real processes that talk by gloo. The whole batch is the same: one process has all samples, each rank its
share. Times are the smallest of the rounds, memory is what a step needs beyond the gradient of a rank's own classes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ...errors import InputError

SAMPLE_RATE = 0.1
_RANK_TIMEOUT_SECONDS = 1800  # seconds


def measure_sharded_head(shape: tuple[int, int, int], loss: str, rounds: int, world_size: int = 2) -> dict[str, Any]:
    """Seconds of a step alone, over ranks, and there with a tenth of the classes drawn; MiB beyond the gradient."""
    alone = _run_processes(shape, loss, rounds, 1)[0]
    together = _run_processes(shape, loss, rounds, world_size)
    slowest = {name: max(found[name] for found in together) for name in ("full", "sampled", "mebibytes")}
    return {
        "shape": list(shape),
        "loss": loss,
        "ranks": world_size,
        "rate": SAMPLE_RATE,
        "seconds": {"alone": alone["full"], "full": slowest["full"], "sampled": slowest["sampled"]},
        "mebibytes": round(slowest["mebibytes"], 2),
        "full_over_alone": slowest["full"] / alone["full"],
        "sampled_over_full": slowest["sampled"] / slowest["full"],
    }


def _run_processes(shape: tuple[int, int, int], loss: str, rounds: int, world_size: int) -> list[dict[str, float]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", __name__, json.dumps(shape), loss, str(rounds), folder]
        common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size)}
        common["OMP_NUM_THREADS"] = "1"
        started = [
            subprocess.Popen(words, env={**common, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
            for rank in range(world_size)
        ]
        for process in started:
            _, said = process.communicate(timeout=_RANK_TIMEOUT_SECONDS)
            if process.returncode:
                for other in started:
                    other.kill()
                raise InputError(f"bench head: a rank failed: {said.strip().splitlines()[-1:]}")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(world_size)]


def _measure_rank(shape: tuple[int, int, int], loss: str, rounds: int) -> dict[str, float]:
    """What one process measures; all do the same at the same time."""
    import torch
    import torch.distributed as dist

    from ...head import Head
    from .contestants import MeanLoss
    from .memory import peak_resident_kib, reset_peak_resident, resident_kib
    from .timing import batch, make_step

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    samples, dim, classes = shape
    x, y = batch(samples, dim, classes)
    share = slice(samples * rank // world, samples * (rank + 1) // world)
    mine, labels = x.detach()[share].clone().requires_grad_(), y[share]
    road = "stream" if world == 1 else "sharded"
    found: dict[str, float] = {"sampled": 0.0, "mebibytes": 0.0}
    for name, options in {"full": {}, "sampled": {"rate": SAMPLE_RATE}}.items():
        if name == "sampled" and world == 1:
            continue
        torch.manual_seed(0)
        head = Head(dim, classes, loss, backend=road, **options)  # type: ignore[arg-type]
        step = make_step(MeanLoss(head), mine, labels)
        step(), step()
        spent = []
        for _ in range(rounds):
            dist.barrier()
            begun = time.perf_counter()
            step()
            spent.append(time.perf_counter() - begun)
        found[name] = min(spent)
        if name == "full":
            head.zero_grad()
            head.grad_buffer.clear()
            mine.grad = None
            before = resident_kib()
            reset_peak_resident()
            step()
            found["mebibytes"] = (peak_resident_kib() - before) / 1024 - len(head.weight) * dim * 4 / 2**20
        del head, step
    dist.barrier()
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    result = _measure_rank(tuple(json.loads(sys.argv[1])), sys.argv[2], int(sys.argv[3]))
    Path(sys.argv[4], f"{os.environ['RANK']}.json").write_text(json.dumps(result))
