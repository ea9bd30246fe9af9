"""Results of a trained run: predictions, the threshold that rejects unknown inputs, verifications of two images."""

from __future__ import annotations

from dataclasses import dataclass


class Prediction(list[tuple[str, float]]):
    """Classes and probabilities, most likely first; empty if the input was rejected as unknown.

    For a run with several labels per image: the labels whose probability reaches the threshold, possibly none.
    """

    cosine: float | None = None
    """Cosine to the nearest class weight; None for a loss without class weights."""
    is_unknown: bool = False
    """Whether the input was rejected."""


@dataclass(frozen=True)
class RejectionThreshold:
    """Cosine to the nearest class below which an input is unknown; None rejects nothing."""

    cosine: float | None
    notes: tuple[str, ...] = ()
    """Notes on changed or missing images among those the threshold was calibrated on."""


@dataclass(frozen=True)
class Verification:
    """Result of `verify`: whether two images are of the same class; truthy if they are."""

    same: bool
    cosine: float
    angle: float
    """In degrees."""
    threshold: float
    why: str
    """Where the threshold comes from."""
    notes: tuple[str, ...] = ()
    """Notes on changed or missing images among those the threshold was calibrated on."""

    def __bool__(self) -> bool:
        return self.same

    def __str__(self) -> str:
        answer = "the same" if self.same else "not the same"
        return f"{answer}: cosine {self.cosine:.4f} ({self.angle:.1f}°), threshold {self.threshold:.4f} ({self.why})"
