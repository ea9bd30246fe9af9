"""`find_outliers`: training images of a run that look mislabelled or foreign, by its embeddings and class weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..data.images.decode import read_image
from ..data.images.image_files import FolderImages
from ..io.errors import InputError
from ..models.attach import embed
from ..recognition.outliers import Outlier, class_outlier_scores, rank_outliers
from .datasets import DATASET_PREFIX
from .folder_inputs import read_run_manifest
from .inputs import image_folder, load_inputs

if TYPE_CHECKING:
    from PIL import Image

    from .run import Run


def find_outliers(run: Run, *, by: str = "gap", data_dir: str | Path | None = None) -> list[Outlier]:
    """All training images of a run, most suspicious first by the score `by` (`recognition.outliers`)."""
    config = run.config
    head = run.model.objective.head
    if head is None:
        raise InputError(f"{config.loss} has no class weights to compare images with")
    if config.data.startswith(DATASET_PREFIX):
        raise InputError(
            "the run was trained on data passed in Python: use widemargin.recognition.outliers on embeddings"
        )
    manifest = read_run_manifest(config, run.folder) if run.folder and image_folder(config, data_dir) else None
    inputs = load_inputs(config, data_dir, manifest=manifest, has_started=manifest is not None, in_memory=False)
    train = inputs.train
    x, y = embed(run.model, inputs.eval_batches(train))
    if isinstance(train, FolderImages) and len(x) < len(train):  # those that cannot be decoded were left out
        good = [row for row in range(len(train)) if str(train.paths[row]) not in inputs.bad_images]
        train = train.take(torch.tensor(good))
    assert len(x) == len(train)
    if y.ndim != 1:
        raise InputError("outliers need one label per image, but images of this run have several")
    scores, nearest = class_outlier_scores(x, y, head.gather_weight())
    names = inputs.class_names
    return [
        Outlier(
            names[int(y[row])],
            str(train.paths[row]) if isinstance(train, FolderImages) else f"training image {row}",
            {name: float(values[row]) for name, values in scores.items()},
            names[int(nearest[row])],
            _image_loader(train, row),
        )
        for row in rank_outliers(scores, by)
    ]


def _image_loader(train: Any, row: int) -> Callable[[], Image.Image]:
    """A function that loads the picture of a training image."""

    def load() -> Image.Image:
        from PIL import Image

        if isinstance(train, FolderImages):
            return read_image(train.paths[row])
        pixels = train.x[row].permute(1, 2, 0).numpy()
        return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0]).convert("RGB")

    return load
