"""Logit adjustment (balanced softmax): the log frequency of each class is added to its logit in training.

Formula: z_j = x · w_j + τ log π_j for every class, π_c = n_c / Σ n; at inference z_j = x · w_j. With cosine=True the
logits are s cos θ_j + τ log π_j: the frequencies are added after the scale.
Domain: τ ≥ 0; counts of at least 1, one per class (`train` fills them in; without counts all are equal); s > 0 with
cosine=True. τ = 0 is softmax, or NormFace.
When: long-tailed classes and balanced accuracy; the first loss to try, since it only changes a bias.
Reference: Menon et al., Logit adjustment (arXiv 2007.07314), Eq. 10; balanced softmax (arXiv 2007.10740) is τ = 1.

>>> import torch, widemargin as wm
>>> cos = torch.tensor([[0.8, 0.1, -0.3]])
>>> spec = "logit_adjusted(counts=[1, 2, 7], cosine=True, s=4)"
>>> round(wm.margin_softmax(cos, torch.tensor([0]), spec).item(), 4)
0.1886
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from ...io.errors import InputError
from ..base import Number, PerClass, option
from ..margin import Margin


@dataclass(frozen=True, repr=False)
class LogitAdjusted(Margin):
    name = "logit_adjusted"
    aliases = ("balanced_softmax",)
    reference = "Menon et al., Logit adjustment, arXiv 2007.07314, Eq. 10"
    group = "long-tail"
    neutral = ({"tau": 0.0}, "softmax")
    table_fields = ("counts",)

    tau: float = option(1.0, "factor of the logarithms", low=0)
    counts: Number = option(None, "samples of each class", low=1, optional=True, per_class=True)
    cosine: bool = option(False, "use s times the cosine instead of linear logits", hide_default=True)
    s: Number = option(None, "scale of the cosines; 30 by default", low=0, open_low=True, optional=True)
    bias: bool = option(False, "add a bias per class", hide_default=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.s is not None and not self.cosine:
            raise InputError("logit_adjusted: s is the scale of cosines; add cosine=True, or leave s out")

    @property
    def uses_x_norm(self) -> bool:  # type: ignore[override]
        return not self.cosine

    @property
    def uses_w_norm(self) -> bool:  # type: ignore[override]
        return not self.cosine

    def with_class_counts(self, counts: Sequence[int]) -> Self:
        return replace(self, counts=PerClass(tuple(map(float, counts)))) if self.counts is None else self

    def for_num_classes(self, num_classes: int) -> Self:
        resolved = super().for_num_classes(num_classes)
        scale = self.s if self.s is not None else 30.0 if self.cosine else 1.0
        return resolved.with_values(s=scale)

    def class_count_warnings(self, num_classes: int) -> list[str]:
        if self.counts is not None:
            return []
        return ["logit_adjusted without counts is plain softmax: give counts=[…], one number per class"]

    def class_offsets(self) -> tuple[float, ...] | None:
        if not isinstance(self.counts, PerClass):  # equal counts would not change the loss
            return None
        total = sum(self.counts.values)
        return tuple(self.tau * math.log(n / total) for n in self.counts.values)
