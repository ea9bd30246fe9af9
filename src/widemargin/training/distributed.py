"""Processes of a run: a single one, or those started by torchrun or SLURM, as the environment says.

Also here: which processes were lost when a connection breaks, batch norm over all processes, and stopping on SIGTERM or
SIGINT after the current step.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..io.errors import InputError, format_value, spell_option
from ..io.text import print_stderr
from ..numerics import distributed
from .config import TrainConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric


DEFAULT_TIMEOUT_SECONDS = 1800.0
"""Seconds after which a process that does not answer is given up by the others."""


def launch_fabric(config: TrainConfig, devices: Any = "auto", timeout: float = DEFAULT_TIMEOUT_SECONDS) -> Fabric:
    """Fabric for the processes that torchrun or SLURM has started, or for this one alone; it starts none itself."""
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.ddp import DDPStrategy
    except ImportError:
        raise InputError('training on images needs lightning-fabric: pip install "widemargin[train]"') from None
    world_size, local_world_size, nodes = _process_layout()
    if not 0 < timeout < float("inf"):
        raise InputError(f"{spell_option('timeout')} must be a number of seconds above 0, got {timeout!r}")
    if config.batch_size % world_size:
        raise InputError(
            f"{spell_option('batch_size', config.batch_size)} cannot be divided among {world_size} processes"
        )
    accelerator, devices = _accelerator_of(config.device, devices, world_size)
    fabric = Fabric(
        accelerator=accelerator,
        devices=local_world_size if devices == "auto" else devices,
        num_nodes=nodes,
        strategy=DDPStrategy(timeout=timedelta(seconds=timeout)) if world_size > 1 else "auto",
        precision=config.precision,  # type: ignore[arg-type]
    )
    try:
        _init_restarted_process_group(world_size, timeout)
        fabric.launch()
    except RuntimeError as error:  # of the store, or of the connections between the processes
        if world_size == 1:
            raise
        why = " ".join(str(error).split())[:200]
        raise InputError(f"the {world_size} processes did not connect within {timeout:g} s ({why})") from None
    return fabric


def _accelerator_of(device: str, devices: Any, world_size: int) -> tuple[str, Any]:
    """Accelerator and devices as Fabric takes them, from `auto`, `cpu`, `cuda`, `cuda:1` or `mps`."""
    kind, _, number = device.partition(":")
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind == "auto" and not number:
        return "auto" if available["cuda"] or available["mps"] else "cpu", devices
    if kind not in available or (number and (kind != "cuda" or not number.isdecimal())):
        raise InputError(f"{spell_option('device')} must be auto, cpu, cuda, cuda:1 or mps, got {format_value(device)}")
    if not available[kind] or (number and int(number) >= torch.cuda.device_count()):
        raise InputError(
            f"{spell_option('device', device)}: torch finds no such device; use {spell_option('device', 'cpu')} or auto"
        )
    if number and world_size > 1:
        raise InputError(
            f"{spell_option('device', device)} is for one process; for several use {spell_option('device', 'cuda')}"
        )
    return kind, [int(number)] if number else devices


def _init_restarted_process_group(world_size: int, timeout: float) -> None:
    """Initialize the process group after a restart by torchrun, under keys of this attempt.

    torchrun keeps one store for all attempts (pytorch issue 135712), so the first process of a new attempt would find
    the addresses of the attempt before, where nobody answers. With several machines their counts of attempts may
    differ: there TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 helps, which gives every attempt a store of its own.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and os.environ.get("GROUP_WORLD_SIZE") == "1"
    if world_size == 1 or attempt == "0" or not shared or dist.is_initialized():
        return
    patience = timedelta(seconds=timeout)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False, timeout=patience)  # type: ignore[attr-defined]
    own = dist.PrefixStore(f"widemargin/attempt{attempt}", store)  # type: ignore[attr-defined]
    has_cuda = torch.cuda.is_available()
    if has_cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(
        "nccl" if has_cuda else "gloo",
        store=own,
        rank=int(os.environ["RANK"]),
        world_size=world_size,
        timeout=patience,
    )


