"""`wm.load` and `wm.evaluate`: load the object in a folder, and compute its metrics."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .export import hub
from .io import bounded
from .io.errors import InputError, format_value
from .recognition.gallery_files import GALLERY_FILE, MODEL_FOLDER

if TYPE_CHECKING:
    from torch import nn

    from .recognition.gallery import Gallery
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
    device: str | None = None,
) -> Any:
    """Load what a folder holds: a trained `Run` (run folder, or written by `widemargin export --hub`), a `Gallery`, or
    the `MarginClassifier` that `widemargin fit`, `wm.fit` or its own `save` wrote.

    Args:
        folder: the folder; its JSON file states the `kind` of its contents.
        checkpoint: of a run folder: `last`, `best` or one such as `epoch-0010`.
        model: the network, for a run that was given a module; it is copied and stays unchanged.
        at: path of the module's classifier, as in `train`.
        objective_factory: the objective, for a run that was given one, as in `train`.
        device: where the model goes, such as "cuda"; by default it stays on the CPU.
    """
    folder = Path(folder)
    name = _metadata_name(folder)
    kind = _read_kind(folder / name)
    if kind not in _LOADERS:
        kinds = ", ".join(sorted(_LOADERS))
        raise InputError(f"{folder / name}: unknown kind {format_value(kind)}; this version loads {kinds}")
    options = {"model": model, "at": at, "objective_factory": objective_factory}
    found = _LOADERS[kind](folder, name, checkpoint, **options)
    if device is None:
        return found
    if kind != "run":
        raise InputError(f"{folder}: device applies to runs only; this is a {kind}")
    return found.to(device)


def load_run(folder: str | Path, checkpoint: str = "last", *, device: str | None = None) -> Run:
    """Load a folder that holds a run, as the commands do; another kind is an error that says what it is."""
    check_kind(folder, "run")
    run: Run = load(folder, checkpoint, device=device)
    return run


def load_gallery(folder: str | Path) -> Gallery:
    """Open a folder that holds a gallery; another kind is an error that says what it is."""
    check_kind(folder, "gallery")
    gallery: Gallery = load(folder)
    return gallery


def check_kind(folder: str | Path, expected: str) -> None:
    """Raise InputError if a folder holds something known that is not of the `expected` kind."""
    kind = folder_kind(folder)
    if kind != expected and kind in _KIND_NAMES:
        raise InputError(
            f"{folder}: holds {_KIND_NAMES[kind]}, but {_KIND_NAMES[expected]} is needed here{_KIND_HINTS[kind]}"
        )


def folder_kind(folder: str | Path) -> str:
    """Return the kind of a folder as its JSON file says: `run`, `gallery` or `table_model`."""
    return _read_kind(Path(folder) / _metadata_name(Path(folder)))


def _metadata_name(folder: Path) -> str:
    names = (_RUN_FILE, hub.METADATA_FILE, GALLERY_FILE)
    name = next((name for name in names if os.path.lexists(folder / name)), None)
    if name is None:
        what = "contains no" if folder.is_dir() else "no such folder; expected one with"
        raise InputError(
            f"{folder}: {what} {_RUN_FILE} (a run), {hub.METADATA_FILE} (an export) or {GALLERY_FILE} (a gallery)"
        )
    return name


def _read_kind(path: Path) -> str:
    """Return the kind in a folder's JSON file; files of version 0.1 have none and are runs."""
    try:
        metadata = bounded.read_json(path)
    except (ValueError, OSError):
        return "run"  # its loader reports what is wrong with the file
    kind = metadata.get("kind", "run") if isinstance(metadata, dict) else "run"
    return kind if isinstance(kind, str) else format_value(kind)


def _load_run(folder: Path, name: str, checkpoint: str, **options: Any) -> Run:
    """Load a run folder or a hub folder, which has one set of weights."""
    from .training.run_loading import load_hub_run, load_run

    if name == _RUN_FILE:
        return load_run(folder, checkpoint, **options)
    if checkpoint != "last":
        raise InputError(f"{folder}: a hub folder has one set of weights; omit checkpoint={checkpoint!r}")
    return load_hub_run(folder, **options)


def _load_table_model(folder: Path, name: str, checkpoint: str, **given: Any) -> MarginClassifier:
    """A fitted classifier, which has one set of weights and a network of its own."""
    from .tabular.estimator import MarginClassifier
    from .tabular.model_files import load_model

    if checkpoint != "last" or given["model"] is not None or given["objective_factory"] is not None:
        raise InputError(f"{folder}: the model of a table takes no checkpoint, model or objective_factory")
    return load_model(folder, MarginClassifier)


def _load_gallery(folder: Path, name: str, checkpoint: str, **options: Any) -> Gallery:
    """Open a gallery; its model is loaded when it is first needed."""
    from .recognition.gallery import Gallery

    return Gallery(folder, lambda: load(folder / MODEL_FOLDER, **options))


_KIND_NAMES = {"run": "a run", "gallery": "a gallery", _TABLE_MODEL: "the model of a table"}
_KIND_HINTS = {
    "run": "; widemargin gallery create makes a gallery with it",
    "gallery": f"; its model is in the folder {MODEL_FOLDER} in it",
    _TABLE_MODEL: "; only widemargin predict takes it",
}
"""What can be done with a folder of this kind where another one is needed."""

_LOADERS: dict[str, Callable[..., Any]] = {
    "run": _load_run,
    "gallery": _load_gallery,
    _TABLE_MODEL: _load_table_model,
}
"""Loaders by kind of folder: `loader(folder, name of the JSON file, checkpoint, **options)`."""


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
    device: str | None = None,
    **settings: Any,
) -> Evaluation:
    """Compute the metrics of a trained run on its test items; nothing is written.

    Args:
        run: a `Run`, or a folder that `load` reads.
        protocol: evaluate embeddings instead of predictions: verification, retrieval, knn, fewshot or openset.
        pairs: verification of the pairs in a CSV with columns a, b, same, in LFW's `pairs.txt` or in a file such as
            `lfw.bin`.
        test: items to evaluate on, for a run on data given in Python.
        checkpoint: for a folder: `last`, `best` or one such as `epoch-0010`.
        model: the network, for the folder of a run that was given a module, as in `load`.
        flips: also average the logits of mirrored images, if training mirrored images.
        data_dir: folder with the data sets, also `WIDEMARGIN_DATA`; the folder in which the images of the run are now;
            for a `pairs.txt`, that of its people.
        device: device of a model loaded from a folder, such as "cuda".
        assign_new: use a folder of images in its current state: images added since the run are assigned to a part.
        settings: settings of the protocols: `batch`, `neighbours`, `ways`, `shots`, `episodes`, `sampled_pairs` and
            `faiss`, see `recognition.settings.ProtocolSettings`.
    """
    from .training.run import Run

    trained = run if isinstance(run, Run) else load(run, checkpoint, model=model, device=device)
    if not isinstance(trained, Run):
        raise InputError(f"{run}: not a run; use score(X, y) of a table model, identify(images) of a gallery")
    return trained.evaluate(
        protocol=protocol,
        pairs=pairs,
        test=test,
        flips=flips,
        data_dir=data_dir,
        assign_new=assign_new,
        **settings,
    )
