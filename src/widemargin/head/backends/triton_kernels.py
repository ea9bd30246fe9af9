"""Triton kernels of the streamed head: sums over tiles of classes, and the matrix products of the gradients.

Five kernels, none of which holds or writes an N×C matrix and none of which uses atomic operations:

    inverse_norms        1/‖w‖ of every class weight
    log_sums             products of a tile of samples with a range of classes, logits, maximum and sum of exp
    logit_gradients      the same products again for a chunk of classes, and the gradients of the products [N, chunk]
    embedding_gradients  gradients of the embeddings: the chunk times its class weights
    weight_gradients     gradients of the class weights: the transposed chunk times the embeddings

The logit and its derivatives are functions generated from the loss's own definition (`triton_source.py`). Norms divide
the products after the sum over the dimensions. Addresses are computed in 64 bits from the rows, so that matrices may
have more than 2³¹ entries; numbers of samples, classes and dimensions themselves have 32 bits. `triton_backend.py`
launches the kernels and says what they are given. Only imported if Triton is installed.
"""

import triton
import triton.language as tl


@triton.jit
def inverse_norms(w, inverse_out, c, d, BC: tl.constexpr, BD: tl.constexpr):
    """1/‖w‖ [c] of rows of w [c, d]; 0 for a row that is zero or shorter than 1e-30, whose inverse would overflow.

    Rows are scaled where squares of fp32 numbers would overflow or underflow.
    """
    classes = tl.program_id(0) * BC + tl.arange(0, BC)
    w_rows = w + classes.to(tl.int64)[:, None] * d
    peak = tl.zeros((BC,), tl.float32)
    for start in range(0, d, BD):
        places = start + tl.arange(0, BD)
        inside = (classes[:, None] < c) & (places[None, :] < d)
        entries = tl.load(w_rows + places[None, :], mask=inside, other=0.0).to(tl.float32)
        peak = tl.maximum(peak, tl.max(tl.abs(entries), 1))
    is_extreme = (peak > 1e15) | ((peak < 1e-15) & (peak > 0.0))
    divisor = tl.where(is_extreme, peak, 1.0)
    total = tl.zeros((BC,), tl.float32)
    for start in range(0, d, BD):
        places = start + tl.arange(0, BD)
        inside = (classes[:, None] < c) & (places[None, :] < d)
        part = tl.load(w_rows + places[None, :], mask=inside, other=0.0).to(tl.float32) / divisor[:, None]
        total += tl.sum(part * part, 1)
    length = tl.sqrt_rn(total) * divisor
    is_zero = length < 1e-30
    inverse = tl.div_rn(tl.full((BC,), 1.0, tl.float32), tl.where(is_zero, 1.0, length))
    tl.store(inverse_out + classes, tl.where(is_zero, 0.0, inverse), mask=classes < c)


