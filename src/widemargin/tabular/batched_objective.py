"""The objective of a stack of K models: heads, pair losses and classical losses, defined as in `Objective`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..head.backends.base import compute_margin_loss
from ..head.backends.stacked import StackedBackend
from ..head.state import MarginState
from ..io.errors import InputError
from ..losses.base import Loss
from ..losses.criterion import Criterion
from ..losses.grammar import Sum, parse
from ..losses.margin import Margin, Subcenters
from ..losses.multilabel import check_multilabel_loss
from ..losses.pair_loss import PairLoss
from ..losses.regularizer import Regularizer


class StackedHead(nn.Module):
    """Class weights [K, C, D] of K models under one margin, with S sub-centres [K, C·S, D]; adaptive state for each.

    `margin_values` [K] replace numbers of the margin by one for each model.
    """

    def __init__(
        self,
        margin: Margin,
        initial_weight: Tensor,
        label_smoothing: float = 0.0,
        margin_values: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        models, classes, _ = initial_weight.shape
        self.margin, self.label_smoothing = margin.for_num_classes(classes), label_smoothing
        self.weight = nn.Parameter(_draw_subcenters(initial_weight, self.margin.subcenters))
        self.bias = nn.Parameter(initial_weight.new_zeros(models, classes)) if margin.bias else None
        self.margin_state = MarginState(self.margin, initial_weight.device, initial_weight.dtype, num_models=models)
        self._replaced_names = tuple(margin_values or ())
        for name, values in (margin_values or {}).items():
            self.register_buffer(f"model_{name}", values.to(initial_weight).view(models, 1))

    def _current_margin(self, y: Tensor | None, dtype: torch.dtype) -> Margin:
        """The margin of this step, with each model's own numbers as [K, 1]."""
        margin = self.margin_state.current_margin(y, dtype)
        if not self._replaced_names:
            return margin
        return margin.with_values(**{name: getattr(self, f"model_{name}").to(dtype) for name in self._replaced_names})

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss [K, N] of embeddings [K, N, D]; in train mode adaptive state advances."""
        margin_values = self._current_margin(y, x.dtype)
        backend = self._backend(x, self._loss_bias())
        steps, adapt = self.margin_state.steps, self.training
        loss, used = compute_margin_loss(
            backend,
            margin_values,
            y,
            step=steps,
            adapt=adapt,
            training=adapt,
            label_smoothing=self.label_smoothing,
        )
        if self.training:
            self.margin_state.store_adaptive(used)
            self.margin_state.advance()
        return loss

    def _backend(self, x: Tensor, bias: Tensor | None) -> StackedBackend:
        return StackedBackend(x, self.weight, bias, self.margin.subcenters)

    def _loss_bias(self) -> Tensor | None:
        """What the loss adds to the logits [K, C], as in `Head.loss_bias`."""
        offset = self.margin_state.class_offset
        if offset is None:
            return self.bias
        offset = offset.to(self.weight.dtype).expand(len(self.weight), -1)
        return offset if self.bias is None else self.bias + offset

    def logits(self, x: Tensor) -> Tensor:
        """Logits [K, N, C]."""
        margin_values = self._current_margin(None, x.dtype).for_inference()
        return self._backend(x, self.bias).logits(margin_values).permute(1, 2, 0)

    def ranking_scores(self, x: Tensor) -> Tensor:
        """Scores [K, N, C] whose argmax is the prediction: the logits at scale 1, in the same order.

        An adaptive margin may end at a scale of 0, which makes all logits equal: the first class would be predicted.
        """
        margin_values = self._current_margin(None, x.dtype).for_inference()
        if self.bias is None:
            margin_values = margin_values.with_values(s=1.0)
        return self._backend(x, self.bias).logits(margin_values).permute(1, 2, 0)

    @property
    def class_groups(self) -> Tensor:
        """The weights of each class [K, C, S, D]; S = 1 without sub-centres."""
        subcenters = self.margin.subcenters
        return torch.unflatten(self.weight, 1, (-1, 1 if subcenters is None else subcenters.count))

    @property
    def class_weights(self) -> Tensor:
        """The same without gradient."""
        return self.class_groups.detach()

    @property
    def has_weight_decay(self) -> bool:
        """Whether the loss depends on the norms of the class weights, so that weight decay applies to them."""
        return self.margin.uses_w_norm


class StackedCriterion(nn.Module):
    """A linear layer for each of K models under a classical loss on classes."""

    has_weight_decay = True

    def __init__(self, criterion: Criterion, initial_weight: Tensor) -> None:
        super().__init__()
        self.criterion = criterion
        self.weight = nn.Parameter(initial_weight)
        self.bias = nn.Parameter(initial_weight.new_zeros(initial_weight.shape[0], 1, initial_weight.shape[1]))

    @property
    def class_groups(self) -> Tensor:
        """The weights of each class [K, C, 1, D]."""
        return self.weight.unsqueeze(2)

    @property
    def class_weights(self) -> Tensor:
        """The same without gradient."""
        return self.class_groups.detach()

    def logits(self, x: Tensor) -> Tensor:
        """Logits [K, N, C]."""
        return torch.baddbmm(self.bias, x, self.weight.mT)

    def ranking_scores(self, x: Tensor) -> Tensor:
        """Scores [K, N, C] whose argmax is the prediction."""
        return self.logits(x)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss [K, N]; `y` is [K, N], or [K, N, C] if rows have several labels."""
        return self.criterion(self.logits(x).flatten(0, 1), y.flatten(0, 1)).view(y.shape[:2])


