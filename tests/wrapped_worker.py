"""One rank of head/test_wrapped.py: a model under `fully_shard`, and under DDP inside `join()`."""

import json
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

import widemargin as wm

D, C, N, STEPS = 6, 7, 8, 3
SPECS = ("arcgrad", "normface(s=learnable(10))", "adacos", "softmax(bias=True)", "softmax + 0.1*center")


def batch() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(N, 5, generator=draw, dtype=torch.float64), torch.randint(C, (N,), generator=draw)


def build_model(spec: str, group: object = None, num_classes: int = C, **options: object) -> wm.MarginModel:
    torch.manual_seed(3)
    body = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, D))
    return wm.MarginModel(body, wm.Objective(spec, D, num_classes, group=group, **options)).double()


def train(model: nn.Module, x: Tensor, y: Tensor) -> list[float]:
    """Mean loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(STEPS):
        loss = model(x, y).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def state_of(model: nn.Module) -> dict[str, list[float]]:
    """All floating-point tensors of a model, put together where they lie in parts."""
    found = {
        name: getattr(value, "full_tensor", lambda value=value: value)() for name, value in model.state_dict().items()
    }
    return {name: value.double().flatten().tolist() for name, value in found.items() if value.is_floating_point()}


def error_message(call) -> str:
    try:
        call()
    except wm.InputError as error:
        return str(error)
    return "nothing"


# ---------------------------------------------------------------- FSDP2


def shard_parts(model: wm.MarginModel) -> wm.MarginModel:
    """The same model, its parts and the rest sharded one by one."""
    mesh = init_device_mesh("cpu", (2,))
    for part in (model.backbone, model.head, model):
        fully_shard(part, mesh=mesh)
    return model


def train_fully_sharded(spec: str, backend: str, rank: int) -> dict:
    """Steps, weights and logits of a fully sharded model."""
    x, y = (rows[4 * rank : 4 * rank + 4] for rows in batch())
    model = build_model(spec, dist.group.WORLD, backend=backend)
    shard_parts(model)
    seen = {
        "losses": train(model, x, y),
        "refused": error_message(lambda: model.head.logits(torch.randn(2, D).double())),
    }
    for method in ("logits", "target_angles", "margin_values"):
        register_fsdp_forward_method(model.head, method)
    register_fsdp_forward_method(model, "embed")
    with torch.no_grad():
        embeddings = model.embed(x)
        seen["logits"] = model.head.logits(embeddings).tolist()
        seen["angles"] = model.head.target_angles(embeddings, y).tolist()
        seen["whole"] = model(x).tolist()
    seen["values"] = model.head.margin_values()
    seen["no_scale"] = error_message(lambda: model.head.scale)
    model.head.unshard()
    seen["scale"] = model.head.scale
    model.head.reshard()
    seen["state"] = state_of(model)
    return seen


def train_beside_sharded_head(rank: int) -> dict:
    """Losses and weights of a model of which FSDP shards all but the head, which splits its classes itself."""
    x, y = (rows[4 * rank : 4 * rank + 4] for rows in batch())
    model = build_model("arcface(s=8)", dist.group.WORLD, backend="sharded")
    model.head.load_state_dict(build_model("arcface(s=8)").head.state_dict())
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)), ignored_params=set(model.head.parameters()))
    return {"losses": train(model, x, y), "state": state_of(model)}


def wrap_sharded_head(wrap) -> str:
    """The message of the first step where a wrapper takes the classes of one rank for those of all."""
    x, y = batch()
    model = build_model("arcface(s=8)", dist.group.WORLD, backend="sharded", num_classes=8)
    wrapped = wrap(model)
    return error_message(lambda: wrapped(x, y))


# ---------------------------------------------------------------- DDP's join()


def unequal_batches(rank: int) -> list[tuple[Tensor, Tensor]]:
    """Two batches on rank 0, three on rank 1."""
    draw = torch.Generator().manual_seed(rank)
    return [(torch.randn(4, 5, generator=draw), torch.randint(C, (4,), generator=draw)) for _ in range(2 + rank)]


def train_in_join(spec: str, rank: int, **options: object) -> dict:
    """Steps done inside `join()`, and what ended them."""
    model = DistributedDataParallel(build_model(spec, dist.group.WORLD).float())
    seen = {"steps": 0, "message": "", "error": ""}
    try:
        with model.join(**options):
            for x, y in unequal_batches(rank):
                model(x, y).mean().backward()
                seen["steps"] += 1
    except (wm.InputError, RuntimeError) as error:
        seen |= {"message": str(error), "error": type(error).__name__}
    seen["weight"] = model.module.objective.head.weight.flatten().tolist()
    return seen


def train_sharded_head_in_join(rank: int) -> dict:
    """The backbone under DDP, the classes split over the ranks: the head is no part of the wrapped module."""
    backbone = DistributedDataParallel(nn.Linear(5, D))
    head = wm.Head(D, C, "arcface(s=8)", backend="sharded")
    seen = {"steps": 0, "message": ""}
    try:
        with backbone.join():
            for x, y in unequal_batches(rank):
                head(backbone(x), y).mean().backward()
                seen["steps"] += 1
    except wm.InputError as error:
        seen["message"] = str(error)
    return seen


def train_after_join(rank: int) -> list[float]:
    """A loss that does not adapt inside `join()`, then one that does on the same module after it."""
    model = build_model("softmax + 0.1*center", dist.group.WORLD).float()
    center = model.objective.parts["center"]
    wrapped = DistributedDataParallel(model)
    center.eval()
    with wrapped.join():
        for x, y in unequal_batches(rank):
            wrapped(x, y).mean().backward()
    center.train()
    x, y = unequal_batches(rank)[0]
    for _ in range(2):
        wrapped(x, y).mean().backward()
    return center.centers.flatten().tolist()


def main(folder: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    seen: dict = {
        f"{spec} {backend}": train_fully_sharded(spec, backend, rank)
        for spec in SPECS
        for backend in ("dense", "stream")
    }
    seen |= {f"join {spec}": train_in_join(spec, rank) for spec in ("adacos", "softmax + 0.1*center", "arcface")}
    seen["throw"] = train_in_join("adacos", rank, throw_on_early_termination=True)
    seen["beside"] = train_beside_sharded_head(rank)
    seen["replicated"] = [wrap_sharded_head(wrap) for wrap in (DistributedDataParallel, shard_parts)]
    seen["sharded"] = train_sharded_head_in_join(rank)
    seen["after"] = train_after_join(rank)
    Path(folder, f"{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()
