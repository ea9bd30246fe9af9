"""Load a trained run from its folder, at any checkpoint, or from a folder that `export --hub` wrote."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ..export import hub as hub_files
from ..io import bounded
from ..io.errors import InputError, spell_option
from ..io.tensor_files import SafetensorsFile, read_safetensors_header
from . import checkpoint, run_files
from .config import TrainConfig
from .model import GivenModule, rebuild_model, state_bytes
from .run import Run
from .run_inputs import build_eval_augment

if TYPE_CHECKING:
    from .model import ObjectiveFactory


def load_run(
    folder: str | Path,
    checkpoint_name: str = "last",
    objective_factory: ObjectiveFactory | None = None,
    model: nn.Module | None = None,
    at: str | None = "auto",
) -> Run:
    """Load the run of a folder at a checkpoint: `last`, `best` or `epoch-0010`."""
    config = TrainConfig.read(folder)
    checkpoint_folder = Path(folder) / "checkpoints" / checkpoint_name
    if not checkpoint.exists(checkpoint_folder):
        there = sorted(
            entry.name for entry in checkpoint_folder.parent.glob("*") if entry.suffix not in (".new", ".old")
        )
        raise InputError(f"{folder} has no checkpoint {checkpoint_name!r} (it has {', '.join(there) or 'none'})")
    weights, state = checkpoint.open_eval_weights(checkpoint_folder)
    where = str(checkpoint_folder / "state.json")
    found = restore_run(
        config, state.get("input_spec"), weights, checkpoint_folder, where, objective_factory, model, at
    )
    return replace(
        found, folder=Path(folder), has_manifest="manifest" in state, record=read_record(Path(folder) / "record.json")
    )


def describe_best_checkpoint(folder: str | Path) -> str:
    """A line on the checkpoint `best` of a run folder where it is of another epoch than `last`, or nothing."""
    places = Path(folder) / "checkpoints"
    try:
        best, last = (bounded.read_json(places / name / checkpoint.STATE_FILE)["epoch"] for name in ("best", "last"))
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if best == last:
        return ""
    return (
        f"note: this is the checkpoint last, after epoch {last}; best, selected by the held-out images, is that of "
        f"epoch {best}: {spell_option('checkpoint', 'best')}"
    )


def load_hub_run(
    folder: Path,
    objective_factory: ObjectiveFactory | None = None,
    model: nn.Module | None = None,
    at: str | None = "auto",
) -> Run:
    """Load the run of a folder that `export --hub` wrote; it has one set of weights."""
    path = folder / hub_files.METADATA_FILE
    config, metadata = read_hub_config(folder)
    try:
        weights = read_safetensors_header(folder / hub_files.WEIGHTS_FILE)
    except FileNotFoundError as error:
        raise InputError(f"{error.filename or folder}: not found; is {folder} the folder of a model?") from None
    except (ValueError, OSError) as error:
        raise InputError(f"{folder}: damaged, cannot be read ({error})") from None
    where = folder / hub_files.WEIGHTS_FILE
    found = restore_run(config, metadata.get("input_spec"), weights, where, str(path), objective_factory, model, at)
    return replace(found, record=read_record(folder / hub_files.RECORD_FILE))


def read_hub_config(folder: Path) -> tuple[TrainConfig, dict[str, Any]]:
    """Config and metadata of a folder that `export --hub` wrote."""
    path = folder / hub_files.METADATA_FILE
    try:
        metadata = bounded.read_json(path)
        if (kind := metadata.get("kind", "run")) != "run":
            raise InputError(f"{folder}: holds a {kind}, not a run")
        if metadata["format"] != hub_files.FORMAT_VERSION:
            raise InputError(f"{path}: format {metadata['format']!r} is not known to this version")
        return TrainConfig.from_json(json.dumps(metadata["run"]), str(path)), metadata
    except FileNotFoundError as error:
        raise InputError(f"{error.filename or folder}: not found; is {folder} the folder of a model?") from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        if isinstance(error, InputError) and not isinstance(error, bounded.NotJSONError):
            raise
        raise InputError(f"{folder}: damaged, cannot be read ({error})") from None


def read_record(path: Path) -> dict[str, Any]:
    """Contents of a run's `record.json`; {} if it cannot be read."""
    try:
        found = bounded.read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def restore_run(
    config: TrainConfig,
    raw_spec: Any,
    weights: checkpoint.EvalWeights | SafetensorsFile,
    weights_path: Path,
    where: str,
    objective_factory: ObjectiveFactory | None = None,
    model: nn.Module | None = None,
    at: str | None = "auto",
) -> Run:
    """The model of a run with saved weights; `raw_spec` is its input spec as read from `where`.

    The network is made first, no larger than its weights, and then the weights are read, if they are of its size. A run
    whose network was given as a module needs it again, as `model`.
    """
    input_spec = parse_input_spec(raw_spec, where)
    found = Run(config, None, input_spec, weights_path)  # type: ignore[arg-type]
    module = None if model is None else GivenModule(copy.deepcopy(model), found.example_input(2), at, warn=False)
    try:
        found.model = rebuild_model(config, input_spec, weights.nbytes, where, objective_factory, module)
    except InputError as error:
        message = str(error)
        raise InputError(
            message if message.startswith(where) else f"{where}: the model cannot be rebuilt: {message}"
        ) from None
    if config.precision == "64-true":
        found.model.double()
    checkpoint.check_size(weights.nbytes, 2 * state_bytes(found.model), str(weights_path))
    checkpoint.restore_module(found.model, weights.read(), str(weights_path), weights.sources)
    found.model.eval()
    return found


def parse_input_spec(raw_spec: Any, where: str) -> dict[str, Any]:
    """Validate the input spec of a file; raises InputError if it is malformed."""
    try:
        input_spec = run_files.check_input_spec(raw_spec)
        if "shape" not in input_spec:
            build_eval_augment(input_spec)
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: {error}; it was edited or written by another version, use an earlier one") from None
    return input_spec
