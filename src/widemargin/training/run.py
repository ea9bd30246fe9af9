"""`Run`: a trained model, with methods to evaluate, embed, predict, verify, calibrate and export."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from ..export import hub as hub_files
from ..io.errors import InputError, spell_option
from ..models.attach import MarginModel, check_finite_outputs, embed, to_model_input
from ..numerics.angles import angle_between, group_weights, nearest_cosines, unit_and_norm
from ..recognition.calibration import CALIBRATION_FILE, Calibration
from ..viz.charts import Line, draw_epoch_curves
from ..viz.colours import loss_colour
from ..viz.page import table
from .config import TrainConfig, format_with_options
from .evaluate import format_metrics
from .evaluation import Evaluation, evaluate_run
from .image_inputs import Inputs
from .logging import MetricsLog
from .model import MODULE_PREFIX
from .run_calibration import compute_fingerprint, fit_calibration, load_calibration, store_calibration
from .run_inputs import (
    build_eval_augment,
    describe_data_changes,
    is_single,
    iter_model_inputs,
    load_inputs_for_threshold,
    load_test_inputs,
)
from .run_results import Prediction, RejectionThreshold, Verification

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..data.images.augment import Augment


@dataclass(eq=False, repr=False)
class Run:
    """A run's model as evaluated (with averaged weights if there are any), and the specification of its inputs."""

    config: TrainConfig
    model: MarginModel
    input_spec: dict[str, Any]
    weights_path: Path

    folder: Path | None = None
    """The run folder; None for a model from a folder that `export --hub` wrote."""
    has_manifest: bool = False
    """Whether the run has a manifest of its images."""
    record: dict[str, Any] = field(default_factory=dict)
    """Test metrics, time, versions and command of a finished run; {} until all epochs are trained."""
    test: Any = None
    """The test items passed to `train`; None for a loaded run."""
    _embedding_dim: int | None = None

    @property
    def history(self) -> list[dict[str, Any]]:
        """Metrics of each epoch from `metrics.jsonl`: loss, train_top1, lr, val, …"""
        return [] if self.folder is None else MetricsLog.read_epochs(self.folder / "metrics.jsonl")

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(self.input_spec["class_names"])

    @property
    def embedding_dim(self) -> int:
        """Dimension of the embeddings."""
        if self._embedding_dim is None:
            self._embedding_dim = self._embed_example().shape[1]
        return self._embedding_dim

    @torch.no_grad()
    def _embed_example(self) -> Tensor:
        """The embedding of a random input."""
        return self.model.eval().embed(to_model_input(self.example_input(), next(self.model.parameters())))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the weights and the preprocessing that decide an embedding."""
        return compute_fingerprint(self)

    @property
    def calibration(self) -> Calibration | None:
        """Thresholds by false accept rate that were stored for these weights; None until `calibrate`."""
        return load_calibration(self)

    def calibrate(
        self, images: str | Path | Mapping[str, Any] | None = None, *, data_dir: str | Path | None = None
    ) -> Calibration:
        """Fit thresholds (false accept rate → cosine) and store them with the run; exports and galleries copy them.

        Args:
            images: identities the run never trained on: a folder with a folder per identity, an index file, or a
                mapping from an identity to image files; by default the run's own unseen classes.
            data_dir: folder with the data sets.
        """
        found = fit_calibration(self, images, data_dir)
        store_calibration(self, found)
        return found

    @property
    def needs_module(self) -> bool:
        """Whether the network was passed as a module and must be passed again to load the run."""
        return self.config.model.startswith(MODULE_PREFIX)

    def evaluate(
        self,
        *,
        protocol: str | None = None,
        pairs: str | Path | None = None,
        test: Any = None,
        flips: bool = True,
        data_dir: str | Path | None = None,
        assign_new: bool = False,
        inputs: Inputs | None = None,
        **settings: Any,
    ) -> Evaluation:
        """Metrics on the run's test items, or on `test`; arguments as in `widemargin.evaluate`.

        A run on data given in Python is tested on what `train` was given; after `load` give `test` again.
        """
        if inputs is None and pairs is None:
            inputs = self.load_inputs(data_dir, test=test, assign_new=assign_new)
        return evaluate_run(
            self,
            inputs,
            protocol=protocol,
            pairs=pairs,
            flips=flips,
            assign_new=assign_new,
            data_dir=data_dir,
            **settings,
        )

    def load_inputs(self, data_dir: str | Path | None = None, *, test: Any = None, assign_new: bool = False) -> Inputs:
        """The test inputs of the run: see `run_inputs.load_test_inputs`."""
        return load_test_inputs(self, data_dir, test=test, assign_new=assign_new)

    def embed_test_images(
        self, data_dir: str | Path | None = None, *, inputs: Inputs | None = None
    ) -> tuple[Tensor, Tensor]:
        """Embeddings and labels of the run's test images, or of its unseen classes if it has any."""
        inputs = inputs or self.load_inputs(data_dir)
        return embed(self.model, inputs.eval_batches(inputs.test_samples))

    def to(self, device: str | torch.device) -> Run:
        """The same run with its model on a device, such as "cuda"."""
        try:
            self.model.to(device)
        except (RuntimeError, AssertionError) as error:  # torch has no error type for a device that is not there
            why = " ".join(str(error).split(". ")[0].split())
            raise InputError(f"{spell_option('device', str(device))} cannot be used: {why}") from None
        return self

    @torch.no_grad()
    def embed(
        self, images: Any, *, batch_size: int = 256, normalize: bool = True, workers: int | None = None
    ) -> Tensor:
        """Embeddings [N, D] of length 1 on the CPU; the product of two of them is their cosine.

        Args:
            images: a path or several, PIL images, arrays uint8 [H, W, 3] (RGB) of any size, images uint8 [N, C, H, W]
                or floats from 0 to 1, or a dataset; for a run on data given in Python arrays or a dataset of such
                items. One of them gives [1, D].
            batch_size: maximum number of images per batch.
            normalize: scale embeddings to length 1; their lengths are those of the network otherwise.
            workers: threads that decode files; by default one per core.
        """
        like = next(self.model.parameters())
        self.model.eval()
        batches = iter_model_inputs(self, images, batch_size, workers)
        found = [self.model.embed(to_model_input(x, like)).float().cpu() for x in batches]
        if not found:
            raise InputError("there are no images to embed")
        x = check_finite_outputs(torch.cat(found))
        return unit_and_norm(x)[0] if normalize else x

    @property
    def is_open_set(self) -> bool:
        """Whether the run is tested on classes that it was not trained on."""
        return bool(self.config.unseen_classes or self.input_spec.get("open_set", False))

    @property
    def is_multilabel(self) -> bool:
        """Whether an input may have several labels, or none."""
        return bool(self.input_spec.get("multilabel", False))

    @overload
    def predict(
        self,
        images: str | Path,
        *,
        top: int | None = None,
        threshold: float | None = None,
        reject_below: float | None = None,
        batch_size: int = 256,
        workers: int | None = None,
    ) -> Prediction: ...
    @overload
    def predict(
        self,
        images: list[Any],
        *,
        top: int | None = None,
        threshold: float | None = None,
        reject_below: float | None = None,
        batch_size: int = 256,
        workers: int | None = None,
    ) -> list[Prediction]: ...
    @overload
    def predict(
        self,
        images: Any,
        *,
        top: int | None = None,
        threshold: float | None = None,
        reject_below: float | None = None,
        batch_size: int = 256,
        workers: int | None = None,
    ) -> Prediction | list[Prediction]: ...
    @torch.no_grad()
    def predict(
        self,
        images: Any,
        *,
        top: int | None = None,
        threshold: float | None = None,
        reject_below: float | None = None,
        batch_size: int = 256,
        workers: int | None = None,
    ) -> Prediction | list[Prediction]:
        """Classes with their probabilities, most likely first; a list of these for several images.

        Probabilities are the softmax of the logits, also of losses that are no softmax over the classes (sphereface2,
        uniface, p2sgrad), whose probabilities order the classes but are not calibrated. A run with several labels per
        image gives each label a probability of its own, the sigmoid of its logit.

        Args:
            images: as in `embed`.
            top: number of classes to return; all by default.
            threshold: minimum probability of a class to return, such as 0.5 for several labels per image; by default
                all are returned.
            reject_below: cosine to the nearest class below which an image is unknown and gets no class; see
                `rejection_threshold`.
            batch_size: maximum number of images per batch.
            workers: threads that decode files; by default one per core.
        """
        if top is not None and top < 1:
            raise InputError(f"{spell_option('top')} must be at least 1, got {top}")
        if threshold is not None and not 0.0 <= threshold <= 1.0:
            raise InputError(f"{spell_option('threshold')} must be a probability from 0 to 1, got {threshold:g}")
        x = self.embed(images, batch_size=batch_size, normalize=False, workers=workers)
        has_weights = self.model.objective.head is not None
        cosines = self.nearest_class_cosine(x).tolist() if has_weights or reject_below is not None else [None] * len(x)
        like = next(self.model.parameters())
        logits = check_finite_outputs(self.model.objective.logits(x.to(like)).cpu()).double()
        found = []
        chances = logits.sigmoid() if self.is_multilabel else logits.softmax(1)
        for probabilities, cosine in zip(chances.tolist(), cosines, strict=True):
            known = cosine is None or reject_below is None or cosine >= reject_below
            pairs = sorted(zip(self.class_names, probabilities, strict=True), key=lambda pair: -pair[1])[:top]
            pairs = [pair for pair in pairs if threshold is None or pair[1] >= threshold]
            prediction = Prediction(pairs if known else ())
            prediction.cosine, prediction.is_unknown = cosine, not known
            found.append(prediction)
        return found[0] if is_single(self, images) else found

    def rejection_threshold(
        self,
        *,
        reject_below: float | None = None,
        target_far: float | None = None,
        data_dir: str | Path | None = None,
    ) -> RejectionThreshold:
        """Cosine below which an image is unknown: as given, or that which `target_far` of the unseen images reach."""
        from ..recognition.protocols import threshold_of_unknown_scores

        if reject_below is not None and target_far is not None:
            raise InputError(
                f"{spell_option('reject_below')} and {spell_option('target_far')} both set the threshold; "
                "use one of them"
            )
        if reject_below is not None:
            if not -1.0 <= reject_below <= 1.0:
                raise InputError(f"{spell_option('reject_below')} must be a cosine from -1 to 1, got {reject_below:g}")
            return RejectionThreshold(float(reject_below))
        if target_far is None:
            return RejectionThreshold(None)
        _check_far(target_far)
        if not self.is_open_set:
            raise InputError(
                f"{spell_option('target_far')} needs images of unknown classes: train with "
                f"{spell_option('unseen_classes')} or a test folder of other classes, or use "
                f"{spell_option('reject_below')}"
            )
        inputs = load_inputs_for_threshold(self, data_dir, "reject_below")
        scores = self.nearest_class_cosine(self.embed_test_images(inputs=inputs)[0])
        notes = tuple(describe_data_changes(inputs, only_changes=True))
        return RejectionThreshold(threshold_of_unknown_scores(scores, target_far), notes)

    def verify(
        self,
        a: Any,
        b: Any,
        *,
        threshold: float | None = None,
        target_far: float = 0.01,
        data_dir: str | Path | None = None,
    ) -> Verification:
        """Decide whether two images are of the same class.

        Args:
            a: the first image: a path, a PIL image, or an array, as in `embed`.
            b: the second.
            threshold: cosine from which they are the same; by default that of `target_far` in the run's calibration,
                or, without one, that which `target_far` of the different pairs of its test images pass.
            target_far: false accept rate of that threshold.
            data_dir: folder with the data sets.
        """
        from ..recognition.protocols import calibrated_threshold

        _check_far(target_far)
        if threshold is not None and not -1.0 <= threshold <= 1.0:
            raise InputError(f"{spell_option('threshold')} must be a cosine from -1 to 1, got {threshold:g}")
        pair = torch.cat([self.embed(a), self.embed(b)])
        if len(pair) != 2:
            raise InputError(f"verify compares two images, got {len(pair)}; use embed for several")
        one, other = unit_and_norm(pair)[0]
        cosine, angle = float(one @ other), math.degrees(float(angle_between(one, other)))
        why, notes = "as given", tuple[str, ...]()
        calibration = self.calibration if threshold is None else None
        if calibration is not None:
            calibrated = calibration.threshold(target_far)
            threshold, why = calibrated.cosine, calibrated.why
        if threshold is None and self.test is None and "shape" in self.input_spec:
            raise InputError(
                f"the run has no test images to calibrate a threshold on: pass {spell_option('threshold')}"
            )
        if threshold is None:
            inputs = load_inputs_for_threshold(self, data_dir, "threshold")
            notes = tuple(describe_data_changes(inputs, only_changes=True))
            threshold = calibrated_threshold(*self.embed_test_images(inputs=inputs), target_far)
            why = f"{100 * target_far:g} % of different pairs pass"
        return Verification(cosine >= threshold, cosine, angle, threshold, why, notes)

    def export(
        self,
        *,
        onnx: str | Path | None = None,
        safetensors: str | Path | None = None,
        hub: str | Path | None = None,
        licence: str = "not stated",
    ) -> list[str]:
        """Write the model to files, and return one line about each file.

        Args:
            onnx: ONNX file, checked by onnxruntime, with a JSON file beside it.
            safetensors: the weights alone.
            hub: folder with weights, metadata and a model card, which `widemargin.load` reads.
            licence: of the weights, for the card.
        """
        if not (onnx or safetensors or hub):
            outputs = ", ".join(map(spell_option, ("onnx", "safetensors", "hub")))
            raise InputError(f"export: no output given; use at least one of {outputs}")
        self.check_model_outputs()
        lines = []
        if onnx:
            from ..export.onnx import write_onnx

            difference = write_onnx(self, Path(onnx))
            lines.append(f"wrote {onnx}: onnxruntime agrees with PyTorch to {difference:.1e}")
        if safetensors:
            hub_files.write_weights(self, Path(safetensors))
            lines.append(f"wrote {safetensors}")
        if hub:
            hub_files.write_folder(self, Path(hub), licence)
            lines.append(f"wrote {hub}: model.safetensors, widemargin.json, README.md")
            if self.calibration is not None:
                store_calibration(self, self.calibration, Path(hub))
                lines[-1] += f", {CALIBRATION_FILE}"
        return lines

    @torch.no_grad()
    def check_model_outputs(self) -> None:
        """Raise InputError if the network's output for a random input is not finite; called before export."""
        x = self._embed_example()
        check_finite_outputs(self.model.objective.logits(x) if self.model.objective.has_logits else x)

    def example_input(self, count: int = 1) -> Tensor:
        """Random inputs [count, …] of the network's input shape; zeros if the inputs are integers."""
        spec = self.input_spec
        shape = spec.get("shape") or (spec["channels"], spec["size"], spec["size"])
        if spec.get("dtype") == "int64":
            return torch.zeros(count, *shape, dtype=torch.int64)
        return torch.rand(count, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)

    @torch.no_grad()
    def nearest_class_cosine(self, x: Tensor) -> Tensor:
        """Cosine [N] of embeddings to the nearest class weight, a measure of similarity to the known classes.

        Where classes have sub-centres, each of them is such a weight.
        """
        head = self.model.objective.head
        if head is None:
            raise InputError(f"{self.config.loss} has no class weights to compare an image with")
        unit, weight = unit_and_norm(x.float())[0], unit_and_norm(head.weight.detach().float().cpu())[0]
        return nearest_cosines(unit.unsqueeze(1), group_weights(weight)).amax(1)

    @property
    def eval_augment(self) -> Augment:
        """Preprocessing of the run's images in evaluation."""
        if "augment" not in self.input_spec:
            raise InputError("the run was trained on data passed in Python, which has no preprocessing")
        return build_eval_augment(self.input_spec)

    def _facts(self) -> list[tuple[str, str]]:
        """Names and values shown by `repr` and in notebooks."""
        config, test = self.config, self.record.get("test")
        state = f"{config.epochs} epochs"
        if not self.record and self.folder is not None:
            state = f"{len(self.history)} of {config.epochs} epochs"
        facts = [
            ("loss", config.loss),
            ("data", f"{config.data_name}, {len(self.class_names):,} classes"),
            ("model", format_with_options(config.model, config.model_options)),
            ("trained", state),
        ]
        if test:
            facts.append(("test", format_metrics({**test, "intervals": self.record.get("intervals")})))
        return [*facts, ("folder", str(self.folder or self.weights_path.parent))]

    def __repr__(self) -> str:
        return "Run(" + ", ".join(f"{name}: {value}" for name, value in self._facts()) + ")"

    def _repr_html_(self) -> str:
        """A small table, and the loss over the epochs, for notebooks."""
        found = table(("run", ""), [((name, ""), (value, "")) for name, value in self._facts()])
        points = [(float(line["epoch"]), float(line.get("loss", math.nan))) for line in self.history]
        points = [(epoch, loss) for epoch, loss in points if math.isfinite(loss)]
        if len(points) > 1:
            series = Line("", points, loss_colour(self.config.loss))
            curve = draw_epoch_curves([series], "loss", f"loss over the epochs of {self.config.loss}")
            # A notebook lacks the style sheet of the pages, which sets size and colour of the text.
            found += f'<div style="max-width: 480px; font-size: 12px; fill: currentColor">{curve.to_svg()}</div>'
        return found


def _check_far(target_far: float) -> None:
    if not 0.0 < target_far < 1.0:
        raise InputError(f"{spell_option('target_far')} must be between 0 and 1, got {target_far:g}")
