"""Processes of a run: one alone, torchrun's, or SLURM's, as the environment says."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..errors import InputError
from ..run import TrainConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric


DEFAULT_TIMEOUT_SECONDS = 1800.0
"""Seconds after which a process that does not answer is given up by the others."""


def launch_fabric(config: TrainConfig, devices: Any = "auto", timeout: float = DEFAULT_TIMEOUT_SECONDS) -> Fabric:
    """Fabric as the environment wants it. Nothing is started here: who wants many processes starts them."""
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.ddp import DDPStrategy
    except ImportError:
        raise InputError('training on images needs lightning-fabric: pip install "widemargin[train]"') from None
    world_size, local_world_size, nodes = _process_layout()
    if not 0 < timeout < float("inf"):
        raise InputError(f"the time-out must be a number of seconds above 0, got {timeout!r}")
    if config.batch_size % world_size:
        raise InputError(f"batch_size {config.batch_size} cannot be divided among {world_size} processes")
    accelerator = "cpu" if not torch.cuda.is_available() and not torch.backends.mps.is_available() else "auto"
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
    except RuntimeError as error:  # of the store, or of the lines between the processes
        if world_size == 1:
            raise
        why = " ".join(str(error).split())[:200]
        raise InputError(f"the {world_size} processes did not come together within {timeout:g} s ({why})") from None
    return fabric


def _init_restarted_process_group(world_size: int, timeout: float) -> None:
    """Processes that torchrun has started again meet under keys of their own.

    torchrun keeps one store for all attempts (pytorch issue 135712), and whoever comes first to the second would find
    the addresses of the first in it and call nobody. With several machines their counts of attempts may differ: there
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 helps, which gives every attempt a store of its own.
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
