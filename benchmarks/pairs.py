"""`python -m benchmarks pairs`: pair losses against pytorch-metric-learning 2.9.0: time of a step, and its memory.

A step is forward and backward of the mean loss of a batch with four samples per class (`n_pair`: two), to the
embeddings (and proxies). Times are taken by turns in one process; memory is the high-water mark of a step in a process
of its own, beyond what the process held before. A peer that needs more than `MAX_CHILD_GIB` is not timed. Settings are
each library's defaults, with the same miner where there is one and the same definition where an option gives it; what
else differs in the definitions is in docs/migration.md. A file of figures is added to, so that memory (`--no-time`) and
time (`--no-memory`) can be measured one after the other.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from widemargin.head.objective import Objective
from widemargin.io.errors import InputError, unknown_name_error
from widemargin.io.progress import progress_bar
from widemargin.viz.terminal import check_writable, console

from .head_timing import checkout_environment, peak_resident_kib, reset_peak_resident, resident_kib

SIZES = (256, 1024)
EMBEDDING_DIM = 512
PER_CLASS = 4
PER_CLASS_OF = {"n_pair(l2=0, normalize=True)": 2}  # whose batches are pairs
MAX_CHILD_GIB = 8
PEERS: dict[str, tuple[str, str | None]] = {
    "contrastive(form=hadsell)": ("ContrastiveLoss()", None),
    "triplet(mining=semihard)": ("TripletMarginLoss(margin=0.2)", "TripletMarginMiner(0.2, 'semihard')"),
    "supcon": ("SupConLoss()", None),
    "nt_xent": ("NTXentLoss()", None),
    "multi_similarity": ("MultiSimilarityLoss()", "MultiSimilarityMiner()"),
    "circle_pairs": ("CircleLoss()", None),
    "margin_pairs(mining=distance)": ("MarginLoss()", "DistanceWeightedMiner()"),
    "proxy_anchor": ("ProxyAnchorLoss(CLASSES, DIM)", None),
    "smooth_ap": ("SmoothAPLoss()", None),
    "tuplet": ("TupletMarginLoss()", None),
    "n_pair(l2=0, normalize=True)": ("NPairsLoss()", None),
    "lifted": ("LiftedStructureLoss()", None),
    "lifted(form=generalized)": ("GeneralizedLiftedStructureLoss()", None),
    "angular": ("AngularLoss()", None),
    "ranked_list": ("RankedListLoss(0.4, 10)", None),
    "fast_ap": ("FastAPLoss()", None),
}
"""Our loss, and the peer's loss and miner."""
WITHOUT_PEER = ("recall_at_k", "xbm(supcon, size=8192)")

Step = Callable[[], None]


def random_batch(samples: int, per_class: int = PER_CLASS) -> tuple[Tensor, Tensor]:
    """Embeddings around one centre per class, so that mining finds something, and labels."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(samples) // per_class
    centres = torch.randn(samples // per_class, EMBEDDING_DIM, generator=draw)
    return 0.3 * centres[y] + torch.randn(samples, EMBEDDING_DIM, generator=draw), y


def own_step(spec: str, x: Tensor, y: Tensor) -> Step:
    """A step of ours."""
    objective = Objective(spec, EMBEDDING_DIM, int(y.max()) + 1)
    return _step(lambda leaf: objective(leaf, y).mean(), x, objective)


def peer_step(spec: str, x: Tensor, y: Tensor) -> Step:
    """A step of the peer's loss that is compared with ours."""
    from widemargin.losses.grammar import parse_literal

    names = {"CLASSES": str(int(y.max()) + 1), "DIM": str(EMBEDDING_DIM)}

    def build(call: str, module: str) -> torch.nn.Module:
        name, _, inside = call.removesuffix(")").partition("(")
        kind = getattr(importlib.import_module(f"pytorch_metric_learning.{module}"), name)
        positional, named = [], {}
        for word in filter(None, inside.split(", ")):
            key, has_name, value = word.rpartition("=")
            found = parse_literal(names.get(value, value), call)
            if has_name:
                named[key] = found
            else:
                positional.append(found)
        built: torch.nn.Module = kind(*positional, **named)
        return built

    loss_call, miner_call = PEERS[spec]
    loss = build(loss_call, "losses")
    miner = None if miner_call is None else build(miner_call, "miners")
    return _step(lambda leaf: loss(leaf, y, None if miner is None else miner(leaf, y)), x, loss)


def _step(mean_loss: Callable[[Tensor], Tensor], x: Tensor, module: torch.nn.Module) -> Step:
    def step() -> None:
        module.zero_grad()
        leaf = x.clone().requires_grad_()
        torch.autograd.backward(mean_loss(leaf))

    return step


def measure_memory(who: str, spec: str, sizes: list[int]) -> dict[int, float | None]:
    """MiB that a step of each size takes, in a process of its own; None where it is more than `MAX_CHILD_GIB`."""
    command = [sys.executable, "-m", "benchmarks.pairs", who, spec, json.dumps(sizes)]
    done = subprocess.run(command, env=checkout_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"{who} {spec} could not be measured: {done.stderr.strip().splitlines()[-1:]}")
    return dict(zip(sizes, json.loads(done.stdout.splitlines()[-1]), strict=True))


