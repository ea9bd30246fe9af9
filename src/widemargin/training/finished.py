"""A run that has been trained: its model out of a checkpoint, to be judged and to name images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import plain_json
from ..angle import direction
from ..classifier import MarginModel
from ..data.folder import scan_folder
from ..data.manifest import NAME
from ..errors import InputError
from ..folder_lock import alone_in
from ..run import Run
from ..tensor_files import StoredTensors
from . import checkpoint, run_files
from .inputs import Inputs, at_once, image_folder, inputs_of, kept_manifest
from .judging import judge
from .network import rebuilt, state_bytes
from .unseen import MOST, check_answers, embed
from .writing import write_pieces, writing

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

    folder: Path | None = None
    """The run folder, where the model is not from a folder of its own (`export --hub`)."""
    listed: bool = False
    """Whether the run has a manifest of its images."""

    def judge(self, data_dir: str | None = None, *, flips: bool = True, inputs: Inputs | None = None) -> dict[str, Any]:
        """The figures on the run's test images, and under "manifest" what became of its folder of images."""
        inputs = inputs or self.inputs(data_dir)
        if list(inputs.classes) != self.sees["classes"]:
            raise InputError(f"{self.run.data} has other classes than the run {self.place} was trained on")
        found = judge(self.model, self.run, inputs, inputs.test, flips=flips)
        facts = inputs.manifest_facts()
        return {**found, "manifest": facts} if facts else found

    def inputs(self, data_dir: str | None, *, assign_new: bool = False) -> Inputs:
        """What the run is tested on: of a folder of images those that its manifest names, none that was trained on.

        `assign_new` gives a part to files that were added since, and writes that down in the run folder.
        """
        run = replace(self.run, batch_size=1, per_class=0, repeats=1)
        root = image_folder(run)
        if root is None:
            return inputs_of(replace(run, share=1.0, hold_out=0.0), data_dir, assign_new=assign_new)
        if self.folder is None:
            return self._without_run_folder(run, root)
        path = self.folder / NAME
        if not assign_new:
            return self._listed(run, data_dir, path)
        with alone_in(self.folder):
            found = self._listed(run, data_dir, path, assign_new=True)
            if found.manifest is not None and found.drawn:
                with writing(self.folder):
                    write_pieces(path, found.manifest.to_csv())
        return found

    def _listed(self, run: Run, data_dir: str | None, path: Path, assign_new: bool = False) -> Inputs:
        """The test images that the manifest names; those of a run of version 0.1.0 as it drew them."""
        assert self.folder is not None
        manifest = kept_manifest(run, self.folder)
        if manifest is None and self.listed:
            raise InputError(f"{path}: not there, so nobody knows which images were trained on; take a copy of it")
        if manifest is None and assign_new:
            raise InputError(f"{path}: not there; --assign-new goes with runs that have a manifest of their images")
        ended = assign_new and checkpoint.has_ended(self.folder / "checkpoints" / "last", run.epochs)
        found = inputs_of(
            run, data_dir, manifest=manifest, begun=True, assign_new=assign_new, only_test=True, ended=ended
        )
        then, now = _images_judged(self.record()) if manifest is None else None, len(found.test)
        if then is not None and then != now:
            said = f"{now:,} test images, {then:,} when the run ended"
            if not run.unseen and scan_folder(run.data).test is not None:
                found.notes += (f"{said}: files of its test folder were added or removed since",)
            else:
                raise InputError(
                    f"{run.data}: {said}, and it has no manifest: nobody knows which were trained on; bring the folder "
                    "back to what it was, or train again"
                )
        return found

    def _without_run_folder(self, run: Run, root: Path) -> Inputs:
        """The test images as the folder gives them; which ones were drawn is not known outside of the run folder."""
        if scan_folder(root).test is None and not run.unseen:
            raise InputError(
                f"{self.place.parent}: which images of {root} were trained on stands in the run's {NAME} only; "
                "evaluate the run folder"
            )
        return inputs_of(run, None)

    def record(self) -> dict[str, Any]:
        """What `record.json` of the run says; nothing where it cannot be read."""
        try:
            found = plain_json.read((self.folder or self.place.parent) / "record.json")
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def embeddings(self, data_dir: str | None = None, *, inputs: Inputs | None = None) -> tuple[Tensor, Tensor]:
        """Embeddings and labels of the run's test images, those of unseen classes where it has such."""
        inputs = inputs or self.inputs(data_dir)
        return embed(self.model, inputs.judged(inputs.test))

    def test_images(self, data_dir: str | None = None) -> Samples:
        """The images the run is judged on."""
        return self.inputs(data_dir).test

    @torch.no_grad()
    def embed_files(self, paths: Sequence[str | Path], batch: int = 256) -> Tensor:
        """Embeddings [N, D] of image files."""
        like, found = next(self.model.parameters()), []
        batch = at_once(batch, self.sees["channels"], self.sees["size"])
        self.model.eval()
        for start in range(0, len(paths), batch):
            x = torch.cat([self._as_seen(Path(path)) for path in paths[start : start + batch]])
            found.append(self.model.embed(x.to(like)).float().cpu())
        return check_answers(torch.cat(found))

    @torch.no_grad()
    def check_sound(self) -> None:
        """Refuse a network that gives no numbers for an image, before it is handed on."""
        shape = (1, self.sees["channels"], self.sees["size"], self.sees["size"])
        image = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
        x = self.model.eval().embed(image.to(next(self.model.parameters())))
        check_answers(self.model.objective.logits(x) if self.model.objective.classifies else x)

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
        logits = check_answers(self.model.eval().objective.logits(self.model.embed(x)))[0]
        found = zip(self.sees["classes"], logits.double().softmax(0).tolist(), strict=True)
        return sorted(found, key=lambda pair: -pair[1])

    def seen(self, images: Images) -> Iterator[tuple[Tensor, Tensor]]:
        """Images of another set, as the network sees its own in evaluation."""
        augment, batch = self.augment, at_once(500, self.sees["channels"], self.sees["size"])
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
    weights, state = checkpoint.load_judged(place)
    found = kept_model(run, state.get("sees"), weights, place, str(place / "state.json"), another)
    return replace(found, folder=Path(folder), listed="manifest" in state)


def kept_model(
    run: Run,
    given: Any,
    weights: checkpoint.Judged | StoredTensors,
    place: Path,
    where: str,
    another: Another | None = None,
) -> Finished:
    """The model of a run with weights that were kept; `given` is what it sees, as the file `where` has it.

    The network is made first, no larger than its weights, and then the weights are read, if they are of its size.
    """
    sees = seen_by(given, where)
    try:
        model = rebuilt(run, sees, weights.nbytes, where, another)
    except InputError as error:
        said = str(error)
        raise InputError(said if said.startswith(where) else f"{where}: cannot be built again: {said}") from None
    if run.precision == "64-true":
        model.double()
    checkpoint.check_size(weights.nbytes, 2 * state_bytes(model), str(place))
    checkpoint.restore_module(model, weights.read(), str(place), weights.held)
    return Finished(run, model.eval(), sees, place)


def _images_judged(record: dict[str, Any]) -> int | None:
    """How many images the figures of a record are of, where it says so."""
    try:
        found = run_files.record(record)
    except ValueError:
        return None
    if found.get("confusion") is not None:
        return int(sum(found["confusion"].images))
    images = (found.get("test") or {}).get("images")
    return int(images) if images is not None and images < MOST else None  # of more some are drawn


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
