"""`wm.load`: from a folder to the trained run in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from .export import hub
from .io import bounded
from .io.errors import InputError
from .io.tensor_files import TensorFileError, read_safetensors_header
from .training.config import TrainConfig

if TYPE_CHECKING:
    from .training.run import Run


def load(folder: str | Path) -> Run:
    """The trained `Run` of a run folder, or of a folder that `widemargin export --hub` wrote."""
    from .training.run import load_run, restore_run

    folder = Path(folder)
    if (folder / "run.json").is_file():
        return load_run(folder)
    try:
        metadata = bounded.read_json(folder / hub.METADATA_FILE)
        if metadata["format"] != hub.FORMAT_VERSION:
            raise InputError(
                f"{folder / hub.METADATA_FILE}: format {metadata['format']!r} is not known to this version"
            )
        config = TrainConfig.from_json(json.dumps(metadata["run"]), str(folder / hub.METADATA_FILE))
        weights = read_safetensors_header(folder / hub.WEIGHTS_FILE)
    except FileNotFoundError as error:
        raise InputError(f"{error.filename or folder}: not there; is {folder} a model's folder?") from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        if isinstance(error, InputError) and not isinstance(error, bounded.NotJSONError | TensorFileError):
            raise
        raise InputError(f"{folder}: damaged, cannot be read ({error})") from None
    return restore_run(
        config, metadata.get("input_spec"), weights, folder / hub.WEIGHTS_FILE, str(folder / hub.METADATA_FILE)
    )
