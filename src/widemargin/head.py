"""Head: class weights and a margin; `head(x, y)` is a loss per sample.

The head owns everything that lasts: weights, step, adaptive state, learnable numbers, names. The margin stays a value.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from . import labels, roster, takeover
from .catalogue import parse_margin
from .errors import InputError
from .margin import Margin
from .numbers import Numbers
from .option import PerClass
from .others.choose import checked_road, road_of
from .others.dense import Dense
from .others.rays import Rays
from .others.road import Road, logit_with_margin, loss_on
from .others.room import Room
from .others.sharded import shard_logits
from .precision import island
from .ranks import Shared

# What a head is made of beside its parameters and buffers.
_SETTINGS: tuple[str, ...] = ("dim", "classes", "spec", "margin", "road", "rate", "shard", "shared", "taken")
_SETTINGS += ("smoothing", "ignore_index", "class_names")


class Head(nn.Module):
    """Class weights [C, D] under a margin loss.

    Args:
        dim: length D of the embeddings.
        classes: number C of classes, at least 2.
        margin: a parse string such as `"arcface(s=64, m=0.5)"` or a value such as `wm.ArcFace()`.
        road: `dense` holds all N×C logits, `stream` walks over blocks of classes, `sharded` splits the classes over
            the ranks of `group`, `sampled` takes a random part of them; `auto` picks one of the first two by size
            (`taken` says which it was).
        rate: part of the classes that a training step of a sampled or sharded head looks at (Partial FC).
        group: process group of the ranks that train this head together: those that split a sharded head (by default
            all), and those whose batches make the numbers of an adaptive margin (by default this process alone; under
            DDP give `torch.distributed.group.WORLD`).
        smoothing: label smoothing ε in [0, 1).
        class_weight: one factor per class, [C], of the whole loss of its samples; divide by the weights that occur,
            not by N, where torch's weighted mean is wanted.
        ignore_index: samples with this label get loss 0 and count for nothing.
        class_names: C names, kept in the head and in its state dict.
        device, dtype: of the class weights.

    `spec` is the margin as it was written, `margin` the same with the defaults that depend on C.
    Shapes: x [N, D] of any float dtype, y [N] whole numbers → loss [N], in the dtype of the weights but at least fp32.
    In train mode a call advances schedules and adaptive state once; evaluation and `logits` never do. So the head must
    not stand inside activation checkpointing, which calls it twice; the network before it may.

    >>> _ = torch.manual_seed(0)
    >>> head = Head(8, 5, "arcface(s=16, m=0.3)")
    >>> head(torch.randn(3, 8), torch.tensor([0, 4, 2])).shape, head.logits(torch.randn(3, 8)).shape
    (torch.Size([3]), torch.Size([3, 5]))
    """

    def __init__(
        self,
        dim: int,
        classes: int,
        margin: Margin | str = "arcgrad",
        *,
        road: str = "auto",
        rate: float = 1.0,
        group: Any = None,
        smoothing: float = 0.0,
        class_weight: Tensor | Sequence[float] | None = None,
        ignore_index: int | None = None,
        class_names: Iterable[str] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.classes = roster.whole("dim", dim, 1), roster.whole("classes", classes, 2)
        dim, classes = self.dim, self.classes
        self.spec = parse_margin(margin) if isinstance(margin, str) else margin
        if not isinstance(self.spec, Margin):
            raise InputError(f"margin must be a parse string or a Margin, got {type(margin).__name__}")
        self.taken: str | None = None if road == "auto" else road
        self.rate, self.shard = checked_road(road, rate, group, smoothing, classes)
        self.shared = Shared(group, self.spec.name) if self.shard is None else self.shard
        if ignore_index is not None:
            ignore_index = roster.whole("ignore_index", ignore_index, -(2**62))
        self.road, self.smoothing, self.ignore_index = road, labels.check_smoothing(smoothing), ignore_index
        self.margin = self.spec.sized(classes)
        here = classes if self.shard is None else len(self.shard)
        self.weight = nn.Parameter(roster.room_for(here, dim, device, dtype))
        self.bias = nn.Parameter(self.weight.new_zeros(here)) if self.margin.bias else None
        factors = roster.checked_class_weight(class_weight, classes, self.weight.device)
        self.numbers = Numbers(self.margin, self.weight.device, self.weight.dtype, factors)
        self.class_names = roster.checked_names(class_names, classes)
        self.room = Room()  # of the gradient, from step to step
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Class weights in random directions, of length about 1; schedules and adaptive state at their start."""
        self.numbers.reset()
        draw = None if self.shard is None else self.shard.generator(self.weight.device)
        nn.init.normal_(self.weight, std=self.dim**-0.5, generator=draw)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def train(self, mode: bool = True) -> Self:
        """As every module's; evaluation gives back the memory that training keeps for the next gradient."""
        if not mode:
            self.room.clear()
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
        """Loss [N] of embeddings x [N, D] with labels y [N].

        `sample_weight` [N] multiplies. `mix=(y_b, lam)` is mixup: `lam` of the loss for y, `1 − lam` of y_b's, from
        one set of cosines and one update of the state, y's. Where `ignore_index` (loss 0) leaves samples out, divide by
        the number that counts, not by N.
        """
        with island(x):
            rays = self._rays(x)
            # Everything is checked before anything moves: a refused call leaves the state as it was.
            y, keep = self._labels(y, rays)
            other, lam = (y, 1.0) if mix is None else labels.check_mix(mix)
            y_b, keep_b = (y, keep) if mix is None else self._labels(other, rays)
            share = lam if mix is None else labels.check_share(lam, rays.length)
            factor = 1.0 if sample_weight is None else labels.check_sample_weight(sample_weight, rays.length)
            road = road_of(self, rays)
            loss = self._loss(road, y, keep, adapt=self.training)
            if mix is not None:
                loss = share * loss + (1.0 - share) * self._loss(road, y_b, keep_b, adapt=False)
            if sample_weight is not None:
                loss = factor * loss
            if self.training:
                self.numbers.advance()
            return loss

    def logits(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Logits [N, C] without labels, for inference; with labels the margin is applied.

        In evaluation `F.cross_entropy(head.logits(x, y), y, reduction="none")` is the loss (before smoothing and class
        weights), so any criterion on logits can be used with the margin. Never changes adaptive numbers.
        """
        with island(x):
            rays = self._rays(x)
            now = self.numbers.now(None, rays.dtype)
            if self.shard is not None:
                return shard_logits(self.shard, now, rays, self.weight, self.bias, y)
            road = Dense(now, rays, self.weight, self.bias)
            z = road.logits(now)
            if y is None:
                return z
            y, keep = self._labels(y, rays)
            p = logit_with_margin(self.numbers.now(y, rays.dtype), road.target_among(z, now, y))
            if keep is not None:
                p = torch.where(keep, p, z.gather(1, y.unsqueeze(1)).squeeze(1))
            return z.scatter(1, y.unsqueeze(1), p.unsqueeze(1))

    def target_angles(self, x: Tensor, y: Tensor) -> Tensor:
        """Angle θ_y [N] between each embedding and its class weight, in radians, exact when small."""
        with island(x):
            rays = self._rays(x)
            return road_of(self, rays).target(self.margin, self._labels(y, rays)[0]).theta

    def _loss(self, road: Road, y: Tensor, keep: Tensor | None, adapt: bool) -> Tensor:
        now = self.numbers.now(y, road.lengths.dtype)
        if self.shard is not None:
            now = self.shard.shared_numbers(now)
        loss, used = loss_on(
            road,
            now,
            y,
            step=self.numbers.steps,
            keep=keep,
            adapt=adapt,
            smoothing=self.smoothing,
            gather=self.shared.gather_rows,
        )
        if adapt:
            self.numbers.keep(used)
        if keep is not None:
            loss = torch.where(keep, loss, torch.zeros_like(loss))
        weight = self.numbers.class_weight
        return loss if weight is None else loss * weight[y].to(loss.dtype)

    def _rays(self, x: Tensor) -> Rays:
        labels.check_embeddings(x, self.dim, self.weight.device)
        # In one piece, so that the same numbers give the same bits however they lie in memory.
        return Rays(x.to(torch.promote_types(self.weight.dtype, torch.float32)).contiguous())

    def _labels(self, y: Tensor, rays: Rays) -> tuple[Tensor, Tensor | None]:
        """Checked labels as int64, and which samples count (None: all)."""
        keep = None
        if self.ignore_index is not None and isinstance(y, Tensor):
            keep = labels.counted(y, self.ignore_index)
            y = torch.where(keep, y, torch.zeros_like(y))
        lengths = rays.length if rays.rough is None else None
        labels.check_labels(y, len(rays), self.classes, lengths, rays.given.device)
        return y.long(), keep

    @property
    def scale(self) -> float:
        """The scale `s` as it stands."""
        return float(torch.as_tensor(self.numbers.now(None, torch.float64).s).detach())

    @property
    def now(self) -> dict[str, float]:
        """Every number of the margin as it stands, for logs; numbers per class are left out."""
        found = {}
        for name, value in self.numbers.now(None, torch.float64).values():
            if isinstance(value, Tensor | float | int) and not isinstance(value, bool):
                found[name] = float(torch.as_tensor(value).detach())
        return found

    # ---------------------------------------------------------------- the classes

    @torch.no_grad()
    def gathered_weight(self) -> Tensor:
        """The weights of all classes [C, D], from all ranks where they are split; a copy there."""
        return self.weight.detach() if self.shard is None else self.shard.gathered_classes(self.weight.detach())

    def parameter_groups(self, weight_decay: float | None = None) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer; only weights whose length matters are decayed (by its own rate, if none is
        given): where they count by direction alone, decay only shrinks them and so raises their learning rate.
        """
        return roster.decay_groups(self.parameters(), [self.weight] if self.margin.keeps_w else [], weight_decay)

    @torch.no_grad()
    def init_from_means(self, x: Tensor, y: Tensor) -> None:
        """Point class weights at the mean direction of their embeddings; lengths and classes without a sample stay."""
        rays = self._rays(x)
        y, keep = self._labels(y, rays)
        unit = rays.unit if keep is None else rays.unit * keep.unsqueeze(1)
        if self.shard is not None:
            unit, y = self.shard.own_rows(unit, y)
        self.weight.copy_(roster.pointed_at_means(self.weight, unit, y))

    def extend(
        self,
        n: int,
        class_names: Iterable[str] | None = None,
        class_weight: Sequence[float] | None = None,
        **per_class: Sequence[float],
    ) -> None:
        """Add `n` classes after the existing ones; give the optimizer the new parameters afterwards.

        Per-class numbers need values for the new classes: `extend(2, m=[0.3, 0.4])`. Defaults that depend on the
        number of classes follow; adaptive state and step are kept.
        """
        self.become(roster.extended(self, n, class_names, class_weight, per_class))

    def per_class_options(self) -> list[str]:
        """Options of the margin that hold one number per class."""
        return [name for name, value in self.spec.values() if isinstance(value, PerClass)]

    def become(self, new: Head) -> None:
        """Take over all that another head holds and does, staying the same object.

        What was registered on this head (hooks) stays; memory for the gradient is this head's own.
        """
        self.weight, self.bias, self.numbers = new.weight, new.bias, new.numbers
        for name in _SETTINGS:
            setattr(self, name, getattr(new, name))
        self.room.clear()
        self.train(new.training)

    def take_over(self, source: takeover.Source) -> None:
        """Class weights from a head of pytorch-metric-learning, insightface or the like.

        `source` is a state dict, a file, or the files of all ranks in their order, read as tensors only.
        """
        takeover.into(self, source)

    # ---------------------------------------------------------------- keeping

    def get_extra_state(self) -> Tensor:
        """Margin and class names as bytes in a tensor, so that any checkpoint format carries them."""
        return roster.as_bytes(self.spec, self.class_names)

    def set_extra_state(self, state: Tensor) -> None:
        """Take over the class names, and say if the weights were trained under another margin."""
        trained, names = roster.from_bytes(state)
        if trained != repr(self.spec):
            warnings.warn(f"these weights were trained with {trained}, this head has {self.spec!r}", stacklevel=2)
        if names is not None:
            self.class_names = roster.checked_names(names, self.classes)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.shard is not None:
            self.shard.write(destination, prefix)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        found = state_dict if self.shard is None else self.shard.read(state_dict, prefix)
        super()._load_from_state_dict(found, prefix, *rest)
        missing: list[str] = rest[2]
        # Weights that were not written by a head (another library's, a bare tensor) have no names.
        if prefix + "_extra_state" in missing:
            missing.remove(prefix + "_extra_state")

    def __repr__(self) -> str:
        smoothing = f", smoothing={self.smoothing:g}" if self.smoothing else ""
        rate = f", rate={self.rate:g}" if self.rate < 1.0 else ""
        road = self.road if self.taken in (None, self.road) else f"{self.road} ({self.taken})"
        written = repr(self.spec)
        margin = written if len(written) <= 120 else written[:117] + "…"  # one number per class may be very many
        return f"Head({self.dim}, {self.classes}, {margin}, road={road}{rate}{smoothing})"
