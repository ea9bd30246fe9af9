"""Processes of a run: one alone, torchrun's, or SLURM's, as the environment says."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

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
        fabric.launch()
    except RuntimeError as error:  # of the store, or of the lines between the processes
        if world == 1:
            raise
        why = " ".join(str(error).split())[:200]
        raise InputError(f"the {world} processes did not come together within {timeout:g} s ({why})") from None
    return fabric


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
