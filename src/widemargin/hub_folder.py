"""A trained run as a folder to hand over: weights, what is needed to use them, and a card that says what they are.

    widemargin export RUN --hub FOLDER        model.safetensors, widemargin.json, README.md
    model = widemargin.load("FOLDER")         model.embed_files([...]), model.chances("picture.png")

Nothing in it is pickled, and nothing of it is executed when it is read.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from . import plain_json
from .errors import InputError
from .printable import printable
from .report.escaped import in_code, markdown
from .run import Run
from .tensor_files import TensorFileError, stored_tensors

if TYPE_CHECKING:
    from .training.finished import Finished

_FORMAT = 1
WEIGHTS, FACTS, CARD = "model.safetensors", "widemargin.json", "README.md"


def write_weights(run: Finished, path: Path) -> None:
    """The weights alone, as they are judged."""
    from safetensors.torch import save_file

    from .training.checkpoint import own

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".new")
        save_file(own(run.model.state_dict()), fresh)
        fresh.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None


def write_folder(run: Finished, folder: Path, licence: str) -> None:
    """Weights, facts and card."""
    write_weights(run, folder / WEIGHTS)
    told = asdict(run.run)
    told["data"], told["init_from"] = Path(run.run.data).name, None  # no path of the machine it was trained on
    facts = {"format": _FORMAT, "run": told, "sees": run.sees}
    (folder / FACTS).write_text(json.dumps(facts, indent=1, ensure_ascii=False), encoding="utf-8")
    (folder / CARD).write_text(card(run, licence), encoding="utf-8")


def card(run: Finished, licence: str) -> str:
    """What the model is, in words and numbers."""
    record = run.record()
    figures = [(name, value) for name, value in record.get("test", {}).items() if isinstance(value, int | float)]
    angles = {"wc_intra": "WC-Intra", "w_inter": "W-Inter", "c_inter": "C-Inter"}
    lines = [
        "---",
        "library_name: widemargin",
        f"license: {_quoted(licence)}",
        "---",
        "",
        f"# {markdown(run.run.model)} on {markdown(Path(run.run.data).name)}",
        "",
        f"Trained with `{in_code(run.run.loss)}` for {run.run.epochs} epochs, seed {run.run.seed}, by widemargin.",
        "",
        "| on the test images | |",
        "|---|---|",
        *(f"| {name} | {value:.4g} |" for name, value in figures),
        *(f"| {angles[k]} | {math.degrees(v):.1f}° |" for k, v in record.get("angles", {}).items() if k in angles),
        "",
        f"Classes: {len(run.sees['classes'])}. Images: {run.sees['channels']} channels, {run.sees['size']} pixels.",
        "",
        "```python",
        "import widemargin",
        "",
        'model = widemargin.load("this folder")',
        'model.embed_files(["picture.png"])  # compare embeddings by cosine',
        'model.chances("picture.png")  # classes with their probabilities',
        "```",
        "",
    ]
    if record.get("command"):
        lines += ["Made by:", "", "```bash", in_code(str(record["command"])), "```", ""]
    return "\n".join(lines)


def _quoted(licence: str) -> str:
    """A licence's name as YAML takes it; other words in quotes."""
    plain = re.fullmatch("[A-Za-z0-9 ._+-]+", licence)
    return licence if plain else json.dumps(printable(licence).replace("<", "‹"), ensure_ascii=False)


def load(folder: str | Path) -> Finished:
    """The model of a folder that `widemargin export --hub` wrote, or of a run's own folder."""
    from .training.finished import finished, kept_model

    folder = Path(folder)
    if (folder / "run.json").is_file():
        return finished(folder)
    try:
        facts = plain_json.read(folder / FACTS)
        if facts["format"] != _FORMAT:
            raise InputError(f"{folder / FACTS}: format {facts['format']!r} is not known to this version")
        run = Run.from_json(json.dumps(facts["run"]), str(folder / FACTS))
        weights = stored_tensors(folder / WEIGHTS)
    except FileNotFoundError as error:
        raise InputError(f"{error.filename or folder}: not there; is {folder} a model's folder?") from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        if isinstance(error, InputError) and not isinstance(error, plain_json.NotJSONError | TensorFileError):
            raise
        raise InputError(f"{folder}: damaged, cannot be read ({error})") from None
    return kept_model(run, facts.get("sees"), weights, folder / WEIGHTS, str(folder / FACTS))
