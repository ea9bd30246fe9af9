"""NativeHead: a training step of the dense backend by native kernels, where there can and should be some.

Every condition for them is here. Whatever they do not do (zero or extreme norms, a library that cannot be built) the
dense backend does, with the same results up to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...losses.margin import Margin, Subcenters, add_common_bias
from ...numerics import angles
from . import compiled
from .base import NormalizedEmbeddings, SplitLogits, Target, TargetLogit, compute_radius
from .compiled import CompileSetting
from .grad_buffer import GradBuffer
from .kernels import KernelSpec
from .native import NativeLibrary
from .native_dense import DenseFunction, DenseKernels, DenseOutputs
from .native_source import REAL_NAMES


def is_training_step(embeddings: NormalizedEmbeddings, weight: Tensor) -> bool:
    """True if this is a call that native kernels can do: eager, on a CPU, with a backward pass, of moderate norms."""
    if embeddings.safe_norm is None or not torch.is_grad_enabled() or embeddings.dtype not in REAL_NAMES:
        return False
    if not (weight.requires_grad or embeddings.raw.requires_grad) or not weight.is_contiguous():
        return False
    return angles.is_reverse_mode_only(weight, "native_head")


class NativeHead:
    """A training step of a small head by native kernels: their state for the embeddings and weights of one call."""

    def __init__(
        self,
        embeddings: NormalizedEmbeddings,
        weight: Tensor,
        subcenters: Subcenters | None,
        grad_buffer: GradBuffer | None,
    ) -> None:
        self._grad_buffer = grad_buffer
        self.x, self.w, self.subcenters = embeddings.raw, weight, subcenters
        assert embeddings.safe_norm is not None
        self._x_norm: Tensor = embeddings.safe_norm
        self._products: Tensor | None = None
        self._library: NativeLibrary | None = None
        self.kernels: DenseKernels | None = None
        """Prepared for the last labels."""
        self._x_norm_with_grad: Tensor | None = None

    @classmethod
    def if_possible(
        cls,
        embeddings: NormalizedEmbeddings,
        weight: Tensor,
        subcenters: Subcenters | None,
        setting: CompileSetting,
        grad_buffer: GradBuffer | None = None,
    ) -> NativeHead | None:
        """Return the native head of a training step that can and should have one, otherwise None."""
        if setting is False or not is_training_step(embeddings, weight):
            return None
        if not compiled.should_compile_dense(setting, len(embeddings) * len(weight), weight.device):
            return None
        return cls(embeddings, weight, subcenters, grad_buffer)

    def expect(self, margin: Margin, bias: Tensor | None) -> None:
        """Load the library of a margin."""
        bare = margin.without_sample_values()
        spec, values = KernelSpec.with_numbers(bare, False, self.x.dtype, self.subcenters, True)
        library = compiled.get_dense_library(spec, bias is not None, self.x.dtype)
        self._library = library if library is not None and library.reads_only_single_numbers(values) else None

    def prepare(self, y: Tensor) -> bool:
        """Compute products, norms and targets unless they are known for these labels; False if kernels cannot."""
        if self._library is None:
            return False
        if self.kernels is not None and self.kernels.labels is y:
            return True
        with torch.no_grad():
            if self._products is None:
                self._products = torch.mm(self.w, self.x.T)
            kernels = DenseKernels(
                self._library, self._products, self.x.detach(), self.w.detach(), self._x_norm, self._grad_buffer
            )
            if not kernels.prepare(y):
                self._library = self.kernels = None
                return False
        self.kernels = kernels
        return True

    def split(self, margin: Margin, y: Tensor, bias: Tensor | None, with_logit_sum: bool) -> SplitLogits:
        """The target of each sample, and the sums over the other classes."""
        assert self.kernels is not None
        spec, values = KernelSpec.with_numbers(margin, with_logit_sum, self.x.dtype, self.subcenters, True)
        plain_target = margin.takes_target_logit
        results = DenseOutputs(
            *DenseFunction.apply(self.kernels, spec, plain_target, y, self.x, self.w, bias, *values)  # type: ignore[no-untyped-call]
        )
        own_bias = None if bias is None else bias[y].to(self.x.dtype)
        target: Target | TargetLogit
        if plain_target:
            logit = add_common_bias(margin, margin.s * results.value)
            target = TargetLogit(logit if own_bias is None else logit + own_bias)
        else:
            assert results.theta is not None
            radius = compute_radius(margin, results.x_norm, results.w_norm)  # type: ignore[arg-type]
            target = Target(results.theta, radius, own_bias)
        return SplitLogits(target, results.others, results.logit_sum)

    @property
    def theta(self) -> Tensor:
        """θ_y [N] of the last labels, without a gradient."""
        assert self.kernels is not None
        return self.kernels.theta

    @property
    def x_norm(self) -> Tensor:
        """‖x‖ [N]."""
        if not torch.is_grad_enabled():
            return self._x_norm
        if self._x_norm_with_grad is None:
            self._x_norm_with_grad = torch.linalg.vector_norm(self.x, dim=-1)
        return self._x_norm_with_grad

    @property
    def cosines(self) -> Tensor:
        """Cosines [N, C], or [N, C·K] of sub-centres, without a gradient."""
        assert self._products is not None
        w_norm = torch.linalg.vector_norm(self.w.detach(), dim=-1)
        cos: Tensor = self._products / (w_norm.unsqueeze(1) * self._x_norm)
        return cos.T
