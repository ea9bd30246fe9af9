"""Margin loss (Wu): pairs of one class nearer than β − α, pairs of two classes farther than β + α, β learnt if wanted.

Formula: a pair of one class costs max(0, d − β + α), a pair of two classes max(0, β − d + α), d = Euclidean distance of
unit embeddings; per anchor the sum over its pairs divided by those that cost anything, plus ν β where β is learnt. For
each pair of one class `mining=distance` draws one negative such that all distances are equally likely; `mining=all`
takes every pair. Anchors without a positive and a negative count 0 and are reported (`stats["anchors_without"]`).
Domain: α ≥ 0; 0 < β ≤ 2; ν ≥ 0. `learn_beta=True` makes β a parameter per class, and needs an `Objective`.
When: retrieval with several samples of a class in a batch; the boundary β may differ between classes.
Reference: Wu et al., Sampling matters (arXiv 1706.07567); α = 0.2, β = 1.2, ν = 0 as in the authors'
code.

>>> import torch, widemargin as wm
>>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
>>> [round(v, 4) for v in wm.parse("margin_pairs(mining=all)")(x, torch.tensor([0, 0, 1, 1])).tolist()]
[0.0, 0.5056, 0.5056, 0.0]
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...io.errors import InputError
from ..base import option
from ..pair_batch import PairBatch, PairList, map_rows, safe_sqrt
from ..pair_loss import PairLoss, PairLossModule
from ._mining import MINERS, MiningConfig


@dataclass(frozen=True, repr=False)
class MarginPairs(PairLoss):
    name = "margin_pairs"
    reference = "Wu et al., Sampling matters, arXiv 1706.07567"
    group = "pairs"

    alpha: float = option(0.2, "margin, a distance", low=0)
    beta: float = option(1.2, "distance between pairs of one class and of two", low=0, open_low=True, high=2)
    mining: str = option("distance", "which negatives to learn from", choices=("all", "distance"))
    learn_beta: bool = option(False, "β as a parameter of each class", hide_default=True)
    nu: float = option(0.0, "factor of β in the loss, where it is learnt", low=0, hide_default=True)

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        if self.learn_beta:
            raise InputError(
                'margin_pairs(learn_beta=True) keeps a β per class: use wm.Objective("margin_pairs(learn_beta=True)", '
                "embedding_dim, num_classes)"
            )
        return self.loss_with_beta(pairs, self.beta)

    def loss_with_beta(self, pairs: PairBatch, beta: Tensor | float) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss [N] with one β, or with one for each anchor [N, 1]."""
        same, different = pairs.masks()
        positives = PairList(same)
        squared = pairs.squared_distances(also_count=positives)
        usable = same.any(1, keepdim=True) & different.any(1, keepdim=True)
        if self.mining == "distance" and len(squared):
            config = MiningConfig(self.alpha, 0, pairs.x.shape[1], positives)
            anchor, _, drawn = MINERS["distance"](squared.detach(), same, different, config)
            # How often each negative was drawn: once for each positive of its anchor.
            place = (anchor, drawn.to(torch.uint8).argmax(1))
            counts = drawn.any(1).to(squared.dtype)
            negatives = torch.zeros_like(squared).index_put_(place, counts, accumulate=True)
        else:
            negatives = different.to(squared.dtype)
        alpha = self.alpha

        def sum_over_pairs(squares: Tensor, own: Tensor, others: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
            distance, edge = safe_sqrt(squares), given[0] if given else beta
            near = torch.relu(distance - edge + alpha) * own
            far = torch.relu(edge - distance + alpha) * others
            active = (near.detach() > 0).sum(1) + ((far.detach() > 0) * others).sum(1)
            return (near + far).sum(1), active

        edges = (beta,) if isinstance(beta, Tensor) else ()  # [N, 1], one for each anchor
        total, active = map_rows(sum_over_pairs, squared, same & usable, negatives * usable, *edges)
        stats = pairs.statistics(same, different) | {"active": active.sum()}
        return total / active.clamp(min=1), stats

    def build(self, embedding_dim: int, num_classes: int) -> PairLossModule:
        return LearntBetaModule(self, num_classes) if self.learn_beta else PairLossModule(self)


class LearntBetaModule(PairLossModule):
    """Margin loss with a learnt β for each class."""

    pair_loss: MarginPairs

    def __init__(self, pair_loss: MarginPairs, num_classes: int) -> None:
        super().__init__(pair_loss)
        self.num_classes = num_classes
        self.beta = nn.Parameter(torch.full((num_classes,), pair_loss.beta))

    def loss_of_pairs(self, pairs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        beta = self.beta.to(pairs.x.dtype)[pairs.labels]
        loss, stats = self.pair_loss.loss_with_beta(pairs, beta.unsqueeze(1))
        return loss + self.pair_loss.nu * beta, stats

    @torch.no_grad()
    def extend(self, n: int) -> None:
        """`n` more classes with the β that all began with."""
        self.beta = nn.Parameter(torch.cat([self.beta, self.beta.new_full((n,), self.pair_loss.beta)]))
        self.num_classes = len(self.beta)
