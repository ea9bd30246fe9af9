"""A trained run: its model from a checkpoint, to evaluate, to embed images and to predict their classes.

`inspect_run` collects what a report shows of it: embeddings of some test images, the most confident mistakes, pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.images.folder import scan_folder
from ..data.images.manifest import MANIFEST_NAME
from ..io import bounded
from ..io.errors import InputError
from ..io.locks import lock_folder, translate_disk_errors, write_chunks_atomic
from ..io.tensor_files import SafetensorsFile
from ..metrics.verification import VerificationMetrics, verification_metrics_of_embeddings
from ..models.attach import MarginModel, check_finite_outputs, embed
from ..numerics.angles import unit_and_norm
from ..recognition.evaluation import MAX_RETRIEVAL_IMAGES
from . import checkpoint, run_files
from .config import TrainConfig
from .evaluate import evaluate
from .inputs import Inputs, eval_batch_size, image_folder, load_inputs, read_run_manifest
from .model import rebuild_model, state_bytes

if TYPE_CHECKING:
    from ..data.images.augment import Augment
    from ..data.images.sets import Images
    from .inputs import Samples
    from .model import ObjectiveFactory


@dataclass(eq=False)
class Run:
    """A run's model as it is evaluated (averaged weights where there is an average) and what it knows of its images."""

    config: TrainConfig
    model: MarginModel
    input_spec: dict[str, Any]
    weights_path: Path

    folder: Path | None = None
    """The run folder; None for a model from a folder that `export --hub` wrote."""
    has_manifest: bool = False
    """Whether the run has a manifest of its images."""

    def evaluate(
        self, data_dir: str | None = None, *, flips: bool = True, inputs: Inputs | None = None
    ) -> dict[str, Any]:
        """The figures on the run's test images, and under "manifest" what became of its folder of images."""
        inputs = inputs or self.load_inputs(data_dir)
        if list(inputs.class_names) != self.input_spec["class_names"]:
            raise InputError(f"{self.config.data} has other classes than the run {self.weights_path} was trained on")
        found = evaluate(self.model, self.config, inputs, inputs.test, flips=flips)
        facts = inputs.manifest_summary()
        return {**found, "manifest": facts} if facts else found

    def load_inputs(self, data_dir: str | None, *, assign_new: bool = False) -> Inputs:
        """What the run is tested on: of a folder of images those that its manifest names, none that was trained on.

        `assign_new` gives a part to files that were added since, and writes that down in the run folder.
        """
        config = replace(self.config, batch_size=1, per_class=0, repeated_augmentation=1)
        root = image_folder(config)
        if root is None:
            return load_inputs(replace(config, train_fraction=1.0, val_fraction=0.0), data_dir, assign_new=assign_new)
        if self.folder is None:
            return self._load_inputs_without_run_folder(config, root)
        path = self.folder / MANIFEST_NAME
        if not assign_new:
            return self._load_manifest_inputs(config, data_dir, path)
        with lock_folder(self.folder):
            found = self._load_manifest_inputs(config, data_dir, path, assign_new=True)
            if found.manifest is not None and found.has_new_manifest:
                with translate_disk_errors(self.folder):
                    write_chunks_atomic(path, found.manifest.to_csv())
        return found

    def _load_manifest_inputs(
        self, config: TrainConfig, data_dir: str | None, path: Path, assign_new: bool = False
    ) -> Inputs:
        """The test images that the manifest names; those of a run of version 0.1.0 as it drew them."""
        assert self.folder is not None
        manifest = read_run_manifest(config, self.folder)
        if manifest is None and self.has_manifest:
            raise InputError(f"{path}: not there, so nobody knows which images were trained on; take a copy of it")
        if manifest is None and assign_new:
            raise InputError(f"{path}: not there; --assign-new goes with runs that have a manifest of their images")
        is_finished = assign_new and checkpoint.is_training_complete(
            self.folder / "checkpoints" / "last", config.epochs
        )
        found = load_inputs(
            config,
            data_dir,
            manifest=manifest,
            has_started=True,
            assign_new=assign_new,
            test_only=True,
            is_finished=is_finished,
        )
        then, now = _count_evaluated_images(self.read_record()) if manifest is None else None, len(found.test)
        if then is not None and then != now:
            said = f"{now:,} test images, {then:,} when the run ended"
            if not config.unseen_classes and scan_folder(config.data).test is not None:
                found.notes += (f"{said}: files of its test folder were added or removed since",)
            else:
                raise InputError(
                    f"{config.data}: {said}, and it has no manifest: nobody knows which were trained on; bring the "
                    "folder back to what it was, or train again"
                )
        return found

    def _load_inputs_without_run_folder(self, config: TrainConfig, root: Path) -> Inputs:
        """The test images as the folder gives them; which ones were drawn is not known outside of the run folder."""
        if scan_folder(root).test is None and not config.unseen_classes:
            raise InputError(
                f"{self.weights_path.parent}: which images of {root} were trained on stands in the run's "
                f"{MANIFEST_NAME} only; evaluate the run folder"
            )
        return load_inputs(config, None)

    def read_record(self) -> dict[str, Any]:
        """What `record.json` of the run says; nothing where it cannot be read."""
        try:
            found = bounded.read_json((self.folder or self.weights_path.parent) / "record.json")
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def embed_test_images(self, data_dir: str | None = None, *, inputs: Inputs | None = None) -> tuple[Tensor, Tensor]:
        """Embeddings and labels of the run's test images, those of unseen classes where it has such."""
        inputs = inputs or self.load_inputs(data_dir)
        return embed(self.model, inputs.eval_batches(inputs.test))

    def test_images(self, data_dir: str | None = None) -> Samples:
        """The images the run is evaluated on."""
        return self.load_inputs(data_dir).test

    @torch.no_grad()
    def embed_files(self, paths: Sequence[str | Path], batch_size: int = 256) -> Tensor:
        """Embeddings [N, D] of image files."""
        like, found = next(self.model.parameters()), []
        batch_size = eval_batch_size(batch_size, self.input_spec["channels"], self.input_spec["size"])
        self.model.eval()
        for start in range(0, len(paths), batch_size):
            x = torch.cat([self._preprocess_file(Path(path)) for path in paths[start : start + batch_size]])
            found.append(self.model.embed(x.to(like)).float().cpu())
        return check_finite_outputs(torch.cat(found))

    @torch.no_grad()
    def check_model_outputs(self) -> None:
        """Refuse a network whose output for a random image is not finite, before it is exported."""
        shape = (1, self.input_spec["channels"], self.input_spec["size"], self.input_spec["size"])
        image = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
        x = self.model.eval().embed(image.to(next(self.model.parameters())))
        check_finite_outputs(self.model.objective.logits(x) if self.model.objective.has_logits else x)

    @torch.no_grad()
    def nearest_class_cosine(self, x: Tensor) -> Tensor:
        """Cosine [N] of embeddings to the nearest class weight: how much they look like anything known."""
        head = self.model.objective.head
        if head is None:
            raise InputError(f"{self.config.loss} has no class weights that an image could be near to")
        unit, weight = unit_and_norm(x.float())[0], unit_and_norm(head.weight.detach().float().cpu())[0]
        return (unit @ weight.T).amax(1)

    @torch.no_grad()
    def predict(self, path: str | Path) -> list[tuple[str, float]]:
        """Every class with its probability for an image file, the likeliest first."""
        x = self._preprocess_file(Path(path)).to(next(self.model.parameters()))
        logits = check_finite_outputs(self.model.eval().objective.logits(self.model.embed(x)))[0]
        found = zip(self.input_spec["class_names"], logits.double().softmax(0).tolist(), strict=True)
        return sorted(found, key=lambda pair: -pair[1])

    def eval_batches(self, images: Images) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of images of another set, preprocessed as in evaluation, and their labels."""
        augment, batch = self.eval_augment, eval_batch_size(500, self.input_spec["channels"], self.input_spec["size"])
        if images.x.shape[1] != self.input_spec["channels"]:
            have, wants = images.x.shape[1], self.input_spec["channels"]
            raise InputError(f"{images.name} has {have} channels, the run was trained on {wants}")
        for start in range(0, len(images), batch):
            yield (
                replace(augment, size=self.input_spec["size"]).transform_for_evaluation(
                    images.x[start : start + batch]
                ),
                images.y[start : start + batch],
            )

    @property
    def eval_augment(self) -> Augment:
        """Preprocessing of the run's images in evaluation."""
        return build_eval_augment(self.input_spec)

    def _preprocess_file(self, path: Path) -> Tensor:
        """An image file as a batch of one, preprocessed as in evaluation."""
        from ..data.images.decode import read_image, resize_and_centre_crop

        augment = self.eval_augment
        image = read_image(path)
        if self.input_spec["channels"] == 1:
            image = image.convert("L").convert("RGB")
        pixels = resize_and_centre_crop(
            image, self.input_spec["size"], augment.zoom(self.input_spec["native_size"]), augment.interpolation
        )
        x = torch.tensor(pixels).permute(2, 0, 1)[None, : self.input_spec["channels"]]
        return replace(augment, size=0, eval_zoom=1.0).transform_for_evaluation(x)


