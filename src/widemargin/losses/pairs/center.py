"""Center: each embedding near the centre of its class; used together with a softmax, `softmax + 0.02*center`.

Formula: ½ ‖x_i − c_{y_i}‖². After the loss of a training batch, without gradient: c_j ← c_j − α Σ_{y_i=j}(c_j −
x_i)/(1 + n_j), counts over all ranks of the objective's `group`; frozen in evaluation. `learn=True` makes the centres
parameters instead.
Domain: 0 ≤ α ≤ 1. Its weight in the objective is the paper's λ.
When: together with a softmax, for classes that shall be compact. Not alone: one point for everything would be its best.
Reference: Wen et al., ECCV 2016, Eq. 2 to 4; ArcGrad (IJCNN 2020), Eq. 5 and 6.

>>> import torch, widemargin as wm
>>> wm.Objective("center", 2, 3)(torch.tensor([[3.0, 4.0]]), torch.tensor([1])).item()  # centres start at 0
12.5
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...io.errors import InputError
from ...numerics.precision import at_least_fp32
from ..base import option
from ..pair_loss import PairLoss, PairLossModule, prepare_batch


@dataclass(frozen=True, repr=False)
class Center(PairLoss):
    name = "center"
    reference = "Wen et al., ECCV 2016, Eq. 2 to 4"
    group = "pairs"
    is_separable_by_class = True
    needs_positives = False

    alpha: float = option(0.5, "step of the centres", low=0, high=1)
    learn: bool = option(False, "centres as parameters", hide_default=True)

    def loss_and_stats(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        raise InputError(
            'center keeps a centre per class: use wm.Objective("softmax + 0.02*center", embedding_dim, num_classes)'
        )

    def build(self, embedding_dim: int, num_classes: int) -> PairLossModule:
        return CenterModule(self, embedding_dim, num_classes)


class CenterModule(PairLossModule):
    """The centres [C, D] and their update."""

    centers: Tensor

    def __init__(self, pair_loss: Center, embedding_dim: int, num_classes: int) -> None:
        super().__init__(pair_loss)
        self.alpha, self.learn = pair_loss.alpha, pair_loss.learn
        start = torch.zeros(num_classes, embedding_dim)
        if pair_loss.learn:
            self.centers = nn.Parameter(start)
        else:
            self.register_buffer("centers", start)

    def loss_and_stats(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        x, y = prepare_batch(x, y, self.centers.shape[1], len(self.centers))
        return 0.5 * (x - self.centers[y].to(x.dtype)).square().sum(1), {}

    @torch.no_grad()
    def extend(self, n: int) -> None:
        """`n` more centres at 0."""
        more = torch.cat([self.centers, self.centers.new_zeros(n, self.centers.shape[1])])
        self.centers = nn.Parameter(more) if self.learn else more

    @torch.no_grad()
    def update_state(self, x: Tensor, y: Tensor) -> None:
        """Wen's update of the centres that have samples."""
        if self.learn:
            return
        x, y = self.sync_group.gather_rows(at_least_fp32(x)), self.sync_group.gather_rows(y.long())
        y = y.clamp(0, len(self.centers) - 1)  # some labels are checked later (`WIDEMARGIN_CHECK`)
        # Few classes: all of them at once, as one without samples stays where it is. Many: only those present.
        few = len(self.centers) <= len(x)
        present, index = (None, y) if few else torch.unique(y, return_inverse=True)
        before = (self.centers if present is None else self.centers[present]).to(x.dtype)
        sums = torch.zeros_like(before).index_add_(0, index, x)
        count = before.new_zeros(len(before)).index_add_(0, index, before.new_ones(len(index))).unsqueeze(1)
        step = (count * before - sums) / (1.0 + count)
        moved = (before - self.alpha * step).to(self.centers.dtype)
        if present is None:  # see head/state.py: buffers are replaced, not written into
            self.centers = moved
        elif torch.compiler.is_compiling():
            self.centers = self.centers.index_copy(0, present, moved)
        else:
            self.centers[present] = moved