class StackedPairLoss(nn.Module):
    """A pair loss on the embeddings of K models.

    If the loss never compares samples of different classes, K models of C classes are one model of K·C classes.
    Otherwise (contrastive, triplet) the loss of each model is computed separately. What a loss draws at its start, such
    as proxies, comes from `seeds`, one of each model.
    """

    has_weight_decay = False

    def __init__(self, pair_loss: PairLoss, initial_weight: Tensor, seeds: Sequence[int]) -> None:
        super().__init__()
        models, classes, dim = initial_weight.shape
        self.is_merged = pair_loss.is_separable_by_class
        num_classes, num_parts = (models * classes, 1) if self.is_merged else (classes, models)
        built = []
        with torch.random.fork_rng(devices=[]):
            for seed in seeds[:num_parts]:
                torch.default_generator.manual_seed(seed)
                built.append(pair_loss.build(dim, num_classes))
        self.parts = nn.ModuleList(part.to(initial_weight) for part in built)
        self.register_buffer("class_offset", torch.arange(models, device=initial_weight.device).unsqueeze(1) * classes)

    class_offset: Tensor

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss [K, N]."""
        if self.is_merged:
            flat: Tensor = self.parts[0](x.flatten(0, 1), (y + self.class_offset).flatten())
            return flat.view_as(y)
        return torch.stack([part(x[k], y[k]) for k, part in enumerate(self.parts)])


class StackedRegularizer(nn.Module):
    """A penalty on the class weights of each of K models."""

    has_weight_decay = False

    def __init__(self, regularizer: Regularizer) -> None:
        super().__init__()
        self.regularizer = regularizer

    def forward(self, weight: Tensor, y: Tensor) -> Tensor:
        """Penalty [K, N] under class weights [K, C, S, D]."""
        return torch.stack([self.regularizer.class_penalties(w, labels) for w, labels in zip(weight, y, strict=True)])


class StackedObjective(nn.Module):
    """A weighted sum of losses for K models at once; `initial_weight` [K, C, D] are the first class weights.

    `seeds`: one of each model, for what else a loss draws at its start (default: the numbers of the models).
    `margin_values` [K] replace numbers of the first margin by one for each model. `is_multilabel`: targets are
    [K, N, C], any number of labels for each row.
    """

    def __init__(
        self,
        spec: str | Sum | Loss,
        initial_weight: Tensor,
        label_smoothing: float = 0.0,
        margin_values: Mapping[str, Tensor] | None = None,
        is_multilabel: bool = False,
        seeds: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        seeds = range(len(initial_weight)) if seeds is None else seeds
        self.spec = check_stacked_loss(spec, label_smoothing, is_multilabel)
        self.factors = [factor for factor, _ in self.spec.parts]
        first = next((loss for _, loss in self.spec.parts if isinstance(loss, Margin)), None)
        self.parts = nn.ModuleList(
            StackedPairLoss(loss, initial_weight, seeds)
            if isinstance(loss, PairLoss)
            else _build_part(loss, initial_weight, label_smoothing, margin_values if loss is first else None)
            for _, loss in self.spec.parts
        )

    @property
    def head(self) -> StackedHead | StackedCriterion:
        """The first part with class weights, whose logits give the predictions."""
        return next(part for part in self.parts if isinstance(part, StackedHead | StackedCriterion))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss [K, N]."""
        total: Tensor | None = None
        for factor, part in zip(self.factors, self.parts, strict=True):
            loss = part(self.head.class_groups if isinstance(part, StackedRegularizer) else x, y)
            loss = loss if factor == 1.0 else factor * loss
            total = loss if total is None else total + loss
        assert total is not None
        return total

    def logits(self, x: Tensor) -> Tensor:
        """Logits [K, N, C]."""
        return self.head.logits(x)

    def ranking_scores(self, x: Tensor) -> Tensor:
        """Scores [K, N, C] whose argmax is the prediction."""
        return self.head.ranking_scores(x)


