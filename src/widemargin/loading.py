"""`wm.load` and `wm.evaluate`: from a folder to what lies in it, and to its figures."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .export import hub
from .io import bounded
from .io.errors import InputError, format_value

if TYPE_CHECKING:
    from torch import nn

    from .training.evaluation import Evaluation
    from .training.model import ObjectiveFactory
    from .training.run import Run

_RUN_FILE = "run.json"


def load(
    folder: str | Path,
    checkpoint: str = "last",
    *,
    model: nn.Module | None = None,
    at: str | None = "auto",
    objective_factory: ObjectiveFactory | None = None,
    device: str | None = None,
) -> Run:
    """What a folder holds: the trained `Run` of a run folder, or of one that `widemargin export --hub` wrote.

    Args:
        folder: its JSON file says what `kind` it is of.
        checkpoint: of a run folder `last`, `best` or one such as `epoch-0010`.
        model: the network, for a run that was given one as a module; it is copied, and stays as it is.
        at: path of the module's classifier, as in `train`.
        objective_factory: the objective, for a run that was given one, as in `train`.
        device: where the model goes, such as "cuda"; by default it stays on the CPU.
    """
    folder = Path(folder)
    name = next((name for name in (_RUN_FILE, hub.METADATA_FILE) if os.path.lexists(folder / name)), None)
    if name is None:
        raise InputError(f"{folder}: {_RUN_FILE} or {hub.METADATA_FILE} is not there; is {folder} a run?")
    kind = _read_kind(folder / name)
    if kind not in _LOADERS:
        known = ", ".join(sorted(_LOADERS))
        raise InputError(f"{folder / name}: of the kind {format_value(kind)}; this version loads {known}")
    given = {"model": model, "at": at, "objective_factory": objective_factory}
    found: Run = _LOADERS[kind](folder, name, checkpoint, **given)
    return found if device is None else found.to(device)


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
    from .training.run import load_hub_run, load_run

    if name == _RUN_FILE:
        return load_run(folder, checkpoint, **given)
    if checkpoint != "last":
        raise InputError(f"{folder}: a model's folder has one set of weights, no checkpoint {checkpoint!r}")
    return load_hub_run(folder, **given)


_LOADERS: dict[str, Callable[..., Any]] = {"run": _load_run}
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
    device: str | None = None,
    **settings: Any,
) -> Evaluation:
    """The figures of a trained run on its test items; nothing is written.

    Args:
        run: a `Run`, or a folder that `load` reads.
        protocol: evaluate embeddings instead of answers: verification, retrieval, knn, fewshot or openset.
        pairs: verification of the pairs in a CSV with columns a, b, same, in LFW's `pairs.txt` or in a file such as
            `lfw.bin`.
        test: items to evaluate on, for a run on data given in Python.
        checkpoint: of a folder `last`, `best` or one such as `epoch-0010`.
        model: the network, for a folder of a run that was given one as a module, as in `load`.
        flips: average the logits of mirror images too, where training mirrored images.
        data_dir: folder with the data sets, also `WIDEMARGIN_DATA`; of a run on a folder of images the folder that it
            lies in now, and of a `pairs.txt` that of its people.
        device: where a model from a folder is evaluated, such as "cuda".
        assign_new: take a folder of images as it is now: images added since the run began are assigned to a part.
        settings: of the protocols: `batch`, `neighbours`, `ways`, `shots`, `episodes`, `sampled_pairs` and `faiss`, see
            `recognition.settings.ProtocolSettings`.
    """
    from .training.run import Run

    trained = run if isinstance(run, Run) else load(run, checkpoint, model=model, device=device)
    return trained.evaluate(
        protocol=protocol,
        pairs=pairs,
        test=test,
        flips=flips,
        data_dir=data_dir,
        assign_new=assign_new,
        **settings,
    )