def _process_layout() -> tuple[int, int, int]:
    """Processes in all, processes on this machine, machines."""
    if "LOCAL_WORLD_SIZE" in os.environ:  # torchrun
        local_world_size = int(os.environ["LOCAL_WORLD_SIZE"])
        world_size = int(os.environ.get("WORLD_SIZE", local_world_size))
        return world_size, local_world_size, max(1, world_size // local_world_size)
    if "SLURM_STEP_NUM_TASKS" in os.environ:  # srun; a batch script's own shell has no such step
        world_size, nodes = int(os.environ["SLURM_STEP_NUM_TASKS"]), int(os.environ.get("SLURM_STEP_NUM_NODES", "1"))
        return world_size, max(1, world_size // nodes), nodes
    return 1, 1, 1


# Lost processes: when a connection breaks, the remaining ones find out through the store which ranks still answer.

_CONNECTION_ERROR_PATTERN = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|timed out|timeout|pair closure|broken pipe", re.IGNORECASE
)
_STORE_KEY = "widemargin/here"


class LostRankError(InputError):
    """Another process of the run has ended or does not answer; the last checkpoint is kept."""


def is_connection_error(error: RuntimeError) -> bool:
    """Whether an error means that the connection to another process is lost."""
    return distributed.has_multiple_ranks() and _CONNECTION_ERROR_PATTERN.search(str(error)) is not None


def find_silent_ranks(wait_seconds: float) -> list[int] | None:
    """Ranks that have not answered in time; None if the store, which rank 0 hosts, does not answer."""
    found: list[list[int] | None] = []
    # In a thread: if the process of rank 0, which holds the store, is stopped, a request waits forever.
    asking = threading.Thread(target=lambda: found.append(_poll_ranks(wait_seconds)), daemon=True)
    asking.start()
    asking.join(wait_seconds + 1.0)
    return found[0] if found else None


def _poll_ranks(wait_seconds: float) -> list[int] | None:
    from torch.distributed.distributed_c10d import _get_default_store

    world, own = dist.get_world_size(), dist.get_rank()
    until = time.monotonic() + wait_seconds
    try:
        store = _get_default_store()
        store.set(f"{_STORE_KEY}/{own}", "1")
        silent = [rank for rank in range(world) if rank != own]
        while silent and time.monotonic() < until:
            silent = [rank for rank in silent if not store.check([f"{_STORE_KEY}/{rank}"])]
            time.sleep(0.05)
        return silent
    except (RuntimeError, ValueError):  # the store is gone, and with it the process that kept it
        return None


def lost_rank_error(wait_seconds: float, timeout: timedelta) -> LostRankError:
    """The error that names the lost ranks and says how to go on."""
    silent = find_silent_ranks(wait_seconds)
    if silent is None:
        who = "rank 0 has exited or does not answer"
    elif not silent:
        who = f"the connection broke, but all processes still answer (timeout {timeout.total_seconds():g} s)"
    elif len(silent) == 1:
        who = f"rank {silent[0]} has exited or does not answer"
    else:
        who = f"ranks {', '.join(map(str, silent))} have exited or do not answer"
    return LostRankError(f"{who}; continue from the last checkpoint with {spell_option('resume', True)}")


# Batch norm over all processes: the statistics of the whole batch instead of one process's part of it.

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def convert_sync_batchnorm(model: ModuleT) -> ModuleT:
    """The model with every batch norm synced, its weights, statistics and names of tensors as they were.

    timm's norms that hold an activation are converted by timm: torch's own conversion would lose the activation.
    """
    convert: Callable[[ModuleT], ModuleT] = nn.SyncBatchNorm.convert_sync_batchnorm
    known: tuple[type[nn.Module], ...] = (nn.SyncBatchNorm,)
    if "timm" in sys.modules:
        layers = importlib.import_module("timm.layers")
        convert, known = layers.convert_sync_batchnorm, (*known, layers.BatchNormAct2d)
    for name, module in model.named_modules():
        own = isinstance(module, _BatchNorm) and type(module).forward is not _BatchNorm.forward
        if own and not isinstance(module, known):
            raise InputError(
                f"{name}, a {type(module).__name__}, cannot be synchronised over processes: "
                f"use {spell_option('sync_bn', False)}"
            )
    return convert(model)


# Stopping on request: after SIGTERM or SIGINT the step ends, a checkpoint is written and the run exits; a second one
# exits at once.

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Signal handler that remembers that a stop was requested."""

    def __init__(self) -> None:
        self.is_requested = False

    def __call__(self, signum: int, _: FrameType | None) -> None:
        """Remember the first signal and restore the default handlers: a second one ends the process at once."""
        self.is_requested = True
        for each in _STOP_SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        print_stderr(f"{signal.Signals(signum).name}: saving after this step; a second signal exits at once")


@contextmanager
def handle_stop_signals() -> Iterator[StopRequest]:
    """Handle stop signals inside the block; in the main thread only, as Python allows handlers nowhere else."""
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop) for number in _STOP_SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
