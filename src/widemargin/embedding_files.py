"""Embeddings in files: .npz (NumPy) or .parquet (a table), with the names of the images and their labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .errors import InputError

if TYPE_CHECKING:
    from .training.finished import Finished


@dataclass(frozen=True)
class Embedded:
    """Embeddings [N, D], a name and a label for each; the label of a file is the folder it lies in."""

    x: Tensor
    names: list[str]
    labels: list[str]


def embedded(run: Finished, data: Sequence[str], data_dir: str | None = None) -> Embedded:
    """Embeddings of image files, of folders of them, or of a set by its name (training part, then test part)."""
    from .data.images import known_set, load_images
    from .training.unseen import embed

    if len(data) == 1 and known_set(data[0]) and not os.path.isdir(data[0]):
        found = load_images(data[0], data_dir)
        parts, names, labels = [], [], []
        for kind, part in (("train", found.train), ("test", found.test)):
            parts.append(embed(run.model, run.seen(part))[0])
            names += [f"{found.name}/{kind}/{row}" for row in range(len(part))]
            labels += [found.classes[k] for k in part.y.tolist()]
        return Embedded(torch.cat(parts), names, labels)
    paths = [path for word in data for path in _files(Path(word).expanduser())]
    return Embedded(run.embed_files(paths), [str(path) for path in paths], [path.parent.name for path in paths])


def _files(place: Path) -> list[Path]:
    from .data.decode import SUFFIXES

    if place.is_dir():
        found = sorted(path for path in place.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
        if not found:
            raise InputError(f"{place}: no images in it ({', '.join(suffix[1:] for suffix in SUFFIXES)})")
        return found
    if not place.is_file():
        raise InputError(f"{place}: no such image, folder or image set")
    return [place]


def write(path: Path, found: Embedded) -> None:
    """The file that its ending says, whole or not at all."""
    if path.suffix not in (".npz", ".parquet"):
        raise InputError(f"--out {path}: embeddings are written as .npz or .parquet")
    fresh = path.with_name(f".{path.stem}.new{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".npz":
            arrays = {"embeddings": found.x.numpy(), "names": np.array(found.names), "labels": np.array(found.labels)}
            np.savez(fresh, **arrays)  # type: ignore[arg-type]
        else:
            _parquet(fresh, found)
        fresh.replace(path)
    except OSError as error:
        raise InputError(f"--out {path}: cannot be written ({error.strerror or error})") from None
    finally:
        fresh.unlink(missing_ok=True)


def _parquet(path: Path, found: Embedded) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError('a .parquet file needs pyarrow: pip install "widemargin[parquet]"') from None
    rows = pa.FixedSizeListArray.from_arrays(pa.array(found.x.numpy().ravel()), found.x.shape[1])
    pq.write_table(pa.table({"name": found.names, "label": found.labels, "embedding": rows}), path)
