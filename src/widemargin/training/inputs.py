"""`load_inputs`: what a run trains and is evaluated on, from a named set, a folder, an index file or packed files.

`image_inputs` defines what is loaded, `folder_inputs` and `packed_inputs` load files, `input_splits` draws parts, and
`dataset_inputs` is for data passed in Python.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..data.images.image_files import FolderImages
from ..data.images.manifest import Manifest
from ..data.images.packed import expand_braces, is_packed_set
from ..data.images.sets import canonical_set_name
from ..io.errors import InputError, spell_option
from .config import TrainConfig
from .folder_inputs import load_folder_inputs
from .image_inputs import Inputs
from .input_splits import assign_new_error, build_run_augment, describe_bad_stop, split_images
from .packed_inputs import load_packed_inputs


def load_inputs(
    config: TrainConfig,
    data_dir: str | Path | None,
    rank: int = 0,
    world_size: int = 1,
    *,
    manifest: Manifest | None = None,
    has_started: bool = False,
    assign_new: bool = False,
    test_only: bool = False,
    is_finished: bool = False,
    workers: int | None = None,
    in_memory: bool = True,
) -> Inputs:
    """Load the images that a run names; those of a folder or of packed files are looked for in `data_dir` first.

    Of a folder of images `manifest` says which file belongs to which part; without one the parts are drawn, for a run
    that `has_started` before as version 0.1.0 drew them. `assign_new` takes the folder as it is now
    (`data.images.changes`), for a run that `is_finished` without training on any of it.
    `test_only` loads no training images where it can, so that a missing or damaged one cannot prevent an evaluation.
    `workers` threads decode images, by default one per core. Files that fit are decoded at once, unless `in_memory` is
    False: they keep their paths then.
    """
    root = image_folder(config, data_dir)
    is_packed = root is not None and is_packed_set(root)
    if config.label_separator is not None and not is_packed and (root is None or root.is_dir()):
        raise InputError(
            f"{spell_option('label_separator')} is for index files and packed images; {config.data} is neither"
        )
    if root is not None and is_packed:
        if assign_new:
            raise assign_new_error(f"{root} is packed")
        found = load_packed_inputs(config, root, has_started, workers)
    elif root is not None:
        options = (manifest, has_started, assign_new, test_only, is_finished, workers)
        found = load_folder_inputs(config, root, *options)
    else:
        from ..data.images.sets import load_images

        if assign_new:
            raise assign_new_error(f"{config.data} never changes")
        image_set = load_images(config.data, data_dir)
        found = Inputs(*split_images(config, image_set), build_run_augment(config, image_set), config)
    if in_memory:
        known = set(found.bad_images)
        found = _decode_into_memory(found, workers, has_started)
        if (new := sorted(set(found.bad_images) - known)) and not has_started:
            found.notes += (_describe_undecoded(len(new), len(known), found.bad_images[new[0]]),)
    found.rank, found.world_size, found.workers = rank, world_size, workers
    return found


def _describe_undecoded(count: int, known: int, reason: str) -> str:
    """A line on images whose headers are fine but which cannot be decoded; `known` have been reported before."""
    images = "image" if count == 1 else "images"
    which = f"{count:,} more {images}" if known else f"{count:,} {images}"
    said = "is left out: " if count == 1 else "are left out, such as "
    return f"{which} cannot be decoded and {said}{reason}"


def image_folder(config: TrainConfig, data_dir: str | Path | None = None) -> Path | None:
    """The folder, index file or packed files of images that a run names; None where it names a set.

    A known name is the set even where a folder of that name lies about; `./mnist` is the folder. A path is looked for
    below `data_dir`, by the whole of it where it is relative or else by its last part, so that a run can be evaluated
    where its images lie elsewhere; `data_dir` may also be the folder of images itself.
    """
    if canonical_set_name(config.data):
        return None
    given = Path(os.path.expanduser(config.data))
    candidates = [given]
    for root in (data_dir, os.environ.get("WIDEMARGIN_DATA")):
        if not root:
            continue
        place = Path(root).expanduser()
        below = [place / given] if not given.is_absolute() else []
        below += [place / given.name, *([place] if place.name == given.name else [])]
        candidates = [*below, *candidates] if root is data_dir else [*candidates, *below]
    found = next((path for path in candidates if _has_images(path)), None)
    if found is not None:
        return found
    if os.sep in config.data:
        moved = f"; if its images were moved, pass their folder as {spell_option('data_dir')}"
        where = f", nor in {data_dir}" if data_dir else moved
        raise InputError(f"{config.data}: no such folder, index file or packed file of images{where}")
    return None


def _has_images(path: Path) -> bool:
    """Whether something lies at a path, of a pattern with braces at the first one it stands for."""
    if path.is_dir() or path.is_file():
        return True
    return "{" in path.name and is_packed_set(path) and Path(expand_braces(str(path))[0]).is_file()


def _decode_into_memory(inputs: Inputs, workers: int | None, has_started: bool) -> Inputs:
    """The same with its images decoded, where they fit and are always seen whole."""
    size, how = inputs.augment.size, inputs.augment.interpolation
    names = ("train", "val", "test")
    parts = {name: part for name in names if isinstance(part := getattr(inputs, name), FolderImages)}
    if inputs.augment.scale is None and all(part.fits_in_memory(size) for part in parts.values()):
        stops = inputs.config.on_bad_image == "stop"
        bad_images: dict[str, str] = {} if stops else inputs.bad_images
        for name, part in parts.items():
            setattr(inputs, name, part.load_into_memory(size, how, workers=workers, bad_images=bad_images))
        if stops and bad_images:
            raise InputError(describe_bad_stop(sorted(bad_images.values()), sum(map(len, parts.values())), has_started))
    return inputs
