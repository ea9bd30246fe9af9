"""One rank of head/backends/test_sharded_edges.py: calls that used to hang, abort or fail without explanation."""

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import widemargin as wm

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
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
