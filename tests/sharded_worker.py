"""One rank of head/backends/test_sharded.py and head/test_sharded_checkpoint.py: trains on its share of global batches.

It writes down the losses, gradients and numbers that it saw.
"""

from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist

import widemargin as wm
from widemargin.head.sharded_checkpoint import load_sharded, save_sharded

D, C, N = 6, 7, 9
SPECS = ("arcface(s=8, m=0.3)", "arcgrad(s=learnable(6))", "softmax(bias=True)", "adacos", "adaacos(s=6)", "a_softmax")
SPECS += ("subcenter_arcface(s=8, k=3)", "soft_triple(s=8, k=2)", "sphereface2(s=8)")
DEFERRED = {"class_weight": [0.5, 1.0, 2.0, 0.25, 3.0, 1.5, 0.75], "class_weight_start": 1}
PER_CLASS = "cosface(s=8, m=[0.1, 0.2, 0.3, 0.1, 0.2, 0.3, 0.1])"


def global_batches(count: int = 4):
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.randn(N, D, generator=draw, dtype=torch.float64), torch.randint(C, (N,), generator=draw))
        for _ in range(count)
    ]


def shares(world: int, batch: int) -> list[slice]:
    """Unequal shares of every batch; in the third the last rank has nothing."""
    if world == 1:
        return [slice(0, N)]
    first = (5, 3, N, 4)[batch]
    cuts = [0, first, *([N] * (world - 1))] if world < 3 else [0, first, first + (N - first) // 2, N]
    return [slice(a, b) for a, b in pairwise(cuts)]


def weights(spec: str) -> dict:
    """The state of a head in one piece, to begin with everywhere alike."""
    torch.manual_seed(3)
    return wm.Head(D, C, spec, dtype=torch.float64).state_dict()


def build_head(spec: str, sharded: bool, **options):
    options |= {"label_smoothing": 0.1} if wm.parse(spec).allows_label_smoothing else {}
    head = wm.Head(D, C, spec, backend="sharded" if sharded else "dense", dtype=torch.float64, **options)
    head.load_state_dict(weights(spec), strict="class_weight" not in options)
    return head


def record_training(head, rank: int, world: int, steps: range = range(3), optimizer=None) -> dict:
    """Losses, gradients and numbers over some batches; the loss is a sum over samples divided by N/R, as a mean is."""
    found: dict = {"loss": [], "to_x": [], "to_weight": [], "to_rest": [], "margin_values": []}
    for number in steps:
        x, y = global_batches()[number]
        mine = shares(world, number)[rank]
        x = x[mine].requires_grad_()
        loss = head(x, y[mine])
        head.zero_grad()
        (loss.sum() * world / N).backward()
        found["loss"].append(loss.detach())
        found["to_x"].append(x.grad)
        found["to_weight"].append(head.weight.grad.clone())
        found["to_rest"].append([p.grad.clone() for name, p in head.named_parameters() if name != "weight"])
        found["margin_values"].append(torch.tensor(sorted(head.margin_values().values())))
        if optimizer is not None:
            optimizer.step()
    found["weight"] = head.weight.detach().clone()
    return found


def evaluate(head, rank: int, world: int) -> dict:
    """Logits, target angles and angle metrics of a shared-out batch."""
    x, y = global_batches()[0]
    mine = shares(world, 0)[rank]
    meter = wm.AngleMeter(C, D)
    meter.update(x[mine], y[mine])
    angles = meter.compute(head.gather_weight())
    return {
        "logits": head.logits(x[mine]),
        "theta": head.target_angles(x[mine], y[mine]).detach(),
        "angles": torch.tensor([angles.wc_intra, angles.w_inter, angles.c_inter]),
    }


def train_sampled(rank: int, world: int) -> dict:
    """A step with half of the classes, and one with all of them at a sample rate of 1."""
    head = wm.Head(D, C, "arcface(s=8)", backend="sharded", sample_rate=0.5, dtype=torch.float64)
    x, y = global_batches()[0]
    mine = shares(world, 0)[rank]
    head(x[mine], y[mine]).sum().backward()
    gradient = head.weight.grad.coalesce()
    here = y[(y >= head.shard.start) & (y < head.shard.stop)] - head.shard.start
    return {"rows": gradient.indices()[0], "labels": here.unique(), "held": torch.tensor(len(head.weight))}


SUBCENTERS = "subcenter_arcface(s=8, k=3)"


def use_subcenters(head, rank: int, world: int) -> dict:
    """Everything that reads or changes sub-centres, one after the other, on a shared-out batch."""
    x, y = global_batches()[2]  # in which the last rank has nothing
    mine = shares(world, 2)[rank]
    x, y = x[mine], y[mine]
    found = dict(evaluate(head, rank, world))
    head.init_from_means(x, y)
    found["means"] = head.gather_weight()
    outliers = wm.subcenter_outliers(head, x, y, max_angle=45)
    found |= {"outliers": outliers.is_outlier, "dominant": outliers.dominant, "counts": outliers.counts}
    torch.manual_seed(5)
    head.extend(2)
    found["extended"] = head.gather_weight()[:C]
    head.keep_dominant(torch.cat((outliers.dominant, outliers.dominant.new_tensor([1, 2]))))
    found["kept"] = head.gather_weight()[:C]
    found["loss"] = head(x, y).detach()
    return found


def resume(place: Path, spec: str, rank: int, world: int) -> dict:
    """Two steps after a checkpoint, which is written where there is none."""
    head = build_head(spec, True)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    if place.exists():  # written by another number of ranks
        torch.nn.init.zeros_(head.weight)
        load_sharded(place, head, optimizer)
    else:
        record_training(head, rank, world, range(2), optimizer)
        save_sharded(place, head, optimizer)
    return record_training(head, rank, world, range(2, 4), optimizer)


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    seen: dict = {spec: record_training(build_head(spec, True), rank, world) for spec in (*SPECS, PER_CLASS)}
    seen["deferred"] = record_training(build_head(SPECS[0], True, **DEFERRED), rank, world)
    seen["evaluated"] = evaluate(build_head("arcface", True), rank, world)
    seen["sampled"] = train_sampled(rank, world)
    seen["sub-centres"] = use_subcenters(build_head(SUBCENTERS, True), rank, world)
    seen["resumed"] = resume(Path(folder, "checkpoint"), "adacos", rank, world)
    seen["resumed sub-centres"] = resume(Path(folder, "checkpoint-subcenters"), SUBCENTERS, rank, world)
    torch.save(seen, Path(folder, f"{world}-{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()
