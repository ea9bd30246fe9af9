"""What a head needs on paper: memory and time per rank for any number of classes, dimensions, samples and ranks.

Each part is a factor and powers of (C/R, D, B), with B the samples of all ranks: one list, which the command, the
page's calculator and the check against measured points all read.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """`factor · (C/R)^classes · D^dim · B^samples` bytes or floating-point operations."""

    name: str
    factor: float
    classes: int = 0
    dim: int = 0
    samples: int = 0

    def __call__(self, classes: float, dim: float, samples: float) -> float:
        return self.factor * classes**self.classes * dim**self.dim * samples**self.samples


# fp32. A block has about 2^18 products, four buffers of that size are in use.
OURS = (
    Part("class weights", 4, 1, 1),
    Part("their gradient, where the products are kept", 4, 1, 1),
    Part("lengths of the class weights", 4, 1),
    Part("embeddings, directions and their gradients", 4 * 6, 0, 1, 1),
    Part("blocks", 4 * 4 * 2**18),
)
MOMENTUM = Part("momentum", 4, 1, 1)
SECOND = Part("second moments", 4, 1, 1)
OPTIMIZERS = {"none": (), "SGD with momentum": (MOMENTUM,), "AdamW": (MOMENTUM, SECOND)}
# As measured on eager heads: two copies of the weights' size on the way, and the logits several times.
EAGER = (
    Part("class weights", 4, 1, 1),
    Part("their gradient", 4, 1, 1),
    Part("normalised weights and their gradients", 4 * 3, 1, 1),
    Part("logits and their copies", 4 * 4, 1, 0, 1),
    Part("embeddings, directions and their gradients", 4 * 6, 0, 1, 1),
)
WORK = Part("three matrix products", 6, 1, 1, 1)


def total(parts: tuple[Part, ...], classes: int, dim: int, samples: int, ranks: int) -> float:
    """Bytes (or operations) per rank.

    >>> round(total(OURS[:2], 10**6, 512, 128, 1) / 2**30, 2)
    3.81
    """
    return sum(part(classes / ranks, dim, samples) for part in parts)
