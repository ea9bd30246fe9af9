"""A Triton kernel that evaluates the generated functions of a loss; only imported if Triton is installed."""

import triton
import triton.language as tl


@triton.jit
def evaluate(
    value, out, numbers, samples, n, c, SLOPE: tl.constexpr, NUMBER: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr
):
    """Write logits, slopes and derivatives by the learnt number of a matrix of cosines [n, c]."""
    rows, columns = tl.arange(0, BN), tl.arange(0, BC)
    place = rows[:, None] * c + columns[None, :]
    inside = (rows[:, None] < n) & (columns[None, :] < c)
    cos = tl.load(value + place, mask=inside, other=0.0)
    z, slope = SLOPE(cos, cos, numbers, samples, rows, n)
    tl.store(out + place, z, mask=inside)
    tl.store(out + n * c + place, slope, mask=inside)
    tl.store(out + 2 * n * c + place, NUMBER(cos, cos, numbers, samples, rows, n), mask=inside)
