"""Names and settings of the protocols, for the command line too: nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from ..io.options import Config, document_options, option

PROTOCOL_NAMES = ("verification", "retrieval", "knn", "fewshot", "openset")


@document_options
@dataclass(frozen=True, repr=False)
class ProtocolSettings(Config):
    """Settings of the protocols.

    >>> ProtocolSettings(ways=3)
    ProtocolSettings(ways=3)
    """

    kind = "protocol settings"

    batch: int = option(1024, "queries that meet the gallery together; memory grows with it", low=1)
    neighbours: int = option(5, "of knn", low=1)
    ways: int = option(5, "classes of a fewshot episode", low=1)
    shots: int = option(1, "images each of them is known by", low=1)
    episodes: int = option(1000, "of fewshot", low=1)
    sampled_pairs: int | None = option(None, "draw N distinct pairs of each kind instead of all pairs", kind=int, low=1)
    faiss: bool = option(False, "search with faiss, which gives the same numbers")
