"""Selects the backend of a head, and checks the options that depend on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...io.errors import InputError, unknown_name_error
from ...numerics.distributed import check_group
from . import compiled
from .base import Backend, NormalizedEmbeddings
from .compiled import CompileSetting
from .dense import DenseBackend
from .native_head import is_training_step
from .sampled import SampledBackend
from .sharded import ClassShard, ShardedBackend
from .stream import StreamBackend
from .triton_backend import build_triton_backend

if TYPE_CHECKING:
    from ..head import Head


BACKENDS = ("dense", "stream", "sharded", "sampled", "triton")
# From this many logits `auto` streams: there the streaming backend has compiled kernels and is faster, and the dense
# backend holds several copies of the logits.
MIN_STREAM_LOGITS = compiled.MIN_COMPILE_LOGITS
# Up to this many products (16 MiB in fp32) a training step on a CPU is faster all at once, in native kernels.
MAX_NATIVE_PRODUCTS = 1 << 22
_UNCOMPILED_STREAM_FACTOR = 8  # times as many if nothing can be compiled


def check_backend_options(
    backend: str, sample_rate: float, group: Any, label_smoothing: float, num_classes: int
) -> tuple[float, ClassShard | None]:
    """Return the checked sample rate, and this rank's part of the classes if they are sharded."""
    if backend not in ("auto", *BACKENDS):
        raise unknown_name_error("backend", str(backend), ("auto", *BACKENDS))
    if isinstance(sample_rate, bool) or not isinstance(sample_rate, int | float) or not 0.0 < sample_rate <= 1.0:
        raise InputError(f"sample_rate={sample_rate!r} must be a number above 0 and at most 1")
    if sample_rate < 1.0 and backend not in ("sampled", "sharded"):
        raise InputError(
            f'sample_rate={sample_rate:g} belongs to backend="sampled" or backend="sharded", not to {backend!r}'
        )
    if sample_rate < 1.0 and label_smoothing:
        raise InputError("label_smoothing needs the logits of all classes: set sample_rate=1 or label_smoothing=0")
    check_group(group)
    return float(sample_rate), ClassShard.for_this_rank(num_classes, group) if backend == "sharded" else None


def select_backend(
    backend: str, samples: int, num_classes: int, device: torch.device, compile_kernels: CompileSetting = "auto"
) -> str:
    """Return the backend that `auto` selects for these sizes; other names are returned unchanged.

    >>> cpu = torch.device("cpu")
    >>> select_backend("auto", 64, 100, cpu), select_backend("auto", 256, 1_000_000, cpu)
    ('dense', 'stream')
    """
    if backend != "auto":
        return backend
    logits = samples * num_classes
    if torch.compiler.is_compiling():  # a traced step cannot look for a compiler
        return "stream" if logits >= MIN_STREAM_LOGITS else "dense"
    if logits >= _UNCOMPILED_STREAM_FACTOR * MIN_STREAM_LOGITS:
        return "stream"
    if logits < MIN_STREAM_LOGITS and device.type == "cpu":  # with native kernels of its own
        return "dense"
    if compiled.should_compile(compile_kernels, logits, device):
        return "stream"
    can_compile = compiled.effective_setting(compile_kernels) is not False and compiled.can_compile(device)
    return "stream" if logits >= MIN_STREAM_LOGITS and can_compile else "dense"


def build_backend(head: Head, embeddings: NormalizedEmbeddings, is_mixed: bool = False) -> Backend:
    """Build the backend of a head for a batch; `is_mixed` if two labellings share it."""
    weight = head.weight
    selected = select_backend(head.backend, len(embeddings), head.num_classes, weight.device, head.compile_kernels)
    if selected == "stream" and head.backend == "auto" and not is_mixed and _is_native(head, embeddings):
        selected = "dense"
    if head.active_backend != selected:  # setting an attribute of a module takes a hundredth of a small head's step
        head.active_backend = selected
    if selected == "dense":
        # Two labels of a mixup share the products of one graph; native kernels have one graph for each label.
        setting = False if is_mixed else head.compile_kernels
        return DenseBackend(embeddings, weight, head.loss_bias(), head.margin.subcenters, setting, head.grad_buffer)
    if head.active_backend == "triton":
        backend, head.active_backend = build_triton_backend(
            head, embeddings, lambda: _build_stream_backend(head, embeddings)
        )
        return backend
    if head.active_backend == "sharded":
        assert head.shard is not None
        head_requires_grad = any(parameter.requires_grad for parameter in head.parameters())
        return ShardedBackend(
            embeddings, head.shard, head_requires_grad, lambda everyone: _build_stream_backend(head, everyone)
        )
    return _build_stream_backend(head, embeddings)


def _is_native(head: Head, embeddings: NormalizedEmbeddings) -> bool:
    """True if native kernels can do all of this training step at once."""
    products = len(embeddings) * (head.weight.numel() // head.embedding_dim)
    if products > MAX_NATIVE_PRODUCTS or not is_training_step(embeddings, head.weight):
        return False
    return compiled.should_compile_dense(head.compile_kernels, products, head.weight.device)


def _build_stream_backend(head: Head, embeddings: NormalizedEmbeddings) -> Backend:
    """Over the classes of this rank: a random part in training with a sample rate, otherwise all."""
    bias, subcenters = head.loss_bias(), head.margin.subcenters
    if head.sample_rate < 1.0 and head.training:
        return SampledBackend(
            embeddings, head.weight, bias, head.sample_rate, head.grad_buffer, head.compile_kernels, subcenters
        )
    return StreamBackend(embeddings, head.weight, bias, head.grad_buffer, head.compile_kernels, subcenters)
