"""What a run learns from and is judged on: images by name, augmented batches, the held-out part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from ..classifier import MarginModel
from ..run import Run

if TYPE_CHECKING:
    from ..data.augment import Augment
    from ..data.batches import TensorBatches
    from ..data.images import Images


@dataclass(eq=False)
class Inputs:
    """The images of a run."""

    train: Images
    held_out: Images | None
    test: Images
    batches: TensorBatches
    augment: Augment

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.train.classes

    @property
    def channels(self) -> int:
        """Colours of an image."""
        return int(self.train.x.shape[1])

    @property
    def size(self) -> int:
        """Pixels along a side of what the network sees."""
        return int(self.augment.size or self.train.x.shape[2])

    def for_evaluation(self, x: Tensor) -> Tensor:
        """uint8 images as the network sees them in evaluation."""
        return self.augment.evaluated(x)

    def prepare_network(self, model: MarginModel) -> None:
        """What a backbone wants to see of the training images before the first step."""
        whiten = getattr(model.backbone, "whiten", None)
        if whiten is not None:
            whiten(self.for_evaluation(self.train.x[:5000]))


def inputs_of(run: Run, data_dir: str | None, rank: int, world: int) -> Inputs:
    """Load what a run names."""
    from ..data.augment import augment_of
    from ..data.batches import TensorBatches
    from ..data.images import load_images
    from ..data.stratified import split_off, subset

    found = load_images(run.data, data_dir)
    train, held_out = found.train, None
    if run.hold_out:
        train, held_out = split_off(train, run.hold_out, run.seed)
    if run.share < 1.0:
        train = subset(train, run.share, run.seed)
    augment = augment_of(run.augment, found, size=run.input_size, **run.augment_options)
    batches = TensorBatches(
        train, max(1, run.batch_size // world), augment, run.seed, rank=rank, world=world, repeats=run.repeats
    )
    return Inputs(train, held_out, found.test, batches, augment)
