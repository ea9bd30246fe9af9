"""Pair losses on several ranks: each has its part of the same batches; rank r writes `FOLDER/COUNT_r.json`."""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import widemargin as wm
from widemargin.losses.registry import list_losses

SPECS = [
    *(name for name in list_losses("pairs") if name not in ("margin_pairs", "xbm")),
    "margin_pairs(mining=all, learn_beta=True)",
    "xbm(supcon, size=20)",
    "xbm(lifted, size=20)",
    "arcface + 0.5*triplet(mining=hard) + 0.1*mhe",
]
N, D, C = 12, 5, 4


def global_batches() -> list[tuple[Tensor, Tensor]]:
    """Three batches of all ranks together."""
    draw = torch.Generator().manual_seed(3)
    return [
        (torch.randn(N, 6, generator=draw, dtype=torch.float64), torch.randint(C, (N,), generator=draw))
        for _ in range(3)
    ]


def train(spec: str, rank: int, count: int) -> dict[str, list[float]]:
    """Losses of this rank's samples, gradients as DDP averages them, and the state, after three steps."""
    torch.manual_seed(0)
    network = nn.Linear(6, D).double()
    options = {"group": dist.group.WORLD} if count > 1 else {}
    objective = wm.Objective(spec, D, C, **options).double()
    losses, gradients = [], []
    for x, y in global_batches():
        network.zero_grad()
        objective.zero_grad()
        rows = slice(rank * N // count, (rank + 1) * N // count)
        loss = objective(network(x[rows]), y[rows])
        loss.mean().backward()
        losses += loss.tolist()
        for parameter in (*network.parameters(), *objective.parameters()):
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            if count > 1:
                dist.all_reduce(gradient)
            gradients += (gradient / count).flatten().tolist()
    state = [v for key, value in objective.state_dict().items() if "parts" in key for v in value.flatten().tolist()]
    return {"losses": losses, "gradients": gradients, "state": state}


def main(folder: str) -> None:
    count, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if count > 1:
        dist.init_process_group("gloo")
    found = {spec: train(spec, rank, count) for spec in SPECS}
    Path(folder, f"{count}_{rank}.json").write_text(json.dumps(found))
    if count > 1:
        dist.barrier()
        dist.destroy_process_group()
