"""ClassBlocks: a pass over the classes, block by block: products once, sums forward, gradients backward.

The products are stored in the memory of the class weights' gradient: row j of the gradient has space for D numbers, and
class j has N products, one per embedding. Backward reads a block of them and overwrites it with that block's gradient.
So there is no N×C matrix and no fourth matrix product; if N is larger than D, the rest is computed again. There is no
normalised copy of the weights either: 1/‖w‖ is computed for a block while it is in cache.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...numerics import angles
from . import compiled, kernels
from .base import sum_penalty_of_products, sum_weight_penalty
from .compiled import CompileSetting
from .kernels import Block, KernelSpec

# Entries of one block×N matrix: large enough to amortise a block's fixed cost, small compared with the rest.
_BLOCK_ENTRIES = 1 << 18
_MAX_SEPARATE_PRODUCTS = 1 << 20  # so few products get separate memory if the gradient has no space for them
_ANCHOR_ROWS = 64
_PENALTY_ENTRIES = 1 << 16  # entries that are computed at a time for the penalty on the weights
_MIN_EXP_SUM, _MAX_EXP_SUM = 0.5, 1e37  # sums of exp relative to an anchor that was well chosen
_MIN_SAFE_NORM, _MAX_SAFE_NORM = 1e-15, 1e15  # norms whose squares and inverses are safe in fp32


def max_block_rows(samples: int, embedding_dim: int) -> int:
    """Largest number of classes processed together, 64 to 4096."""
    most = min(_BLOCK_ENTRIES // max(samples, 1), 4 * _BLOCK_ENTRIES // max(embedding_dim, 1))
    return min(4096, max(64, most - most % 64))


def balance_block_rows(num_classes: int, max_rows: int) -> int:
    """Return a block size near `max_rows` that leaves no small last block, which would cost more than its share.

    >>> balance_block_rows(10_000, 1024), balance_block_rows(100_003, 1024), balance_block_rows(500, 1024)
    (1000, 1000, 500)
    """
    if num_classes <= max_rows:
        return max(num_classes, 1)
    candidates = (rows for rows in range(max_rows, max_rows * 3 // 4, -1) if kernels.find_run_rows(rows))
    return min(candidates, key=lambda rows: num_classes % rows, default=max_rows)


def split_classes(num_classes: int, rows: int) -> list[slice]:
    """Split all classes into slices of at most `rows`, each of which can be summed in equal runs.

    >>> split_classes(2000, 1000)
    [slice(0, 1000, None), slice(1000, 2000, None)]
    >>> split_classes(1100, 1003)  # 1003 = 17·59, and 97 is prime
    [slice(0, 1003, None), slice(1003, 1067, None), slice(1067, 1100, None)]
    """
    slices = []
    for start in range(0, num_classes, rows):
        stop = min(start + rows, num_classes)
        if kernels.find_run_rows(stop - start) is None:
            middle = stop - (stop - start) % kernels.MAX_RUN_ROWS
            slices += [slice(start, middle), slice(middle, stop)]
        else:
            slices.append(slice(start, stop))
    return slices


class BlockOfWeights(NamedTuple):
    """A block of classes with the class weights it was computed from."""

    classes: slice
    place: slice
    """Rows of the weights: those of the classes, or of their sub-centres."""
    rows: Tensor
    """These rows, in the working dtype."""
    factor: Tensor | None
    """Factor by which the rows were scaled, if any."""
    block: Block


class ClassBlocks:
    """Products of embeddings `a` [N, D] with all class weights [C, D], cached while space remains.

    With `rows_per_class` K the weights are [C·K, D], the K sub-centres of a class adjacent and always in one block.
    """

    def __init__(
        self,
        divides_by_w_norm: bool,
        a: Tensor,
        weight: Tensor,
        grad_weight: Tensor | None,
        compile_kernels: CompileSetting = "auto",
        rows_per_class: int = 1,
    ) -> None:
        self.rows_per_class, self.num_classes = rows_per_class, len(weight) // rows_per_class
        self.is_compiled = compiled.should_compile(compile_kernels, len(a) * len(weight), a.device)
        self.compile_kernels, self.a = compile_kernels, a
        self.weight, self.grad_weight, self.divides_by_w_norm = weight, grad_weight, divides_by_w_norm
        most = max(1, max_block_rows(*a.shape) // rows_per_class)
        self.slices = split_classes(self.num_classes, balance_block_rows(self.num_classes, most))
        self.inverse_norm = torch.empty(len(weight), dtype=a.dtype, device=a.device)
        self.product_cache = grad_weight if grad_weight is None else _as_products(grad_weight, a)
        self.cached_columns = 0 if self.product_cache is None else min(len(a), self.product_cache.shape[1])
        if self.cached_columns < len(a) and len(a) * len(weight) <= _MAX_SEPARATE_PRODUCTS:
            self.product_cache, self.cached_columns = a.new_empty(len(weight), len(a)), len(a)
        self.is_cache_filled = self.has_norms = False
        self.extreme_blocks: set[int] = set()  # blocks with weights of extreme or zero norm
        # Without reading norms on the host, every block is rescaled where its norms need it.
        self.reads_norms = angles.is_eager_cpu(a, "block_norms")
        self.row_divisors = None if self.reads_norms or not divides_by_w_norm else torch.empty_like(self.inverse_norm)
        self.scratch: Tensor | None = None
        self.kernels: dict[Any, Callable[..., Any]] = {}

    def with_grad_weight(self, grad_weight: Tensor) -> ClassBlocks:
        """Return the same blocks without cached products, to compute a gradient into `grad_weight`."""
        return ClassBlocks(
            self.divides_by_w_norm,
            self.a,
            self.weight,
            grad_weight,
            self.compile_kernels,
            self.rows_per_class,
        )

    def take_product_cache(self) -> ClassBlocks:
        """Return the blocks with the cached products and the gradient memory that holds them; `self` gives them up."""
        blocks = copy.copy(self)
        self.grad_weight = self.product_cache = None
        self.is_cache_filled, self.cached_columns = False, 0
        return blocks

    def iter_slices(self) -> Iterator[slice]:
        """Yield slices of classes; after the first pass from last to first, because the last are still in the cache."""
        return iter(reversed(self.slices) if self.has_norms else self.slices)

    def load_rows(self, block: slice) -> tuple[Tensor, Tensor | None]:
        """Return a block of class weights in the working dtype, and the factor its rows were scaled by, if any."""
        rows = self.weight[block].to(self.a.dtype)
        if self.row_divisors is not None:
            divisor = self.row_divisors[block]
            if not self.has_norms:
                divisor.copy_(angles.extreme_peaks(rows))
            rows = rows / divisor.unsqueeze(1)
            if not self.has_norms:
                self.inverse_norm[block] = kernels.safe_reciprocal(torch.linalg.vector_norm(rows, dim=1))
            return rows, divisor.reciprocal()
        if block.start not in self.extreme_blocks:
            return rows, None
        # Very long, very short or zero weights: use their directions, which are accurate.
        unit, length = angles.unit_and_norm(rows)
        self.inverse_norm[block] = (length > 0).to(rows.dtype)
        return unit, kernels.safe_reciprocal(length)

    def store_inverse_norms(self, block: slice, rows: Tensor) -> bool:
        """Store the inverse norms of a block's weights; True if they are safe. Called after their product, which waits
        less for memory than a norm does."""
        length = torch.linalg.vector_norm(rows, dim=1)
        low, high = torch.stack(torch.aminmax(length)).tolist()  # one synchronisation
        if low > _MIN_SAFE_NORM and high < _MAX_SAFE_NORM:
            torch.reciprocal(length, out=self.inverse_norm[block])
            return True
        self.extreme_blocks.add(block.start)
        return False

    def get_products(self, block: slice, rows: Tensor) -> Tensor:
        """Return the products [B, N] of a block: from the cache, or computed and cached while space remains."""
        size, count = block.stop - block.start, len(self.a)
        whole = self.product_cache is not None and self.cached_columns == count
        if whole:
            assert self.product_cache is not None
            place = self.product_cache[block, :count]
            return place if self.is_cache_filled else torch.mm(rows, self.a.T, out=place)
        if self.scratch is None:
            most = max(part.stop - part.start for part in self.slices) * self.rows_per_class
            self.scratch = self.a.new_empty(most, count)
        place = self.scratch[:size]
        if not self.is_cache_filled or self.product_cache is None:
            torch.mm(rows, self.a.T, out=place)
            if self.product_cache is not None:
                self.product_cache[block, : self.cached_columns] = place[:, : self.cached_columns]
            return place
        place[:, : self.cached_columns] = self.product_cache[block, : self.cached_columns]
        torch.mm(rows, self.a[self.cached_columns :].T, out=place[:, self.cached_columns :])
        return place

    def iter_blocks(self, y: Tensor, x_norm: Tensor, bias: Tensor | None) -> Iterator[BlockOfWeights]:
        """Yield every block as the kernels take it, with its rows and their factor."""
        labels = y.to(torch.int32)  # int32 halves the width of the comparisons that find the targets
        x_norm, bias = x_norm.detach(), None if bias is None else bias.detach()
        for classes in self.iter_slices():
            place = slice(classes.start * self.rows_per_class, classes.stop * self.rows_per_class)
            rows, factor = self.load_rows(place)
            part = None if bias is None else bias[classes].to(self.a.dtype)
            raw = self.get_products(place, rows)
            reads_norms = self.divides_by_w_norm and self.reads_norms and not self.has_norms
            if reads_norms and not self.store_inverse_norms(place, rows):
                rows, factor = self.load_rows(place)
                raw = self.get_products(place, rows)
            run_rows = kernels.find_run_rows(classes.stop - classes.start)
            assert run_rows is not None
            block = Block(raw, self.inverse_norm[place], x_norm, labels - classes.start, part, run_rows)
            yield BlockOfWeights(classes, place, rows, factor, block)
        self.is_cache_filled, self.has_norms = self.product_cache is not None, True

    def run_kernel(self, function: Callable[..., Any], spec: KernelSpec, block: Block, inputs: Sequence[Tensor]) -> Any:
        """Run a kernel on a block: compiled if the head is large or compilation is requested."""
        if not self.is_compiled:
            return function(spec, block, *inputs)
        # Within a pass only the spec and the dtypes of the inputs may change.
        key = (function, spec, tuple(t.dtype for t in inputs))
        kernel = self.kernels.get(key)
        if kernel is None:
            kernel = self.kernels[key] = compiled.get_kernel(function, spec, block, inputs)
        return kernel(spec, block, *inputs)

    # ---------------------------------------------------------------- forward

    @torch.no_grad()
    def compute_others(
        self, spec: KernelSpec, y: Tensor, x_norm: Tensor, bias: Tensor | None, values: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return `L` [N] over the non-target classes, the target's product, and the sum of their logits (or 0).

        For a one-vs-all loss, the sum of their losses replaces `L`.
        """
        values = self._kernel_values(spec, values)
        sums, logit_sum = (
            (self._sum_other_losses(spec, y, x_norm, bias, values), None)
            if spec.margin.one_vs_all
            else self._log_sum_exp(spec, y, x_norm, bias, values)
        )
        others = sums.to(self.a.dtype)
        return (
            others,
            self._target_products(spec, y),
            torch.zeros_like(others) if logit_sum is None else logit_sum.to(self.a.dtype),
        )

    def _kernel_values(self, spec: KernelSpec, values: Sequence[Tensor]) -> list[Tensor]:
        """Return the per-sample numbers and those of the margin, all without gradient."""
        return [value.detach() for value in values]

    def _sum_other_losses(
        self, spec: KernelSpec, y: Tensor, x_norm: Tensor, bias: Tensor | None, values: Sequence[Tensor]
    ) -> Tensor:
        parts = [
            self.run_kernel(kernels.sum_other_losses, spec, part.block, values)[0]
            for part in self.iter_blocks(y, x_norm, bias)
        ]
        return torch.stack(parts).sum(0)

    def _log_sum_exp(
        self, spec: KernelSpec, y: Tensor, x_norm: Tensor, bias: Tensor | None, values: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        if not angles.is_eager_cpu(self.a, "anchor"):
            return self._log_sum_exp_by_block(spec, y, x_norm, bias, values)
        anchor = exp_sum = logit_sum = None
        for part in self.iter_blocks(y, x_norm, bias):
            block = part.block
            if anchor is None:
                # The largest of the first few logits is the anchor of all sums: sums of exp hold up to e^88 above it.
                most = _ANCHOR_ROWS * self.rows_per_class
                anchor_block = block._replace(
                    dot_products=block.dot_products[:most],
                    inverse_norm=block.inverse_norm[:most],
                    bias=None if block.bias is None else block.bias[:_ANCHOR_ROWS],
                )
                (top,) = kernels.largest_logit(spec, anchor_block, *values)
                anchor = torch.where(top == -torch.inf, torch.zeros_like(top), top)
            sums = self.run_kernel(kernels.sum_exp_logits, spec, block, (anchor, *values))
            exp_sum = sums[0] if exp_sum is None else exp_sum + sums[0]
            if spec.with_logit_sum:
                logit_sum = sums[1] if logit_sum is None else logit_sum + sums[1]
        assert anchor is not None
        assert exp_sum is not None
        # Rare: a later block has a logit far above the anchor, or the first few classes were only the target, so that
        # the anchor is 0 and exp underflows far below it. With the true maximum the sum is at least 1.
        far_off = (exp_sum > _MAX_EXP_SUM) | (exp_sum < _MIN_EXP_SUM)
        if self.num_classes > 1 and bool(far_off.any()):
            anchor, exp_sum = self._exp_sum_at_max(spec, y, x_norm, bias, values)
        return anchor.to(exp_sum.dtype) + torch.log(exp_sum), logit_sum

    def _log_sum_exp_by_block(
        self, spec: KernelSpec, y: Tensor, x_norm: Tensor, bias: Tensor | None, values: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """The same without reading a value on the host: every block has its own largest logit as the anchor."""
        parts = [
            self.run_kernel(kernels.sum_exp_logits_at_max, spec, part.block, values)
            for part in self.iter_blocks(y, x_norm, bias)
        ]
        tops, sums = (torch.stack([part[place] for part in parts]) for place in (0, 1))
        logit_sum = torch.stack([part[2] for part in parts]).sum(0) if spec.with_logit_sum else None
        top = tops.amax(0)
        shares = torch.exp((tops - torch.where(top == -torch.inf, 0.0, top)).to(sums.dtype))  # a block of targets: 0
        return top.to(sums.dtype) + torch.log((sums * shares).sum(0)), logit_sum

    def _target_products(self, spec: KernelSpec, y: Tensor) -> Tensor:
        """Return the products [N] of the targets after a whole pass; 0 for targets of another rank."""
        labels = y.clamp(0, self.num_classes - 1)
        products = [
            self._products_of_rows(labels * self.rows_per_class + place) for place in range(self.rows_per_class)
        ]
        folded = products[0] if spec.subcenters is None else spec.subcenters.fold(products)
        return torch.where(y == labels, folded, 0.0)

    def _products_of_rows(self, rows: Tensor) -> Tensor:
        """Return the product [N] of each sample with one row, or [M, N] with M rows."""
        if self.product_cache is not None and self.is_cache_filled and self.cached_columns == len(self.a):
            products = self.product_cache[rows, torch.arange(rows.shape[-1], device=rows.device)]
            return products * self.inverse_norm[rows] if self.divides_by_w_norm else products
        if rows.ndim == 2:  # in a loop: M·N rows of the weights would be too many at once
            return torch.stack([self._products_of_rows(one) for one in rows])
        w_rows = self.weight.index_select(0, rows).to(self.a.dtype)
        factor = angles.unit_and_norm(w_rows)[0] if self.divides_by_w_norm else w_rows
        return (self.a * factor).sum(1)

    def _exp_sum_at_max(
        self, spec: KernelSpec, y: Tensor, x_norm: Tensor, bias: Tensor | None, values: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        tops = [
            self.run_kernel(kernels.largest_logit, spec, part.block, values)[0]
            for part in self.iter_blocks(y, x_norm, bias)
        ]
        anchor = torch.stack(tops).amax(0)
        parts = [
            self.run_kernel(kernels.sum_exp_logits, spec, part.block, (anchor, *values))[0]
            for part in self.iter_blocks(y, x_norm, bias)
        ]
        return anchor, torch.stack(parts).sum(0)

    @torch.no_grad()
    def largest_cosines(self, spec: KernelSpec, y: Tensor, x_norm: Tensor, count: int) -> Tensor:
        """Cosines [N, count] of the nearest non-target classes, largest first; −inf if there are fewer.

        The largest are in the runs of classes with the largest maxima, so one pass finds the runs.
        """
        if count == 1:
            parts = [
                self.run_kernel(kernels.largest_cosine, spec, part.block, ())[0]
                for part in self.iter_blocks(y, x_norm, None)
            ]
            return torch.stack(parts).amax(0).unsqueeze(1)
        maxima: list[Tensor] = []
        starts: list[Tensor] = []
        sizes: list[Tensor] = []
        most = 1
        for part in self.iter_blocks(y, x_norm, None):
            (run_maxima,) = self.run_kernel(kernels.largest_cosine_of_runs, spec, part.block, ())
            maxima.append(run_maxima)
            run_rows, most = part.block.run_rows, max(most, part.block.run_rows)
            starts.append(torch.arange(part.classes.start, part.classes.stop, run_rows, device=run_maxima.device))
            sizes.append(torch.full_like(starts[-1], run_rows))
        candidates = torch.cat(maxima)
        runs = candidates.topk(min(count, len(candidates)), 0).indices  # [runs, N]
        first, size = (torch.cat(numbers)[runs] for numbers in (starts, sizes))
        within = torch.arange(most, device=runs.device).view(-1, 1, 1)
        classes = (first + torch.minimum(within, size - 1)).flatten(0, 1)  # [candidates, N]
        is_candidate = ((within < size).flatten(0, 1)) & (classes != y)
        cos = torch.where(is_candidate, self._products_of_classes(spec, classes), -torch.inf)
        if len(cos) < count:
            cos = torch.cat((cos, cos.new_full((count - len(cos), cos.shape[1]), -torch.inf)))
        return cos.topk(count, 0).values.T

    def _products_of_classes(self, spec: KernelSpec, classes: Tensor) -> Tensor:
        """Return the product of each sample with one class [N], or with M classes [M, N]."""
        products = [
            self._products_of_rows(classes * self.rows_per_class + place) for place in range(self.rows_per_class)
        ]
        return products[0] if spec.subcenters is None else spec.subcenters.fold(products)

    # ---------------------------------------------------------------- penalty on the weights

    def _iter_penalty_rows(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Yield rows of whole classes [c, K, D], a few at a time, and their products [c, K, K] (None if unsafe)."""
        dim, is_copied = self.weight.shape[1], self.weight.dtype != self.a.dtype
        entries = self.rows_per_class * (dim if is_copied else self.rows_per_class)
        step = max(1, _PENALTY_ENTRIES // entries) * self.rows_per_class
        for start in range(0, len(self.weight), step):
            place = slice(start, min(start + step, len(self.weight)))
            rows = self.weight[place].to(self.a.dtype).view(-1, self.rows_per_class, dim)
            products = rows @ rows.mT
            reads_norms = angles.is_eager_cpu(rows, "penalty")
            is_safe = reads_norms and angles.are_norms_safe(products.diagonal(dim1=1, dim2=2))
            yield place, rows, products if is_safe else None

    @torch.no_grad()
    def sum_weight_penalty(self, spec: KernelSpec, values: Sequence[Tensor]) -> Tensor:
        """Sum over the classes of the margin's penalty on their weights."""
        margin = spec.margin_with(self._kernel_values(spec, values))
        parts = [
            sum_weight_penalty(margin, angles.unit_and_norm(rows.flatten(0, 1))[0])
            if products is None
            else sum_penalty_of_products(margin, products)
            for _, rows, products in self._iter_penalty_rows()
        ]
        return torch.stack(parts).sum()

    @torch.no_grad()
    def add_weight_penalty_gradients(
        self, spec: KernelSpec, values: Sequence[Tensor], grad_penalty: Tensor, grad_weight: Tensor
    ) -> None:
        """Add the gradient of the penalty to that of the weights: (Q + Qᵀ) w, with the gradient Q of the products."""
        margin = spec.margin_with(self._kernel_values(spec, values))
        for place, rows, products in self._iter_penalty_rows():
            leaf = rows.flatten(0, 1) if products is None else products
            with torch.enable_grad():
                leaf = leaf.detach().requires_grad_()
                penalty = (
                    sum_weight_penalty(margin, angles.unit_and_norm(leaf)[0])
                    if products is None
                    else sum_penalty_of_products(margin, leaf)
                )
                (gradient,) = torch.autograd.grad(penalty, leaf, grad_penalty)
            if products is None:
                grad_weight[place] += gradient.to(grad_weight.dtype)
            elif grad_weight.dtype == rows.dtype:
                grad_weight[place].view_as(rows).baddbmm_(gradient + gradient.mT, rows)
            else:
                grad_weight[place] += ((gradient + gradient.mT) @ rows).flatten(0, 1).to(grad_weight.dtype)

    # ---------------------------------------------------------------- backward

    @torch.no_grad()
    def compute_gradients(
        self,
        spec: KernelSpec,
        y: Tensor,
        x_norm: Tensor,
        bias: Tensor | None,
        values: Sequence[Tensor],
        log_sum: Tensor,
        grad_others: Tensor,
        grad_logit_sum: Tensor,
        grad_target_product: Tensor,
        target_w_coefficient: Tensor | None,
        needs_a_grad: bool,
        grad_weight: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, list[Tensor]]:
        """Gradients of the embeddings, their norms, the bias and the learnt numbers; `grad_weight` gets the weights'.

        `grad_target_product` [N] is the gradient of the targets' products; `target_w_coefficient` [N], if given, times
        the target's weight is added to that weight's gradient.
        """
        values = self._kernel_values(spec, values)
        log_sum = log_sum.detach()
        grad_a = torch.zeros_like(self.a) if needs_a_grad else None
        grad_x_norm = self.a.new_zeros(len(self.a)) if spec.has_radius else None
        grad_bias = None if bias is None else torch.empty_like(bias)
        grad_margin_values: list[Tensor] = []
        target_coefficients = None
        if target_w_coefficient is not None:  # those of another rank's classes are 0
            target_coefficients = torch.zeros_like(self.inverse_norm)
            target_coefficients.index_add_(0, y.clamp(0, len(self.weight) - 1), target_w_coefficient)
        writes_in_place = grad_weight is not None and grad_weight.dtype == self.a.dtype
        for classes, place, rows, factor, block in self.iter_blocks(y, x_norm, bias):
            grad_dot_products, w_coefficient, *rest = self.run_kernel(
                kernels.gradients,
                spec,
                block,
                (log_sum, grad_others, grad_logit_sum, grad_target_product, *values),
            )
            if grad_a is not None:
                grad_a.addmm_(grad_dot_products.T, rows)
            if grad_x_norm is not None:
                grad_x_norm += rest.pop(0)
            if grad_bias is not None:
                grad_bias[classes] = rest.pop(0)
            grad_margin_values = (
                [a.add_(b) for a, b in zip(grad_margin_values, rest, strict=True)] if grad_margin_values else rest
            )
            if grad_weight is None:
                continue
            if target_coefficients is not None:
                w_coefficient = w_coefficient + target_coefficients[place]
            gradient = (
                torch.mm(grad_dot_products, self.a, out=grad_weight[place])
                if writes_in_place
                else torch.mm(grad_dot_products, self.a)
            )
            if self.divides_by_w_norm or spec.has_radius or target_coefficients is not None:
                gradient.addcmul_(rows, w_coefficient.unsqueeze(1))
            if factor is not None:
                gradient.mul_(factor.unsqueeze(1))
            if not writes_in_place:
                grad_weight[place] = gradient
        return (
            grad_a,
            grad_x_norm,
            grad_bias,
            grad_margin_values,
        )


def _as_products(grad_weight: Tensor, a: Tensor) -> Tensor | None:
    """View the gradient's memory in the working dtype, [C, as many as fit into a row]."""
    if grad_weight.dtype == a.dtype:
        return grad_weight
    if (
        grad_weight.shape[1] * grad_weight.element_size() % a.element_size()
        or grad_weight.shape[1] * grad_weight.element_size() < a.element_size()
    ):
        return None
    return grad_weight.view(a.dtype)
