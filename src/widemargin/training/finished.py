"""A run that has been trained: its model out of a checkpoint, to be judged and to name images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..angle import direction
from ..classifier import MarginModel
from ..errors import InputError
from ..run import Run
from . import checkpoint, run_files
from .inputs import Inputs, inputs_of
from .judging import judge
from .network import rebuilt
from .unseen import embed

if TYPE_CHECKING:
    from ..data.augment import Augment
    from ..data.images import Images
    from .inputs import Samples
    from .network import Another


@dataclass(eq=False)
class Finished:
    """A run's model as it is judged (averaged weights where there is an average) and what it knows of its images."""

    run: Run
    model: MarginModel
    sees: dict[str, Any]
    place: Path

    def judge(self, data_dir: str | None = None, *, flips: bool = True) -> dict[str, Any]:
        """The figures on the run's test images."""
        inputs = self.inputs(data_dir)
        if list(inputs.classes) != self.sees["classes"]:
            raise InputError(f"{self.run.data} has other classes than the run {self.place} was trained on")
        return judge(self.model, self.run, inputs, inputs.test, flips=flips)

    def inputs(self, data_dir: str | None) -> Inputs:
        """What the run sees, all of it in its order."""
        return inputs_of(replace(self.run, share=1.0, hold_out=0.0, batch_size=1, per_class=0), data_dir)

    def embeddings(self, data_dir: str | None = None) -> tuple[Tensor, Tensor]:
        """Embeddings and labels of the run's test images, those of unseen classes where it has such."""
        inputs = self.inputs(data_dir)
        return embed(self.model, inputs.judged(inputs.test))

    def test_images(self, data_dir: str | None = None) -> Samples:
        """The images the run is judged on."""
        return self.inputs(data_dir).test

    @torch.no_grad()
    def embed_files(self, paths: Sequence[str | Path], batch: int = 256) -> Tensor:
        """Embeddings [N, D] of image files."""
        like, found = next(self.model.parameters()), []
        self.model.eval()
        for start in range(0, len(paths), batch):
            x = torch.cat([self._as_seen(Path(path)) for path in paths[start : start + batch]])
            found.append(self.model.embed(x.to(like)).float().cpu())
        return torch.cat(found)

    @torch.no_grad()
    def nearness(self, x: Tensor) -> Tensor:
        """Cosine [N] of embeddings to the nearest class weight: how much they look like anything known."""
        head = self.model.objective.head
        if head is None:
            raise InputError(f"{self.run.loss} has no class weights that an image could be near to")
        unit, weight = direction(x.float())[0], direction(head.weight.detach().float().cpu())[0]
        return (unit @ weight.T).amax(1)

    @torch.no_grad()
    def chances(self, path: str | Path) -> list[tuple[str, float]]:
        """Every class with its probability for an image file, the likeliest first."""
        x = self._as_seen(Path(path)).to(next(self.model.parameters()))
        logits = self.model.eval().objective.logits(self.model.embed(x))[0]
        found = zip(self.sees["classes"], logits.double().softmax(0).tolist(), strict=True)
        return sorted(found, key=lambda pair: -pair[1])

    def seen(self, images: Images) -> Iterator[tuple[Tensor, Tensor]]:
        """Images of another set, as the network sees its own in evaluation."""
        augment, batch = self.augment, 500
        if images.x.shape[1] != self.sees["channels"]:
            have, wants = images.x.shape[1], self.sees["channels"]
            raise InputError(f"{images.name} has {have} channels, the run was trained on {wants}")
        for start in range(0, len(images), batch):
            yield (
                replace(augment, size=self.sees["size"]).evaluated(images.x[start : start + batch]),
                images.y[start : start + batch],
            )

    @property
    def augment(self) -> Augment:
        """How its images are made ready in evaluation."""
        return augment_from(self.sees)

    def _as_seen(self, path: Path) -> Tensor:
        """The file as one image as the network sees its own in evaluation."""
        from ..data.decode import fitted, read_image

        augment = self.augment
        image = read_image(path)
        if self.sees["channels"] == 1:
            image = image.convert("L").convert("RGB")
        pixels = fitted(image, self.sees["size"], augment.zoom(self.sees["native"]), augment.interpolation)
        x = torch.tensor(pixels).permute(2, 0, 1)[None, : self.sees["channels"]]
        return replace(augment, size=0, eval_zoom=1.0).evaluated(x)


def finished(folder: str | Path, which: str = "last", another: Another | None = None) -> Finished:
    """The run of a folder at a checkpoint: `last`, `best` or `epoch-0010`; `another` objective, if trained with one."""
    run = Run.read(folder)
    place = Path(folder) / "checkpoints" / which
    if not checkpoint.exists(place):
        there = sorted(entry.name for entry in place.parent.glob("*") if entry.suffix not in (".new", ".old"))
        raise InputError(f"{folder} has no checkpoint {which!r} (it has {', '.join(there) or 'none'})")
    tensors, state = checkpoint.load_judged(place)
    return kept_model(run, state.get("sees"), tensors, place, str(place / "state.json"), another)


def kept_model(
    run: Run, given: Any, tensors: dict[str, Tensor], place: Path, where: str, another: Another | None = None
) -> Finished:
    """The model of a run with weights that were kept; `given` is what it sees, as the file `where` has it."""
    sees = seen_by(given, where)
    try:
        model = rebuilt(run, sees, tensors, where, another)
    except InputError as error:
        said = str(error)
        raise InputError(said if said.startswith(where) else f"{where}: cannot be built again: {said}") from None
    if run.precision == "64-true":
        model.double()
    checkpoint.restore_module(model, tensors, str(place))
    return Finished(run, model.eval(), sees, place)


def seen_by(given: Any, where: str) -> dict[str, Any]:
    """What a network must know of its images, as a file has it; one line where that is not what we write."""
    try:
        sees = run_files.sees(given)
        augment_from(sees)
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: {error}; it was edited or is of another version, take an earlier one") from None
    return sees


def augment_from(sees: dict[str, Any]) -> Augment:
    """How images are made ready in evaluation."""
    from ..data.augment import Augment

    given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in sees["augment"].items()}
    return Augment(**given).for_evaluation()
