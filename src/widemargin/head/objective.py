"""Objective: a weighted sum of losses as one module, `"arcface + 0.02*center"`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..io.errors import InputError, unknown_name_error
from ..losses.base import Loss
from ..losses.criterion import Criterion, CriterionModule
from ..losses.grammar import Sum, parse
from ..losses.margin import Margin
from ..losses.pair_loss import PairLoss, PairLossModule
from ..losses.regularizer import Regularizer, RegularizerModule
from ..numerics.validation import check_integer, check_sample_weight, raise_earlier_errors
from .classes import decay_groups, extend_head
from .head import Head
from .import_weights import WeightSource, read_class_weights

_HEAD_OPTIONS = [p.name for p in inspect.signature(Head).parameters.values() if p.kind is p.KEYWORD_ONLY]


class Objective(nn.Module):
    """Margins with their heads and pair losses with their state, added with their factors.

    Args:
        spec: a loss string, a `Sum` or one loss; margins get a `Head`, classical losses a linear layer.
        embedding_dim: dimension D of the embeddings.
        num_classes: number C of classes.
        head_options: passed to every `Head` (backend, label_smoothing, class_weight, ignore_index, …); `group` also to
            pair losses that have state.

    `objective(x, y)` → loss [N]. `parts` are the modules by name; `last_losses` are the losses [N] of the last call by
    name, detached and without their factors.

    >>> import torch
    >>> objective = Objective("arcface + 0.02*center", 8, 5)
    >>> objective(torch.randn(3, 8), torch.tensor([0, 1, 4])).shape, list(objective.parts)
    (torch.Size([3]), ['arcface', 'center'])
    """

    def __init__(self, spec: str | Sum | Loss, embedding_dim: int, num_classes: int, **head_options: Any) -> None:
        super().__init__()
        value = parse(spec) if isinstance(spec, str) else spec
        if not isinstance(value, Sum | Loss):
            raise InputError(f"spec must be a loss string such as 'arcface' or a loss, got {type(spec).__name__}")
        self.spec = value if isinstance(value, Sum) else Sum(((1.0, value),))
        check_integer("embedding_dim", embedding_dim, 1), check_integer("num_classes", num_classes, 1)
        for option in head_options:
            if option not in _HEAD_OPTIONS:
                raise unknown_name_error("option of Head", option, _HEAD_OPTIONS)
        self.parts = nn.ModuleDict()
        self.factors: dict[str, float] = {}
        self.last_losses: dict[str, Tensor] = {}
        for factor, loss in self.spec.parts:
            name = self._unique_name(loss.name)
            self.parts[name] = _build_part(loss, embedding_dim, num_classes, head_options)
            self.factors[name] = factor
        unused = [option for option in head_options if option != "group"]
        if unused and self.head is None:
            raise InputError(f"{self.spec!r} has no margin, which is needed for {', '.join(unused)}")
        for part in self.parts.values():
            if isinstance(part, PairLossModule):
                part.set_sync_group(head_options.get("group"), head_options.get("backend"))
        if not self.has_logits:
            for _, loss in self.spec.parts:
                if isinstance(loss, Regularizer):
                    raise InputError(
                        f"{self.spec!r} has no class weights to regularize; write arcface + 0.1*{loss.name}"
                    )

    def _unique_name(self, name: str) -> str:
        names = (name, *(f"{name}_{i}" for i in range(2, len(self.parts) + 3)))
        return next(candidate for candidate in names if candidate not in self.parts)

    @property
    def head(self) -> Head | None:
        """The head of the first margin, or None."""
        return next((part for part in self.parts.values() if isinstance(part, Head)), None)

    @property
    def has_logits(self) -> bool:
        """True if a part has class weights, and so logits; pairs and triplets alone only embed."""
        return any(_has_class_weights(part) for part in self.parts.values())

    def mining_stats(self) -> dict[str, dict[str, Tensor]]:
        """Statistics of each pair loss on the last batch, by name: triplets found, triplets active, …"""
        return {
            name: part.stats for name, part in self.parts.items() if isinstance(part, PairLossModule) and part.stats
        }

    def forward(
        self,
        x: Tensor,
        y: Tensor,
        *,
        sample_weight: Tensor | None = None,
        mix: tuple[Tensor, Tensor | float] | None = None,
    ) -> Tensor:
        """Loss [N]; `sample_weight` and `mix` as in `Head`."""
        if sample_weight is not None and isinstance(x, Tensor) and x.is_floating_point():
            check_sample_weight(sample_weight, x.new_empty(x.shape[:1]))  # before any part updates its state
        if self.head is None:  # otherwise the head raises them
            raise_earlier_errors(x)
        total: Tensor | None = None
        self.last_losses = {}
        ignored = None if self.head is None else {"ignore_index": self.head.ignore_index}
        for name, part in self.parts.items():
            inputs = self.class_weights() if isinstance(part, RegularizerModule) else x
            loss = part(inputs, y, mix=mix, **({} if isinstance(part, Head) else ignored or {}))
            self.last_losses[name] = loss.detach()
            scaled = self.factors[name] * loss
            total = scaled if total is None else total + scaled
        assert total is not None
        return total if sample_weight is None else total * check_sample_weight(sample_weight, total)

    def logits(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Logits [N, C] of the first part that has class weights; see `Head.logits`."""
        for part in self.parts.values():
            if isinstance(part, Head):
                return part.logits(x, y)
            if _has_class_weights(part):
                return part.logits(x)  # type: ignore[no-any-return, operator]
        raise InputError(f"{self.spec!r} has no class weights and no logits; compare embeddings instead")

    def class_weights(self) -> Tensor:
        """Class weights [C, D], or [C, K, D] with sub-centres, of the first part that has some; with gradient."""
        part = next((part for part in self.parts.values() if _has_class_weights(part)), None)
        if isinstance(part, Head):
            if part.shard is not None and part.shard.world_size > 1:
                raise InputError(
                    "a regularizer needs all class weights on every rank; use a backend other than sharded"
                )
            return part.weight
        if isinstance(part, CriterionModule):
            return part.linear.weight
        if isinstance(part, PairLossModule):
            return part.class_weights()
        raise InputError(f"{self.spec!r} has no class weights")

    def load_class_weights(self, source: WeightSource) -> None:
        """Take the class weights of another library's loss; see `Head.load_class_weights`."""
        if self.head is not None:
            self.head.load_class_weights(source)
            return
        weights = self.class_weights()
        found, bias = read_class_weights(source, weights.shape[-1])
        if found.shape != weights.shape or (bias is not None and bool(bias.any())):
            raise InputError(
                f"the weights have shape {list(found.shape)}{'' if bias is None else ' and a bias'}, those of "
                f"{self.spec!r} {list(weights.shape)}"
            )
        with torch.no_grad():
            weights.copy_(found)

    def extend(
        self,
        n: int,
        class_names: Iterable[str] | None = None,
        class_weight: Sequence[float] | None = None,
        **per_class: Sequence[float],
    ) -> None:
        """Add `n` classes to every part, or to none; options as in `Head.extend`.

        Pass the new parameters to the optimizer afterwards.
        """
        n = check_integer("n", n, 1)
        grown: dict[str, Head] = {}
        for name, part in self.parts.items():
            if isinstance(part, CriterionModule):
                raise InputError(f"{name} has a linear layer that cannot be extended; use softmax(bias=True) instead")
            if isinstance(part, Head):
                own = {key: per_class[key] for key in per_class if key in part.per_class_options()}
                grown[name] = extend_head(part, n, class_names, class_weight, own)
        unused = set(per_class).difference(*(head.per_class_options() for head in grown.values()))
        if unused:
            raise unknown_name_error("per-class option", sorted(unused)[0], [])
        for name, part in self.parts.items():
            if isinstance(part, Head):
                part.assign_from(grown[name])
            elif isinstance(part, PairLossModule):
                part.extend(n)
        self._update_spec()

    def keep_dominant(self, dominant: Tensor) -> None:
        """Keep one sub-centre per class of the first margin; see `Head.keep_dominant`."""
        if self.head is None:
            raise InputError(f"{self.spec!r} has no margin and no sub-centres")
        self.head.keep_dominant(dominant)
        self._update_spec()

    def _update_spec(self) -> None:
        """Update the spec from the current margins of the heads."""
        parts = zip(self.parts.values(), self.spec.parts, strict=True)
        self.spec = Sum(
            tuple((factor, part.spec if isinstance(part, Head) else loss) for part, (factor, loss) in parts)
        )

    def decayed_parameters(self) -> list[Tensor]:
        """Parameters whose norm matters, to which weight decay applies."""
        parameters: list[Tensor] = []
        for part in self.parts.values():
            if isinstance(part, Head) and part.margin.uses_w_norm:
                parameters.append(part.weight)
            elif isinstance(part, CriterionModule):
                parameters.append(part.linear.weight)
        return parameters

    def parameter_groups(self, weight_decay: float | None = None) -> list[dict[str, Any]]:
        """Return parameter groups for an optimizer; weight decay applies only to weights whose norm matters."""
        return decay_groups(self.parameters(), self.decayed_parameters(), weight_decay)

    def __repr__(self) -> str:
        inside = ", ".join(f"{factor:g}*{self.parts[name]!r}" for name, factor in self.factors.items())
        return f"Objective({inside})"


def _has_class_weights(part: nn.Module) -> bool:
    return isinstance(part, Head | CriterionModule) or (isinstance(part, PairLossModule) and part.has_logits)


def _build_part(loss: Loss, embedding_dim: int, num_classes: int, head_options: dict[str, Any]) -> nn.Module:
    if isinstance(loss, Margin):
        return Head(embedding_dim, num_classes, loss, **head_options)
    if isinstance(loss, PairLoss | Criterion | Regularizer):
        return loss.build(embedding_dim, num_classes)
    raise InputError(f"{loss!r} is not a margin, a pair loss, a regularizer or a classical loss")