def measure_pairs(
    specs: list[str], sizes: list[int], rounds: int, known: list[dict[str, Any]], with_memory: bool, with_time: bool
) -> list[dict[str, Any]]:
    """One row for each loss and size: seconds of each round, their median ratio, and memory; added to `known` rows."""
    rows = {(row["loss"], row["samples"]): row for row in known}
    with progress_bar("pairs", float(len(specs))) as on_progress:
        for spec in specs:
            both = ("ours", "peer") if spec in PEERS else ("ours",)
            memory = {who: measure_memory(who, spec, sizes) for who in both} if with_memory else {}
            for samples in sizes:
                row = rows.setdefault((spec, samples), {"loss": spec, "samples": samples})
                row |= {"peer": PEERS.get(spec, (None,))[0], "embedding_dim": EMBEDDING_DIM}
                row |= {"per_class": PER_CLASS_OF.get(spec, PER_CLASS)}
                if with_memory:
                    row["mebibytes"] = {who: memory[who][samples] for who in both}
                if with_time:
                    timed = [who for who in both if row.get("mebibytes", {}).get(who, 0.0) is not None]
                    row["threads"] = torch.get_num_threads()
                    row["seconds"] = _time_by_turns({who: _build(who, spec, samples) for who in timed}, rounds)
                    if "peer" in timed:
                        ratios = [a / b for a, b in zip(row["seconds"]["ours"], row["seconds"]["peer"], strict=True)]
                        row["ratio"] = {"median": median(ratios), "low": min(ratios), "high": max(ratios)}
            on_progress(1.0)
    return sorted(rows.values(), key=lambda row: row["samples"])


def _build(who: str, spec: str, samples: int) -> Step:
    torch.manual_seed(0)
    return (own_step if who == "ours" else peer_step)(spec, *random_batch(samples, PER_CLASS_OF.get(spec, PER_CLASS)))


def _time_by_turns(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    for step in steps.values():
        step()  # the first one allocates
    spent: dict[str, list[float]] = {who: [] for who in steps}
    for _ in range(rounds):
        for who, step in steps.items():
            begun = time.perf_counter()
            step()
            spent[who].append(time.perf_counter() - begun)
    return spent


def print_pairs(rows: list[dict[str, Any]]) -> None:
    """The table."""
    grid = Table(title="Pair losses against pytorch-metric-learning, a step", title_justify="left", title_style="bold")
    for name in ("N", "loss", "ours", "peer", "time, ours / peer (range)", "memory, ours", "memory, peer"):
        grid.add_column(name, justify="left" if name == "loss" else "right", no_wrap=name == "loss")
    for row in rows:
        seconds, memory, ratio = row.get("seconds", {}), row.get("mebibytes", {}), row.get("ratio")
        times = [f"{1e3 * median(seconds[who]):.1f} ms" if who in seconds else "–" for who in ("ours", "peer")]
        relation = f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else "–"
        held = [
            "–" if who not in memory else f"> {MAX_CHILD_GIB} GiB" if memory[who] is None else f"{memory[who]:.0f} MiB"
            for who in ("ours", "peer")
        ]
        grid.add_row(f"{row['samples']:,}", row["loss"], *times, relation, *held)
    console(width=140).print(grid)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="N", help="samples of a batch")
    parser.add_argument("--losses", nargs="+", metavar="LOSS", help="losses to measure (default: all)")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="steps of each (default 7)")
    parser.add_argument("--no-memory", action="store_true", help="leave out memory, which takes a process per loss")
    parser.add_argument("--no-time", action="store_true", help="leave out times")
    parser.add_argument("--threads", type=int, metavar="N", help="threads (default: torch's)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure, print, write."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    known = [*PEERS, *WITHOUT_PEER]
    for spec in options.losses or ():
        if spec not in known:
            raise unknown_name_error("loss of this benchmark", spec, known)
    if options.rounds < 1 or min(options.sizes) < 2 * PER_CLASS or any(n % PER_CLASS for n in options.sizes):
        raise InputError(f"--rounds must be at least 1, --sizes multiples of {PER_CLASS} from {2 * PER_CLASS} on")
    if options.json:
        check_writable(options.json)
    path = Path(options.json) if options.json else None
    before = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else []
    specs, wanted = options.losses or known, (not options.no_memory, not options.no_time)
    rows = measure_pairs(specs, options.sizes, options.rounds, before, *wanted)
    print_pairs(rows)
    if path is not None:
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _measure_child(who: str, spec: str, sizes: list[int]) -> list[float | None]:
    limit = MAX_CHILD_GIB << 30
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    _build(who, spec, 2 * PER_CLASS)()  # imports and the first backward pass
    found: list[float | None] = []
    for samples in sizes:
        step = _build(who, spec, samples)
        gc.collect()
        before = resident_kib()
        reset_peak_resident()
        try:
            step()
        except (RuntimeError, MemoryError) as error:
            if "alloc" not in str(error) and not isinstance(error, MemoryError):
                raise
            found.append(None)
        else:
            found.append((peak_resident_kib() - before) / 1024)
    return found


if __name__ == "__main__":
    print(json.dumps(_measure_child(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))))
