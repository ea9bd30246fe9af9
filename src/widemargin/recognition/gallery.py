"""`Gallery`: enrolled identities on disk, and the identification of new images among them.

A gallery keeps a unit vector and a small picture of every enrolled image. A probe is compared with all of them by
cosine, exactly, a block of vectors at a time: memory is one block of scores, whatever the size of the gallery. The best
identity is accepted if its cosine reaches a threshold, which comes from the model's calibration (`calibration`) or is
given.

An identity with several images scores by its nearest image (`reduce="best"`) or by the mean of its unit vectors
(`reduce="mean"`, one comparison per identity).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..io.errors import InputError, format_value, spell_option
from ..io.locks import lock_folder
from ..metrics.neighbors import build_index, nearest_in_blocks
from ..numerics.angles import unit_and_norm
from ..numerics.validation import check_integer
from . import gallery_files as files
from .calibration import CalibratedThreshold, Calibration
from .enrolment import EMBED_BATCH, AddReport, Enrolment, enrol_groups, list_known, to_unit_vectors
from .gallery_files import Entry, PictureWriter
from .gallery_images import find_identity_images, list_probe_images, open_item
from .identification import Embedder, Identification, Match

REDUCTIONS = ("best", "mean")
SEARCH_BACKENDS = ("exact", "faiss", "usearch")
_DEFAULT_FAR = 0.01
_QUERY_ROWS = 1024


class Gallery:
    """Enrolled identities in a folder; make one with `Gallery.create`, open one with `widemargin.load`."""

    def __init__(self, folder: str | Path, embedder: Embedder | Callable[[], Embedder] | None = None) -> None:
        self.folder = Path(folder)
        self._embedder = embedder
        self.backend = "exact"
        self._entry_cache = files.EntryCache()
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
            raise InputError(
                f"{spell_option('reduce')} must be one of {', '.join(REDUCTIONS)}, got {format_value(reduce)}"
            )
        with lock_folder(folder):
            if (folder / files.GALLERY_FILE).exists():
                raise InputError(f"{folder}: contains a gallery already; add images to it, or choose another folder")
            model.export(hub=folder / files.MODEL_FOLDER)
            calibration = None if model.calibration is None else model.calibration.to_dict()
            state = files.GalleryState(model.fingerprint, model.embedding_dim, reduce, calibration=calibration)
            files.write_state(folder, state)
        return cls(folder, model)

    def reload(self) -> None:
        """Read the state of the folder again, as other processes have left it."""
        self._version = files.read_version(self.folder)  # first: a change in between is then seen the next time
        self.state = files.read_state(self.folder)
        where = str(self.folder / files.GALLERY_FILE)
        raw = self.state.calibration
        self.calibration = None if raw is None else Calibration.from_dict(raw, where)
        self._entries: list[Entry] | None = None
        self._vectors: list[NDArray[np.float32]] | None = None
        self._means: tuple[Tensor, list[Entry]] | None = None
        self._counts: dict[str, int] | None = None
        self._index: Any = None

    def reload_if_changed(self) -> bool:
        """Reload if others have changed the folder; return whether that was so."""
        if self._version == files.read_version(self.folder):
            return False
        self.reload()
        return True

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
                f"{self.folder}: its embeddings were computed by another model (fingerprint "
                f"{self.state.fingerprint[:12]}, this "
                f"model has {model.fingerprint[:12]}); make a new gallery with this model"
            )

    @property
    def entries(self) -> list[Entry]:
        """All enrolled images, in the order of their vectors."""
        if self._entries is None:
            self._entries = self._entry_cache.read(self.folder, self.state.segments)
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
        if self._vectors is None:
            dim = self.state.embedding_dim
            self._vectors = [files.map_vectors(self.folder, part, dim) for part in self.state.segments]
        return self._vectors

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
            raise InputError(f"{spell_option('on_bad_image')} must be stop or skip, got {format_value(on_bad_image)}")
        if model is not None:
            self._check_model(model)
        groups = find_identity_images(images)
        pictures = PictureWriter(self.folder)
        with self._write_access():
            has_images = any(not isinstance(items, Tensor | np.ndarray) for items in groups.values())
            found = enrol_groups(
                groups,
                self.state.embedding_dim,
                lambda: self.embedder,
                list_known(self.entries, groups) if has_images else set(),
                pictures if keep_pictures else None,
                skip_bad=on_bad_image == "skip",
                on_progress=on_progress,
            )
            pictures.sync()
            self._append(found)
        return found.report()

    def add_embeddings(
        self,
        x: Tensor | NDArray[Any],
        identities: Sequence[str],
        *,
        sources: Sequence[str] | None = None,
        model: Embedder | None = None,
    ) -> AddReport:
        """Enrol embeddings [N, D] of the gallery's model; all of them or none.

        This is the fast way to enrol very many: `add` takes a mapping with an item for each identity.

        Args:
            x: embeddings, of any length; they are stored as unit vectors.
            identities: the identity of each row.
            sources: where each row comes from, such as a file name.
            model: the model that computed them, to check that it is the gallery's.
        """
        if model is not None:
            self._check_model(model)
        found = Enrolment(self.state.embedding_dim)
        found.add_rows(torch.as_tensor(x), identities, sources)
        with self._write_access():
            self._append(found)
        return found.report()

    @contextmanager
    def _write_access(self) -> Iterator[None]:
        """The folder locked, its present state, without what a killed writer has left."""
        with lock_folder(self.folder):
            self._delete_leftovers()
            try:
                yield
            except BaseException:
                with suppress(InputError, OSError):
                    self._delete_leftovers()
                raise

    def _delete_leftovers(self) -> None:
        """Delete what the state on disk does not refer to; after an interruption that may be the old or the new one."""
        self.reload()
        files.delete_leftovers(self.folder, self.state, {entry.picture for entry in self.entries})

    def _append(self, found: Enrolment) -> None:
        """Write new segments, then the state. Small segments at the end are merged with the new ones."""
        if not found.entries:
            return
        kept, parts, entries = list(self.state.segments), list(found.vectors), found.entries
        # Sizes double, so that there are few segments and a row is seldom written again.
        while kept and kept[-1].rows <= len(entries) and files.can_grow(self.folder, kept[-1]):
            last = kept.pop()
            parts.insert(0, files.map_vectors(self.folder, last, self.state.embedding_dim))
            entries = files.read_entries(self.folder, last) + entries
        self._commit(kept, parts, entries)

    def _commit(
        self, kept: Sequence[files.Segment], parts: Sequence[NDArray[np.float32]], entries: Sequence[Entry]
    ) -> None:
        """Write new segments, make them and `kept` the gallery, and delete the segments that they replace."""
        new = files.write_segments(self.folder, self.state.next_segment, parts, entries)
        state = replace(self.state, segments=(*kept, *new), next_segment=self.state.next_segment + len(new))
        files.write_state(self.folder, state)
        self.reload()
        files.delete_leftovers(self.folder, self.state)

    def remove(self, identity: str, *, source: str | None = None) -> int:
        """Remove an identity, or one of its images by its `source`; return the number of removed vectors.

        Segments that held them are written again without them, and the old files and pictures are deleted.
        """
        with self._write_access():
            drop = [e.identity == identity and (source is None or e.source == source) for e in self.entries]
            if not any(drop):
                what = format_value(identity) + ("" if source is None else f" with the image {format_value(source)}")
                raise InputError(f"{self.folder}: there is no identity {what} (`gallery list` prints all)")
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
            self._delete_leftovers()
        return sum(drop)

    # ---------------------------------------------------------------- search

    def search(self, x: Tensor, top: int = 5) -> list[tuple[Match, ...]]:
        """The nearest identities of embeddings [N, D], best first, at most `top` for each."""
        check_integer(spell_option("top"), top, 1)
        if not len(self):
            raise InputError(f"{self.folder}: the gallery is empty; enrol images first (gallery add)")
        unit = torch.from_numpy(to_unit_vectors(x, self.state.embedding_dim))
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
        wanted, depth = min(top, len(self.identities)), min(len(self), top)
        found: list[tuple[Match, ...]] = [()] * len(unit)
        missing = list(range(len(unit)))
        while missing:  # several of the nearest images may be of one identity: look further for those probes
            cosines, places = self.search_vectors(unit[missing], depth)
            for row, values, at in zip(missing, cosines.tolist(), places.tolist(), strict=True):
                found[row] = self._best_per_identity(values, at, top)
            missing = [row for row in missing if len(found[row]) < wanted] if depth < len(self) else []
            depth = min(len(self), 4 * depth)
        return found

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
            raise InputError(
                f"the search backend must be one of {', '.join(SEARCH_BACKENDS)}, got {format_value(backend)}"
            )
        if backend != "exact" and self.state.reduce == "mean":
            raise InputError("an index holds single images, but this gallery compares means: use the exact search")
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
        self,
        *,
        threshold: float | None = None,
        target_far: float | None = None,
        num_comparisons: int | None = None,
    ) -> CalibratedThreshold | None:
        """The cosine from which a match is accepted: as given, or the calibrated one; None without a calibration.

        `target_far` is the rate at which an unknown person is accepted as any identity of this gallery, or in
        `num_comparisons` comparisons. By default it is 1 %, or the smallest rate above that the calibration supports.
        """
        num_comparisons = num_comparisons or self.num_comparisons
        if threshold is not None and target_far is not None:
            raise InputError(
                f"{spell_option('threshold')} and {spell_option('target_far')} both set the threshold: use one of them"
            )
        if threshold is not None:
            if not -1.0 <= threshold <= 1.0:
                raise InputError(f"{spell_option('threshold')} must be a cosine from -1 to 1, got {threshold:g}")
            return CalibratedThreshold(float(threshold), float("nan"), None, None, "as given")
        if self.calibration is None:
            if target_far is None:
                return None
            raise InputError(
                f"{self.folder}: its model has no calibration; run widemargin calibrate before the gallery is made, or "
                f"give {spell_option('threshold')}"
            )
        if target_far is None:
            target_far = max(_DEFAULT_FAR, self.calibration.smallest_far(num_comparisons) * (1 + 1e-9))
        return self.calibration.threshold(target_far, num_comparisons)

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
        """Identify each image, or reject it as unknown.

        Args:
            images: image files, a folder of them, or PIL images.
            top: number of identities to return for each.
            threshold: cosine from which the best identity is accepted; by default the calibrated one.
            target_far: rate at which an unknown person may be accepted, 0.01 by default.
        """
        decision = self.acceptance_threshold(threshold=threshold, target_far=target_far)
        items = list_probe_images(images)
        found: list[Identification] = []
        for start in range(0, len(items), EMBED_BATCH):
            opened = [open_item(item) for item in items[start : start + EMBED_BATCH]]
            matches = self.search(self.embedder.embed([image for image, _ in opened]), top)
            found += [
                Identification(
                    source, row, None if decision is None else decision.cosine, "" if decision is None else decision.why
                )
                for (_, source), row in zip(opened, matches, strict=True)
            ]
        return found
