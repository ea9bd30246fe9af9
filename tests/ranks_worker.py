"""One rank of head/test_state_on_ranks.py: trains on its share of a global batch and writes down what it saw."""

import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import widemargin as wm

D, C = 6, 5


def global_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.randn(8, D, generator=draw, dtype=torch.float64), torch.randint(C, (8,), generator=draw))
        for _ in range(4)
    ]


def share(rank: int, batch: int) -> slice:
    """Unequal shares; in the last batch rank 1 has nothing at all."""
    cut = (5, 3, 7, 8)[batch]
    return slice(0, cut) if rank == 0 else slice(cut, 8)


def losses_of(spec: str, rank: int | None) -> dict[str, list[float]]:
    """Losses and state over the batches, of one rank's share or (None) of the whole batch."""
    torch.manual_seed(1)
    group = None if rank is None else dist.group.WORLD
    objective = wm.Objective(spec, D, C, group=group).double()
    seen: dict[str, list[float]] = {"losses": [], "state": []}
    for number, (x, y) in enumerate(global_batches()):
        mine = slice(None) if rank is None else share(rank, number)
        seen["losses"].append(objective(x[mine], y[mine]).tolist())
        for key, value in objective.state_dict().items():
            if key.rpartition(".")[2].startswith(("state_", "steps", "centers")):
                seen["state"].append(value.flatten().tolist())
    return seen


def train_in_parallel(rank: int) -> list[float]:
    """Class weights after two steps under DistributedDataParallel with unequal batches."""
    torch.manual_seed(1)
    body = nn.Sequential(nn.Linear(D, 8, dtype=torch.float64), nn.ReLU(), nn.Linear(8, D, dtype=torch.float64))
    model = wm.MarginModel(body, wm.Objective("adacos", D, C, group=dist.group.WORLD).double())
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for number, (x, y) in enumerate(global_batches()[:3]):
        mine = share(rank, number)
        optimizer.zero_grad()
        parallel(x[mine], y[mine]).mean().backward()
        optimizer.step()
    return [*model.head.weight.flatten().tolist(), model.head.scale]


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    seen = {spec: losses_of(spec, rank) for spec in ("adacos", "adaacos(s=6)", "softmax + 0.1*center", "a_softmax")}
    seen["parallel"] = train_in_parallel(rank)
    Path(folder, f"{rank}.json").write_text(json.dumps(seen))
    dist.barrier()  # a rank that leaves early tears down the connections of the other
    dist.destroy_process_group()
