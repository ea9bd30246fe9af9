"""Embeddings in .npz (NumPy) or .parquet (table) files, with the names of the images and their labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..io.errors import InputError

if TYPE_CHECKING:
    from ..training.run import Run


@dataclass(frozen=True)
class EmbeddingTable:
    """Embeddings [N, D], with a name and a label for each; the label of a file is its folder."""

    x: Tensor
    names: list[str]
    labels: list[str]


def embed_images(
    run: Run,
    data: Sequence[str],
    data_dir: str | None = None,
    *,
    batch_size: int = 256,
    normalize: bool = True,
    workers: int | None = None,
) -> EmbeddingTable:
    """Embeddings of image files, of folders of them, or of a set by its name (training part, then test part).

    They have length 1 unless `normalize` is False; files are decoded by `workers` threads.
    """
    options: dict[str, Any] = {"batch_size": batch_size, "normalize": normalize, "workers": workers}
    from ..data.images.sets import canonical_set_name, load_images

    if len(data) == 1 and canonical_set_name(data[0]) and not os.path.isdir(data[0]):
        image_set = load_images(data[0], data_dir)
        parts, names, labels = [], [], []
        for kind, part in (("train", image_set.train), ("test", image_set.test)):
            parts.append(run.embed(part, **options))
            names += [f"{image_set.name}/{kind}/{row}" for row in range(len(part))]
            labels += [image_set.class_names[k] for k in part.y.tolist()]
        return EmbeddingTable(torch.cat(parts), names, labels)
    paths = [path for word in data for path in find_image_files(Path(word).expanduser())]
    return EmbeddingTable(
        run.embed(paths, **options), [str(path) for path in paths], [path.parent.name for path in paths]
    )


def find_image_files(source: Path) -> list[Path]:
    """An image file, or the images in a folder and its subfolders."""
    from ..data.images.decode import IMAGE_SUFFIXES, find_images

    if source.is_dir():
        files = find_images(source)
        if not files:
            raise InputError(f"{source}: contains no images ({', '.join(suffix[1:] for suffix in IMAGE_SUFFIXES)})")
        return files
    if not source.is_file():
        raise InputError(f"{source}: no such image, folder or image set")
    return [source]


def check_embeddings_file(path: Path) -> None:
    """Raise an InputError if `save_embeddings` cannot write such a file: called before embeddings are computed."""
    if path.suffix not in (".npz", ".parquet"):
        raise InputError(f"{path}: the file must end in .npz or .parquet")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise InputError(f'{path}: a .parquet file needs pyarrow: pip install "widemargin[parquet]"')


def save_embeddings(path: Path, table: EmbeddingTable) -> None:
    """Write embeddings to a .npz or .parquet file, chosen by its suffix; atomically."""
    check_embeddings_file(path)
    fresh = path.with_name(f".{path.stem}.new{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".npz":
            arrays = {"embeddings": table.x.numpy(), "names": np.array(table.names), "labels": np.array(table.labels)}
            np.savez(fresh, **arrays)  # type: ignore[arg-type]
        else:
            _write_parquet(fresh, table)
        fresh.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        fresh.unlink(missing_ok=True)


def _write_parquet(path: Path, table: EmbeddingTable) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pa.FixedSizeListArray.from_arrays(pa.array(table.x.numpy().ravel()), table.x.shape[1])
    pq.write_table(pa.table({"name": table.names, "label": table.labels, "embedding": rows}), path)
