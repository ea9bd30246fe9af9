"""Gradient checkpointing: blocks of a network keep their inputs only and are computed again in the backward pass.

Blocks are the modules of one class that follow each other in a `Sequential` or `ModuleList`: those of ResNets,
IResNets and transformers. Gradients are the same, bit for bit where the computation is deterministic: dropout draws the
same numbers again, and batch norm does not count a batch twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from ..io.errors import InputError


def enable_grad_checkpointing(model: nn.Module) -> int:
    """Let every block of a network recompute its activations in training; returns the number of blocks."""
    blocks = list(find_blocks(model))
    if not blocks:
        raise InputError(
            f"grad_checkpointing: {type(model).__name__} has no sequence of blocks of the same class to recompute; "
            "omit it"
        )
    for block in blocks:
        # On the instance, so that the names of all tensors stay.
        block.forward = partial(_checkpointed_forward, block, block.forward)
    return len(blocks)


def find_blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The modules of one class in a row, outermost ones only."""
    for child in model.children():
        inside = list(child.children())
        kinds = {type(module) for module in inside}
        if isinstance(child, nn.Sequential | nn.ModuleList) and len(inside) > 1 and len(kinds) == 1:
            yield from (module for module in inside if any(True for _ in module.parameters()))
        else:
            yield from find_blocks(child)


def _checkpointed_forward(block: nn.Module, forward: Any, *args: Any, **named: Any) -> Any:
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args, **named)
    contexts = partial(_forward_contexts, block)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **named)


def _forward_contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts of the first pass and of the recomputation."""
    return nullcontext(), _frozen_statistics(block)


@contextmanager
def _frozen_statistics(block: nn.Module) -> Iterator[None]:
    """Normalise by the batch as before, without updating running statistics a second time."""
    found: list[Any] = [norm for norm in block.modules() if isinstance(norm, _NormBase) and norm.training]
    norms = [norm for norm in found if norm.num_batches_tracked is not None]
    kept = [(norm, norm.momentum, norm.num_batches_tracked.clone()) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0  # running statistics stay as they are, but are passed on as in the first pass
    try:
        yield
    finally:  # also where the recomputation ends early, because it has all that is needed
        for norm, momentum, num_batches in kept:
            norm.momentum = momentum
            norm.num_batches_tracked.copy_(num_batches)
