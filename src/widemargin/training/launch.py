"""Processes of a run: one alone, torchrun's, or SLURM's, as the environment says."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..errors import InputError
from ..run import Run

if TYPE_CHECKING:
    from lightning_fabric import Fabric


TIMEOUT = 1800.0
"""Seconds after which a process that does not answer is given up by the others."""


def launched(run: Run, devices: Any = "auto", timeout: float = TIMEOUT) -> Fabric:
    """Fabric as the environment wants it. Nothing is started here: who wants many processes starts them."""
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.ddp import DDPStrategy
    except ImportError:
        raise InputError('training on images needs lightning-fabric: pip install "widemargin[train]"') from None
    world, here, nodes = _processes()
    if not 0 < timeout < float("inf"):
        raise InputError(f"the time-out must be a number of seconds above 0, got {timeout!r}")
    if run.batch_size % world:
        raise InputError(f"batch_size {run.batch_size} cannot be divided among {world} processes")
    accelerator = "cpu" if not torch.cuda.is_available() and not torch.backends.mps.is_available() else "auto"
    fabric = Fabric(
        accelerator=accelerator,
        devices=here if devices == "auto" else devices,
        num_nodes=nodes,
        strategy=DDPStrategy(timeout=timedelta(seconds=timeout)) if world > 1 else "auto",
        precision=run.precision,  # type: ignore[arg-type]
    )
    try:
        _meet_again(world, timeout)
        fabric.launch()
    except RuntimeError as error:  # of the store, or of the lines between the processes
        if world == 1:
            raise
        why = " ".join(str(error).split())[:200]
        raise InputError(f"the {world} processes did not come together within {timeout:g} s ({why})") from None
    return fabric


def _meet_again(world: int, timeout: float) -> None:
    """Processes that torchrun has started again meet under keys of their own.

    torchrun keeps one store for all attempts (pytorch issue 135712), and whoever comes first to the second would find
    the addresses of the first in it and call nobody. With several machines their counts of attempts may differ: there
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 helps, which gives every attempt a store of its own.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and os.environ.get("GROUP_WORLD_SIZE") == "1"
    if world == 1 or attempt == "0" or not shared or dist.is_initialized():
        return
    patience = timedelta(seconds=timeout)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False, timeout=patience)  # type: ignore[attr-defined]
    own = dist.PrefixStore(f"widemargin/attempt{attempt}", store)  # type: ignore[attr-defined]
    graphics = torch.cuda.is_available()
    if graphics:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(
        "nccl" if graphics else "gloo",
        store=own,
        rank=int(os.environ["RANK"]),
        world_size=world,
        timeout=patience,
    )


def _processes() -> tuple[int, int, int]:
    """Processes in all, processes on this machine, machines."""
    if "LOCAL_WORLD_SIZE" in os.environ:  # torchrun
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        world = int(os.environ.get("WORLD_SIZE", here))
        return world, here, max(1, world // here)
    if "SLURM_STEP_NUM_TASKS" in os.environ:  # srun; a batch script's own shell has no such step
        world, nodes = int(os.environ["SLURM_STEP_NUM_TASKS"]), int(os.environ.get("SLURM_STEP_NUM_NODES", "1"))
        return world, max(1, world // nodes), nodes
    return 1, 1, 1
