"""`wm.load` and `wm.evaluate`: from a folder to what lies in it, and to its figures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .export import hub
from .io import bounded
from .io.errors import InputError, format_value
from .io.tensor_files import TensorFileError, read_safetensors_header
from .training.config import TrainConfig

if TYPE_CHECKING:
    from torch import nn

    from .tabular.estimator import MarginClassifier
    from .training.evaluation import Evaluation
    from .training.model import ObjectiveFactory
    from .training.run import Run

_RUN_FILE = "run.json"
_TABLE_MODEL = "table_model"


def load(
    folder: str | Path,
    checkpoint: str = "last",
    *,
    model: nn.Module | None = None,
    at: str | None = "auto",
    objective_factory: ObjectiveFactory | None = None,
) -> Any:
    """What a folder holds: the trained `Run` of a run folder or of one that `widemargin export --hub` wrote, or the
    `MarginClassifier` that `widemargin fit`, `wm.fit` or its own `save` wrote.

    Args:
        folder: its JSON file says what `kind` it is of.
        checkpoint: of a run folder `last`, `best` or one such as `epoch-0010`.
        model: the network, for a run that was given one as a module; it is copied, and stays as it is.
        at: path of the module's classifier, as in `train`.
        objective_factory: the objective, for a run that was given one, as in `train`.
    """
    folder = Path(folder)
    name = _metadata_name(folder)
    kind = _read_kind(folder / name)
    if kind not in _LOADERS:
        known = ", ".join(sorted(_LOADERS))
        raise InputError(f"{folder / name}: of the kind {format_value(kind)}; this version loads {known}")
    given = {"model": model, "at": at, "objective_factory": objective_factory}
    return _LOADERS[kind](folder, name, checkpoint, **given)


def folder_kind(folder: str | Path) -> str:
    """What kind of thing a folder holds, as its JSON file says: `run` or `table_model`."""
    return _read_kind(Path(folder) / _metadata_name(Path(folder)))


def _metadata_name(folder: Path) -> str:
    name = next((name for name in (_RUN_FILE, hub.METADATA_FILE) if os.path.lexists(folder / name)), None)
    if name is None:
        raise InputError(f"{folder}: {_RUN_FILE} or {hub.METADATA_FILE} is not there; is {folder} a run?")
    return name


def _read_kind(path: Path) -> str:
    """The kind that a folder's JSON file names; files of version 0.1 name none, and are of runs."""
    try:
        metadata = bounded.read_json(path)
    except (ValueError, OSError):
        return "run"  # whose loader says what is wrong with the file
    kind = metadata.get("kind", "run") if isinstance(metadata, dict) else "run"
    return kind if isinstance(kind, str) else format_value(kind)


def _load_run(folder: Path, name: str, checkpoint: str, **given: Any) -> Run:
    """A run folder, or a folder for a hub, which has one set of weights."""
    from .training.run import load_run, restore_run

    if name == _RUN_FILE:
        return load_run(folder, checkpoint, **given)
    path = folder / name
    if checkpoint != "last":
        raise InputError(f"{folder}: a model's folder has one set of weights, no checkpoint {checkpoint!r}")
    try:
        metadata = bounded.read_json(path)
        if metadata["format"] != hub.FORMAT_VERSION:
            raise InputError(f"{path}: format {metadata['format']!r} is not known to this version")
        config = TrainConfig.from_json(json.dumps(metadata["run"]), str(path))
        weights = read_safetensors_header(folder / hub.WEIGHTS_FILE)
    except FileNotFoundError as error:
        raise InputError(f"{error.filename or folder}: not there; is {folder} a model's folder?") from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        if isinstance(error, InputError) and not isinstance(error, bounded.NotJSONError | TensorFileError):
            raise
        raise InputError(f"{folder}: damaged, cannot be read ({error})") from None
    return restore_run(config, metadata.get("input_spec"), weights, folder / hub.WEIGHTS_FILE, str(path), **given)


def _load_table_model(folder: Path, name: str, checkpoint: str, **given: Any) -> MarginClassifier:
    """A fitted classifier, which has one set of weights and a network of its own."""
    from .tabular.model_files import load_model

    if checkpoint != "last" or given["model"] is not None or given["objective_factory"] is not None:
        raise InputError(f"{folder}: the model of a table takes no checkpoint, model or objective_factory")
    return load_model(folder)


_LOADERS: dict[str, Callable[..., Any]] = {"run": _load_run, _TABLE_MODEL: _load_table_model}
"""By the kind of a folder: `loader(folder, name of the JSON file, checkpoint, **given)`."""


def evaluate(
    run: Run | str | Path,
    *,
    protocol: str | None = None,
    pairs: str | Path | None = None,
    test: Any = None,
    checkpoint: str = "last",
    model: nn.Module | None = None,
    flips: bool = True,
    data_dir: str | Path | None = None,
    assign_new: bool = False,
    **settings: Any,
) -> Evaluation:
    """The figures of a trained run on its test items; nothing is written.

    Args:
        run: a `Run`, or a folder that `load` reads.
        protocol: evaluate embeddings instead of answers: verification, retrieval, knn, fewshot or openset.
        pairs: verification of the pairs in a CSV with columns a, b, same.
        test: items to evaluate on, for a run on data given in Python.
        checkpoint: of a folder `last`, `best` or one such as `epoch-0010`.
        model: the network, for a folder of a run that was given one as a module, as in `load`.
        flips: average the logits of mirror images too, where training mirrored images.
        data_dir: folder with the data sets, also `WIDEMARGIN_DATA`.
        assign_new: take a folder of images as it is now: images added since the run began are assigned to a part.
        settings: of the protocols: `batch`, `neighbours`, `ways`, `shots`, `episodes`, `sampled_pairs` and `faiss`, see
            `recognition.settings.ProtocolSettings`.
    """
    from .training.run import Run

    trained = run if isinstance(run, Run) else load(run, checkpoint, model=model)
    if not isinstance(trained, Run):
        raise InputError(f"{run}: the model of a table; its score(X, y) and predict(X) evaluate it")
    return trained.evaluate(
        protocol=protocol,
        pairs=pairs,
        test=test,
        flips=flips,
        data_dir=data_dir,
        assign_new=assign_new,
        **settings,
    )
