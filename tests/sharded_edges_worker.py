"""One rank of head/backends/test_sharded_edges.py: calls that used to hang, abort or fail without explanation."""

import json
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import widemargin as wm
from synchronization import HostReads
from widemargin.numerics.host_reads import without_shortcuts

D, C, N = 6, 7, 8


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(N, D, generator=draw, dtype=torch.float64), torch.randint(C, (N,), generator=draw)


def head_of(spec: str, sharded: bool) -> wm.Head:
    torch.manual_seed(3)
    whole = wm.Head(D, C, spec, backend="dense", dtype=torch.float64)
    if not sharded:
        return whole
    head = wm.Head(D, C, spec, backend="sharded", dtype=torch.float64)
    head.load_state_dict(whole.state_dict())
    return head


def error_message(call) -> str:
    try:
        call()
    except wm.InputError as error:
        return str(error)
    return "nothing"


def second_derivative(rank: int) -> str:
    x, y = batch()
    x = x[4 * rank : 4 * rank + 4].requires_grad_()
    loss = head_of("arcface(s=8)", True)(x, y[4 * rank : 4 * rank + 4]).sum()
    return error_message(lambda: torch.autograd.grad(loss, x, create_graph=True))


class CountCollectives:
    """Counts the collectives of `torch.distributed` by name during its context."""

    def __init__(self):
        self.counts = {}
        self.originals = {name: getattr(dist, name) for name in ("all_gather", "all_reduce", "broadcast")}

    def __enter__(self):
        for name, original in self.originals.items():
            setattr(dist, name, self.count(name, original))
        return self.counts

    def count(self, name, original):
        def call(*args, **options):
            self.counts[name] = self.counts.get(name, 0) + 1
            return original(*args, **options)

        return call

    def __exit__(self, *error):
        for name, original in self.originals.items():
            setattr(dist, name, original)


def collectives_and_reads(rank: int) -> dict:
    """Collectives of forward and backward passes, and values read on the host, on the path of an accelerator."""
    x, y = batch()
    mine = slice(4 * rank, 4 * rank + 4)
    found = {}
    for spec, smoothing in (
        ("arcface(s=8)", 0.0),
        ("logit_adjusted(counts=[1, 2, 3, 4, 5, 6, 7], bias=True)", 0.1),
        ("l_softmax", 0.0),
        ("adacos", 0.0),
        ("soft_triple(k=2)", 0.0),
    ):
        head = wm.Head(D, C, spec, backend="sharded", dtype=torch.float64, label_smoothing=smoothing)
        leaf = x[mine].clone().requires_grad_()
        with without_shortcuts(), HostReads() as guard:
            with CountCollectives() as forward:
                loss = head(leaf, y[mine]).mean()
            with CountCollectives() as backward:
                loss.backward()
        wm.raise_deferred_errors()
        found[spec.partition("(")[0]] = [forward, backward, guard.seen]
    return found


def frozen_on_one_rank(rank: int) -> list:
    """Rank 1 has embeddings that want no gradient: the class weights learn from them all the same."""
    x, y = batch()
    mine = slice(4 * rank, 4 * rank + 4)
    head = head_of("arcface(s=8)", True)
    x = x[mine].requires_grad_(rank == 0)
    head(x, y[mine]).mean().backward()
    return [head.weight.grad.tolist(), None if x.grad is None else x.grad.tolist()]


def no_grad_on_one_rank(rank: int) -> str:
    x, y = batch()
    head = head_of("arcface(s=8)", True)
    with torch.set_grad_enabled(rank == 0):
        return error_message(lambda: head(x, y))


def fully_sharded(rank: int) -> list:
    """A learnable scale under FSDP: two steps of a head whose parameters are split by torch."""
    x, y = batch()
    mine = slice(4 * rank, 4 * rank + 4)
    head = head_of("normface(s=learnable(10))", False)
    fully_shard(head, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        loss = head(x[mine], y[mine]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main(folder: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=40))
    rank = dist.get_rank()
    seen = {
        "second": second_derivative(rank),
        "frozen": frozen_on_one_rank(rank),
        "no_grad": no_grad_on_one_rank(rank),
        "fsdp": fully_sharded(rank),
        "exchanges": collectives_and_reads(rank),
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()