def check_stacked_loss(spec: str | Sum | Loss, label_smoothing: float = 0.0, is_multilabel: bool = False) -> Sum:
    """Return the loss as a sum, or refuse one that cannot distinguish classes."""
    value = parse(spec) if isinstance(spec, str) else spec
    total = value if isinstance(value, Sum) else Sum(((1.0, value),))
    losses = [loss for _, loss in total.parts]
    if is_multilabel:
        check_multilabel_loss(total)
    for loss in losses:
        if not isinstance(loss, Margin | Criterion | PairLoss | Regularizer):
            raise InputError(f"{loss!r} is not a margin, a pair loss, a regularizer or a classical loss")
        if isinstance(loss, Margin):
            loss.check_label_smoothing(label_smoothing)
        if isinstance(loss, Criterion) and not loss.is_multiclass and not is_multilabel:
            raise InputError(f"{loss.name} does not choose between classes; use cross_entropy, focal or a margin")
    if all(isinstance(loss, PairLoss | Regularizer) for loss in losses):
        raise InputError(
            f"{total!r} has no class weights, so it cannot distinguish classes; add a margin, as in "
            f"softmax + 0.1*{losses[0].name}"
        )
    if label_smoothing and not any(isinstance(loss, Margin) for loss in losses):
        raise InputError(
            f"{total!r} has no margin that could take label_smoothing; "
            f"write cross_entropy(label_smoothing={label_smoothing:g})"
        )
    return total


def head_loss(total: Sum) -> Margin | Criterion:
    """The first part of a loss that has class weights, whose logits give the predictions."""
    return next(loss for _, loss in total.parts if isinstance(loss, Margin | Criterion))


def build_head(total: Sum, initial_weight: Tensor, label_smoothing: float) -> StackedHead | StackedCriterion:
    """The head of K models without the other parts of the loss, which only training needs."""
    head = _build_part(head_loss(total), initial_weight, label_smoothing)
    assert isinstance(head, StackedHead | StackedCriterion)
    return head


def _build_part(
    loss: Loss, initial_weight: Tensor, label_smoothing: float, margin_values: Mapping[str, Tensor] | None = None
) -> nn.Module:
    initial_weight = initial_weight.clone()  # every part has weights of its own
    if isinstance(loss, Margin):
        return StackedHead(loss, initial_weight, label_smoothing, margin_values)
    if isinstance(loss, Criterion):
        return StackedCriterion(loss, initial_weight)
    assert isinstance(loss, Regularizer)
    return StackedRegularizer(loss)


def _draw_subcenters(weight: Tensor, subcenters: Subcenters | None) -> Tensor:
    """Class weights [K, C, D] → weights of all sub-centres [K, C·S, D]: the first of a class is its given weight.

    The others have its numbers in another order or with the opposite sign: random directions too, without further
    draws. Up to 2·C·D sub-centres of a class are all different; equal ones would always get equal gradients.
    """
    if subcenters is None:
        return weight
    dim = weight.shape[2]
    turned = [
        weight.roll((place // (2 * dim), place % dim), (1, 2)) * (-1) ** (place // dim)
        for place in range(subcenters.count)
    ]
    return torch.stack(turned, 2).flatten(1, 2)


def draw_class_weights(
    rngs: Sequence[np.random.Generator], num_classes: int, embedding_dim: int, dtype: torch.dtype
) -> Tensor:
    """Class weights [K, C, D] in random directions, of length about 1, each model from its own generator."""
    rows = np.stack([draw.standard_normal((num_classes, embedding_dim)) for draw in rngs]) * embedding_dim**-0.5
    return torch.from_numpy(rows).to(dtype)