@triton.jit
def _tile_products(
    x, w, rows, classes, n, c, d, DOT: tl.constexpr, PRECISION: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """Dot products [BN, BC] of rows of x [n, d] with rows of w [c, d]; entries outside are 0."""
    total = tl.zeros((BN, BC), dtype=tl.float32)
    x_rows = x + rows.to(tl.int64)[:, None] * d
    w_rows = w + classes.to(tl.int64)[None, :] * d
    for start in range(0, d, BD):
        places = start + tl.arange(0, BD)
        a = tl.load(x_rows + places[None, :], mask=(rows[:, None] < n) & (places[None, :] < d), other=0.0)
        b = tl.load(w_rows + places[:, None], mask=(classes[None, :] < c) & (places[:, None] < d), other=0.0)
        total = tl.dot(a.to(DOT), b.to(DOT), total, input_precision=PRECISION)
    return total


@triton.jit
def _tile_values(product, x_scale, inverse_norm, rows, classes, n, c, HAS_X_SCALE: tl.constexpr, DIVIDES: tl.constexpr):
    """Argument of φ [BN, BC], and the factor by which the products were multiplied to get it."""
    factor = tl.full(product.shape, 1.0, tl.float32)
    if HAS_X_SCALE:
        factor = factor * tl.load(x_scale + rows, mask=rows < n, other=0.0)[:, None]
    if DIVIDES:
        factor = factor * tl.load(inverse_norm + classes, mask=classes < c, other=0.0)[None, :]
    return product * factor, factor


@triton.jit
def log_sums(
    x, w, x_scale, inverse_norm, bias, labels, numbers, samples, top_out, sum_out, logit_sum_out, n, c, d, classes_each,
    LOGIT: tl.constexpr, HAS_X_SCALE: tl.constexpr, DIVIDES: tl.constexpr, HAS_BIAS: tl.constexpr,
    WITH_LOGIT_SUM: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """For every sample: the largest logit of a range of non-target classes, and the sum of exp(z − largest).

    Program (i, k) writes row k of the outputs [ranges, n] for the i-th tile of samples; its range has `classes_each`
    classes, a multiple of BC.
    """
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    first = tl.program_id(1) * classes_each
    target = tl.load(labels + rows, mask=rows < n, other=-1)
    top = tl.full((BN,), float("-inf"), tl.float32)
    total = tl.zeros((BN,), tl.float32)
    logit_total = tl.zeros((BN,), tl.float32)
    for start in range(first, tl.minimum(first + classes_each, c), BC):
        classes = start + tl.arange(0, BC)
        product = _tile_products(x, w, rows, classes, n, c, d, DOT, PRECISION, BN, BC, BD)
        value, _ = _tile_values(product, x_scale, inverse_norm, rows, classes, n, c, HAS_X_SCALE, DIVIDES)
        class_bias = value
        if HAS_BIAS:
            class_bias = tl.load(bias + classes, mask=classes < c, other=0.0)[None, :]
        z = LOGIT(value, class_bias, numbers, samples, rows, n)
        counts = (classes[None, :] < c) & (classes[None, :] != target[:, None])
        if WITH_LOGIT_SUM:
            logit_total += tl.sum(tl.where(counts, z, 0.0), 1)
        z = tl.where(counts, z, float("-inf"))
        new_top = tl.maximum(top, tl.max(z, 1))
        anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
        total = total * tl.exp(top - anchor) + tl.sum(tl.exp(z - anchor[:, None]), 1)
        top = new_top
    place = tl.program_id(1) * n + rows
    tl.store(top_out + place, top, mask=rows < n)
    tl.store(sum_out + place, total, mask=rows < n)
    if WITH_LOGIT_SUM:
        tl.store(logit_sum_out + place, logit_total, mask=rows < n)


@triton.jit
def logit_gradients(
    x, w, x_scale, inverse_norm, bias, labels, numbers, samples, log_sum, grad_others, grad_logit_sum,
    grad_target_product, chunk_out, along_out, grad_bias_out, grad_number_out, n, c, d, chunk_start, chunk_size,
    SLOPE: tl.constexpr, NUMBER_SLOPE: tl.constexpr, HAS_X_SCALE: tl.constexpr, DIVIDES: tl.constexpr,
    HAS_BIAS: tl.constexpr, WITH_LOGIT_SUM: tl.constexpr, HAS_LEARNT: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Gradients of the products x·w of a chunk of classes [n, chunk_size], and their sums over the tile's samples.

    Row i of `along_out` [tiles of samples, chunk_size] is Σ gradient · product over the i-th tile, from the gradients
    as they are stored, so that what rounding adds along a class weight is removed with it. `grad_bias_out` has the
    same shape, `grad_number_out` is [tiles of samples, tiles of classes].
    """
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    classes = chunk_start + tl.program_id(1) * BC + tl.arange(0, BC)
    product = _tile_products(x, w, rows, classes, n, c, d, DOT, PRECISION, BN, BC, BD)
    value, factor = _tile_values(product, x_scale, inverse_norm, rows, classes, n, c, HAS_X_SCALE, DIVIDES)
    class_bias = value
    if HAS_BIAS:
        class_bias = tl.load(bias + classes, mask=classes < c, other=0.0)[None, :]
    z, slope = SLOPE(value, class_bias, numbers, samples, rows, n)
    target = tl.load(labels + rows, mask=rows < n, other=-1)
    exists = (rows[:, None] < n) & (classes[None, :] < c)
    is_target = classes[None, :] == target[:, None]
    anchor = tl.load(log_sum + rows, mask=rows < n, other=float("inf"))
    grad = tl.exp(z - anchor[:, None]) * tl.load(grad_others + rows, mask=rows < n, other=0.0)[:, None]
    if WITH_LOGIT_SUM:
        grad += tl.load(grad_logit_sum + rows, mask=rows < n, other=0.0)[:, None]
    grad = tl.where(exists & (is_target == 0), grad, 0.0)
    of_target = tl.load(grad_target_product + rows, mask=rows < n, other=0.0)[:, None]
    # The gradient of the target's product comes from its angle.
    stored = (tl.where(is_target, of_target, grad * slope) * factor).to(chunk_out.dtype.element_ty)
    place = classes - chunk_start
    inside = (rows[:, None] < n) & (place[None, :] < chunk_size)
    tl.store(chunk_out + rows.to(tl.int64)[:, None] * chunk_size + place[None, :], stored, mask=inside)
    row = tl.program_id(0) * chunk_size
    if DIVIDES:
        tl.store(along_out + row + place, tl.sum(stored.to(tl.float32) * product, 0), mask=place < chunk_size)
    if HAS_BIAS:
        tl.store(grad_bias_out + row + place, tl.sum(grad, 0), mask=place < chunk_size)
    if HAS_LEARNT:
        number_slope = NUMBER_SLOPE(value, class_bias, numbers, samples, rows, n)
        cell = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        tl.store(grad_number_out + cell, tl.sum(tl.sum(grad * number_slope, 0), 0))


@triton.jit
def embedding_gradients(
    chunk, w, partial_out, n, c, d, chunk_start, chunk_size, classes_each, ADDS: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Gradients of the embeddings from a chunk, in `partial_out` [parts, n, d], to which later chunks are added.

    Part k sums over `classes_each` classes of the chunk, a multiple of BC, from k · classes_each on.
    """
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    places = tl.program_id(1) * BD + tl.arange(0, BD)
    first = tl.program_id(2) * classes_each
    total = tl.zeros((BN, BD), dtype=tl.float32)
    for start in range(first, tl.minimum(first + classes_each, chunk_size), BC):
        columns = start + tl.arange(0, BC)
        exists = (columns < chunk_size) & (chunk_start + columns < c)
        grad = tl.load(
            chunk + rows.to(tl.int64)[:, None] * chunk_size + columns[None, :],
            mask=(rows[:, None] < n) & exists[None, :],
            other=0.0,
        )
        weights = tl.load(
            w + (chunk_start + columns).to(tl.int64)[:, None] * d + places[None, :],
            mask=exists[:, None] & (places[None, :] < d),
            other=0.0,
        )
        total = tl.dot(grad.to(DOT), weights.to(DOT), total, input_precision=PRECISION)
    out = partial_out + (tl.program_id(2).to(tl.int64) * n + rows)[:, None] * d + places[None, :]
    inside = (rows[:, None] < n) & (places[None, :] < d)
    if ADDS:
        total += tl.load(out, mask=inside, other=0.0)
    tl.store(out, total, mask=inside)


@triton.jit
def weight_gradients(
    chunk, x, w, along, inverse_norm, grad_out, n, c, d, chunk_start, chunk_size, DIVIDES: tl.constexpr,
    HAS_ALONG: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """Gradients of the class weights of a chunk, in rows of `grad_out` [c, d].

    If products are divided by ‖w‖, `along` [chunk_size] is Σ gradient · product, the part along the weight, which is
    subtracted because it does not turn the weight; otherwise, if given, the coefficient of the weight to be added.
    """
    columns = tl.program_id(0) * BC + tl.arange(0, BC)
    classes = (chunk_start + columns).to(tl.int64)
    exists = (columns < chunk_size) & (classes < c)
    places = tl.program_id(1) * BD + tl.arange(0, BD)
    total = tl.zeros((BC, BD), dtype=tl.float32)
    for start in range(0, n, BN):
        rows = start + tl.arange(0, BN)
        grad = tl.load(
            chunk + rows.to(tl.int64)[None, :] * chunk_size + columns[:, None],
            mask=exists[:, None] & (rows[None, :] < n),
            other=0.0,
        )
        a = tl.load(
            x + rows.to(tl.int64)[:, None] * d + places[None, :],
            mask=(rows[:, None] < n) & (places[None, :] < d),
            other=0.0,
        )
        total = tl.dot(grad.to(DOT), a.to(DOT), total, input_precision=PRECISION)
    inside = exists[:, None] & (places[None, :] < d)
    if HAS_ALONG:
        weights = tl.load(w + classes[:, None] * d + places[None, :], mask=inside, other=0.0).to(tl.float32)
        coefficient = tl.load(along + columns, mask=exists, other=0.0)
        if DIVIDES:
            inverse = tl.load(inverse_norm + classes, mask=exists, other=0.0)
            # Two factors, because the square of an inverse norm may overflow.
            total -= (weights * inverse[:, None]) * (coefficient * inverse)[:, None]
        else:
            total += weights * coefficient[:, None]
    tl.store(grad_out + classes[:, None] * d + places[None, :], total.to(grad_out.dtype.element_ty), mask=inside)
