"""Heads to measure, and the time and memory of a step: in one process, in fresh ones, and split over two.

The heads are ours on their backends, those of pytorch-metric-learning, and the usual copied layers: plain autograd on
all N×C logits with normalised copies of embeddings and weights. Their margins change only the target, and their
gradients are those of the loss, which many copies do not achieve.

Time is divided by the limit, three matrix products into preallocated memory; for a loss with K weights per class they
are products with all K·C rows. Everything alternates in one process, so that other load affects all equally; the result
is the minimum over the rounds divided by that of the limit. A step is forward and backward to embeddings and weights,
with gradients set to None before it, as by `zero_grad()`; the first steps of each (compiling, allocating) do not count.
Heads too large to fit into memory together are timed one after the other, alternating with the limit.

Memory is that of a step beyond the gradient of the weights, in a fresh process for each head. The process warms up
on a small head of the same kind (libraries, compiled kernels), resets the system's high-water mark, runs one step of
the real head, and reads the mark; the memory before and the gradient itself are subtracted. Linux only.

A head split over processes of one thread each, which communicate by gloo, is compared with one process of one thread.
The whole batch is the same: one process has all samples, each rank its part.
"""

from __future__ import annotations

import gc
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from widemargin.head.backends import compiled
from widemargin.io.errors import InputError

from .margins import benchmark_margin, weights_per_class

if TYPE_CHECKING:
    from widemargin.head.head import Head

MIN_CLASSES_TIMED_SEPARATELY = 500_000
SAMPLE_RATE = 0.1
_RANK_TIMEOUT_SECONDS = 1800
_STATUS_PATH, _CLEAR_REFS_PATH = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class HeadImplementation:
    """A head by name: `make(embedding_dim, num_classes)` returns a module whose `forward(x, y)` is a mean loss."""

    name: str
    library: str
    loss: str
    """Name of the loss: heads of the same loss can be compared in their gradients."""
    make: Callable[[int, int], nn.Module]
    weights_per_class: int = 1
    """Rows of the class weights per class: the limit multiplies as many."""
    keep_grad: bool = False
    """Whether steps zero the previous gradient and add to it instead of dropping it."""


class EagerHead(nn.Module):
    """Cosines of all embeddings with all class weights, and a loss on them."""

    def __init__(
        self, embedding_dim: int, num_classes: int, loss: Callable[[Tensor, Tensor, EagerHead], Tensor]
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_classes, embedding_dim) / embedding_dim**0.5)
        self.loss, self.num_classes = loss, num_classes
        self.s = math.sqrt(2.0) * math.log(max(2, num_classes - 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        cos = F.linear(F.normalize(x), F.normalize(self.weight)).clamp(-1 + 1e-7, 1 - 1e-7)
        return self.loss(cos, y, self)


class LinearCrossEntropy(nn.Module):
    """The linear layer and cross-entropy of torch."""

    def __init__(self, embedding_dim: int, num_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_classes, embedding_dim) / embedding_dim**0.5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, self.weight), y)


def _cross_entropy_with_target(cos: Tensor, y: Tensor, target_curve: Callable[[Tensor], Tensor], s: float) -> Tensor:
    own = cos.gather(1, y.unsqueeze(1))
    return F.cross_entropy(s * cos.scatter(1, y.unsqueeze(1), target_curve(own)), y)


def _arcface(cos: Tensor, y: Tensor, head: EagerHead) -> Tensor:
    return _cross_entropy_with_target(cos, y, lambda own: torch.cos(torch.acos(own) + 0.5), 64.0)


def _cosface(cos: Tensor, y: Tensor, head: EagerHead) -> Tensor:
    return _cross_entropy_with_target(cos, y, lambda own: own - 0.35, 64.0)


def _arcgrad(cos: Tensor, y: Tensor, head: EagerHead) -> Tensor:
    return F.cross_entropy(-10.0 * torch.acos(cos), y)


def _adacos(cos: Tensor, y: Tensor, head: EagerHead) -> Tensor:
    with torch.no_grad():
        others = torch.exp(head.s * cos).scatter(1, y.unsqueeze(1), 0.0).sum(1).mean()
        median = torch.acos(cos.gather(1, y.unsqueeze(1))).median().clamp(max=math.pi / 4)
        head.s = float(torch.log(others) / torch.cos(median))
    return F.cross_entropy(head.s * cos, y)


