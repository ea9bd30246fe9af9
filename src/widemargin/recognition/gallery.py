"""`Gallery`: enrolled identities on disk, and who of them is on a new picture, or nobody.

A gallery keeps a unit vector and a small picture of every enrolled image. A probe is compared with all of them by
cosine, exactly, a block of vectors at a time: memory is one block of scores, whatever the size of the gallery. The best
identity is accepted if its cosine reaches a threshold, which comes from the model's calibration (`calibration`) or is
given.

An identity with several images scores by its nearest image (`reduce="best"`) or by the mean of its unit vectors
(`reduce="mean"`, one comparison per identity).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..io.errors import InputError, format_value
from ..io.locks import lock_folder, write_chunks_atomic
from ..metrics.neighbors import build_index, nearest_in_blocks
from ..numerics.angles import unit_and_norm
from ..numerics.validation import check_integer
from . import gallery_files as files
from .calibration import CalibratedThreshold, Calibration
from .gallery_files import Entry, GalleryState, SegmentWriter
from .gallery_images import encode_picture, find_identity_images, list_probe_images, open_item

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PIL import Image

REDUCTIONS = ("best", "mean")
SEARCH_BACKENDS = ("exact", "faiss", "usearch")
_EMBED_BATCH = 64
_DEFAULT_FAR = 0.01
_QUERY_ROWS = 1024


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
                "threshold": self.threshold,
            }
            for rank, match in enumerate(self.matches, 1)
        ]

    def __str__(self) -> str:
        near = ", ".join(f"{match.identity} {match.cosine:.4f}" for match in self.matches)
        return f"{self.source}: {self.identity or 'unknown'} ({near})"


@dataclass(frozen=True)
class AddReport:
    """Result of `Gallery.add`: how many images were enrolled, and notes on those that were not."""

    added: int
    identities: int
    notes: tuple[str, ...] = ()


class Gallery:
    """Enrolled identities in a folder; make one with `Gallery.create`, open one with `widemargin.load`."""

    def __init__(self, folder: str | Path, embedder: Embedder | Callable[[], Embedder] | None = None) -> None:
        self.folder = Path(folder)
        self._embedder = embedder
        self.backend = "exact"
        self.reload()

    @classmethod
    def create(cls, folder: str | Path, model: Embedder, *, reduce: str = "best") -> Gallery:
        """Make an empty gallery in a new folder; the model is copied into it.

        Args:
            folder: must not be a gallery yet.
            model: a trained `Run`, or another `Embedder`.
            reduce: how several images of an identity are compared with a probe: `best` or `mean`.
        """
        folder = Path(folder)
        if reduce not in REDUCTIONS:
            raise InputError(f"reduce (--reduce) is one of {', '.join(REDUCTIONS)}, got {format_value(reduce)}")
        with lock_folder(folder):
            if (folder / files.GALLERY_FILE).exists():
                raise InputError(f"{folder}: there is a gallery already; use gallery add, or choose another folder")
            model.export(hub=folder / files.MODEL_FOLDER)
            calibration = None if model.calibration is None else model.calibration.to_dict()
            state = GalleryState(model.fingerprint, model.embedding_dim, reduce, calibration=calibration)
            files.write_state(folder, state)
        return cls(folder, model)

    def reload(self) -> None:
        """Read the state of the folder again, as other processes have left it."""
        self.state = files.read_state(self.folder)
        where = str(self.folder / files.GALLERY_FILE)
        raw = self.state.calibration
        self.calibration = None if raw is None else Calibration.from_dict(raw, where)
        self._entries: list[Entry] | None = None
        self._means: tuple[Tensor, list[Entry]] | None = None
        self._counts: dict[str, int] | None = None
        self._index: Any = None

    # ---------------------------------------------------------------- contents

    @property
    def embedder(self) -> Embedder:
        """The model; loaded when it is first needed."""
        if self._embedder is None:
            raise InputError(f"{self.folder}: opened without a model; use widemargin.load")
        if not hasattr(self._embedder, "embed"):
            self._embedder = self._embedder()
            self._check_model(self._embedder)
        return self._embedder  # type: ignore[return-value]

    def _check_model(self, model: Embedder) -> None:
        if model.fingerprint != self.state.fingerprint:
            raise InputError(
                f"{self.folder}: its embeddings are of another model (fingerprint {self.state.fingerprint[:12]}, this "
                f"model has {model.fingerprint[:12]}); make a new gallery with this model"
            )

    @property
    def entries(self) -> list[Entry]:
        """All enrolled images, in the order of their vectors."""
        if self._entries is None:
            self._entries = [entry for part in self.state.segments for entry in files.read_entries(self.folder, part)]
        return self._entries

    @property
    def identities(self) -> dict[str, int]:
        """Names of the identities with the number of their images."""
        if self._counts is None:
            self._counts = dict(sorted(Counter(entry.identity for entry in self.entries).items()))
        return self._counts

    def __len__(self) -> int:
        return self.state.num_entries

    def __repr__(self) -> str:
        return f"Gallery({str(self.folder)!r}: {len(self.identities):,} identities, {len(self):,} images)"

    def vectors(self) -> list[NDArray[np.float32]]:
        """Unit vectors of all entries, a memory-mapped array [rows, D] for each segment."""
        return [files.map_vectors(self.folder, part, self.state.embedding_dim) for part in self.state.segments]

    def picture_path(self, entry: Entry) -> Path | None:
        """The small picture of an entry."""
        return self.folder / files.PICTURES_FOLDER / entry.picture if entry.picture else None

    # ---------------------------------------------------------------- changes

    def add(
        self,
        images: str | Path | Mapping[str, Any],
        *,
        model: Embedder | None = None,
        on_bad_image: str = "stop",
        keep_pictures: bool = True,
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> AddReport:
        """Enrol images; all of them or none.

        Args:
            images: a folder with a folder per identity, an index file (CSV with `path` and `label`), or a mapping from
                an identity to image files or PIL images, or to embeddings [n, D] of the gallery's model.
            model: the model that computed given embeddings, to check that it is the gallery's.
            on_bad_image: `stop` at a file that cannot be read, or `skip` it.
            keep_pictures: keep a small picture of each image.
            on_progress: called with 1.0 after every image.
        """
        if on_bad_image not in ("stop", "skip"):
            raise InputError(f"on_bad_image (--on-bad-image) is stop or skip, got {format_value(on_bad_image)}")
        if model is not None:
            self._check_model(model)
        groups = find_identity_images(images)
        with self._write_access():
            known = {(entry.identity, entry.picture or entry.source) for entry in self.entries}
            vectors, entries, pictures, notes = self._embed_groups(
                groups, known, on_bad_image == "skip", keep_pictures, on_progress
            )
            if entries:
                self._append(vectors, entries, pictures)
        return AddReport(len(entries), len({entry.identity for entry in entries}), tuple(notes))

    def _embed_groups(
        self,
        groups: Mapping[str, Any],
        known: set[tuple[str, str]],
        skip_bad: bool,
        keep_pictures: bool,
        on_progress: Callable[[float], None],
    ) -> tuple[NDArray[np.float32], list[Entry], dict[str, bytes], list[str]]:
        """Unit vectors, entries, and pictures by name of what is to be enrolled."""
        parts: list[NDArray[np.float32]] = []
        entries: list[Entry] = []
        pictures: dict[str, bytes] = {}
        notes: list[str] = []
        batch: list[tuple[Image.Image, Entry]] = []
        num_repeated = 0

        def embed_batch() -> None:
            if batch:
                parts.append(self._unit_vectors(self.embedder.embed([image for image, _ in batch])))
                entries.extend(entry for _, entry in batch)
                batch.clear()

        for identity, items in groups.items():
            files.check_identity(identity)
            if isinstance(items, Tensor | np.ndarray):
                embed_batch()
                parts.append(self._unit_vectors(torch.as_tensor(items)))
                entries.extend(Entry(identity) for _ in range(len(items)))
                continue
            for item in items:
                try:
                    image, source, digest = open_item(item)
                except InputError as error:
                    if not skip_bad:
                        raise
                    notes.append(f"skipped: {error}")
                    continue
                finally:
                    on_progress(1.0)
                picture = f"{digest}.jpg"
                if (identity, picture if keep_pictures else source) in known:
                    num_repeated += 1
                    continue
                known.add((identity, picture if keep_pictures else source))
                if keep_pictures:
                    pictures[picture] = encode_picture(image)
                batch.append((image, Entry(identity, source, picture if keep_pictures else "")))
                if len(batch) == _EMBED_BATCH:
                    embed_batch()
        embed_batch()
        if num_repeated:
            notes.append(f"{num_repeated:,} images are enrolled already under the same identity")
        empty = np.empty((0, self.state.embedding_dim), np.float32)
        return np.concatenate(parts) if parts else empty, entries, pictures, notes

    def _unit_vectors(self, x: Tensor) -> NDArray[np.float32]:
        if x.ndim != 2 or x.shape[1] != self.state.embedding_dim:
            raise InputError(f"embeddings must be [n, {self.state.embedding_dim}], got {list(x.shape)}")
        unit, norm = unit_and_norm(x.detach().float().cpu())
        if not bool(torch.isfinite(unit).all()) or bool((norm == 0).any()):
            raise InputError("an embedding is zero or not finite; it cannot be compared by cosine")
        return unit.numpy()

    @contextmanager
    def _write_access(self) -> Iterator[None]:
        """The folder locked, its present state, without what a killed writer has left."""
        with lock_folder(self.folder):
            self.reload()
            files.delete_leftovers(self.folder, self.state, {entry.picture for entry in self.entries})
            yield

    def _append(self, vectors: NDArray[np.float32], entries: list[Entry], pictures: dict[str, bytes]) -> None:
        """Write pictures and a segment, then the state. Small segments at the end are merged with the new one."""
        for name, data in pictures.items():
            path = self.folder / files.PICTURES_FOLDER / name
            if not path.exists():
                write_chunks_atomic(path, [data])
        kept, parts = list(self.state.segments), [vectors]
        while kept and kept[-1].rows <= len(entries):  # sizes double, so that there are few segments
            last = kept.pop()
            parts.insert(0, files.map_vectors(self.folder, last, self.state.embedding_dim))
            entries = files.read_entries(self.folder, last) + entries
        self._commit(kept, parts, entries)

    def _commit(
        self, kept: Sequence[files.Segment], parts: Sequence[NDArray[np.float32]], entries: Sequence[Entry]
    ) -> None:
        """Write one new segment, make it and `kept` the gallery, and delete what it replaces."""
        writer = SegmentWriter(self.folder, self.state)
        try:
            new = [writer.write(parts, entries)] if entries else []
            state = replace(
                self.state, segments=(*kept, *new), next_segment=self.state.next_segment + len(writer.created) // 2
            )
            files.write_state(self.folder, state)
        except BaseException:
            writer.discard()
            raise
        self.reload()
        files.delete_leftovers(self.folder, self.state, {entry.picture for entry in self.entries})

    def remove(self, identity: str, *, source: str | None = None) -> int:
        """Remove an identity, or one of its images by its `source`; return the number of vectors that are gone.

        Segments that held them are written again without them, and the old files and pictures are deleted.
        """
        with self._write_access():
            drop = [e.identity == identity and (source is None or e.source == source) for e in self.entries]
            if not any(drop):
                what = format_value(identity) + ("" if source is None else f" with the image {format_value(source)}")
                raise InputError(f"{self.folder}: there is no identity {what}; gallery list names them")
            kept: list[files.Segment] = []
            parts: list[NDArray[np.float32]] = []
            entries: list[Entry] = []
            start = 0
            for segment in self.state.segments:
                rows = slice(start, start + segment.rows)
                start += segment.rows
                gone = np.array(drop[rows])
                if not gone.any():
                    kept.append(segment)
                    continue
                parts.append(files.map_vectors(self.folder, segment, self.state.embedding_dim)[~gone])
                entries += [entry for entry, is_gone in zip(self.entries[rows], gone, strict=True) if not is_gone]
            self._commit(kept, parts, entries)
        return sum(drop)

    # ---------------------------------------------------------------- search

    def search(self, x: Tensor, top: int = 5) -> list[tuple[Match, ...]]:
        """The nearest identities of embeddings [N, D], best first, at most `top` for each."""
        check_integer("top (--top)", top, 1)
        if not len(self):
            raise InputError(f"{self.folder}: nobody is enrolled; use gallery add")
        unit = torch.from_numpy(self._unit_vectors(x))
        found: list[tuple[Match, ...]] = []
        for start in range(0, len(unit), _QUERY_ROWS):
            found += self._search_block(unit[start : start + _QUERY_ROWS], top)
        return found

    def _search_block(self, unit: Tensor, top: int) -> list[tuple[Match, ...]]:
        if self.state.reduce == "mean":
            means, examples = self._identity_means()
            cosines, places = nearest_in_blocks(unit, [(0, means)], min(top, len(examples)))
            return [
                tuple(self._match(examples[place], cosine) for cosine, place in zip(row, at, strict=True))
                for row, at in zip(cosines.tolist(), places.tolist(), strict=True)
            ]
        depth = min(len(self), top)
        while True:  # several of the nearest images may be of one identity
            cosines, places = self.search_vectors(unit, depth)
            rows = [self._best_per_identity(*row, top) for row in zip(cosines.tolist(), places.tolist(), strict=True)]
            wanted = min(top, len(self.identities))
            if depth == len(self) or all(len(row) >= wanted for row in rows):
                return rows
            depth = min(len(self), 4 * depth)

    def _best_per_identity(self, cosines: list[float], places: list[int], top: int) -> tuple[Match, ...]:
        best: dict[str, Match] = {}
        for cosine, place in zip(cosines, places, strict=True):
            entry = self.entries[place]
            if entry.identity not in best:
                best[entry.identity] = self._match(entry, cosine)
                if len(best) == top:
                    break
        return tuple(best.values())

    def _match(self, entry: Entry, cosine: float) -> Match:
        return Match(entry.identity, cosine, entry.source, self.picture_path(entry))

    def search_vectors(self, unit: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """Cosines and places [N, depth] of the nearest enrolled vectors to unit vectors [N, D], by `backend`."""
        if self.backend == "exact":
            return nearest_in_blocks(unit, files.iter_vector_blocks(self.vectors()), depth)
        if self._index is None:
            self._index = build_index(self.backend, self.vectors(), self.state.embedding_dim)
        cosines, places = self._index(unit.numpy(), depth)
        return torch.from_numpy(cosines), torch.from_numpy(places)

    def use_backend(self, backend: str) -> None:
        """Choose the search: `exact`, or an index of `faiss` (exact) or `usearch` (approximate) in memory."""
        if backend not in SEARCH_BACKENDS:
            raise InputError(f"backend is one of {', '.join(SEARCH_BACKENDS)}, got {format_value(backend)}")
        if backend != "exact" and self.state.reduce == "mean":
            raise InputError("an index holds images, and this gallery compares means: use the exact search")
        self.backend, self._index = backend, None

    def index_recall(self, depth: int = 5, num_queries: int = 1000) -> float:
        """Fraction of the exact nearest vectors that the chosen backend finds, for enrolled vectors as queries."""
        rows = np.random.default_rng(0).permutation(len(self))[:num_queries]
        unit, depth = torch.from_numpy(self._vectors_of_rows(rows)), min(depth, len(self))
        exact = nearest_in_blocks(unit, files.iter_vector_blocks(self.vectors()), depth)[1]
        found = self.search_vectors(unit, depth)[1]
        hits = (exact.unsqueeze(2) == found.unsqueeze(1)).any(2)
        return float(hits.float().mean())

    def _identity_means(self) -> tuple[Tensor, list[Entry]]:
        """Unit vectors of the means of all identities [I, D], and one entry of each."""
        if self._means is None:
            first: dict[str, Entry] = {}
            for entry in self.entries:
                first.setdefault(entry.identity, entry)
            place = {name: k for k, name in enumerate(first)}
            row_identity = torch.tensor([place[entry.identity] for entry in self.entries])
            sums = torch.zeros(len(first), self.state.embedding_dim)
            for start, block in files.iter_vector_blocks(self.vectors()):
                sums.index_add_(0, row_identity[start : start + len(block)], block)
            self._means = unit_and_norm(sums)[0], list(first.values())
        return self._means

    @property
    def num_comparisons(self) -> int:
        """Vectors that a probe is compared with: identities for `mean`, images for `best`."""
        return max(1, len(self.identities) if self.state.reduce == "mean" else len(self))

    def acceptance_threshold(
        self, *, threshold: float | None = None, target_far: float | None = None
    ) -> CalibratedThreshold | None:
        """The cosine from which a match is accepted: as given, or the calibrated one; None without a calibration.

        `target_far` is the rate at which a stranger is accepted as anybody in this gallery. By default it is 1 %, or
        the smallest rate above that the calibration supports.
        """
        if threshold is not None and target_far is not None:
            raise InputError("threshold (--threshold) and target_far (--target-far) both decide: use one of them")
        if threshold is not None:
            if not -1.0 <= threshold <= 1.0:
                raise InputError(f"threshold (--threshold) must be a cosine from -1 to 1, got {threshold:g}")
            return CalibratedThreshold(float(threshold), float("nan"), None, None, "as given")
        if self.calibration is None:
            if target_far is None:
                return None
            raise InputError(
                f"{self.folder}: its model has no calibration; run widemargin calibrate before the gallery is made, or "
                "give threshold (--threshold)"
            )
        if target_far is None:
            target_far = max(_DEFAULT_FAR, self.calibration.smallest_far(self.num_comparisons) * (1 + 1e-9))
        return self.calibration.threshold(target_far, self.num_comparisons)

    def stranger_rate(self, cosine: float, max_probes: int = 1000) -> tuple[float, int]:
        """Rate at which enrolled images pass a threshold when their own identity is taken out, and their number.

        This is what a stranger like the enrolled people would meet in this very gallery, without assumptions on how
        its vectors are related; of large galleries a sample is tried.
        """
        rows = np.random.default_rng(0).permutation(len(self))[:max_probes]
        unit = torch.from_numpy(self._vectors_of_rows(rows))
        passing = 0
        for row, matches in zip(rows.tolist(), self.search(unit, 2), strict=True):
            own = self.entries[row].identity
            passing += any(match.cosine >= cosine for match in matches if match.identity != own)
        return passing / len(rows), len(rows)

    def _vectors_of_rows(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Enrolled unit vectors by their places."""
        bounds, parts = np.cumsum([0, *(part.rows for part in self.state.segments)]), self.vectors()
        segment = np.searchsorted(bounds, rows, side="right") - 1
        return np.stack([parts[s][r - bounds[s]] for s, r in zip(segment, rows, strict=True)])

    def identify(
        self, images: Any, *, top: int = 5, threshold: float | None = None, target_far: float | None = None
    ) -> list[Identification]:
        """Who is on each image, or nobody.

        Args:
            images: image files, a folder of them, or PIL images.
            top: number of identities to return for each.
            threshold: cosine from which the best identity is accepted; by default the calibrated one.
            target_far: rate at which a stranger may be accepted, 0.01 by default.
        """
        decision = self.acceptance_threshold(threshold=threshold, target_far=target_far)
        items = list_probe_images(images)
        found: list[Identification] = []
        for start in range(0, len(items), _EMBED_BATCH):
            opened = [open_item(item) for item in items[start : start + _EMBED_BATCH]]
            matches = self.search(self.embedder.embed([image for image, _, _ in opened]), top)
            found += [
                Identification(
                    source, row, None if decision is None else decision.cosine, "" if decision is None else decision.why
                )
                for (_, source, _), row in zip(opened, matches, strict=True)
            ]
        return found
