"""Names and settings of the protocols, shared with the command line; does not import torch."""

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

    batch: int = option(1024, "queries compared with the gallery at a time; memory grows with it", low=1)
    neighbours: int = option(5, "neighbours of knn", low=1)
    ways: int = option(5, "classes of a fewshot episode", low=1)
    shots: int = option(1, "known images of each class of an episode", low=1)
    episodes: int = option(1000, "episodes of fewshot", low=1)
    sampled_pairs: int | None = option(None, "use N random distinct pairs of each kind instead of all", kind=int, low=1)
    faiss: bool = option(False, "search with faiss, with the same results")