def load_run(
    folder: str | Path, checkpoint_name: str = "last", objective_factory: ObjectiveFactory | None = None
) -> Run:
    """The run of a folder at a checkpoint: `last`, `best` or `epoch-0010`."""
    config = TrainConfig.read(folder)
    checkpoint_folder = Path(folder) / "checkpoints" / checkpoint_name
    if not checkpoint.exists(checkpoint_folder):
        there = sorted(
            entry.name for entry in checkpoint_folder.parent.glob("*") if entry.suffix not in (".new", ".old")
        )
        raise InputError(f"{folder} has no checkpoint {checkpoint_name!r} (it has {', '.join(there) or 'none'})")
    weights, state = checkpoint.open_eval_weights(checkpoint_folder)
    where = str(checkpoint_folder / "state.json")
    found = restore_run(config, state.get("input_spec"), weights, checkpoint_folder, where, objective_factory)
    return replace(found, folder=Path(folder), has_manifest="manifest" in state)


def restore_run(
    config: TrainConfig,
    raw_spec: Any,
    weights: checkpoint.EvalWeights | SafetensorsFile,
    weights_path: Path,
    where: str,
    objective_factory: ObjectiveFactory | None = None,
) -> Run:
    """The model of a run with weights that were kept; `raw_spec` is its input spec as it stands in `where`.

    The network is made first, no larger than its weights, and then the weights are read, if they are of its size.
    """
    input_spec = parse_input_spec(raw_spec, where)
    try:
        model = rebuild_model(config, input_spec, weights.nbytes, where, objective_factory)
    except InputError as error:
        message = str(error)
        raise InputError(
            message if message.startswith(where) else f"{where}: cannot be built again: {message}"
        ) from None
    if config.precision == "64-true":
        model.double()
    checkpoint.check_size(weights.nbytes, 2 * state_bytes(model), str(weights_path))
    checkpoint.restore_module(model, weights.read(), str(weights_path), weights.sources)
    return Run(config, model.eval(), input_spec, weights_path)


