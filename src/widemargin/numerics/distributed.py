"""Communication between the processes of one training; every function is the identity in a single process."""

from __future__ import annotations

import functools
import gc
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

from ..io.errors import InputError, format_value
from .custom_autograd import custom_autograd

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")


def has_multiple_ranks() -> bool:
    """True if several processes train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_rank_zero() -> bool:
    """True for the process that prints for all, by the rank that torchrun or SLURM sets."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def gather_rows(rows: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Gather the rows of all ranks of a group (None: the default group) in rank order, without a gradient.

    Ranks may hold different numbers of rows.
    """
    rows = rows.detach()
    if not has_multiple_ranks():
        return rows
    size = torch.tensor([rows.shape[0]], device=rows.device)
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, size, group=group)
    counts = torch.cat(sizes).tolist()  # one host synchronisation
    return all_gather_padded(rows, counts, group) if any(counts) else rows


def all_gather_padded(rows: Tensor, counts: list[int], group: ProcessGroup | None) -> Tensor:
    """The rows of all ranks in rank order, of which rank r has `counts[r]`; without a gradient."""
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: rows.shape[0]] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


@custom_autograd("ranks", "the rows of all ranks; the gradient of a rank's rows is a sum over the losses of all")
class GatherRows(torch.autograd.Function):
    """Rows of all ranks with their gradient; every rank of the group must run the backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int], group: ProcessGroup) -> Tensor:
        ctx.counts, ctx.group = counts, group
        return all_gather_padded(rows, counts, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise InputError(
                "a loss on the samples of several ranks cannot be differentiated twice (create_graph=True); "
                "omit its group for that"
            )
        rank = dist.get_rank(ctx.group)
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        start = sum(ctx.counts[:rank])
        return gradient[start : start + ctx.counts[rank]], None, None


def gather_rows_with_gradient(rows: Tensor, labels: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor, int]:
    """Rows and labels of all ranks of a group in rank order, and the place of this rank's first one.

    A rank's rows get the sum of the gradients that the losses of all ranks have for them, so that DDP's mean over ranks
    is the gradient of the mean of all ranks' losses. Backward passes communicate, so either all ranks have one or none:
    where the rows of some rank want a gradient those of all get one. Ranks may hold unequal numbers of rows.
    """
    enabled = torch.is_grad_enabled()
    flags = torch.tensor([len(rows), enabled, enabled and rows.requires_grad], device=rows.device, dtype=torch.int64)
    found = [torch.zeros_like(flags) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, flags, group=group)
    counts, modes, wanted = zip(*torch.stack(found).tolist(), strict=True)  # one host synchronisation
    if any(wanted) and not all(modes):
        raise InputError(
            "some ranks compute a loss on the samples of all ranks under torch.no_grad() and others do not; their "
            "backward passes would deadlock: call it in the same way on all ranks"
        )
    if any(wanted) and not rows.requires_grad:
        rows = rows.detach().requires_grad_()
    start = sum(counts[: dist.get_rank(group)])
    if not any(counts):
        return rows, labels, start
    gathered: Tensor = GatherRows.apply(rows, list(counts), group)  # type: ignore[no-untyped-call]
    return gathered, all_gather_padded(labels, list(counts), group), start


class SyncGroup:
    """The processes that share adaptive numbers and centres: those of a process group, or this process alone.

    Only objects with a group communicate, and only within that group: a head that one rank calls by itself must not
    wait for the others. A copy keeps the group; a pickle, which other processes read, does not.
    """

    def __init__(self, group: ProcessGroup | None, owner_name: str) -> None:
        self.group, self._owner_name, self._warned = group, owner_name, False
        if group is not None:
            track_ddp_modules()

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Gather the rows of all processes of the group, in rank order, without a gradient."""
        if self.group is not None:
            check_not_in_join(self._owner_name)
            return gather_rows(rows, self.group)
        self._warn_if_alone("adapts to")
        return rows.detach()

    def gather_rows_with_gradient(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, int]:
        """Rows, with their gradient, and labels of all processes that share, and the place of this process's first."""
        if self.group is not None:
            check_not_in_join(self._owner_name)
            return gather_rows_with_gradient(rows, labels, self.group)
        self._warn_if_alone("compares")
        return rows, labels, 0

    def _warn_if_alone(self, does: str) -> None:
        if not self._warned and has_multiple_ranks():
            self._warned = True
            warnings.warn(
                f"{self._owner_name} {does} only the samples of this process; if several ranks train one model, "
                "pass group=torch.distributed.group.WORLD (or the group of these ranks)",
                stacklevel=3,
            )

    def __deepcopy__(self, memo: Any) -> SyncGroup:
        return SyncGroup(self.group, self._owner_name)

    def __reduce__(self) -> Any:
        return SyncGroup, (None, self._owner_name)


def check_group(group: Any) -> None:
    """Raise an InputError unless `group` is None or a process group that this process belongs to."""
    if group is None:
        return
    if not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
        raise InputError(
            f"group={format_value(group)} must be a process group of torch.distributed that this process belongs to, "
            "such as torch.distributed.group.WORLD"
        )


def check_unsharded(parameter: Tensor, what: str) -> None:
    """Raise an InputError for a parameter that `fully_shard` (FSDP2) has sharded, as outside of `forward`."""
    if hasattr(parameter, "full_tensor"):
        raise InputError(
            f"{what} are sharded over the ranks (fully_shard) and gathered only for forward() and registered "
            'methods only: call torch.distributed.fsdp.register_fsdp_forward_method(head, "logits"), or head.unshard() '
            "on all ranks first"
        )


def all_reduce_sum(total: Tensor) -> Tensor:
    """Sum of `total` over all ranks."""
    if has_multiple_ranks():
        total = total.clone()
        dist.all_reduce(total)
    return total


@torch.no_grad()
def broadcast_buffers(module: nn.Module) -> None:
    """Copy rank 0's buffers to all ranks: batch-norm statistics differ, because each rank sees other samples."""
    if not has_multiple_ranks():
        return
    for buffer in module.buffers():
        value = buffer.detach().contiguous()
        dist.broadcast(value, src=0)
        buffer.copy_(value)


@contextmanager
def raise_on_all_ranks(device: torch.device) -> Iterator[None]:
    """Raise an InputError that one rank raises in the block on all ranks, after the block, which all ranks must enter.

    Otherwise the other ranks would wait in the next collective for a rank that has exited.
    """
    if not has_multiple_ranks():
        yield
        return
    own_error: InputError | None = None
    try:
        yield
    except InputError as error:
        own_error = error
    message = "" if own_error is None else f"{own_error}\n"
    encoded = torch.tensor(list(message.encode()), dtype=torch.uint8, device=device)
    messages = bytes(gather_rows(encoded).tolist()).decode()
    if own_error is not None:
        raise own_error
    if messages:
        raise InputError(messages.splitlines()[0])


def compute_on_rank_zero(compute: Callable[[], T], device: torch.device) -> T:
    """Return the result of `compute()` on rank 0, or raise its InputError, on all ranks; the others do not call it."""
    if not has_multiple_ranks():
        return compute()
    results: list[Any] = [None]
    with raise_on_all_ranks(device):
        if dist.get_rank() == 0:
            results[0] = compute()
    dist.broadcast_object_list(results, src=0, device=device)
    result: T = results[0]
    return result


# A loss inside DDP: torch does not tell a loss which modules contain it, so they are tracked here. Private names of
# torch are read with `getattr`; a version without them is not checked.

_tracked_ddp_modules: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
"""`DistributedDataParallel` modules of this process, each with its last `join()` context known to have ended."""


@functools.cache
def track_ddp_modules() -> None:
    """Track all `DistributedDataParallel` modules of this process, existing and future ones."""
    register_module_module_registration_hook(_track_if_ddp)
    for one in gc.get_objects():
        _track_if_ddp(one)


def _track_if_ddp(module: Any, *_: Any) -> None:
    if issubclass(type(module), nn.parallel.DistributedDataParallel):
        _tracked_ddp_modules[module] = None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def check_not_in_join(owner_name: str) -> None:
    """Raise an InputError inside DDP's `join()`, at the first step and on all ranks, instead of deadlocking.

    In `join()` a rank without further batches takes part in the collectives of DDP until the others are done, but not
    in those of a loss. `throw_on_early_termination=True` is allowed: DDP then stops all ranks when one has no batch
    left.
    """
    from torch.distributed.algorithms.join import Join

    for module, ended in tuple(_tracked_ddp_modules.items()):
        mark = getattr(module, "_join_config", None)
        if mark is None or not mark.enable or mark.throw_on_early_termination or mark is ended:
            continue
        # The attribute remains after `join()` ends, so check whether its context still exists.
        contexts = [one for one in gc.get_objects() if issubclass(type(one), Join)]
        if any(module is one for context in contexts for one in getattr(context, "_joinables", ())):
            raise InputError(
                f"{owner_name} cannot be used inside DDP join(), because it uses the batches of all ranks: give "
                "every rank the same number of batches (DistributedSampler, drop_last=True), or use "
                "join(throw_on_early_termination=True), which stops all ranks when one has no batch left"
            )
        _tracked_ddp_modules[module] = mark


@torch.compiler.disable  # type: ignore[untyped-decorator]
def check_not_replicated(head: nn.Module, class_weights: Tensor) -> None:
    """Raise an InputError if DDP or FSDP2 treats this rank's classes as a copy of those of every rank."""
    managed = (one for ddp in tuple(_tracked_ddp_modules) for one in getattr(ddp, "_module_parameters", ()))
    in_ddp = any(class_weights is one for one in managed)
    if in_ddp or hasattr(head, "reshard"):
        raise InputError(
            "a sharded head holds different classes on every rank, which DDP and fully_shard mix: wrap the backbone "
            "only, or exclude the head with fully_shard(model, ignored_params=set(head.parameters()))"
        )
