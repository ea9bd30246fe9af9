"""A run as one ONNX file: images in, embeddings and logits out; checked against PyTorch after writing.

The graph contains the conversion from bytes to normalised values, the network, and the class weights with logits
without margin. A JSON file next to it describes the input, the names of the classes, and the origin.
"""

from __future__ import annotations

import copy
import importlib
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..io.errors import InputError
from ..io.resources import temporary_environment

if TYPE_CHECKING:
    from ..training.run import Run


MAX_RELATIVE_DIFFERENCE = 1e-4
_NUM_CHECK_IMAGES = 5


class ExportModule(nn.Module):
    """The exported graph: uint8 images [N, C, H, W] → embeddings [N, D] and, if there are classes, logits."""

    mean: Tensor
    std: Tensor

    def __init__(self, run: Run) -> None:
        super().__init__()
        like = next(run.model.parameters())
        is_exportable = like.device.type == "cpu" and like.dtype == torch.float32
        self.model = (run.model if is_exportable else copy.deepcopy(run.model).to("cpu", torch.float32)).eval()
        self.takes_images = "shape" not in run.input_spec  # otherwise items of a dataset, which are used unchanged
        for name in ("mean", "std") if self.takes_images else ():
            self.register_buffer(name, torch.tensor(getattr(run.eval_augment, name)).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        x = (images.to(torch.float32) / 255.0 - self.mean) / self.std if self.takes_images else images
        embedding = self.model.embed(x)
        if not self.model.objective.has_logits:
            return (embedding,)
        return embedding, self.model.objective.logits(embedding)


def write_onnx(run: Run, path: Path) -> float:
    """Write the file and its JSON; return the largest relative difference from PyTorch, at most 1e-4."""
    with _isolate_onnxruntime():
        return _export_and_check(run, path)


def _export_and_check(run: Run, path: Path) -> float:
    try:
        onnxruntime: Any = importlib.import_module("onnxruntime")
        importlib.import_module("onnxscript")  # required by the exporter; checked here for a clear message
    except ImportError:
        raise InputError('ONNX export needs onnx, onnxscript and onnxruntime: pip install "widemargin[onnx]"') from None
    module = ExportModule(run)
    images = run.example_input(_NUM_CHECK_IMAGES)
    if module.takes_images:
        images = torch.randint(256, images.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    names = ["embedding", "logits"] if module.model.objective.has_logits else ["embedding"]
    fresh = path.with_name(f".{path.stem}.new.onnx")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with torch.no_grad(), _suppress_export_logging():
            torch.onnx.export(
                module,
                (images[:2],),
                str(fresh),
                input_names=["images"],
                output_names=names,
                dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1)}},
                dynamo=True,
                external_data=False,
                verbose=False,
            )
            expected = module(images)
        session = onnxruntime.InferenceSession(str(fresh), providers=["CPUExecutionProvider"])
        outputs = [session.run(None, {"images": images[:count].numpy()}) for count in (1, _NUM_CHECK_IMAGES)]
        difference = max(
            _relative_difference(a[: len(b)], torch.from_numpy(b))
            for got in outputs
            for a, b in zip(expected, got, strict=True)
        )
        if not difference <= MAX_RELATIVE_DIFFERENCE:
            raise InputError(
                f"{path}: onnxruntime differs from PyTorch by {difference:.1e}, more than {MAX_RELATIVE_DIFFERENCE:g}"
            )
        path.with_suffix(".json").write_text(
            json.dumps(onnx_metadata(run), indent=1, ensure_ascii=False), encoding="utf-8"
        )
        fresh.replace(path)
        return difference
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        fresh.unlink(missing_ok=True)


def _relative_difference(expected: Tensor, actual: Tensor) -> float:
    return float((expected - actual).abs().max() / expected.abs().max().clamp(min=1e-12))


def onnx_metadata(run: Run) -> dict[str, Any]:
    """Return the metadata needed to use the ONNX file: input, outputs, class names, origin."""
    input_spec = run.input_spec
    facts = {
        "outputs": {
            "embedding": "compare by cosine",
            "logits": f"{'sigmoid' if run.is_multilabel else 'softmax'} gives probabilities",
        },
        "class_names": input_spec["class_names"],
        "loss": run.config.loss,
        "model": run.config.model,
        "data": Path(run.config.data).name,
    }
    if "shape" in input_spec:
        dtype = "int64" if input_spec["dtype"] == "int64" else "float32"
        return {"input": {"name": "images", "dtype": dtype, "shape": ["batch", *input_spec["shape"]]}, **facts}
    return {
        "input": {
            "name": "images",
            "dtype": "uint8",
            "shape": ["batch", input_spec["channels"], input_spec["size"], input_spec["size"]],
            "colours": "RGB" if input_spec["channels"] == 3 else "grey",
            "resize_shorter_side_to": int(input_spec["size"] * run.eval_augment.zoom(input_spec["native_size"])),
            "then_centre_crop_to": input_spec["size"],
            "interpolation": run.eval_augment.interpolation,
        },
        **facts,
    }


@contextmanager
def _isolate_onnxruntime() -> Iterator[None]:
    """Give onnxruntime a temporary cache folder and disable its telemetry.

    Its official builds store a machine identifier and telemetry events in the user's cache, beginning with the import,
    unless disabled before (its Privacy.md).
    """
    with tempfile.TemporaryDirectory(prefix="widemargin-", ignore_cleanup_errors=True) as folder:
        names = ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED")  # the second one in some versions
        with temporary_environment({"XDG_CACHE_HOME": folder, **dict.fromkeys(names, "1")}):
            yield


@contextmanager
def _suppress_export_logging() -> Iterator[None]:
    """Silence log messages and warnings of the exporter, which are of no use to users."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