def _count_evaluated_images(record: dict[str, Any]) -> int | None:
    """How many images the figures of a record are of, where it says so."""
    try:
        found = run_files.parse_record(record)
    except ValueError:
        return None
    if found.get("confusion") is not None:
        return int(sum(found["confusion"].images))
    images = (found.get("test") or {}).get("images")
    return int(images) if images is not None and images < MAX_RETRIEVAL_IMAGES else None  # of more some are drawn


def parse_input_spec(raw_spec: Any, where: str) -> dict[str, Any]:
    """The input spec that a file holds, checked; an InputError where it is not as we write it."""
    try:
        input_spec = run_files.check_input_spec(raw_spec)
        build_eval_augment(input_spec)
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: {error}; it was edited or is of another version, take an earlier one") from None
    return input_spec


def build_eval_augment(input_spec: dict[str, Any]) -> Augment:
    """Preprocessing in evaluation of the images that an input spec describes."""
    from ..data.images.augment import Augment

    given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in input_spec["augment"].items()}
    return Augment(**given).for_evaluation()


MAX_REPORT_IMAGES = 1000  # images: enough to see, few enough to wait for
_NUM_MISTAKES = 12


@dataclass(frozen=True)
class Mistake:
    """An image that was named wrongly, and how sure the run was."""

    pixels: NDArray[np.uint8]
    true_class: str
    predicted_class: str
    probability: float


@dataclass(frozen=True, eq=False)
class RunInspection:
    """What a report shows of a run's test images."""

    num_images: int
    unit_embeddings: NDArray[np.float64]
    """Unit embeddings [N, D]."""
    y: NDArray[np.int64]
    class_names: tuple[str, ...]
    mistakes: list[Mistake]
    weights: NDArray[np.float64] | None
    """Unit class weights [C, D], where they are those of the images' classes."""
    verification: VerificationMetrics | None = None
    """Metrics of all pairs of the images, where the run is evaluated by pairs."""
    note: str = ""
    """Which images of a folder these are, and what became of the others."""


@torch.no_grad()
def inspect_run(run: Run, data_dir: str | None = None, max_images: int = MAX_REPORT_IMAGES) -> RunInspection:
    """What a report shows of a run, from at most `max_images` test images drawn with the run's seed."""
    inputs = run.load_inputs(data_dir)
    if list(inputs.class_names) != run.input_spec["class_names"]:
        raise InputError(f"{run.config.data_name} has other classes now than the run was trained on")
    test: Any = inputs.test
    rows = (
        torch.randperm(len(test), generator=torch.Generator().manual_seed(run.config.seed))[:max_images].sort().values
    )
    some = test.take(rows)
    x, y = embed(run.model, inputs.eval_batches(some))
    objective = run.model.objective
    answers = objective.has_logits and not run.config.unseen_classes
    mistakes: list[Mistake] = []
    if answers and getattr(some, "x", None) is not None:
        probabilities, predicted = objective.logits(x.to(next(run.model.parameters()))).float().softmax(1).max(1)
        wrong = (predicted != y).nonzero().squeeze(1)
        for row in wrong[probabilities[wrong].argsort(descending=True)][:_NUM_MISTAKES].tolist():
            names = some.class_names
            mistakes.append(
                Mistake(some.x[row].numpy(), names[y[row]], names[predicted[row]], float(probabilities[row]))
            )
    head = objective.head
    weights = (
        None if head is None or run.config.unseen_classes else unit_and_norm(head.weight.detach().double())[0].numpy()
    )
    unit = unit_and_norm(x.double())[0]
    pairs = None if answers else _verify_all_pairs(x, y)
    note = " ".join(inputs.notes) if inputs.changes is None else inputs.changes.summary()
    return RunInspection(len(y), unit.numpy(), y.numpy(), tuple(some.class_names), mistakes, weights, pairs, note)


def _verify_all_pairs(x: Tensor, y: Tensor) -> VerificationMetrics | None:
    """Metrics of all pairs of the images; None where no class has two of them."""
    try:
        return verification_metrics_of_embeddings(x, y)
    except InputError:
        return None
