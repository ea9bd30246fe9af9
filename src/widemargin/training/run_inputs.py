"""Inputs of a trained run: its test items, and files, arrays or datasets to embed.

Of a folder of images those are tested that the run's manifest names, none that was trained on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..data.images.augment import Augment
from ..data.images.batches import prefetch
from ..data.images.decode import default_num_workers, read_image, resize_and_centre_crop, to_rgb
from ..data.images.manifest import MANIFEST_NAME
from ..data.images.packed import FileSlice, is_packed_set
from ..data.images.sets import Images, canonical_set_name
from ..io.errors import InputError, format_value, spell_option
from ..io.locks import lock_folder, translate_disk_errors, write_chunks_atomic
from ..recognition.evaluation import MAX_RETRIEVAL_IMAGES
from . import checkpoint, run_files
from .config import TrainConfig
from .dataset_classes import classes_from_spec
from .dataset_inputs import DatasetInputs
from .datasets import (
    DATASET_PREFIX,
    ArrayDataset,
    as_dataset,
    as_tensor,
    read_other_samples,
    seeded_rngs,
    split_item,
)
from .folder_inputs import read_run_manifest, scan_images
from .image_inputs import Inputs, eval_batch_size
from .inputs import image_folder, load_inputs
from .resume import is_run_folder, recorded_data_dir

if TYPE_CHECKING:
    from .run import Run


class MissingImagesError(InputError):
    """The images that a run names are not here."""


def load_inputs_for_threshold(run: Run, data_dir: str | Path | None, option: str) -> Inputs:
    """Test inputs to draw a threshold from; where they are missing the error names the option that gives it instead."""
    try:
        return run.load_inputs(data_dir)
    except MissingImagesError as error:
        raise InputError(f"{error}, or give the threshold as {spell_option(option)}, which needs no images") from None


def load_test_inputs(
    run: Run, data_dir: str | Path | None = None, *, test: Any = None, assign_new: bool = False
) -> Inputs:
    """Test inputs of a run: `test` if given, else the test items passed to `train`, else the images it names.

    `assign_new` gives a part to files of its folder of images that were added since, and writes that down in the run
    folder.
    """
    test = run.test if test is None else test
    if test is not None:
        return _given_test_inputs(run, test)
    if data_dir is None and run.folder is not None and is_run_folder(run.folder):
        data_dir = recorded_data_dir(run.folder)
    config = replace(run.config, batch_size=1, per_class=0, repeated_augmentation=1)
    if config.data.startswith(DATASET_PREFIX):
        kind = config.data.removeprefix(DATASET_PREFIX)
        raise InputError(
            f"the run was trained on data passed in Python ({kind}): pass test items, run.evaluate(test=my_test)"
        )
    root = image_folder(config, data_dir)
    if root is None and canonical_set_name(config.data) is None:
        raise MissingImagesError(
            f"the images of the run ({config.data}) were not found; pass their folder as {spell_option('data_dir')}"
        )
    if root is None:
        return load_inputs(
            replace(config, train_fraction=1.0, imbalance=1.0, val_fraction=0.0), data_dir, assign_new=assign_new
        )
    if is_packed_set(root):
        return load_inputs(config, data_dir, has_started=True, assign_new=assign_new, test_only=True)
    if run.folder is None:
        return _load_inputs_without_run_folder(run, config, root, data_dir)
    path = run.folder / MANIFEST_NAME
    if not assign_new:
        return _load_manifest_inputs(run, config, data_dir, path)
    with lock_folder(run.folder):
        found = _load_manifest_inputs(run, config, data_dir, path, assign_new=True)
        if found.manifest is not None and found.has_new_manifest:
            with translate_disk_errors(run.folder):
                write_chunks_atomic(path, found.manifest.to_csv())
    return found


def _given_test_inputs(run: Run, test: Any) -> DatasetInputs:
    """A dataset or arrays, with labels among the classes of the run, or all of them of other classes."""
    spec = run.input_spec
    if "shape" not in spec:
        raise InputError(
            f"test is only for runs on data passed in Python; this run is tested on {run.config.data_name}; "
            "use run.embed for other images"
        )
    classes, held_out = classes_from_spec(spec)
    samples = read_other_samples(test, "test", classes, held_out)
    none = replace(samples.take(torch.arange(0)), classes=classes)
    found = DatasetInputs(train=none, test=samples, config=run.config)
    if list(found.example.shape[1:]) != spec["shape"]:
        raise InputError(
            f"test: items have the shape {list(found.example.shape[1:])}, but those of train {spec['shape']}"
        )
    return found


def _load_manifest_inputs(
    run: Run, config: TrainConfig, data_dir: str | Path | None, path: Path, assign_new: bool = False
) -> Inputs:
    """The test images of the manifest; for a run of version 0.1.0 those that it drew."""
    assert run.folder is not None
    manifest = read_run_manifest(config, run.folder)
    if manifest is None and run.has_manifest:
        raise InputError(f"{path}: missing, so it is unknown which images were trained on; restore a copy of it")
    if manifest is None and assign_new:
        raise InputError(f"{path}: missing; {spell_option('assign_new')} needs a run with a manifest")
    is_finished = assign_new and checkpoint.is_training_complete(run.folder / "checkpoints" / "last", config.epochs)
    found = load_inputs(
        config,
        data_dir,
        manifest=manifest,
        has_started=True,
        assign_new=assign_new,
        test_only=True,
        is_finished=is_finished,
    )
    then, now = _count_evaluated_images(run.record) if manifest is None else None, len(found.test_samples)
    if then is not None and then != now:
        said = f"{now:,} test images, {then:,} when the run ended"
        root = image_folder(config, data_dir)
        if not config.unseen_classes and root is not None and scan_images(config, root).test is not None:
            found.notes += (f"{said}: files of its test folder were added or removed since",)
        else:
            raise InputError(
                f"{config.data}: {said}, and it has no manifest, so it is unknown which were trained on; restore the "
                "folder, or train again"
            )
    return found


def _load_inputs_without_run_folder(run: Run, config: TrainConfig, root: Path, data_dir: str | Path | None) -> Inputs:
    """The images of the test folder; a drawn split is only known in the run folder."""
    if scan_images(config, root).test is None and not config.unseen_classes:
        raise InputError(
            f"{run.weights_path.parent}: only the run's {MANIFEST_NAME} lists which images of {root} were trained on; "
            "evaluate the run folder"
        )
    return load_inputs(config, data_dir)


def _count_evaluated_images(record: dict[str, Any]) -> int | None:
    """Number of images that the metrics of a record are based on, if recorded."""
    try:
        found = run_files.parse_record(record)
    except ValueError:
        return None
    if found.get("confusion") is not None:
        return int(sum(found["confusion"].images))
    images = (found.get("test") or {}).get("images")
    return int(images) if images is not None and images < MAX_RETRIEVAL_IMAGES else None  # larger sets are subsampled


def describe_data_changes(inputs: Inputs, *, only_changes: bool = False) -> list[str]:
    """Lines on which images of a folder are tested, and on added, changed and removed images."""
    lines: list[str] = []
    if inputs.changes is None or inputs.has_new_manifest:
        lines += inputs.notes
    if inputs.changes is not None and (inputs.changes or inputs.changes.duplicates or not only_changes):
        lines += [inputs.changes.summary(), *inputs.changes.details()]
    return lines


# Files, arrays and datasets that a run embeds.


def is_single(run: Run, images: Any) -> bool:
    """Whether `images` is one of them: a path, a PIL image, or an array without the dimension of a batch."""
    if isinstance(images, np.ndarray) and images.ndim == 2 and "shape" not in run.input_spec:
        return True
    if isinstance(images, np.ndarray | Tensor):
        return images.ndim == len(run.input_spec.get("shape") or (0, 0, 0))
    return isinstance(images, str | Path | FileSlice | Image.Image)


def iter_model_inputs(run: Run, images: Any, batch_size: int, workers: int | None = None) -> Iterator[Tensor]:
    """Preprocessed batches of paths, PIL images, an array, or the items of a dataset.

    Files are decoded by `workers` threads, the next batch while the last one is used.
    """
    if is_single(run, images):
        images = images[None] if isinstance(images, np.ndarray | Tensor) else [images]
    images = _arrays_as_pictures(run, images)
    size = _batch_size(run, batch_size)
    if isinstance(images, np.ndarray | Tensor):
        for start in range(0, len(images), size):
            yield preprocess_array(run, images[start : start + size])
    elif isinstance(images, Images):
        for start in range(0, len(images), size):
            yield preprocess_array(run, images.x[start : start + size], images.name)
    elif _are_pictures(images) and len(images) == 1:  # threads would take longer to start than one image to decode
        yield preprocess_picture(run, images[0])
    elif _are_pictures(images):
        with ThreadPoolExecutor(workers or default_num_workers(), thread_name_prefix="decode") as pool:

            def make_batch(number: int) -> Tensor:
                some = images[number * size : (number + 1) * size]
                return torch.cat(list(pool.map(partial(preprocess_picture, run), some)))

            yield from prefetch(make_batch, range(-(-len(images) // size)))
    else:
        yield from _iter_dataset(run, images, size)


def _arrays_as_pictures(run: Run, images: Any) -> Any:
    """Arrays uint8 [H, W, 3] or [H, W], as OpenCV and matplotlib have them, as PIL images; all else unchanged."""
    if "shape" in run.input_spec:  # items of a dataset keep their layout
        return images
    if isinstance(images, np.ndarray):
        return [Image.fromarray(x) for x in images] if len(images) and _is_picture_array(images[0]) else images
    if isinstance(images, list | tuple) and any(isinstance(image, np.ndarray) for image in images):
        return [
            Image.fromarray(image) if isinstance(image, np.ndarray) and _is_picture_array(image) else image
            for image in images
        ]
    return images


def _is_picture_array(x: NDArray[Any]) -> bool:
    """Whether an array is [H, W, 3] or [H, W] rather than [C, H, W]."""
    if x.dtype != np.uint8:
        return False
    return x.ndim == 2 or (x.ndim == 3 and x.shape[2] in (3, 4) and x.shape[0] not in (1, 3))


def _are_pictures(images: Any) -> bool:
    kinds = str | Path | FileSlice | Image.Image
    return isinstance(images, Sequence) and all(isinstance(image, kinds) for image in images)


def _batch_size(run: Run, batch_size: int) -> int:
    channels, *sides = run.input_spec.get("shape") or (run.input_spec["channels"], run.input_spec["size"])
    return eval_batch_size(batch_size, channels, max(sides, default=1))


def _iter_dataset(run: Run, given: Any, size: int) -> Iterator[Tensor]:
    """Inputs of a dataset's items, with or without labels."""
    dataset = as_dataset(given, "images")
    if isinstance(dataset, ArrayDataset):
        yield from iter_model_inputs(run, dataset.x, size)
        return
    for start in range(0, len(dataset), size):
        found = []
        for row in range(start, min(start + size, len(dataset))):
            with seeded_rngs(row):
                item = dataset[row]
            x = item if isinstance(item, np.ndarray | Tensor) else split_item(item, f"item {row}")[0]
            found.append(torch.as_tensor(x) if isinstance(x, np.ndarray) else x)
        if not all(isinstance(x, Tensor) for x in found):
            raise InputError(f"images: the input of an item is a {type(found[0]).__name__}, not a tensor or array")
        yield preprocess_array(run, torch.stack(found))


