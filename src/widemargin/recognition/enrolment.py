"""Enrolment: images or embeddings by identity become unit vectors and entries of a gallery.

Images are embedded in batches and their pictures written at once, so that memory does not grow with them; embeddings
that are given are normalized in large blocks, because a call for each of a million vectors would take minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..io.errors import InputError
from ..numerics.angles import unit_and_norm
from .gallery_files import Entry, PictureWriter, check_identity
from .gallery_images import encode_picture, hash_item, open_item
from .identification import Embedder

if TYPE_CHECKING:
    from PIL import Image

EMBED_BATCH = 64
_BLOCK_ROWS = 65_536  # embeddings normalized at once


@dataclass(frozen=True)
class AddReport:
    """Result of `Gallery.add`: how many images were enrolled, and notes on those that were not."""

    added: int
    identities: int
    notes: tuple[str, ...] = ()


@dataclass
class Enrolment:
    """Content of one `Gallery.add`: unit vectors in parts, the entry of each row, and notes on images left out."""

    embedding_dim: int
    vectors: list[NDArray[np.float32]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _waiting: list[tuple[str, Tensor]] = field(default_factory=list)

    def add_group(self, identity: str, x: Tensor) -> None:
        """Embeddings [n, D] of one identity; they wait for others until there is a block of them."""
        check_embeddings(x, self.embedding_dim)
        self._waiting.append((identity, x))
        if len(self._waiting) >= _BLOCK_ROWS:
            self.flush()

    def flush(self) -> None:
        """Add the embeddings that wait."""
        if self._waiting:
            names = [identity for identity, x in self._waiting for _ in range(len(x))]
            rows = torch.cat([x for _, x in self._waiting])
            self._waiting.clear()
            self.add_rows(rows, names)

    def add_rows(self, x: Tensor, identities: Sequence[str], sources: Sequence[str] | None = None) -> None:
        """Embeddings [N, D] with the identity of each row."""
        check_embeddings(x, self.embedding_dim)
        if len(identities) != len(x) or (sources is not None and len(sources) != len(x)):
            raise InputError(
                f"{len(x):,} embeddings need as many identities (and sources, if given): got "
                f"{len(identities):,} identities" + ("" if sources is None else f" and {len(sources):,} sources")
            )
        for identity in set(identities):
            check_identity(identity)
        for start in range(0, len(x), _BLOCK_ROWS):
            self.vectors.append(to_unit_vectors(x[start : start + _BLOCK_ROWS], self.embedding_dim))
        if sources is None:
            self.entries.extend(map(Entry, identities))
        else:
            self.entries.extend(map(Entry, identities, sources))

    def report(self) -> AddReport:
        """How many were enrolled."""
        return AddReport(len(self.entries), len({entry.identity for entry in self.entries}), tuple(self.notes))


def enrol_groups(
    groups: Mapping[str, Any],
    embedding_dim: int,
    load_embedder: Callable[[], Embedder],
    known: set[tuple[str, str]],
    pictures: PictureWriter | None,
    *,
    skip_bad: bool,
    on_progress: Callable[[float], None],
) -> Enrolment:
    """Enrol images or embeddings [n, D] by identity.

    Args:
        groups: image files, PIL images or embeddings of each identity.
        embedding_dim: D.
        load_embedder: called when there are images to embed.
        known: (identity, picture or source) of what is enrolled already; such images are left out.
        pictures: keeps a small picture of each image; None: none is kept.
        skip_bad: leave out files that cannot be read instead of stopping.
        on_progress: called with 1.0 after every image.
    """
    found = Enrolment(embedding_dim)
    batch: list[tuple[Image.Image, Entry]] = []
    num_repeated = 0

    def embed_images() -> None:
        if batch:
            x = load_embedder().embed([image for image, _ in batch])
            found.vectors.append(to_unit_vectors(x, embedding_dim))
            found.entries.extend(entry for _, entry in batch)
            batch.clear()

    for identity, items in groups.items():
        check_identity(identity)
        if isinstance(items, Tensor | np.ndarray):
            embed_images()
            found.add_group(identity, torch.as_tensor(items).detach().cpu())
            continue
        found.flush()
        for item in items:
            try:
                image, source = open_item(item)
                digest = hash_item(item, image)
            except InputError as error:
                if not skip_bad:
                    raise
                found.notes.append(f"skipped: {error}")
                continue
            finally:
                on_progress(1.0)
            picture = "" if pictures is None else f"{digest}.jpg"
            if (identity, picture or source) in known:
                num_repeated += 1
                continue
            known.add((identity, picture or source))
            if pictures is not None:
                pictures.write(picture, encode_picture(image))
            batch.append((image, Entry(identity, source, picture)))
            if len(batch) == EMBED_BATCH:
                embed_images()
    embed_images()
    found.flush()
    if num_repeated:
        found.notes.append(f"{num_repeated:,} images are enrolled already under the same identity")
    return found


def list_known(entries: Iterable[Entry], identities: Mapping[str, Any]) -> set[tuple[str, str]]:
    """(identity, picture or source) of the entries of some identities, to enrol no image twice."""
    return {(entry.identity, entry.picture or entry.source) for entry in entries if entry.identity in identities}


def check_embeddings(x: Tensor, embedding_dim: int) -> None:
    """An InputError unless `x` is [n, D]."""
    if x.ndim != 2 or x.shape[1] != embedding_dim:
        raise InputError(f"embeddings must be [n, {embedding_dim}], got {list(x.shape)}")


def to_unit_vectors(x: Tensor, embedding_dim: int) -> NDArray[np.float32]:
    """Unit vectors of embeddings [n, D]; an InputError for one that has no direction."""
    check_embeddings(x, embedding_dim)
    unit, norm = unit_and_norm(x.detach().float().cpu())
    if not bool(torch.isfinite(unit.sum(1)).all()) or bool((norm == 0).any()):
        raise InputError("an embedding is zero or not finite, so it has no cosine")
    return unit.numpy()
