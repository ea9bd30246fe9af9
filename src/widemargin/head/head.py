"""Head: class weights and a margin; `head(x, y)` returns a loss per sample.

The head owns all state: weights, step, adaptive state, learnable numbers, names. The margin is an immutable value.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..io.errors import InputError
from ..losses.base import PerClass
from ..losses.grammar import parse_margin
from ..losses.margin import Margin
from ..numerics import validation
from ..numerics.distributed import SyncGroup, check_not_replicated, check_unsharded
from ..numerics.precision import autocast_disabled
from ..numerics.validation import allocate_class_matrix, check_class_names, check_integer
from . import classes, import_weights, subcenters
from .backends.base import Backend, NormalizedEmbeddings, compute_margin_loss, fill_in_samples, logit_with_margin
from .backends.compiled import CompileSetting, check_compile_setting
from .backends.dense import DenseBackend
from .backends.grad_buffer import GradBuffer
from .backends.select import build_backend, check_backend_options
from .backends.sharded import ShardedBackend, shard_logits
from .backends.triton_source import check_margin
from .state import MarginState

# Components of a head besides its parameters and buffers.
_SETTINGS: tuple[str, ...] = (
    "embedding_dim",
    "num_classes",
    "spec",
    "margin",
    "backend",
    "compile_kernels",
    "sample_rate",
    "shard",
    "sync_group",
    "active_backend",
)
_SETTINGS += ("label_smoothing", "ignore_index", "class_names", "class_weight_start")


def _zero_where_not(mask: Tensor | None, loss: Tensor) -> Tensor:
    """Return the losses [N] of the samples in the mask (None: all), and 0 for the others."""
    return loss if mask is None else torch.where(mask, loss, torch.zeros_like(loss))


class Head(nn.Module):
    """Class weights [C, D] with a margin loss; with K sub-centres per class [C, K, D].

    Args:
        embedding_dim: dimension D of the embeddings.
        num_classes: number C of classes, at least 2.
        margin: a loss string such as `"arcface(s=64, m=0.5)"` or a value such as `wm.ArcFace()`.
        backend: `dense` holds all N×C logits, `stream` processes blocks of classes, `sharded` splits the classes over
            the ranks of `group`, `sampled` uses a random part of them, `triton` (experimental) is `stream` with Triton
            kernels; `auto` picks one of the first two by size (`active_backend` tells which).
        compile: whether kernels are compiled, once per loss and dtype, for all batch sizes (`head.compile_kernels`).
            `"auto"`: from 2²⁰ logits (samples × classes) per step, and for training steps of the dense backend on a CPU
            from 2¹⁷, if there is a C++ compiler (CPU) or Triton (CUDA); True: from 2¹⁶, and on the dense backend on a
            CPU always, with a warning if they cannot be compiled; False: never. The environment variable
            `WIDEMARGIN_COMPILE` (`auto`, `1`, `0`) overrides it for a whole process. Compiling takes some seconds; the
            loss is the same.
        sample_rate: fraction of the classes that a training step of a sampled or sharded head uses (Partial FC).
        group: process group of the ranks that train this head together: those that share a sharded head (default: all),
            and those whose batches an adaptive margin uses (default: this process alone; under DDP pass
            `torch.distributed.group.WORLD`).
        label_smoothing: ε in [0, 1).
        class_weight: one factor per class, [C], applied to the loss of its samples; for torch's weighted mean divide by
            the sum of these factors over the batch, not by N.
        class_weight_start: training calls before which every factor is 1 (deferred re-weighting, DRW).
        ignore_index: samples with this label have loss 0 and are ignored everywhere else.
        class_names: C names, stored in the head and in its state dict.
        device, dtype: of the class weights.

    `spec` is the margin as given, `margin` the same with the defaults that depend on C filled in.
    Shapes: x [N, D] of any float dtype, y [N] integers → loss [N], in the dtype of the weights but at least fp32.
    In train mode each call advances schedules and adaptive state once; evaluation and `logits` never do. So the head
    must not be inside activation checkpointing, which calls it twice; the network before it may.

    >>> _ = torch.manual_seed(0)
    >>> head = Head(8, 5, "arcface(s=16, m=0.3)")
    >>> head(torch.randn(3, 8), torch.tensor([0, 4, 2])).shape, head.logits(torch.randn(3, 8)).shape
    (torch.Size([3]), torch.Size([3, 5]))
    """

    def __init__(
        self,
        embedding_dim: int,
        num_classes: int,
        margin: Margin | str = "arcgrad",
        *,
        backend: str = "auto",
        compile: CompileSetting = "auto",  # noqa: A002
        sample_rate: float = 1.0,
        group: Any = None,
        label_smoothing: float = 0.0,
        class_weight: Tensor | Sequence[float] | None = None,
        class_weight_start: int = 0,
        ignore_index: int | None = None,
        class_names: Iterable[str] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.embedding_dim, self.num_classes = (
            check_integer("embedding_dim", embedding_dim, 1),
            check_integer("num_classes", num_classes, 2),
        )
        embedding_dim, num_classes = self.embedding_dim, self.num_classes
        self.spec = parse_margin(margin) if isinstance(margin, str) else margin
        if not isinstance(self.spec, Margin):
            raise InputError(f"margin must be a loss string such as 'arcface' or a Margin, got {type(margin).__name__}")
        self.active_backend: str | None = None if backend == "auto" else backend
        self.compile_kernels = check_compile_setting(compile)  # `compile` is a method of every module
        self.sample_rate, self.shard = check_backend_options(backend, sample_rate, group, label_smoothing, num_classes)
        self.sync_group = SyncGroup(group, self.spec.name) if self.shard is None else self.shard
        if ignore_index is not None:
            ignore_index = check_integer("ignore_index", ignore_index, -(2**62))
        self.backend, self.label_smoothing, self.ignore_index = (
            backend,
            validation.check_label_smoothing(label_smoothing),
            ignore_index,
        )
        self.margin = self.spec.for_num_classes(num_classes)
        self.margin.check_label_smoothing(self.label_smoothing)
        if backend == "triton":
            check_margin(self.margin)
        here = num_classes if self.shard is None else len(self.shard)
        count = None if self.margin.subcenters is None else self.margin.subcenters.count
        self.weight = nn.Parameter(allocate_class_matrix(here, embedding_dim, device, dtype, count))
        self.bias = nn.Parameter(self.weight.new_zeros(here)) if self.margin.bias else None
        factors = classes.check_class_weight(class_weight, num_classes, self.weight.device)
        self.class_weight_start = classes.check_class_weight_start(class_weight_start, factors)
        self.margin_state = MarginState(self.margin, self.weight.device, self.weight.dtype, factors)
        self.class_names = check_class_names(class_names, num_classes)
        self.grad_buffer = GradBuffer()  # memory of the weight gradient, reused from step to step
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise class weights with random directions and norms of about 1; reset schedules and adaptive state."""
        self.margin_state.reset()
        draw = None if self.shard is None else self.shard.make_generator(self.weight.device)
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5, generator=draw)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def train(self, mode: bool = True) -> Self:
        """Set the mode as in `nn.Module.train`; evaluation releases the memory kept for the next gradient."""
        if not mode:
            self.grad_buffer.clear()
        return super().train(mode)

    # ---------------------------------------------------------------- the loss

    def forward(
        self,
        x: Tensor,
        y: Tensor,
        *,
        sample_weight: Tensor | None = None,
        mix: tuple[Tensor, Tensor | float] | None = None,
    ) -> Tensor:
        """Return the loss [N] of embeddings x [N, D] with labels y [N].

        `sample_weight` [N] multiplies the losses. `mix=(y_b, lam)` is mixup: `lam` times the loss for y plus `1 − lam`
        times that for y_b, from one set of cosines; the state is updated once, with y. If `ignore_index` (loss 0)
        excludes samples, divide by the number of the others, not by N.
        """
        with autocast_disabled(x):
            embeddings = self._prepare_embeddings(x)
            # Everything is checked before any update: a refused call does not change the state.
            y, sample_mask, in_range = self._prepare_labels(y, embeddings)
            other, lam = (y, 1.0) if mix is None else validation.check_mix(mix)
            y_b, sample_mask_b, in_range_b = (
                (y, sample_mask, in_range) if mix is None else self._prepare_labels(other, embeddings)
            )
            share = lam if mix is None else validation.check_mix_lam(lam, embeddings.norm)
            factor = 1.0 if sample_weight is None else validation.check_sample_weight(sample_weight, embeddings.norm)
            backend = build_backend(self, embeddings, mix is not None)
            loss = self._compute_loss(backend, y, sample_mask, embeddings.dtype, adapt=self.training)
            loss = _zero_where_not(in_range, loss)
            if mix is not None:
                loss_b = self._compute_loss(backend, y_b, sample_mask_b, embeddings.dtype, adapt=False)
                loss_b = _zero_where_not(in_range_b, loss_b)
                loss = share * loss + (1.0 - share) * loss_b
            if sample_weight is not None:
                loss = factor * loss
            if self.training:
                self.margin_state.advance()
            return loss

    def logits(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Return logits [N, C]: without labels for inference, with labels including the margin.

        In evaluation `F.cross_entropy(head.logits(x, y), y, reduction="none")` equals the loss (before label smoothing,
        `class_weight` and penalties) if the margin is a softmax, so that any criterion on logits can be used. Per-class
        numbers that a loss adds to the logits (logit adjustment) are included only with labels. Never changes adaptive
        numbers.
        """
        with autocast_disabled(x):
            embeddings = self._prepare_embeddings(x)
            margin = self.margin_state.current_margin(None, embeddings.dtype).for_inference()
            if self.shard is not None:
                return shard_logits(self.shard, margin, embeddings, self.weight, self.bias, self.margin.subcenters, y)
            folding = self.margin.subcenters
            if y is None:
                return DenseBackend(embeddings, self.weight, self.bias, folding).logits(margin)
            y, sample_mask, _ = self._prepare_labels(y, embeddings)
            backend = DenseBackend(embeddings, self.weight, self.loss_bias(), folding)
            margin = self.margin_state.current_margin(y, embeddings.dtype)
            margin = fill_in_samples(backend, margin, y, training=False)
            z = backend.logits(margin)
            p = logit_with_margin(margin, backend.target(margin, y))
            if sample_mask is not None:
                p = torch.where(sample_mask, p, z.gather(1, y.unsqueeze(1)).squeeze(1))
            return z.scatter(1, y.unsqueeze(1), p.unsqueeze(1))

    def loss_bias(self) -> Tensor | None:
        """Return what the loss adds to the logits of this rank's classes: the bias, and terms used only in training.

        [C], or None; inference (`logits`) has only the bias.
        """
        offset = self.margin_state.class_offset
        if offset is None:
            return self.bias
        here = offset if self.shard is None else offset[self.shard.start : self.shard.stop]
        here = here.to(torch.promote_types(self.weight.dtype, torch.float32))
        return here if self.bias is None else self.bias + here

    def target_angles(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the angle θ_y [N] between each embedding and its class weight, in radians, exact for small angles."""
        with autocast_disabled(x):
            embeddings = self._prepare_embeddings(x)
            y, _, _ = self._prepare_labels(y, embeddings)
            return build_backend(self, embeddings).target_angles(y)

    def _compute_loss(
        self, backend: Backend, y: Tensor, sample_mask: Tensor | None, dtype: torch.dtype, adapt: bool
    ) -> Tensor:
        margin = self.margin_state.current_margin(y, dtype)
        if self.shard is not None:
            if self.shard.world_size > 1:
                check_not_replicated(self, self.weight)
            margin = self.shard.average_margin_gradients(margin)
        gather = self.sync_group.gather_rows
        if isinstance(backend, ShardedBackend) and sample_mask is None:  # the sizes of all ranks are known
            gather = backend.gather_rows
        loss, used = compute_margin_loss(
            backend,
            margin,
            y,
            step=self.margin_state.steps,
            sample_mask=sample_mask,
            adapt=adapt,
            training=self.training,
            label_smoothing=self.label_smoothing,
            gather=gather,
        )
        if adapt:
            self.margin_state.store_adaptive(used)
        loss = _zero_where_not(sample_mask, loss)
        weight = self.margin_state.class_weight
        if weight is None:
            return loss
        factor = weight[y].to(loss.dtype)
        if self.class_weight_start:  # compared as tensors: reading the step would synchronise
            factor = torch.where(self.margin_state.steps < self.class_weight_start, torch.ones_like(factor), factor)
        return loss * factor

    def _prepare_embeddings(self, x: Tensor) -> NormalizedEmbeddings:
        check_unsharded(self.weight, "the class weights")
        validation.raise_earlier_errors(x)
        validation.check_embeddings(x, self.embedding_dim, self.weight.device)
        # Contiguous, so that the same numbers give the same bits in any memory layout.
        return NormalizedEmbeddings(x.to(torch.promote_types(self.weight.dtype, torch.float32)).contiguous(), x.dtype)

    def _prepare_labels(
        self, y: Tensor, embeddings: NormalizedEmbeddings
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return checked labels as int64, the mask of samples that count, and the mask of labels in range.

        None stands for all samples. The second mask is given if labels are checked after the call; those out of range
        are then replaced by others, and the samples must get a loss of 0.
        """
        sample_mask = None
        if self.ignore_index is not None and isinstance(y, Tensor):
            sample_mask = validation.not_ignored_mask(y, self.ignore_index)
            y = torch.where(sample_mask, y, torch.zeros_like(y))
        lengths = embeddings.norm if embeddings.safe_norm is None else None
        in_range = validation.check_labels_or_defer(
            y, len(embeddings), self.num_classes, lengths, embeddings.raw.device
        )
        y = y.long()
        return y if in_range is None else y.clamp(0, self.num_classes - 1), sample_mask, in_range

    @property
    def scale(self) -> float:
        """Current value of the scale `s`."""
        return float(torch.as_tensor(self.margin_state.current_margin(None, torch.float64).s).detach())

    def margin_values(self) -> dict[str, float]:
        """Return the current value of every number of the margin, for logs; per-class numbers are omitted."""
        values = {}
        for name, value in self.margin_state.current_margin(None, torch.float64).named_values():
            if isinstance(value, Tensor | float | int) and not isinstance(value, bool):
                values[name] = float(torch.as_tensor(value).detach())
        return values

    # ---------------------------------------------------------------- the classes

    @torch.no_grad()
    def gather_weight(self) -> Tensor:
        """Return the weights of all classes [C, D] or [C, K, D]; of a sharded head a copy gathered from all ranks."""
        return self.weight.detach() if self.shard is None else self.shard.all_gather_classes(self.weight.detach())

    def parameter_groups(self, weight_decay: float | None = None) -> list[dict[str, Any]]:
        """Return parameter groups for an optimizer; weight decay applies only to weights whose norm matters (at the
        optimizer's rate if None): for the others it only shrinks them, which raises their effective learning rate.
        """
        return classes.decay_groups(self.parameters(), [self.weight] if self.margin.uses_w_norm else [], weight_decay)

    @torch.no_grad()
    def init_from_means(self, x: Tensor, y: Tensor) -> None:
        """Set class weights to the mean direction of their embeddings; norms and classes without a sample stay.

        A sub-centre is set to the mean of the samples of its class that are nearest to it: a k-means step within each
        class, which further calls continue.
        """
        embeddings = self._prepare_embeddings(x)
        y, *masks = self._prepare_labels(y, embeddings)
        unit = embeddings.unit
        for mask in masks:
            unit = unit if mask is None else unit * mask.unsqueeze(1)
        if self.shard is not None:
            unit, y = self.shard.gather_own_class_rows(unit, y)
        if self.weight.ndim == 3:
            y = subcenters.nearest_own_subcenters(unit, y, self.weight)
        rows = self.weight.view(-1, self.embedding_dim)
        rows.copy_(classes.align_to_class_means(rows, unit, y))

    def extend(
        self,
        n: int,
        class_names: Iterable[str] | None = None,
        class_weight: Sequence[float] | None = None,
        **per_class: Sequence[float],
    ) -> None:
        """Add `n` classes after the existing ones; pass the new parameters to the optimizer afterwards.

        Per-class numbers need values for the new classes: `extend(2, m=[0.3, 0.4])`. Defaults that depend on the number
        of classes are updated; adaptive state and step are kept.
        """
        self.assign_from(classes.extend_head(self, n, class_names, class_weight, per_class))

    def keep_dominant(self, dominant: Tensor) -> None:
        """Keep one sub-centre per class, the one with index `dominant` [C]: the same loss with k = 1.

        Pass the new parameters to the optimizer afterwards. `wm.subcenter_outliers` returns `dominant`.
        """
        self.assign_from(subcenters.dominant_head(self, dominant))

    def per_class_options(self) -> list[str]:
        """Options of the margin that hold one number per class."""
        return [name for name, value in self.spec.named_values() if isinstance(value, PerClass)]

    def assign_from(self, other: Head) -> None:
        """Replace all parameters, state and settings by those of another head, in place.

        Hooks registered on this head stay; it keeps its own gradient memory.
        """
        self.weight, self.bias, self.margin_state = other.weight, other.bias, other.margin_state
        for name in _SETTINGS:
            setattr(self, name, getattr(other, name))
        self.grad_buffer.clear()
        self.train(other.training)

    def load_class_weights(self, source: import_weights.WeightSource) -> None:
        """Load class weights, including sub-centres, from a head of pytorch-metric-learning, insightface or similar.

        `source` is a state dict, a file, or the files of all ranks in order; only tensors are read.
        """
        import_weights.copy_into_head(self, source)

    # ---------------------------------------------------------------- state dict

    def get_extra_state(self) -> Tensor:
        """Return margin and class names as bytes in a tensor, which any checkpoint format can store."""
        return classes.encode_extra_state(self.spec, self.class_names)

    def set_extra_state(self, state: Tensor) -> None:
        """Load the class names; warns if the weights were trained with another margin."""
        trained, names = classes.decode_extra_state(state)
        if trained != repr(self.spec):
            warnings.warn(f"these weights were trained with {trained}, this head has {self.spec!r}", stacklevel=2)
        if names is not None:
            self.class_names = check_class_names(names, self.num_classes)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.shard is not None:
            self.shard.write_dtensors(destination, prefix)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        own_state = state_dict if self.shard is None else self.shard.local_state_dict(state_dict, prefix)
        super()._load_from_state_dict(own_state, prefix, *rest)
        missing: list[str] = rest[2]
        # Weights that were not written by a head (another library's, a bare tensor) have no names.
        if prefix + "_extra_state" in missing:
            missing.remove(prefix + "_extra_state")

    def __repr__(self) -> str:
        label_smoothing = f", label_smoothing={self.label_smoothing:g}" if self.label_smoothing else ""
        sample_rate = f", sample_rate={self.sample_rate:g}" if self.sample_rate < 1.0 else ""
        start = f", class_weight_start={self.class_weight_start}" if self.class_weight_start else ""
        compiling = "" if self.compile_kernels == "auto" else f", compile={self.compile_kernels}"
        backend = (
            self.backend if self.active_backend in (None, self.backend) else f"{self.backend} ({self.active_backend})"
        )
        spec = repr(self.spec)
        margin = spec if len(spec) <= 120 else spec[:117] + "…"  # one number per class may be very long
        shape = f"{self.embedding_dim}, {self.num_classes}"
        return f"Head({shape}, {margin}, backend={backend}{compiling}{sample_rate}{label_smoothing}{start})"
