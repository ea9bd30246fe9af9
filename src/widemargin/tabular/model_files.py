"""A fitted `MarginClassifier` as a folder: `widemargin.json` and `model.safetensors`; nothing is pickled or executed.

    model = wm.fit("my.csv", target="y", out="model")     # or MarginClassifier(…).fit(X, y).save("model")
    model = wm.load("model")                              # in any process, with the same predictions

The JSON holds how each column of a table is read (kinds, levels, decimal signs, the order of day and month, the first
day), the classes, the loss, the settings, the temperature, seed, versions and the command; the tensors hold medians,
scaling, network and class weights. A folder may come from an untrusted source: sizes follow from the tensors in the
file and not from numbers in the JSON, and every inconsistency is refused in one line.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data.tabular.encoder import TableEncoder
from ..data.tabular.readings import ColumnReading
from ..io import bounded
from ..io.errors import InputError, format_value, spell_option
from ..io.locks import write_text_atomic
from ..io.provenance import versions
from ..io.tensor_files import all_finite, clone_contiguous, read_safetensors_header
from ..losses.class_counts import with_class_counts
from ..losses.grammar import Sum, parse
from ..losses.margin import Margin
from ..metrics.classification import MAX_TEMPERATURE, MIN_TEMPERATURE
from .batched import StackedNetwork, StackedTable
from .batched_objective import StackedCriterion, StackedHead, build_head, check_stacked_loss, head_loss
from .config import MLPConfig
from .novelty import NoveltyDetector
from .single import ColumnScaler, TrainedMLP

if TYPE_CHECKING:
    from .estimator import MarginClassifier

KIND, FORMAT_VERSION = "table_model", 1
METADATA_FILE, WEIGHTS_FILE = "widemargin.json", "model.safetensors"
_PREPROCESSING_TENSORS = ("shift", "scale", "fill", "decorrelation", "projection")
_CLASS_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
_UNSTORED_PARAMETERS = ("loss", "random_state", "device", "class_weight")


# ---------------------------------------------------------------- writing


def save_model(model: MarginClassifier, folder: Path, *, overwrite: bool = False, command: str = "") -> Path:
    """Write a fitted model to a folder, which appears under its name when it is complete."""
    from safetensors.torch import save_file

    folder = folder.expanduser()
    check_out_folder(folder, overwrite)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            save_file(clone_contiguous(_model_tensors(model)), fresh / WEIGHTS_FILE)
            write_text_atomic(fresh / METADATA_FILE, _format_metadata(model, command))
            fresh.chmod(0o755)
            _move_into_place(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror or error}); choose another folder") from None
    return folder


def check_out_folder(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that is not empty, unless it holds a model and may be overwritten."""
    folder = folder.expanduser()
    if not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    if not overwrite:
        raise InputError(
            f"{folder}: exists already; choose another {spell_option('out')}, or use {spell_option('overwrite', True)}"
        )
    if folder.is_symlink() or not folder.is_dir() or not names <= {METADATA_FILE, WEIGHTS_FILE}:
        raise InputError(f"{folder}: contains something other than a table model; choose another {spell_option('out')}")


def _move_into_place(fresh: Path, folder: Path) -> None:
    old = fresh.with_name(fresh.name + ".old")
    if os.path.lexists(folder):
        folder.rename(old)
    try:
        fresh.rename(folder)
    except OSError:
        with suppress(OSError):
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _model_tensors(model: MarginClassifier) -> dict[str, Tensor]:
    trained: TrainedMLP = model._model
    found = {
        "scaler.center": torch.from_numpy(trained.scaler.center),
        "scaler.scale": torch.from_numpy(trained.scaler.scale),
    }
    for name in _PREPROCESSING_TENSORS:
        value = getattr(trained.preprocessing, name)
        if value is not None:
            found[f"preprocessing.{name}"] = value
    for prefix, module in (("network", trained.network), ("head", trained.head)):
        found |= {f"{prefix}.{name}": value for name, value in module.state_dict().items()}
    found |= {f"novelty.{name}": torch.from_numpy(value) for name, value in model.novelty_.to_arrays().items()}
    return found