def build_eval_augment(input_spec: dict[str, Any]) -> Augment:
    """Preprocessing in evaluation of the images that an input spec describes."""
    given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in input_spec["augment"].items()}
    return Augment(**given).for_evaluation()


def preprocess_array(run: Run, x: Any, name: str = "images") -> Tensor:
    """A batch as the network expects it: unchanged for runs on datasets, else standardised images.

    Images are uint8 [N, C, H, W], or floats from 0 to 1.
    """
    spec = run.input_spec
    if "shape" in spec:
        values = as_tensor(x, name)
        if list(values.shape[1:]) != spec["shape"]:
            raise InputError(f"{name} have the shape {list(values.shape[1:])}, the run was trained on {spec['shape']}")
        return values
    values = torch.as_tensor(x)
    if values.ndim != 4 or values.shape[1] != spec["channels"]:
        have = f"{values.shape[1]} channels" if values.ndim == 4 else f"the shape {list(values.shape)}"
        raise InputError(f"{name} has {have}, the run was trained on {spec['channels']} channels [N, C, H, W]")
    if values.is_floating_point() and not bool(((values >= 0) & (values <= 1)).all()):
        raise InputError(f"{name}: images must be uint8, or floats from 0 to 1")
    if not values.is_floating_point() and values.dtype != torch.uint8:
        raise InputError(f"{name}: images must be uint8, or floats from 0 to 1; got {format_value(values.dtype)}")
    return replace(run.eval_augment, size=spec["size"]).transform_for_evaluation(values)


def preprocess_picture(run: Run, given: str | Path | FileSlice | Image.Image) -> Tensor:
    """An image file or a PIL image as a preprocessed batch of one."""
    spec = run.input_spec
    if "shape" in spec:
        what = "a PIL image" if isinstance(given, Image.Image) else given
        raise InputError(
            f"{what}: the run was trained on a dataset with items of shape {spec['shape']}; pass such items, not a file"
        )
    augment = run.eval_augment
    if isinstance(given, Image.Image):
        image = to_rgb(given.copy())
    else:
        image = read_image(Path(given) if isinstance(given, str) else given)
    if spec["channels"] == 1:
        image = image.convert("L").convert("RGB")
    pixels = resize_and_centre_crop(image, spec["size"], augment.zoom(spec["native_size"]), augment.interpolation)
    x = torch.tensor(pixels).permute(2, 0, 1)[None, : spec["channels"]]
    return replace(augment, size=0, eval_zoom=1.0).transform_for_evaluation(x)