EAGER_LOSSES = {"arcface": _arcface, "cosface": _cosface, "arcgrad": _arcgrad, "adacos": _adacos}


class MeanLoss(nn.Module):
    """One of our heads with the mean of its losses."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head

    @property
    def weight(self) -> Tensor:
        return cast(Tensor, self.head.weight)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = self.head(x, y).mean()
        return loss


CPU = torch.device("cpu")


def widemargin_head(
    loss: str, backend: str, compile_kernels: bool = False, dtype: torch.dtype = torch.float32
) -> HeadImplementation:
    """One of our heads on a backend, with kernels compiled by size or always."""

    def make(embedding_dim: int, num_classes: int) -> nn.Module:
        from widemargin.head.head import Head

        margin = benchmark_margin(loss, num_classes)
        compiling: compiled.CompileSetting = compile_kernels or "auto"
        return MeanLoss(Head(embedding_dim, num_classes, margin, backend=backend, compile=compiling, dtype=dtype))

    name = f"{loss}, {backend}{', compiled' * compile_kernels}"
    return HeadImplementation(name, "widemargin", loss, make, weights_per_class(loss))


def with_kept_grad(implementation: HeadImplementation) -> HeadImplementation:
    """The same with a gradient that is kept from step to step, `zero_grad(set_to_none=False)`."""
    return replace(implementation, name=f"{implementation.name}, kept gradient", keep_grad=True)


def eager_head(loss: str) -> HeadImplementation:
    """The usual copied head."""
    return HeadImplementation(
        f"{loss}, eager", "eager PyTorch", loss, lambda dim, count: EagerHead(dim, count, EAGER_LOSSES[loss])
    )


def linear_head() -> HeadImplementation:
    """A linear layer without margin and normalisation."""
    return HeadImplementation("linear + cross_entropy", "torch", "softmax", LinearCrossEntropy)


def metric_learning_heads() -> Iterator[HeadImplementation]:
    """Heads of pytorch-metric-learning with the same options; none if it is not installed."""
    try:
        from pytorch_metric_learning import losses as peer
    except ImportError:
        return
    library = "pytorch-metric-learning"
    yield HeadImplementation(
        "ArcFaceLoss", library, "arcface", lambda d, c: peer.ArcFaceLoss(c, d, margin=28.6479, scale=64)
    )
    yield HeadImplementation(
        "CosFaceLoss", library, "cosface", lambda d, c: peer.CosFaceLoss(c, d, margin=0.35, scale=64)
    )


def list_head_implementations(
    losses: list[str],
    backends: list[str],
    num_logits: int,
    baseline_losses: list[str],
    kept_gradient: bool = True,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
) -> list[HeadImplementation]:
    """Return all heads of a round: ours of `losses`, and others of `baseline_losses`."""
    heads = [widemargin_head(loss, backend, dtype=dtype) for loss in losses for backend in backends]
    if num_logits >= compiled.MIN_COMPILE_LOGITS:
        heads += [with_kept_grad(one) for one in heads] if kept_gradient else []
    elif num_logits >= compiled.MIN_FORCED_COMPILE_LOGITS and compiled.can_compile(device):
        heads += [widemargin_head(loss, backend, True, dtype) for loss in losses for backend in backends]
    if baseline_losses:
        heads += [linear_head(), *(eager_head(loss) for loss in baseline_losses if loss in EAGER_LOSSES)]
        heads += [peer for peer in metric_learning_heads() if peer.loss in baseline_losses]
    return heads


def make_matmul_limit(
    samples: int,
    embedding_dim: int,
    num_classes: int,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
) -> Callable[[], None]:
    """A function that computes X·Wᵀ, G·W and Gᵀ·X into preallocated results; logits are stored as [C, N]."""
    place: dict[str, Any] = {"device": device, "dtype": dtype}
    x, weight = torch.randn(samples, embedding_dim, **place), torch.randn(num_classes, embedding_dim, **place)
    logits, to_x, to_weight = (
        torch.randn(num_classes, samples, **place),
        torch.empty(samples, embedding_dim, **place),
        torch.empty(num_classes, embedding_dim, **place),
    )

    def products() -> None:
        torch.mm(weight, x.T, out=logits)
        torch.mm(logits.T, weight, out=to_x)
        torch.mm(logits, x, out=to_weight)

    return products


def make_step(head: nn.Module, x: Tensor, y: Tensor, keep_grad: bool = False) -> Callable[[], None]:
    """One training step without an optimizer; `keep_grad` zeroes the gradients instead of dropping them."""

    def step() -> None:
        head.zero_grad(set_to_none=not keep_grad)
        x.grad = None
        head(x, y).backward()

    return step


def random_batch(samples: int, embedding_dim: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Random embeddings and labels, the same for all heads."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(samples, embedding_dim, generator=draw)
    return x.requires_grad_(), torch.randint(num_classes, (samples,), generator=draw)


def time_heads(
    shape: tuple[int, int, int],
    implementations: list[HeadImplementation],
    rounds: int,
    on_progress: Callable[[float], None] = lambda _: None,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """Measure the seconds of the limit and of every head."""
    spent: dict[str, list[float]] = defaultdict(list)
    active_backends: dict[str, str | None] = {}
    for group, turns in _groups(shape, implementations, rounds):
        seconds_of, backends = _time_interleaved(shape, group, turns, on_progress, device, dtype)
        active_backends |= backends
        for name, seconds in seconds_of.items():
            spent[name] += seconds
    return {
        "shape": list(shape),
        "threads": torch.get_num_threads(),
        "seconds": {n: min(s) for n, s in spent.items()},
        "rounds": {n: [round(value, 7) for value in s] for n, s in spent.items()},
        "weights_per_class": {one.name: one.weights_per_class for one in implementations if one.weights_per_class > 1},
        "active_backends": active_backends,
    }


def limit_name(weights_per_class: int = 1) -> str:
    """Return the name of the limit for heads with this many weights per class.

    >>> limit_name(), limit_name(3)
    ('limit', 'limit, 3 weights per class')
    """
    return "limit" if weights_per_class == 1 else f"limit, {weights_per_class} weights per class"


def time_over_limit(row: dict[str, Any], name: str) -> float:
    """Time of a head divided by that of three plain products with all of its weights."""
    limit = name if name.startswith("limit") else limit_name(row.get("weights_per_class", {}).get(name, 1))
    return float(row["seconds"][name] / row["seconds"][limit])


def round_ratios(row: dict[str, Any], name: str) -> list[float]:
    """Time divided by the limit in each round, sorted; empty for records without rounds."""
    limit = name if name.startswith("limit") else limit_name(row.get("weights_per_class", {}).get(name, 1))
    rounds = row.get("rounds", {})
    return sorted(spent / bare for spent, bare in zip(rounds.get(name, []), rounds.get(limit, []), strict=False))


def count_progress_calls(shape: tuple[int, int, int], implementations: list[HeadImplementation], rounds: int) -> int:
    """Number of calls of `on_progress`."""
    groups = _groups(shape, implementations, rounds)
    return sum(turns * (len(group) + len(_limit_sizes(group))) for group, turns in groups)


def _limit_sizes(implementations: list[HeadImplementation]) -> list[int]:
    """Return the numbers of weights per class of these heads."""
    return sorted({1, *(one.weights_per_class for one in implementations)})


def _groups(
    shape: tuple[int, int, int], implementations: list[HeadImplementation], rounds: int
) -> list[tuple[list[HeadImplementation], int]]:
    """Groups of heads that are timed together, alternating, with their number of rounds."""
    return (
        [([one], min(rounds, 2)) for one in implementations]
        if shape[2] >= MIN_CLASSES_TIMED_SEPARATELY
        else [(implementations, rounds)]
    )


def _time_interleaved(
    shape: tuple[int, int, int],
    implementations: list[HeadImplementation],
    rounds: int,
    on_progress: Callable[[float], None],
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[dict[str, list[float]], dict[str, str | None]]:
    """Return the seconds of a step in every round by name, and the backend that each of our heads used."""
    samples, dim, classes = shape
    x, y = random_batch(samples, dim, classes)
    x, y = x.detach().to(device, dtype).requires_grad_(), y.to(device)
    steps: dict[str, Callable[[], None]] = {
        limit_name(count): make_matmul_limit(samples, dim, count * classes, device, dtype)
        for count in _limit_sizes(implementations)
    }
    heads: dict[str, nn.Module] = {}
    for one in implementations:
        torch.manual_seed(1)  # another seed than the embeddings', or weights would be parallel to them
        head = one.make(dim, classes)
        # Ours have their dtype already; `to` would also round their fp64 state.
        heads[one.name] = head.to(device) if one.library == "widemargin" else head.to(device, dtype)
        steps[one.name] = make_step(heads[one.name], x, y, one.keep_grad)
    spent: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step(), step()
    inner = max(1, min(200, 3_000_000 // (samples * classes)))  # small steps are timed in groups
    for _ in range(rounds):
        for name, step in steps.items():
            _wait_for(device)
            start = time.perf_counter()
            for _ in range(inner):
                step()
            _wait_for(device)
            spent[name].append((time.perf_counter() - start) / inner)
            on_progress(1.0)
    return spent, {name: head.head.active_backend for name, head in heads.items() if isinstance(head, MeanLoss)}


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_extra_memory(name: str, shape: tuple[int, int, int], threads: int) -> float:
    """Measure the MiB of a step of a head, by name, beyond the gradient, in a separate process."""
    command = [sys.executable, "-m", __name__, "memory", name, json.dumps(shape), str(threads)]
    process = subprocess.run(command, env=checkout_environment(), capture_output=True, text=True, check=False)
    if process.returncode:
        raise InputError(f"{name} could not be measured: {process.stderr.strip().splitlines()[-1:]}")
    return float(process.stdout.split()[-1])


def checkout_environment() -> dict[str, str]:
    """Return the environment of a child process that imports this package from the checkout."""
    checkout = str(Path(__file__).resolve().parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (checkout, os.environ.get("PYTHONPATH"))))}


def resident_kib() -> int:
    """Return the resident memory of the process in KiB."""
    return _read_status_kib("VmRSS")


def peak_resident_kib() -> int:
    """Return the peak resident memory in KiB since `reset_peak_resident`."""
    return _read_status_kib("VmHWM")


def reset_peak_resident() -> None:
    """Reset the high-water mark that `peak_resident_kib` reads."""
    _CLEAR_REFS_PATH.write_text("5")


def _read_status_kib(field: str) -> int:
    return next(int(line.split()[1]) for line in _STATUS_PATH.read_text().splitlines() if line.startswith(field))


def _measure_step_memory(name: str, shape: tuple[int, int, int], threads: int) -> float:
    from widemargin.head.backends import class_blocks, select

    torch.set_num_threads(threads)
    implementations = {
        c.name: c for c in (linear_head(), *(eager_head(loss) for loss in EAGER_LOSSES), *metric_learning_heads())
    }
    loss, _, backend = name.rpartition(", ")
    implementation = implementations[name] if name in implementations else widemargin_head(loss, backend)
    samples, dim, classes = shape
    if compiled.should_compile("auto", samples * classes, torch.device("cpu")):
        # The small head warms up the kernels of the large one.
        compiled.MIN_COMPILE_LOGITS = select.MIN_STREAM_LOGITS = compiled.MIN_DENSE_COMPILE_LOGITS = 0
        is_large = samples * classes * implementation.weights_per_class > select.MAX_NATIVE_PRODUCTS
        select.MAX_NATIVE_PRODUCTS = 0 if is_large else select.MAX_NATIVE_PRODUCTS
    few = min(classes, 2 * class_blocks.balance_block_rows(classes, class_blocks.max_block_rows(samples, dim)))
    x, y = random_batch(samples, dim, few)
    warm = implementation.make(dim, few)
    make_step(warm, x, y)()
    del warm
    x, y = random_batch(samples, dim, classes)
    head = implementation.make(dim, classes)
    step = make_step(head, x, y)
    x.grad = torch.zeros_like(x)
    gc.collect()
    before = resident_kib()
    reset_peak_resident()
    step()
    return (peak_resident_kib() - before) / 1024 - implementation.weights_per_class * classes * dim * 4 / 2**20


def measure_sharded_head(shape: tuple[int, int, int], loss: str, rounds: int, world_size: int = 2) -> dict[str, Any]:
    """Seconds of a step in one process, over ranks, and there with a tenth of the classes drawn; MiB per rank.

    Seconds are the minimum over the rounds, MiB the memory of a step beyond the gradient of a rank's own classes.
    """
    single = _run_processes(shape, loss, rounds, 1)[0]
    together = _run_processes(shape, loss, rounds, world_size)
    slowest = {name: max(rank[name] for rank in together) for name in ("full", "sampled", "mebibytes", "exchanges")}
    return {
        "shape": list(shape),
        "loss": loss,
        "world_size": world_size,
        "sample_rate": SAMPLE_RATE,
        "seconds": {
            "single_process": single["full"],
            "full": slowest["full"],
            "sampled": slowest["sampled"],
            "exchanges": slowest["exchanges"],
        },
        "mebibytes": round(slowest["mebibytes"], 2),
        "full_over_single_process": slowest["full"] / single["full"],
        "sampled_over_full": slowest["sampled"] / slowest["full"],
    }


def _run_processes(shape: tuple[int, int, int], loss: str, rounds: int, world_size: int) -> list[dict[str, float]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", __name__, "rank", json.dumps(shape), loss, str(rounds), folder]
        common = {**checkout_environment(), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        common |= {"WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"}
        started = [
            subprocess.Popen(command, env={**common, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
            for rank in range(world_size)
        ]
        for process in started:
            _, stderr = process.communicate(timeout=_RANK_TIMEOUT_SECONDS)
            if process.returncode:
                for other in started:
                    other.kill()
                raise InputError(f"a rank failed: {stderr.strip().splitlines()[-1:]}")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(world_size)]


def _measure_rank(shape: tuple[int, int, int], loss: str, rounds: int) -> dict[str, float]:
    """Measure in one process; all ranks run this at the same time."""
    import torch.distributed as dist

    from widemargin.head.head import Head

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    samples, dim, classes = shape
    x, y = random_batch(samples, dim, classes)
    own_part = slice(samples * rank // world, samples * (rank + 1) // world)
    mine, labels = x.detach()[own_part].clone().requires_grad_(), y[own_part]
    backend = "stream" if world == 1 else "sharded"
    result: dict[str, float] = {"sampled": 0.0, "mebibytes": 0.0}
    for name, options in {"full": {}, "sampled": {"sample_rate": SAMPLE_RATE}}.items():
        if name == "sampled" and world == 1:
            continue
        torch.manual_seed(0)
        head = Head(dim, classes, benchmark_margin(loss, classes), backend=backend, **options)  # type: ignore[arg-type]
        step = make_step(MeanLoss(head), mine, labels)
        step(), step()
        spent = []
        for _ in range(rounds):
            dist.barrier()
            start = time.perf_counter()
            step()
            spent.append(time.perf_counter() - start)
        result[name] = min(spent)
        if name == "full":
            head.zero_grad()
            head.grad_buffer.clear()
            mine.grad = None
            before = resident_kib()
            reset_peak_resident()
            step()
            result["mebibytes"] = (peak_resident_kib() - before) / 1024 - head.weight.numel() * 4 / 2**20
        del head, step
    result["exchanges"] = _time_exchanges(samples, dim, rounds)
    dist.barrier()
    dist.destroy_process_group()
    return result


def _time_exchanges(samples: int, dim: int, rounds: int) -> float:
    """Seconds of the exchanges of a step by themselves: what computing beside them could save at most.

    Sizes, embeddings, labels and a packed tensor of three numbers per sample forward; the gradients of the packed
    tensor and of all embeddings backward.
    """
    import torch.distributed as dist

    ranks = dist.get_world_size()
    gathered = [
        torch.zeros(4),
        torch.zeros(samples // ranks, dim),
        torch.zeros(samples // ranks),
        torch.zeros(3, samples),
    ]
    reduced = [torch.zeros(3, samples), torch.zeros(samples, dim)]
    spent = []
    for _ in range(20 * rounds):
        dist.barrier()
        start = time.perf_counter()
        for one in gathered:
            dist.all_gather([torch.empty_like(one) for _ in range(ranks)], one)
        for one in reduced:
            dist.all_reduce(one)
        spent.append(time.perf_counter() - start)
    return sorted(spent)[len(spent) // 2]


def _run_child(argv: list[str]) -> None:
    """Run a child process of this module: `memory NAME SHAPE THREADS` or `rank SHAPE LOSS ROUNDS FOLDER`."""
    if argv[0] == "memory":
        print(_measure_step_memory(argv[1], tuple(json.loads(argv[2])), int(argv[3])))
    else:
        result = _measure_rank(tuple(json.loads(argv[1])), argv[2], int(argv[3]))
        Path(argv[4], f"{os.environ['RANK']}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    _run_child(sys.argv[1:])