def _format_metadata(model: MarginClassifier, command: str) -> str:
    parameters = {
        name: value for name, value in model.get_params(deep=False).items() if name not in _UNSTORED_PARAMETERS
    }
    weight = model.class_weight
    encoder: TableEncoder | None = model.encoder_
    values: dict[str, Any] = {
        "kind": KIND,
        "format": FORMAT_VERSION,
        "loss": model.loss_,
        "classes": _plain(model.classes_.tolist()),
        "class_dtype": _class_dtype(model.classes_),
        "class_counts": model.class_counts_,
        "is_multilabel": bool(model.multilabel_),
        "temperature": float(model.temperature_),
        "tuned": model.tuned_,
        "seed": int(model.seed_),
        "mlp_config": asdict(model.config_),
        "parameters": _plain(parameters),
        "class_weight": [[key, float(value)] for key, value in weight.items()]
        if isinstance(weight, Mapping)
        else weight,
        "num_features": int(model.n_features_in_),
        "feature_names": list(getattr(model, "feature_names_in_", [])) or None,
        "columns": None if encoder is None else [reading.to_dict() for reading in encoder.readings_],
        "num_steps": int(model.n_steps_),
        "loss_curve": list(model.loss_curve_),
        "validation_scores": model.validation_scores_,
        "command": command,
        "versions": versions(),
    }
    return bounded.dumps_one_line_per_key(json.loads(json.dumps(values)), ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    """Convert values of NumPy to those of JSON."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def _class_dtype(classes: NDArray[Any]) -> str:
    if classes.dtype.name in _CLASS_DTYPES:
        return classes.dtype.name
    if classes.dtype.kind in "OU" and all(isinstance(name, str) for name in classes.tolist()):
        return "object" if classes.dtype.kind == "O" else "str"
    raise InputError(f"classes of type {classes.dtype} cannot be saved; fit with strings or numbers as labels")


# ---------------------------------------------------------------- reading


def load_model(folder: Path, estimator: type[MarginClassifier]) -> MarginClassifier:
    """Load the fitted model of a folder as an `estimator`; every inconsistency is an InputError."""
    path = folder / METADATA_FILE
    try:
        metadata = bounded.read_json(path)
        if metadata["format"] != FORMAT_VERSION:
            raise InputError(
                f"{path}: format {format_value(metadata['format'])} is unknown to this version of widemargin; update it"
            )
        tensors = read_safetensors_header(folder / WEIGHTS_FILE).read()
        return _restore(metadata, tensors, estimator)
    except FileNotFoundError as error:
        raise InputError(f"{error.filename or folder}: not found; is {folder} the folder of a model?") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RuntimeError, OSError) as error:
        raise InputError(f"{folder}: not a table model that can be read ({error})") from None


def _restore(
    metadata: Mapping[str, Any], tensors: dict[str, Tensor], estimator: type[MarginClassifier]
) -> MarginClassifier:
    for name, value in tensors.items():
        if value.is_floating_point() and (value.dtype != torch.float64 or not all_finite(value)):
            raise ValueError(f"{name} must be finite and in double precision")
    model = estimator(**_parameters(metadata), device="cpu")
    classes = _classes(metadata["classes"], metadata["class_dtype"])
    config = MLPConfig(**{**metadata["mlp_config"], "hidden": tuple(metadata["mlp_config"]["hidden"])})
    encoder = None
    names = metadata["feature_names"]
    if names is not None and not all(isinstance(name, str) for name in names):
        raise ValueError("feature_names must be strings")
    if metadata["columns"] is not None:
        encoder = TableEncoder.from_readings([ColumnReading.from_dict(column) for column in metadata["columns"]], names)
    is_multilabel = metadata["is_multilabel"] is True
    num_columns = len(tensors["scaler.center"])
    expected = metadata["num_features"] if encoder is None else len(encoder.is_numeric_)
    if num_columns != expected or (names is not None and len(names) != metadata["num_features"]):
        raise ValueError(f"{num_columns} columns in {WEIGHTS_FILE}, {format_value(expected)} in {METADATA_FILE}")
    trained = _restore_network(metadata, tensors, classes, config, is_multilabel)
    model.temperature_ = float(metadata["temperature"])
    if not MIN_TEMPERATURE <= model.temperature_ <= MAX_TEMPERATURE:
        raise ValueError(f"temperature {model.temperature_:g} is out of range")
    model.n_features_in_ = num_columns if encoder is None else encoder.n_features_in_
    if names is not None:
        model.feature_names_in_ = np.array(names, dtype=object)
    model.loss_, model.tuned_, model.class_counts_ = str(model.loss), metadata["tuned"], metadata["class_counts"]
    model._set_model(trained, config, classes, encoder, is_multilabel)
    model.loss_curve_ = [float(loss) for loss in metadata["loss_curve"]]
    model.n_iter_, model.n_steps_, model.seed_ = len(model.loss_curve_), int(metadata["num_steps"]), metadata["seed"]
    scores = metadata["validation_scores"]
    model.validation_scores_ = None if scores is None else [float(score) for score in scores]
    model.best_validation_score_ = max(model.validation_scores_) if model.validation_scores_ else None
    arrays = {
        name.removeprefix("novelty."): value.numpy() for name, value in tensors.items() if name.startswith("novelty.")
    }
    width = trained.preprocessing.num_inputs
    model.novelty_ = NoveltyDetector.from_arrays(arrays, len(classes), width)
    return model


def _parameters(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the estimator; its constructor refuses unknown ones."""
    weight, seed = metadata["class_weight"], metadata["seed"]
    if not isinstance(seed, int) or not isinstance(metadata["loss"], str):
        raise ValueError("seed or loss is missing")
    parameters = dict(metadata["parameters"])
    if parameters.get("hidden") is not None:
        parameters["hidden"] = tuple(parameters["hidden"])
    class_weight = dict(weight) if isinstance(weight, list) else weight
    return {**parameters, "loss": metadata["loss"], "random_state": seed, "class_weight": class_weight}


def _classes(values: list[Any], dtype: str) -> NDArray[Any]:
    if len(values) < 2:
        raise ValueError("fewer than two classes")
    if dtype in ("str", "object"):
        if not all(isinstance(name, str) for name in values):
            raise ValueError("classes must be strings")
        classes: NDArray[Any] = np.array(values, dtype=object if dtype == "object" else str)
    elif dtype in _CLASS_DTYPES:
        classes = np.array(values, dtype=dtype)
    else:
        raise ValueError(f"unknown class_dtype {format_value(dtype)}")
    if classes.ndim != 1 or (classes[1:] <= classes[:-1]).any():
        raise ValueError("classes must be sorted and distinct")
    return classes


def _restore_network(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    classes: NDArray[Any],
    config: MLPConfig,
    is_multilabel: bool,
) -> TrainedMLP:
    num_columns = len(tensors["scaler.center"])
    scaler = ColumnScaler(tensors["scaler.center"].numpy(), tensors["scaler.scale"].numpy())
    held = {name: tensors.get(f"preprocessing.{name}") for name in _PREPROCESSING_TENSORS}
    for name in ("shift", "scale", "fill"):
        _check_shape(name, held[name], (1, 1, num_columns))
    _check_shape("scaler", tensors["scaler.scale"], (num_columns,))
    matrix, projected = held["decorrelation"], held["projection"]
    if matrix is not None and (matrix.ndim != 3 or matrix.shape[2] > num_columns):
        raise ValueError("decorrelation has more columns than the table")
    if matrix is not None:
        _check_shape("decorrelation", matrix, (1, matrix.shape[2], matrix.shape[2]))
    if projected is not None:
        _check_shape("projection", projected, (1, num_columns, projected.shape[-1]))
    table = StackedTable(
        torch.empty(0, num_columns, dtype=torch.float64),
        torch.empty(0),
        len(classes),
        *(held[name] for name in _PREPROCESSING_TENSORS),  # type: ignore[arg-type]
    )
    network = StackedNetwork((), [], torch.float64)
    width = table.num_inputs
    for place, size in enumerate(config.hidden):
        weight, bias = tensors[f"network.weights.{place}"], tensors[f"network.biases.{place}"]
        _check_shape(f"layer {place}", weight, (1, width, size))
        _check_shape(f"layer {place}", bias, (1, 1, size))
        network.weights.append(nn.Parameter(weight, requires_grad=False))
        network.biases.append(nn.Parameter(bias, requires_grad=False))
        width = size
    head = _restore_head(metadata, tensors, len(classes), width, config, is_multilabel)
    return TrainedMLP(scaler, table, network.eval(), head)


def _restore_head(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    num_classes: int,
    embedding_dim: int,
    config: MLPConfig,
    is_multilabel: bool,
) -> StackedHead | StackedCriterion:
    total: Sum = check_stacked_loss(parse(metadata["loss"]), config.label_smoothing, is_multilabel)
    if not is_multilabel:
        counted = with_class_counts(total, metadata["class_counts"])
        total = counted if isinstance(counted, Sum) else Sum(((1.0, counted),))
    loss = head_loss(total)
    subcenters = loss.for_num_classes(num_classes).subcenters if isinstance(loss, Margin) else None
    rows = num_classes * (1 if subcenters is None else subcenters.count)
    state = {name.removeprefix("head."): value for name, value in tensors.items() if name.startswith("head.")}
    _check_shape("class weights", state["weight"], (1, rows, embedding_dim))  # before anything of this size is made
    head = build_head(total, torch.zeros(1, num_classes, embedding_dim, dtype=torch.float64), config.label_smoothing)
    head.load_state_dict(state)
    return head.requires_grad_(False).eval()


def _check_shape(name: str, value: Tensor | None, shape: tuple[int, ...]) -> None:
    if value is None or tuple(value.shape) != shape or value.dtype != torch.float64:
        raise ValueError(f"{name}: a tensor of shape {shape} in double precision is expected")
