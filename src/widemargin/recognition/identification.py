"""Inputs and results of a gallery: `Embedder`, `Match` and `Identification`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from .calibration import Calibration


class Embedder(Protocol):
    """A model as the gallery needs it; a trained `Run` is one."""

    @property
    def fingerprint(self) -> str:
        """Identifies the model: equal for equal weights and preprocessing."""

    @property
    def embedding_dim(self) -> int:
        """Dimension of the embeddings."""

    @property
    def calibration(self) -> Calibration | None:
        """Thresholds by false accept rate, if they were fitted."""

    def embed(self, images: Any, *, batch_size: int = ...) -> Tensor:
        """Embeddings [N, D] of image files or PIL images."""

    def export(self, *, hub: str | Path | None = ...) -> list[str]:
        """Write the model to a folder."""


@dataclass(frozen=True)
class Match:
    """One identity as a candidate for a probe."""

    identity: str
    cosine: float
    source: str = ""
    """Enrolled image that is nearest to the probe."""
    picture: Path | None = None
    """Its small picture."""


@dataclass(frozen=True)
class Identification:
    """Result of `Gallery.identify` for one probe."""

    source: str
    matches: tuple[Match, ...]
    """Nearest identities, best first."""
    threshold: float | None
    """Cosine from which the best one is accepted; None if nothing decides."""
    why: str = ""
    """Where the threshold comes from."""

    @property
    def identity(self) -> str | None:
        """The accepted identity; None if the probe is unknown."""
        is_accepted = self.matches and (self.threshold is None or self.matches[0].cosine >= self.threshold)
        return self.matches[0].identity if is_accepted else None

    def to_rows(self) -> list[dict[str, Any]]:
        """A row per match, for a table."""
        return [
            {
                "image": self.source,
                "identity": self.identity or "unknown",
                "rank": rank,
                "candidate": match.identity,
                "cosine": match.cosine,
                "nearest_image": match.source,
                "picture": "" if match.picture is None else str(match.picture),
                "threshold": self.threshold,
            }
            for rank, match in enumerate(self.matches, 1)
        ]

    def __str__(self) -> str:
        near = ", ".join(f"{match.identity} {match.cosine:.4f}" for match in self.matches)
        return f"{self.source}: {self.identity or 'unknown'} ({near})"
