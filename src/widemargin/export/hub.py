"""A trained run as a folder to share: weights, metadata, and a model card.

    widemargin export RUN --hub FOLDER        model.safetensors, widemargin.json, README.md
    model = widemargin.load("FOLDER")         model.embed(["picture.png"]), model.predict("picture.png")

Nothing in it is pickled, and reading it executes nothing.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..io.errors import InputError
from ..io.text import escape_markdown, escape_markdown_code, escape_unprintable

if TYPE_CHECKING:
    from ..training.run import Run


FORMAT_VERSION = 1
WEIGHTS_FILE, METADATA_FILE, CARD_FILE = "model.safetensors", "widemargin.json", "README.md"


def write_weights(run: Run, path: Path) -> None:
    """Write only the weights, as used in evaluation, to a safetensors file."""
    from safetensors.torch import save_file

    from ..io.tensor_files import clone_contiguous

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".new")
        save_file(clone_contiguous(run.model.state_dict()), fresh)
        fresh.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None


def write_folder(run: Run, folder: Path, licence: str) -> None:
    """Write weights, metadata and a model card to a folder."""
    write_weights(run, folder / WEIGHTS_FILE)
    config_dict = asdict(run.config)
    config_dict |= {"data": Path(run.config.data).name, "init_from": None}  # no paths of the training machine
    metadata = {"kind": "run", "format": FORMAT_VERSION, "run": config_dict, "input_spec": run.input_spec}
    (folder / METADATA_FILE).write_text(json.dumps(metadata, indent=1, ensure_ascii=False), encoding="utf-8")
    (folder / CARD_FILE).write_text(model_card(run, licence), encoding="utf-8")


def model_card(run: Run, licence: str) -> str:
    """Return the model card of a run in Markdown."""
    record = run.record
    example = "items" if "shape" in run.input_spec else '["picture.png"]'
    figures = [(name, value) for name, value in record.get("test", {}).items() if isinstance(value, int | float)]
    angles = {"wc_intra": "WC-Intra", "w_inter": "W-Inter", "c_inter": "C-Inter"}
    lines = [
        "---",
        "library_name: widemargin",
        f"license: {_yaml_quote(licence)}",
        "---",
        "",
        f"# {escape_markdown(run.config.model)} on {escape_markdown(Path(run.config.data).name)}",
        "",
        f"Trained with `{escape_markdown_code(run.config.loss)}` for {run.config.epochs} epochs, "
        f"seed {run.config.seed}, by widemargin.",
        "",
        "| on the test images | |",
        "|---|---|",
        *(f"| {name} | {value:.4g} |" for name, value in figures),
        *(f"| {angles[k]} | {math.degrees(v):.1f}° |" for k, v in record.get("angles", {}).items() if k in angles),
        "",
        f"Classes: {len(run.input_spec['class_names'])}. {_describe_inputs(run.input_spec)}",
        "",
        "```python",
        "import widemargin",
        "",
        f'model = widemargin.load("this folder"{", model=my_module" if run.needs_module else ""})',
        f"model.embed({example})  # compare embeddings by cosine",
        f"model.predict({example})  # classes with their probabilities",
        "```",
        "",
    ]
    if record.get("command"):
        lines += ["Command:", "", "```bash", escape_markdown_code(str(record["command"])), "```", ""]
    return "\n".join(lines)


def _describe_inputs(input_spec: dict[str, Any]) -> str:
    if "shape" in input_spec:
        return f"Inputs: {input_spec['shape']}, {input_spec['dtype']}."
    return f"Images: {input_spec['channels']} channels, {input_spec['size']} pixels."


def _yaml_quote(licence: str) -> str:
    """Quote a licence's name for YAML if necessary."""
    plain = re.fullmatch("[A-Za-z0-9 ._+-]+", licence)
    return licence if plain else json.dumps(escape_unprintable(licence).replace("<", "‹"), ensure_ascii=False)
