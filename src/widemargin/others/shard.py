"""Which classes a process holds when a head is split over the ranks of a group, and what the ranks exchange.

Rank r holds a run of classes, cut as `torch.chunk` cuts (the last may be smaller), which is also how DTensor cuts: so
a checkpoint written by any number of ranks can be read by any other. The exchanges below are differentiable. Losses
are each rank's own; as under DDP, gradients are those of the mean over ranks of what each rank differentiates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from .. import ranks
from ..errors import InputError
from ..margin import Margin

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True, eq=False)
class Shard:
    """The classes `start` to `stop` of `classes`, held by this process of a group."""

    classes: int
    rank: int
    world: int
    group: ProcessGroup | None = None

    @classmethod
    def here(cls, classes: int, group: ProcessGroup | None = None) -> Shard:
        """This process's part; all of it in a single process."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls(classes, 0, 1)
        shard = cls(classes, dist.get_rank(group), dist.get_world_size(group), group)
        if (shard.world - 1) * shard.step >= classes:
            raise InputError(f"{classes} classes on {shard.world} ranks leave one without a class; take fewer ranks")
        return shard

    @property
    def step(self) -> int:
        """Classes of every rank but the last."""
        return -(-self.classes // self.world)

    @property
    def start(self) -> int:
        """The first class."""
        return self.rank * self.step

    @property
    def stop(self) -> int:
        """Behind the last class."""
        return min(self.start + self.step, self.classes)

    def __len__(self) -> int:
        return self.stop - self.start

    def generator(self, device: torch.device) -> torch.Generator:
        """Random numbers of this rank's own: ranks that were seeded alike must not hold the same classes."""
        seed = int(torch.randint(2**62, ()))
        return torch.Generator(device).manual_seed(seed ^ self.rank)

    def own_rows(self, rows: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Of all ranks' samples those of this rank's classes, and their labels counted from its first class."""
        sizes = self.sizes(y)
        rows, y = self.gathered(rows, sizes), self.gathered(y, sizes) - self.start
        own = (y >= 0) & (y < len(self))
        return rows[own], y[own]

    def __deepcopy__(self, memo: Any) -> Shard:
        return self  # a process group cannot be copied

    # ---------------------------------------------------------------- exchanges

    def gather_rows(self, rows: Tensor) -> Tensor:
        """The rows of all ranks, in rank order, without a gradient."""
        return ranks.gather_rows(rows, self.group) if self.world > 1 else rows.detach()

    def sizes(self, rows: Tensor) -> list[int]:
        """How many rows every rank has."""
        return [size for (size,) in self._of_all([len(rows)], rows.device)]

    def _of_all(self, numbers: list[int], device: torch.device) -> list[list[int]]:
        """Some whole numbers of every rank."""
        if self.world == 1:
            return [numbers]
        mine = torch.tensor(numbers, device=device)
        found = [torch.zeros_like(mine) for _ in range(self.world)]
        dist.all_gather(found, mine, group=self.group)
        return [one.tolist() for one in found]

    def agree(self, x: Tensor, learns: bool) -> tuple[list[int], Tensor]:
        """How many rows every rank has, and `x` as the backward passes of all ranks need it.

        Backward passes communicate, so either all ranks have one or none: where the embeddings of some rank want a
        gradient those of all get one, wanted or not. `learns` says that the head's own parameters want one.
        """
        enabled = torch.is_grad_enabled()
        flags = [len(x), int(enabled), int(enabled and x.requires_grad), int(enabled and learns)]
        sizes, modes, of_x, of_head = zip(*self._of_all(flags, x.device), strict=True)
        if (any(of_x) or any(of_head)) and not all(modes):
            raise InputError(
                "some ranks of a sharded head are called under torch.no_grad() and others are not; their backward "
                "passes would wait for each other: call the head alike on all ranks"
            )
        if (any(of_x) or any(of_head) != all(of_head)) and not x.requires_grad:
            x = x.detach().requires_grad_()
        return list(sizes), x

    def gathered(self, rows: Tensor, sizes: list[int]) -> Tensor:
        """The rows of all ranks, in rank order; their gradients come home, of all ranks together."""
        if self.world == 1:
            return rows
        found: Tensor = _Gather.apply(rows, sizes, self)  # type: ignore[no-untyped-call]
        return found

    def gathered_classes(self, rows: Tensor) -> Tensor:
        """What every rank holds of its own classes, for all classes."""
        return self.gathered(rows, [min(self.step, self.classes - rank * self.step) for rank in range(self.world)])

    def copy_rows(self, mine: Tensor, into: Tensor, other: Shard) -> None:
        """Rows of classes split this way to where they are under `other`, which has as many classes or more.

        A rank after the other sends its rows, so that never more than one rank's are held beside one's own.
        """
        for rank in range(self.world):
            start, stop = rank * self.step, min((rank + 1) * self.step, self.classes)
            sent = mine.detach().clone() if rank == self.rank else mine.new_empty(stop - start, *mine.shape[1:])
            if self.world > 1:
                dist.broadcast(sent, group=self.group, group_src=rank)
            first, last = max(start, other.start), min(stop, other.stop)
            if first < last:
                into[first - other.start : last - other.start] = sent[first - start : last - start]

    def summed(self, value: Tensor) -> Tensor:
        """The sum over ranks, on all of them."""
        if self.world == 1:
            return value
        found: Tensor = _Sum.apply(value, self)  # type: ignore[no-untyped-call]
        return found

    def log_summed(self, value: Tensor) -> Tensor:
        """`log Σ_r exp(value_r)`, on all ranks."""
        if self.world == 1:
            return value
        found: Tensor = _LogSumExp.apply(value, self)  # type: ignore[no-untyped-call]
        return found

    @torch.no_grad()
    def largest(self, value: Tensor) -> Tensor:
        """The largest over ranks, without a gradient."""
        if self.world > 1:
            value = value.clone()
            dist.all_reduce(value, dist.ReduceOp.MAX, group=self.group)
        return value

    def shared(self, number: Tensor) -> Tensor:
        """A number that all ranks hold; its gradient is the mean of theirs, so that it stays the same everywhere."""
        if self.world == 1 or not number.requires_grad:
            return number
        found: Tensor = _Shared.apply(number, self)  # type: ignore[no-untyped-call]
        return found

    def shared_numbers(self, margin: Margin) -> Margin:
        """The margin with its learnable numbers shared."""
        learnt = {n: v for n, v in margin.values() if isinstance(v, Tensor) and v.requires_grad}
        return margin.with_values(**{n: self.shared(v) for n, v in learnt.items()}) if learnt else margin

    def part_of_shared(self, number: Tensor) -> Tensor:
        """The same number where each rank sees only its own classes: gradients of ranks add up to the whole."""
        if self.world == 1 or not number.requires_grad:
            return number
        found: Tensor = _Times.apply(number, float(self.world))  # type: ignore[no-untyped-call]
        return found

    def add(self, value: Tensor) -> Tensor:
        """Sum over ranks in place."""
        dist.all_reduce(value, group=self.group)
        return value

    # ---------------------------------------------------------------- checkpoints

    def whole(self, local: Tensor) -> DTensor:
        """The rows of all ranks as one tensor to `torch.distributed.checkpoint`; its memory is that of `local`."""
        from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor import Shard as Rows

        kind = local.device.type
        mesh = (
            init_device_mesh(kind, (self.world,))
            if self.group is None
            else DeviceMesh.from_group(self.group, kind, mesh=list(range(self.world)))
        )
        shape = torch.Size((self.classes, *local.shape[1:]))
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(local, mesh, [Rows(0)], run_check=False, shape=shape, stride=stride)

    def write(self, state: dict[str, Any], prefix: str) -> None:
        """In a state dict the split tensors are whole ones."""
        for name in ("weight", "bias"):
            if self.world > 1 and state.get(prefix + name) is not None:
                state[prefix + name] = self.whole(state[prefix + name].detach())

    def read(self, state: dict[str, Any], prefix: str) -> dict[str, Any]:
        """The state dict with this rank's part of whole tensors, be they split already or held in one piece."""
        found = dict(state)
        for name in ("weight", "bias"):
            value = found.get(prefix + name)
            if value is not None and hasattr(value, "to_local"):
                found[prefix + name] = value.to_local()
            elif value is not None and len(value) == self.classes:
                found[prefix + name] = value[self.start : self.stop]
        return found


def _refuse_second_derivative() -> None:
    """A backward pass that is itself differentiated would have to send gradients of gradients: not written."""
    if torch.is_grad_enabled():
        raise InputError(
            "a head split over several ranks cannot be differentiated twice (create_graph=True); "
            'use road="dense" or "stream" for that'
        )


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int], shard: Shard) -> Tensor:
        ctx.sizes, ctx.shard = sizes, shard
        padded = rows.new_zeros(max(sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=shard.group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        _refuse_second_derivative()
        shard: Shard = ctx.shard
        start = sum(ctx.sizes[: shard.rank])
        # What the ranks' shards want of a sample adds up; they were told 1/R of each loss (see `_mean`).
        home = shard.add(gradient.contiguous().clone())[start : start + ctx.sizes[shard.rank]]
        return home * shard.world, None, None


def _mean(shard: Shard, gradient: Tensor) -> Tensor:
    """Every sample's gradient, known to the rank it lives on, as its part of the mean over ranks."""
    _refuse_second_derivative()
    return shard.add(gradient.contiguous().clone()) / shard.world


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        return shard.add(value.clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _mean(ctx.shard, gradient), None


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, shard: Shard) -> Tensor:
        parts = [torch.empty_like(value) for _ in range(shard.world)]
        dist.all_gather(parts, value.contiguous(), group=shard.group)
        found = torch.stack(parts).logsumexp(0)
        ctx.shard = shard
        ctx.save_for_backward(value, found)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        value, found = ctx.saved_tensors
        return torch.exp(value - found) * _mean(ctx.shard, gradient), None


class _Shared(_Sum):
    """The same way back; forward every rank holds the number already."""

    @staticmethod
    def forward(ctx: Any, number: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        return number.clone()


class _Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, number: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return number.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.factor, None
