"""Native kernels of a whole small head: products once, then one call forward and one back.

For few classes the products of all embeddings with all class weights fit into memory, and a step of the dense backend
is then mostly the fixed cost of its operations. `native_dense.cpp` does everything between the matrix products: norms,
angles of the targets (small ones from the chord), the sums over the other classes, and their gradients, with the loops
that streamed blocks have. Results differ from the plain backend's by rounding. Used in eager mode on a CPU for a
training step whose norms are all moderate; the dense backend does the rest.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...numerics import angles
from ...numerics.custom_autograd import custom_autograd
from ...numerics.log_sums import define_non_target_logsumexp, without_target
from ...numerics.precision import autocast_disabled
from .base import (
    DotProducts,
    compute_logits,
    compute_radius,
    fold_subcenters,
)
from .grad_buffer import GradBuffer
from .kernels import KernelSpec
from .native import BlockArguments, NativeLibrary, count_threads, pack_numbers

_MIN_BUFFERED_ENTRIES = 1 << 18  # from here on fresh memory for the gradient of the weights costs more than a search

_pointer, _long = ctypes.c_void_p, ctypes.c_long


class _DenseArguments(ctypes.Structure):
    """`Dense` of native_dense.cpp."""

    _fields_ = (
        ("block", BlockArguments),
        ("dim", _long),
        ("x", _pointer),
        ("w", _pointer),
        ("x_norm", _pointer),
        ("labels", _pointer),
        ("w_norm", _pointer),
        ("w_inverse", _pointer),
        ("x_inverse", _pointer),
        ("target", _pointer),
        ("own_row", _pointer),
        ("own_value", _pointer),
        ("own_w_norm", _pointer),
        ("theta", _pointer),
        ("anchor", _pointer),
        ("others", _pointer),
        ("logit_sum", _pointer),
        ("grad_theta", _pointer),
        ("grad_value", _pointer),
        ("grad_x_norm", _pointer),
        ("grad_w_norm", _pointer),
        ("grad_target", _pointer),
        ("grad_x", _pointer),
        ("grad_w", _pointer),
    )


class DenseOutputs(NamedTuple):
    """Results [N] of a native pass; for the target either θ_y (with the norms that are kept) or its argument of φ."""

    others: Tensor
    logit_sum: Tensor | None
    theta: Tensor | None
    x_norm: Tensor | None
    w_norm: Tensor | None
    value: Tensor | None


class DenseKernels:
    """The products of a batch with all class weights, and what the native calls read and write for one labelling."""

    def __init__(
        self,
        library: NativeLibrary,
        products: Tensor,
        x: Tensor,
        w: Tensor,
        x_norm: Tensor,
        grad_buffer: GradBuffer | None = None,
    ) -> None:
        self._grad_buffer, self._is_overwritten = grad_buffer, False
        self.library, self.products, self.x, self.w, self.x_norm = library, products, x, w, x_norm
        self.divides_by_x_norm = not (library.spec.margin.is_linear and library.spec.margin.uses_x_norm)
        self.labels: Tensor | None = None
        rows, samples, learnt = len(w), len(x), len(library.source.learnt_names)
        self.threads = count_threads(products, rows // library.spec.rows_per_class)
        size = x.element_size()
        # Pieces of two allocations: reals, and what is not of the working dtype.
        self._reals = torch.empty(3 * rows + 6 * samples, dtype=x.dtype)
        self._wide = torch.empty(5 * samples + learnt + self.threads * (2 * samples + learnt), dtype=torch.float64)
        reals, wide = self._reals.data_ptr(), self._wide.data_ptr()
        w_norm, w_inverse, w_coefficient = (reals + k * rows * size for k in range(3))
        x_inverse, self._value, self._own_w_norm, self._theta, anchor, grad_target = (
            reals + (3 * rows + k * samples) * size for k in range(6)
        )
        total, self._logit_total, along, integers, other, partial = (wide + k * samples * 8 for k in range(6))
        partial += learnt * 8
        self.arguments = _DenseArguments(
            BlockArguments(
                products=products.data_ptr(),
                row_stride=samples,
                classes=rows // library.spec.rows_per_class,
                samples=samples,
                threads=self.threads,
                inverse_norm=w_inverse,
                x_norm=x_norm.data_ptr(),
                x_scale=x_inverse if self.divides_by_x_norm else None,
                target=integers,
                partial=partial,
                anchor=anchor,
                sum=total,
                grad_target=grad_target,
                w_coefficient=w_coefficient,
                other_gradients=other,
                x_along=along if self.divides_by_x_norm else None,
            ),
            x.shape[1],
            x.data_ptr(),
            w.data_ptr(),
            x_norm.data_ptr(),
            None,
            w_norm,
            w_inverse,
            x_inverse,
            integers,
            integers + samples * 4,
            self._value,
            self._own_w_norm,
            self._theta,
            anchor,
        )
        self.arguments.grad_target = grad_target

    def prepare(self, y: Tensor) -> bool:
        """Compute norms and targets; False if a norm is extreme or 0."""
        self.labels = y.contiguous()
        self.arguments.labels = self.labels.data_ptr()
        return bool(self.library.prepare_dense(ctypes.byref(self.arguments)))

    def _vector(self, address: int) -> Tensor:
        start, samples = (address - self._reals.data_ptr()) // self._reals.element_size(), len(self.x)
        return self._reals[start : start + samples]

    @property
    def theta(self) -> Tensor:
        """θ_y [N]."""
        return self._vector(self._theta)

    @property
    def own_value(self) -> Tensor:
        """The target's argument of φ [N]."""
        return self._vector(self._value)

    @property
    def own_w_norm(self) -> Tensor:
        """‖w_y‖ [N]."""
        return self._vector(self._own_w_norm)

    def sum_others(
        self, bias: Tensor | None, values: Sequence[Tensor], with_logit_sum: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return `L` [N], or the sum of the losses of the other classes; and the sum of their logits if requested."""
        keep: list[Any] = []
        arguments = self.arguments
        self._set_inputs(bias, values, keep)
        others = torch.empty_like(self.x_norm)
        logit_sum = torch.empty_like(others) if with_logit_sum else None
        arguments.others = others.data_ptr()
        arguments.block.logit_sum = self._logit_total if with_logit_sum else None
        arguments.logit_sum = None if logit_sum is None else logit_sum.data_ptr()
        self.library.forward_dense(ctypes.byref(arguments))
        return others, logit_sum

    def gradients(
        self,
        bias: Tensor | None,
        values: Sequence[Tensor],
        others: Tensor,
        grads: DenseOutputs,
        needs_x: bool,
        needs_w: bool,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, list[Tensor]]:
        """Gradients of embeddings, weights, bias and learnt numbers from those of the results."""
        library, arguments = self.library, self.arguments
        keep: list[Any] = []
        self._set_inputs(bias, values, keep)

        def address(grad: Tensor | None) -> int | None:
            if grad is None:
                return None
            grad = grad.contiguous()
            keep.append(grad)
            return grad.data_ptr()

        block = arguments.block
        zero = torch.zeros_like(others) if grads.others is None else grads.others
        block.log_sum, block.grad_others = others.data_ptr(), address(zero)
        block.grad_logit_sum = address(grads.logit_sum)
        arguments.grad_theta, arguments.grad_value = address(grads.theta), address(grads.value)
        arguments.grad_x_norm, arguments.grad_w_norm = address(grads.x_norm), address(grads.w_norm)
        # The products become their gradients, in the same memory; a second backward pass computes them again.
        if self._is_overwritten:
            torch.mm(self.w, self.x.T, out=self.products)
        self._is_overwritten = True
        block.grad_products, block.grad_stride = self.products.data_ptr(), self.products.stride(0)
        grad_bias = None if bias is None else torch.empty_like(bias)
        block.grad_bias = None if grad_bias is None else grad_bias.data_ptr()
        grad_x = torch.empty_like(self.x) if needs_x else None
        grad_w = self._allocate_grad_w() if needs_w else None
        arguments.grad_x = None if grad_x is None else grad_x.data_ptr()
        arguments.grad_w = None if grad_w is None else grad_w.data_ptr()
        library.backward_dense(ctypes.byref(arguments))
        if grad_x is not None:
            grad_x.addmm_(self.products.T, self.w)
        if grad_w is not None:
            grad_w.addmm_(self.products, self.x)
        names = library.source.learnt_names
        learnt = dict(zip(names, self._wide[5 * len(self.x) : 5 * len(self.x) + len(names)], strict=True))
        spec = library.spec
        own = zip(spec.value_names, values[len(spec.sample_names) :], spec.value_requires_grad, strict=True)
        numbers = [
            (learnt[name].to(value.dtype).reshape(value.shape) if name in learnt else torch.zeros_like(value))
            for name, value, needed in own
            if needed
        ]
        return grad_x, grad_w, grad_bias, numbers

    def _allocate_grad_w(self) -> Tensor:
        if self._grad_buffer is None or self.w.numel() < _MIN_BUFFERED_ENTRIES:
            return torch.empty_like(self.w)
        return self._grad_buffer.allocate_like(self.w)

    def _set_inputs(self, bias: Tensor | None, values: Sequence[Tensor], keep: list[Any]) -> None:
        block = self.arguments.block
        if bias is not None:
            bias = bias.contiguous()
            keep.append(bias)
            block.bias = bias.data_ptr()
        block.numbers, block.sample_numbers = pack_numbers(self.library, values, keep)


def define_dense(
    kernels: DenseKernels,
    spec: KernelSpec,
    plain_target: bool,
    y: Tensor,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    *values: Tensor,
) -> DenseOutputs:
    """The results of `DenseFunction` for plain autograd."""
    margin = spec.margin_with(values)
    x_unit, x_norm = angles.unit_and_norm(x)
    w_unit, w_norm = angles.unit_and_norm(w)
    left = x if margin.is_linear and margin.uses_x_norm else x_unit
    value = left @ (w_unit if spec.divides_by_w_norm else w).T
    folded = fold_subcenters(spec.subcenters, value, 1)
    radius = compute_radius(margin, x_norm.unsqueeze(1), w_norm) if spec.has_radius else None
    z = compute_logits(margin, DotProducts(folded, radius), bias)
    logit_sum = without_target(z, y, 0.0).sum(1) if spec.with_logit_sum else None
    others = (
        without_target(margin.other_loss(z), y, 0.0).sum(1)
        if margin.one_vs_all
        else define_non_target_logsumexp(z.T, y.unsqueeze(0))
    )
    if plain_target:
        return DenseOutputs(others, logit_sum, None, None, None, folded.gather(1, y.unsqueeze(1)).squeeze(1))
    rows = y
    if spec.subcenters is not None:
        own = (x_unit @ w_unit.T).detach().view(len(x), -1, spec.rows_per_class)
        rows = y * spec.rows_per_class + own[torch.arange(len(x)), y].argmax(1)
    theta = angles.angle_between(x_unit, w_unit.index_select(0, rows))
    w_kept = w_norm.index_select(0, rows) if margin.uses_w_norm else None
    return DenseOutputs(others, logit_sum, theta, x_norm if margin.uses_x_norm else None, w_kept, None)


@custom_autograd(
    "speed",
    "autograd runs some fifty operations on N×C matrices and vectors, each of which costs more than its arithmetic",
    define_dense,
)
class DenseFunction(torch.autograd.Function):
    """(embeddings, weights, bias, numbers of the margin) → `DenseOutputs`; `kernels` are prepared for these labels."""

    @staticmethod
    def forward(
        ctx: Any,
        kernels: DenseKernels,
        spec: KernelSpec,
        plain_target: bool,
        y: Tensor,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        *values: Tensor,
    ) -> tuple[Tensor | None, ...]:
        others, logit_sum = kernels.sum_others(bias, values, spec.with_logit_sum)
        ctx.kernels, ctx.spec, ctx.plain_target = kernels, spec, plain_target
        ctx.save_for_backward(y, others, x, w, bias, *values)
        ctx.set_materialize_grads(False)
        # Copies: the results become part of this graph, while the kernels keep theirs.
        if plain_target:
            return others, logit_sum, None, None, None, kernels.own_value.clone()
        margin = spec.margin
        x_norm = kernels.x_norm.clone() if margin.uses_x_norm else None
        w_norm = kernels.own_w_norm.clone() if margin.uses_w_norm else None
        return others, logit_sum, kernels.theta.clone(), x_norm, w_norm, None

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> Any:
        y, others, x, w, bias, *values = ctx.saved_tensors
        spec: KernelSpec = ctx.spec
        count = len(spec.sample_names)
        if torch.is_grad_enabled():  # second derivative
            grads = _define_gradients(ctx, y, (x, w, bias, *values), grad_outputs)
            return None, None, None, None, *grads
        with autocast_disabled(x), torch.no_grad():
            grad_x, grad_w, grad_bias, numbers = ctx.kernels.gradients(
                bias,
                values,
                others,
                DenseOutputs(*grad_outputs),  # type: ignore[arg-type]
                ctx.needs_input_grad[4],
                ctx.needs_input_grad[5],
            )
        learnt = iter(numbers)
        own = [next(learnt) if needed else None for needed in spec.value_requires_grad]
        return None, None, None, None, grad_x, grad_w, grad_bias, *(None,) * count, *own


def _define_gradients(
    ctx: Any, y: Tensor, saved: Sequence[Tensor | None], grad_outputs: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Differentiable gradients of embeddings, weights, bias and numbers, by plain autograd of the definition."""
    inputs: list[Any] = [None if t is None else t.view_as(t) for t in saved]
    results = define_dense(ctx.kernels, ctx.spec, ctx.plain_target, y, *inputs)
    pairs = [(r, g) for r, g in zip(results, grad_outputs, strict=True) if r is not None and g is not None]
    pairs = [(r, g) for r, g in pairs if r.requires_grad]
    variables = [t for t in inputs if t is not None and t.requires_grad]
    found = iter(
        torch.autograd.grad(
            [r for r, _ in pairs], variables, [g for _, g in pairs], create_graph=True, allow_unused=True
        )
    )
    return [next(found) if t is not None and t.requires_grad else None for t in inputs]
