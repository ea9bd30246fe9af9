"""The sharded backend: the classes of a head split over the ranks of a group.

Every rank streams over its own classes for the samples of all ranks. The ranks exchange embeddings and labels (once),
per sample one logsumexp and one angle with its factors, and the gradients of these: nothing that grows with the number
of classes. `ClassShard` says which classes a rank holds and does the communication; `ShardedBackend` is the backend.

Rank r holds a contiguous range of classes, split like `torch.chunk` (the last may be smaller), which is also how
DTensor splits: so a checkpoint written by any number of ranks can be read by any other. The communication is
differentiable. Each rank has its own losses; as under DDP, gradients are those of the mean over ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...io.errors import InputError
from ...losses.margin import Margin, Subcenters
from ...numerics import distributed
from ...numerics.custom_autograd import custom_autograd
from .base import Backend, NormalizedEmbeddings, SplitLogits, Target, TargetLogit
from .dense import DenseBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True, eq=False)
class ClassShard:
    """The classes `start` to `stop` of `num_classes`, held by this process of a group."""

    num_classes: int
    rank: int
    world_size: int
    group: ProcessGroup | None = None

    @classmethod
    def for_this_rank(cls, num_classes: int, group: ProcessGroup | None = None) -> ClassShard:
        """Return this process's part; all classes in a single process."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls(num_classes, 0, 1)
        distributed.track_ddp_modules()
        shard = cls(num_classes, dist.get_rank(group), dist.get_world_size(group), group)
        if (shard.world_size - 1) * shard.shard_size >= num_classes:
            raise InputError(
                f"{num_classes} classes on {shard.world_size} ranks leave a rank without a class; use fewer ranks"
            )
        return shard

    @property
    def shard_size(self) -> int:
        """Classes of every rank but the last."""
        return -(-self.num_classes // self.world_size)

    @property
    def start(self) -> int:
        """The first class."""
        return self.rank * self.shard_size

    @property
    def stop(self) -> int:
        """One past the last class."""
        return min(self.start + self.shard_size, self.num_classes)

    def __len__(self) -> int:
        return self.stop - self.start

    def make_generator(self, device: torch.device) -> torch.Generator:
        """Return a generator of this rank: ranks with the same seed must not initialise the same weights."""
        seed = int(torch.randint(2**62, ()))
        return torch.Generator(device).manual_seed(seed ^ self.rank)

    def gather_own_class_rows(self, rows: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Gather the samples of all ranks with this rank's classes, and their labels relative to its first class."""
        sizes = self.gather_sizes(y)
        rows, y = self.all_gather(rows, sizes), self.all_gather(y, sizes) - self.start
        own = (y >= 0) & (y < len(self))
        return rows[own], y[own]

    def __deepcopy__(self, memo: Any) -> ClassShard:
        return self  # a process group cannot be copied

    # ---------------------------------------------------------------- exchanges

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Gather the rows of all ranks, in rank order, without a gradient."""
        return distributed.gather_rows(rows, self.group) if self.world_size > 1 else rows.detach()

    def gather_sizes(self, rows: Tensor) -> list[int]:
        """Return the number of rows of every rank."""
        return [size for (size,) in self._all_gather_ints([len(rows)], rows.device)]

    def _all_gather_ints(self, values: list[int], device: torch.device) -> list[list[int]]:
        """Gather some integers of every rank."""
        if self.world_size == 1:
            return [values]
        distributed.check_not_in_join("a sharded head")
        mine = torch.tensor(values, device=device)
        gathered = [torch.zeros_like(mine) for _ in range(self.world_size)]
        dist.all_gather(gathered, mine, group=self.group)
        rows: list[list[int]] = torch.stack(gathered).tolist()  # the one value that a step waits for
        return rows

    def sync_sizes_and_grad(self, x: Tensor, head_requires_grad: bool) -> tuple[list[int], Tensor]:
        """Return the number of rows of every rank, and `x` as the backward passes of all ranks need it.

        Backward passes communicate, so either all ranks have one or none: if the embeddings of some rank need a
        gradient, those of all ranks get one. `head_requires_grad`: whether the head's own parameters need one.
        """
        enabled = torch.is_grad_enabled()
        flags = [len(x), int(enabled), int(enabled and x.requires_grad), int(enabled and head_requires_grad)]
        sizes, modes, of_x, of_head = zip(*self._all_gather_ints(flags, x.device), strict=True)
        if (any(of_x) or any(of_head)) and not all(modes):
            raise InputError(
                "some ranks of a sharded head are called under torch.no_grad() and others are not; their backward "
                "passes would deadlock: call the head in the same way on all ranks"
            )
        if (any(of_x) or any(of_head) != all(of_head)) and not x.requires_grad:
            x = x.detach().requires_grad_()
        return list(sizes), x

    def all_gather(self, rows: Tensor, sizes: list[int]) -> Tensor:
        """Gather the rows of all ranks, in rank order; backward sums the gradients of each rank's rows."""
        if self.world_size == 1:
            return rows
        gathered: Tensor = _AllGather.apply(rows, sizes, self)  # type: ignore[no-untyped-call]
        return gathered

    def all_gather_classes(self, rows: Tensor) -> Tensor:
        """Gather the rows of all classes from the ranks that hold them."""
        return self.all_gather(
            rows, [min(self.shard_size, self.num_classes - rank * self.shard_size) for rank in range(self.world_size)]
        )

    def copy_rows(self, local_rows: Tensor, destination: Tensor, target_shard: ClassShard) -> None:
        """Copy rows of classes of this shard to their places under `target_shard`, which has at least as many classes.

        Ranks send one after the other, so that a rank never holds the rows of more than one other rank.
        """
        for rank in range(self.world_size):
            start, stop = rank * self.shard_size, min((rank + 1) * self.shard_size, self.num_classes)
            sent = (
                local_rows.detach().clone()
                if rank == self.rank
                else local_rows.new_empty(stop - start, *local_rows.shape[1:])
            )
            if self.world_size > 1:
                dist.broadcast(sent, group=self.group, group_src=rank)
            first, last = max(start, target_shard.start), min(stop, target_shard.stop)
            if first < last:
                destination[first - target_shard.start : last - target_shard.start] = sent[first - start : last - start]

    def all_reduce_sum(self, value: Tensor) -> Tensor:
        """Sum over ranks, on all of them."""
        if self.world_size == 1:
            return value
        total: Tensor = _AllReduceSum.apply(value, self)  # type: ignore[no-untyped-call]
        return total

    def combine(self, others: Tensor, sums: list[Tensor], *, logsumexp: bool) -> list[Tensor]:
        """`log Σ_r exp(others_r)` (or the sum over ranks) and the sums of other tensors over ranks, on all ranks.

        All of them are exchanged as one packed tensor, forward and backward.
        """
        if self.world_size == 1:
            return [others, *sums]
        results: tuple[Tensor, ...] = _CombinePacked.apply(self, logsumexp, others, *sums)  # type: ignore[no-untyped-call]
        return list(results)

    @torch.no_grad()
    def all_reduce_max(self, value: Tensor) -> Tensor:
        """Maximum over ranks, without a gradient."""
        if self.world_size > 1:
            value = value.clone()
            dist.all_reduce(value, dist.ReduceOp.MAX, group=self.group)
        return value

    @torch.no_grad()
    def gather_stacked(self, value: Tensor) -> Tensor:
        """Stack the tensors of all ranks, of one shape, in a new first dimension, without a gradient."""
        if self.world_size == 1:
            return value.unsqueeze(0)
        parts = [torch.empty_like(value) for _ in range(self.world_size)]
        dist.all_gather(parts, value.contiguous(), group=self.group)
        return torch.stack(parts)

    def average_gradient(self, number: Tensor) -> Tensor:
        """Return the same number with its gradient averaged over ranks, so that it stays equal on all of them."""
        if self.world_size == 1 or not number.requires_grad:
            return number
        result: Tensor = _AverageGradient.apply(number, self)  # type: ignore[no-untyped-call]
        return result

    def average_margin_gradients(self, margin: Margin) -> Margin:
        """Return the margin with the gradients of its learnable numbers averaged over ranks."""
        learnt = {n: v for n, v in margin.named_values() if isinstance(v, Tensor) and v.requires_grad}
        return margin.with_values(**{n: self.average_gradient(v) for n, v in learnt.items()}) if learnt else margin

    def scale_gradient(self, number: Tensor) -> Tensor:
        """Return the same number with its gradient multiplied by the number of ranks, so that their mean is the sum."""
        if self.world_size == 1 or not number.requires_grad:
            return number
        result: Tensor = _ScaleGradient.apply(number, float(self.world_size))  # type: ignore[no-untyped-call]
        return result

    def all_reduce_sum_(self, value: Tensor) -> Tensor:
        """Sum over ranks in place."""
        dist.all_reduce(value, group=self.group)
        return value

    # ---------------------------------------------------------------- checkpoints

    def as_dtensor(self, local: Tensor) -> DTensor:
        """Return the rows of all ranks as one DTensor for checkpoints; it shares the memory of `local`."""
        from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor import Shard as Rows

        device_type = local.device.type
        mesh = (
            init_device_mesh(device_type, (self.world_size,))
            if self.group is None
            else DeviceMesh.from_group(self.group, device_type, mesh=list(range(self.world_size)))
        )
        shape = torch.Size((self.num_classes, *local.shape[1:]))
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(local, mesh, [Rows(0)], run_check=False, shape=shape, stride=stride)

    def write_dtensors(self, state: dict[str, Any], prefix: str) -> None:
        """Replace this rank's part of weight and bias in a state dict by a DTensor of all classes."""
        for name in ("weight", "bias"):
            if self.world_size > 1 and state.get(prefix + name) is not None:
                state[prefix + name] = self.as_dtensor(state[prefix + name].detach())

    def local_state_dict(self, state: dict[str, Any], prefix: str) -> dict[str, Any]:
        """Return a copy of the state dict with this rank's part of weight and bias (DTensors or whole tensors)."""
        local = dict(state)
        for name in ("weight", "bias"):
            value = local.get(prefix + name)
            if value is not None and hasattr(value, "to_local"):
                local[prefix + name] = value.to_local()
            elif value is not None and len(value) == self.num_classes:
                local[prefix + name] = value[self.start : self.stop]
        return local


def _refuse_second_derivative() -> None:
    """Raise an InputError in a backward pass that is itself differentiated: that is not implemented."""
    if torch.is_grad_enabled():
        raise InputError(
            "a head split over several ranks cannot be differentiated twice (create_graph=True); "
            'use backend="dense" or "stream" for that'
        )


@custom_autograd("ranks", "the rows of all ranks; gradients of a rank's rows come from all ranks' classes")
class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int], shard: ClassShard) -> Tensor:
        ctx.sizes, ctx.shard = sizes, shard
        return distributed.all_gather_padded(rows, sizes, shard.group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        _refuse_second_derivative()
        shard: ClassShard = ctx.shard
        start = sum(ctx.sizes[: shard.rank])
        # Gradients of a sample from all ranks' shards add up; each has 1/R of the loss (see `_average_gradient`).
        local_gradient = shard.all_reduce_sum_(gradient.contiguous().clone())[start : start + ctx.sizes[shard.rank]]
        return local_gradient * shard.world_size, None, None


def _average_gradient(shard: ClassShard, gradient: Tensor) -> Tensor:
    """Mean of the gradient over ranks; that of a sample is nonzero only on the rank that has the sample."""
    _refuse_second_derivative()
    return shard.all_reduce_sum_(gradient.contiguous().clone()) / shard.world_size


@custom_autograd("ranks", "the sum over ranks; the gradient is averaged over them")
class _AllReduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, shard: ClassShard) -> Tensor:
        ctx.shard = shard
        return shard.all_reduce_sum_(value.clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _average_gradient(ctx.shard, gradient), None


@custom_autograd("ranks", "logsumexp of the first tensor and sums of the others over ranks; gradients are averaged")
class _CombinePacked(torch.autograd.Function):
    """One all-gather forward, since a logsumexp is not a sum, and one all-reduce backward, for all tensors together."""

    @staticmethod
    def forward(ctx: Any, shard: ClassShard, logsumexp: bool, others: Tensor, *sums: Tensor) -> tuple[Tensor, ...]:
        values = (others, *sums)
        gathered = shard.gather_stacked(torch.cat([value.flatten() for value in values]))
        log_sum = gathered[:, : others.numel()].logsumexp(0) if logsumexp else None
        results = _unpack(gathered.sum(0), values)
        if log_sum is not None:
            results[0] = log_sum.view_as(others).to(others.dtype)
        ctx.shard, ctx.logsumexp = shard, logsumexp
        ctx.save_for_backward(*values, results[0])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        *values, result = ctx.saved_tensors
        packed = torch.cat([gradient.flatten() for gradient in gradients])
        averaged = _unpack(_average_gradient(ctx.shard, packed), values)
        if ctx.logsumexp:
            averaged[0] = torch.exp(values[0] - result) * averaged[0]
        return None, None, *averaged


def _unpack(packed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split a vector into tensors with the shapes and dtypes of others."""
    parts = torch.split(packed, [value.numel() for value in like])
    return [part.view(value.shape).to(value.dtype) for part, value in zip(parts, like, strict=True)]


@custom_autograd("ranks", "a number that every rank holds; its gradient is averaged over ranks")
class _AverageGradient(_AllReduceSum):
    """Identity forward, since every rank holds the number already; backward averages the gradient."""

    @staticmethod
    def forward(ctx: Any, number: Tensor, shard: ClassShard) -> Tensor:
        ctx.shard = shard
        return number.clone()


@custom_autograd("ranks", "a number whose gradients add up over ranks, where the others are averaged")
class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, number: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return number.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.factor, None


def _zero_unless(mask: Tensor, value: Tensor) -> Tensor:
    return torch.where(mask, value, torch.zeros_like(value))


class ShardedBackend(Backend):
    """This rank's samples over the classes of all ranks; `make_inner` builds the backend over this rank's own classes.

    `head_requires_grad`: whether parameters of the head need a gradient.
    """

    def __init__(
        self,
        embeddings: NormalizedEmbeddings,
        shard: ClassShard,
        head_requires_grad: bool,
        make_inner: Callable[[NormalizedEmbeddings], Backend],
    ) -> None:
        self.embeddings, self.shard, self.num_classes = embeddings, shard, shard.num_classes
        self.sizes, x = shard.sync_sizes_and_grad(embeddings.x, head_requires_grad)
        start = sum(self.sizes[: shard.rank])
        self.local_slice = slice(start, start + self.sizes[shard.rank])
        self.inner = make_inner(NormalizedEmbeddings(shard.all_gather(x, self.sizes)))
        self._labels_cache: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def x_norm(self) -> Tensor:
        """‖x‖ [N] of this rank's samples."""
        return self.embeddings.norm

    def _local_labels(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Labels of all samples relative to this rank's first class, and which of them are its own; gathered once."""
        if self._labels_cache is None or self._labels_cache[0] is not y:
            labels = self.shard.all_gather(y, self.sizes) - self.shard.start
            self._labels_cache = y, labels, (labels >= 0) & (labels < len(self.shard))
        return self._labels_cache[1], self._labels_cache[2]

    def target_angles(self, y: Tensor) -> Tensor:
        local_labels, is_own = self._local_labels(y)
        theta = _zero_unless(is_own, self.inner.target_angles(local_labels))
        return self.shard.all_reduce_sum(theta)[self.local_slice]

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Gather a row for each sample of all ranks, in rank order, without a gradient; the sizes are known."""
        if self.shard.world_size == 1:
            return rows.detach()
        return distributed.all_gather_padded(rows.detach(), self.sizes, self.shard.group) if any(self.sizes) else rows

    def split(self, margin: Margin, y: Tensor, with_logit_sum: bool = False) -> SplitLogits:
        local_labels, is_own = self._local_labels(y)
        inner_margin = self._gather_sample_values(self._scale_margin_gradients(margin))
        logits = self.inner.split(inner_margin, local_labels, with_logit_sum)
        # The target's numbers are those of the rank that holds its class. All parts are one exchange.
        target = [None if part is None else _zero_unless(is_own, part) for part in logits.target]
        parts: list[Tensor | None] = [*target, logits.logit_sum, logits.weight_penalty]
        others, *sums = self.shard.combine(
            logits.others, [part for part in parts if part is not None], logsumexp=not margin.one_vs_all
        )
        remaining = iter(sums)
        *target, logit_sum, penalty = (None if part is None else next(remaining) for part in parts)
        target = [None if part is None else part[self.local_slice] for part in target]
        assert target[0] is not None
        return SplitLogits(
            TargetLogit(target[0])
            if isinstance(logits.target, TargetLogit)
            else Target(target[0], target[1], target[2]),
            others[self.local_slice],
            None if logit_sum is None else logit_sum[self.local_slice],
            penalty,
        )

    def largest_cosines(self, y: Tensor, count: int = 1) -> Tensor:
        cosines = self.inner.largest_cosines(self._local_labels(y)[0], count)
        if count == 1:
            return self.shard.all_reduce_max(cosines)[self.local_slice]
        return self.shard.gather_stacked(cosines)[:, self.local_slice].movedim(0, 1).flatten(1).topk(count, 1).values

    def _gather_sample_values(self, margin: Margin) -> Margin:
        """Return the margin with the per-sample numbers of all ranks, since every rank computes for all samples."""
        names = margin.phi_sample_fields
        return margin.with_values(**{n: self.shard.all_gather(getattr(margin, n), self.sizes) for n in names})

    def _scale_margin_gradients(self, margin: Margin) -> Margin:
        learnt = {n: v for n, v in margin.named_values() if isinstance(v, Tensor) and v.requires_grad}
        return margin.with_values(**{n: self.shard.scale_gradient(v) for n, v in learnt.items()}) if learnt else margin


@torch.no_grad()
def shard_logits(
    shard: ClassShard,
    margin: Margin,
    embeddings: NormalizedEmbeddings,
    weight: Tensor,
    bias: Tensor | None,
    subcenters: Subcenters | None,
    y: Tensor | None,
) -> Tensor:
    """Logits [N, C] of this rank's samples over the classes of all ranks, without a gradient."""
    if y is not None:
        raise InputError("a sharded head has no logits with labels: use logits(x) or head(x, y)")
    sizes = shard.gather_sizes(embeddings.norm)
    all_embeddings = NormalizedEmbeddings(shard.all_gather(embeddings.x, sizes))
    here = (
        DenseBackend(all_embeddings, weight, bias, subcenters).logits(margin).T.contiguous()
    )  # classes first: gathered
    start = sum(sizes[: shard.rank])
    return shard.all_gather_classes(here).T[start : start + sizes[shard.rank]]
