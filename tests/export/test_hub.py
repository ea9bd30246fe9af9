"""A hub folder whose files are pipes, devices, folders or holes is refused in one line."""

import json
from pathlib import Path

import pytest

from refusals import CHECKPOINT, FILE_KINDS, load_hub, refusal_message, replace_with, write_run_folder


@pytest.fixture
def run(tmp_path) -> Path:
    """The folder of a small finished run."""
    return write_run_folder(tmp_path / "run")


@pytest.mark.parametrize("kind", FILE_KINDS)
@pytest.mark.parametrize("name", ["widemargin.json", "model.safetensors"])
def test_a_hub_folder_whose_files_are_none_is_refused(run, tmp_path, name, kind):
    hub = tmp_path / "hub"
    hub.mkdir()
    state = json.loads((run / CHECKPOINT / "state.json").read_bytes())
    facts = {"format": 1, "run": json.loads((run / "run.json").read_bytes()), "input_spec": state["input_spec"]}
    (hub / "widemargin.json").write_text(json.dumps(facts))
    (hub / "model.safetensors").write_bytes((run / CHECKPOINT / "model.safetensors").read_bytes())
    load_hub(str(hub))
    replace_with(hub / name, kind)
    assert str(hub) in refusal_message(load_hub, str(hub), tmp_path=tmp_path)
