"""Cost model of a head: memory and time per rank for any number of classes, dimensions, samples and ranks.

Each term is a factor and powers of (C/R, D, B), with B the samples of all ranks; with K sub-centres per class, C is the
number of weights, classes times K. The page of `python -m benchmarks head` uses these terms for its calculator and for
the comparison with measured memory.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CostTerm:
    """`factor · (C/R)^class_exponent · D^dim_exponent · B^sample_exponent` bytes or floating-point operations."""

    name: str
    factor: float
    class_exponent: int = 0
    dim_exponent: int = 0
    sample_exponent: int = 0

    def __call__(self, num_classes: float, embedding_dim: float, samples: float) -> float:
        return (
            self.factor
            * num_classes**self.class_exponent
            * embedding_dim**self.dim_exponent
            * samples**self.sample_exponent
        )


# fp32. A block has about 2^18 products, and four buffers of that size are in use.
WIDEMARGIN_COSTS = (
    CostTerm("class weights", 4, 1, 1),
    CostTerm("their gradient, where the products are kept", 4, 1, 1),
    CostTerm("lengths of the class weights", 4, 1),
    CostTerm("embeddings, directions and their gradients", 4 * 6, 0, 1, 1),
    CostTerm("blocks", 4 * 4 * 2**18),
)
MOMENTUM_COST = CostTerm("momentum", 4, 1, 1)
SECOND_MOMENT_COST = CostTerm("second moments", 4, 1, 1)
OPTIMIZER_COSTS = {"none": (), "SGD with momentum": (MOMENTUM_COST,), "AdamW": (MOMENTUM_COST, SECOND_MOMENT_COST)}
# As measured on eager heads: two temporary copies of the weights, and the logits several times.
EAGER_COSTS = (
    CostTerm("class weights", 4, 1, 1),
    CostTerm("their gradient", 4, 1, 1),
    CostTerm("normalised weights and their gradients", 4 * 3, 1, 1),
    CostTerm("logits and their copies", 4 * 4, 1, 0, 1),
    CostTerm("embeddings, directions and their gradients", 4 * 6, 0, 1, 1),
)
MATMUL_FLOPS = CostTerm("three matrix products", 6, 1, 1, 1)


def total_cost(
    terms: tuple[CostTerm, ...], num_classes: int, embedding_dim: int, samples: int, world_size: int
) -> float:
    """Bytes (or operations) per rank.

    >>> round(total_cost(WIDEMARGIN_COSTS[:2], 10**6, 512, 128, 1) / 2**30, 2)
    3.81
    """
    return sum(part(num_classes / world_size, embedding_dim, samples) for part in terms)
