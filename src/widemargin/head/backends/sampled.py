"""The sampled backend (Partial FC): the classes of the batch and a random part of the others, drawn in every step.

The loss is approximate: the sum runs over the drawn classes only, and adaptive numbers use only those. The sum of a
one-vs-all loss is divided by the fraction of the classes that was drawn; the classes of the batch, which are always
drawn, count as much as the others, so it is too large by about their share of the drawn classes. The gradient of the
class weights is sparse, one row for every drawn class; `RowOptimizer` updates just these rows with any optimizer. With
a sample rate of 1 nothing is drawn and everything is exact. Reference: Partial FC (arXiv 2010.05222).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...losses.margin import Margin, Subcenters
from ...numerics.custom_autograd import custom_autograd
from .base import Backend, NormalizedEmbeddings, SplitLogits
from .compiled import CompileSetting
from .grad_buffer import GradBuffer
from .stream import StreamBackend


def define_rows(weight: Tensor, indices: Tensor) -> Tensor:
    """Select rows of the weights, for plain autograd."""
    return weight.index_select(0, indices)


@custom_autograd("memory", "autograd fills a C×D gradient with zeros for classes that were not drawn", define_rows)
class _SparseGradRows(torch.autograd.Function):
    """Select rows of the weights; their gradient is sparse."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.shape = weight.shape
        return weight.index_select(0, indices)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (which,) = ctx.saved_tensors
        sparse = torch.sparse_coo_tensor(
            which.unsqueeze(0), gradient, ctx.shape, is_coalesced=True, check_invariants=False
        )
        return sparse, None


@torch.no_grad()
def sample_classes(y: Tensor, num_classes: int, sample_rate: float) -> Tensor:
    """Return the classes of a step in ascending order: all labels below `num_classes`, and random others."""
    scores = torch.rand(num_classes, dtype=torch.float32, device=y.device)
    place = torch.where((y >= 0) & (y < num_classes), y, num_classes)  # one more place, for labels of other ranks
    is_label = torch.zeros(num_classes + 1, dtype=torch.bool, device=y.device).index_fill_(0, place, True)[:num_classes]
    count = max(math.ceil(sample_rate * num_classes), 2)
    if len(y) > count:  # there may be more labels than that; an accelerator is waited for here
        count = max(count, int(is_label.sum()))
    scores.masked_fill_(is_label, 2.0)  # certain to be among the largest
    return scores.topk(min(count, num_classes), sorted=False).indices.sort().values


class SampledBackend(Backend):
    """A streaming backend over sampled classes, which are drawn once for each tensor of labels."""

    def __init__(
        self,
        embeddings: NormalizedEmbeddings,
        weight: Tensor,
        bias: Tensor | None,
        sample_rate: float,
        grad_buffer: GradBuffer | None = None,
        compile_kernels: CompileSetting = "auto",
        subcenters: Subcenters | None = None,
    ) -> None:
        self.subcenters = subcenters
        self.embeddings, self.weight, self.bias, self.sample_rate = embeddings, weight, bias, sample_rate
        self.num_classes = len(weight)
        self._grad_buffer, self._compile_kernels = grad_buffer, compile_kernels
        self._grad_enabled = torch.is_grad_enabled()
        self._stream_cache: tuple[Tensor, StreamBackend, Tensor] | None = None

    @property
    def x_norm(self) -> Tensor:
        """‖x‖ [N]."""
        return self.embeddings.norm

    def _get_stream(self, y: Tensor) -> tuple[StreamBackend, Tensor]:
        """Return the backend over the classes sampled for these labels, and the labels as indices into them."""
        if self._stream_cache is None or self._stream_cache[0] is not y:
            which = sample_classes(y, len(self.weight), self.sample_rate)
            # The first call may come from an adaptive margin, without gradient.
            with torch.set_grad_enabled(self._grad_enabled):
                rows: Tensor = _SparseGradRows.apply(self.weight, which)  # type: ignore[no-untyped-call]
                bias = None if self.bias is None else self.bias[which]
                stream = StreamBackend(
                    self.embeddings, rows, bias, self._grad_buffer, self._compile_kernels, self.subcenters
                )
            place = torch.searchsorted(which, y)
            inside = (y >= 0) & (y < len(self.weight))  # labels of another rank's classes become −1
            column = torch.where(inside, place, torch.full_like(place, -1))
            self._stream_cache = (y, stream, column)
        return self._stream_cache[1], self._stream_cache[2]

    def split(self, margin: Margin, y: Tensor, with_logit_sum: bool = False) -> SplitLogits:
        stream, column = self._get_stream(y)
        logits: SplitLogits = stream.split(margin, column, with_logit_sum)
        # A sum over a part of the classes estimates the sum over all; the target, if it is here, is in neither.
        if margin.one_vs_all:
            target_is_here = (column >= 0).to(logits.others.dtype)
            num_drawn = (stream.num_classes - target_is_here).clamp(min=1.0)
            logits = logits._replace(others=logits.others * ((self.num_classes - target_is_here) / num_drawn))
        if logits.weight_penalty is not None:
            logits = logits._replace(weight_penalty=logits.weight_penalty * (self.num_classes / stream.num_classes))
        return logits

    def target_angles(self, y: Tensor) -> Tensor:
        stream, column = self._get_stream(y)
        return stream.target_angles(column)

    def largest_cosines(self, y: Tensor, count: int = 1) -> Tensor:
        stream, column = self._get_stream(y)
        cosines: Tensor = stream.largest_cosines(column, count)
        return cosines
