"""Parts of a set of images that are drawn by the settings of a run, its augmentation, and images that are skipped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..data.images.decode import ImageFile, find_header_problems
from ..data.images.identities import concat_images, split_identities, without_classes
from ..data.images.image_files import FolderSet
from ..data.images.long_tail import long_tailed_subset
from ..data.images.sets import SamplesT, stratified_split, stratified_subset
from ..io.errors import InputError, spell_option
from .config import TrainConfig

if TYPE_CHECKING:
    from ..data.images.augment import Augment
    from ..data.images.sets import ImageSet
    from .image_inputs import Inputs, Samples


def split_images(config: TrainConfig, image_set: ImageSet | FolderSet) -> tuple[Samples, Samples | None, Samples]:
    """Training, held-out and test images of a set whose files never change, drawn from their number."""
    train: Samples = image_set.train
    test: Samples = image_set.test
    if config.unseen_classes:
        train, test = split_identities(concat_images(train, test), config.unseen_classes, config.seed)
    val: Samples | None = None
    if config.val_classes:  # of what is left without the unseen classes, so that no class is in two parts
        train, val = split_identities(train, config.val_classes, config.seed)
        test = test if config.unseen_classes else without_classes(test, val.class_names, train.class_names)
    if config.val_fraction:
        train, val = stratified_split(train, config.val_fraction, config.seed)
        check_val_split(config, val)
    return select_train_samples(config, train, train.class_names), val, test


def select_train_samples(config: TrainConfig, train: SamplesT, class_names: Sequence[str]) -> SamplesT:
    """The training samples that are used: a fraction of every class, and of that a long-tailed part."""
    if config.train_fraction < 1.0:
        train = stratified_subset(train, config.train_fraction, config.seed)
    if config.imbalance > 1.0:
        train = long_tailed_subset(train, config.imbalance, config.seed, class_names)
    return train


def check_val_split(config: TrainConfig, val: Samples) -> None:
    """Refuse a held-out part without images."""
    if not len(val):
        raise InputError(
            f"{spell_option('val_fraction', config.val_fraction)} holds out no image: one image per class is too few"
        )


def refuse_identities_of_label_sets(config: TrainConfig, where: Path) -> None:
    """Refuse to hold out whole classes of images that have several labels: each would be in both parts."""
    for option in ("unseen_classes", "val_classes"):
        if getattr(config, option):
            raise InputError(f"{spell_option(option)} needs images with one label each; those of {where} have several")


def assign_new_error(why: str) -> InputError:
    return InputError(f"{spell_option('assign_new')} is for folders of images; {why}: start another run")


def build_run_augment(config: TrainConfig, image_set: ImageSet | FolderSet) -> Augment:
    """The run's augmentation, with the z-score of its images."""
    from ..data.images.augment import build_augment

    return build_augment(config.augment, image_set, size=config.input_size, **config.augment_options)


def find_bad_images(config: TrainConfig, paths: Sequence[ImageFile], workers: int | None) -> dict[int, str]:
    """The places of images that are skipped because their headers cannot be read; an error unless they may be."""
    problems = find_header_problems(paths, workers)
    if problems and config.on_bad_image == "stop":
        raise InputError(describe_bad_stop(list(problems.values()), len(paths)))
    return problems


def describe_bad_stop(problems: Sequence[str], total: int, has_started: bool = False) -> str:
    """The error of images that cannot be read: the first, how many more, and for a new run that they may be skipped."""
    more = f" ({len(problems) - 1:,} more of {total:,} images cannot be read either)" if len(problems) > 1 else ""
    return f"{problems[0]}{more}" + ("" if has_started else f", or skip it with {spell_option('on_bad_image', 'skip')}")


def describe_bad_images(inputs: Inputs, total: int) -> list[str]:
    if not inputs.bad_images:
        return []
    what = f"{len(inputs.bad_images):,} of {total:,} images cannot be read and are skipped"
    return [f"{what}, such as {next(iter(inputs.bad_images.values()))}"]
