"""Checkpoints of another shape or version, or damaged: a model that works, or one line that names the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from ..check import Outcome, Size
from ..corpus import files
from ..mutate import Mutator
from ..trial import run_trials

TITLE = "Checkpoints and model folders of another shape or version, edited, cut, with tensors lost, renamed, reshaped"
KIND = "input"
LONG = False

COUNTS = (80, 1_500)
Case = dict[str, bytes]


def run(size: Size) -> Outcome:
    """Spoil a real checkpoint of a small network, load it as a run, as a model's folder and as class weights."""
    try:
        import safetensors  # noqa: F401
    except ImportError:
        return Outcome(0, 0, "nothing", "safetensors is not installed, so no checkpoint is read at all")
    good = files("run")
    mutator = Mutator(size.seed)
    picture = size.folder / "picture.png"
    picture.write_bytes(files("images")["rgb.png"])

    def made() -> Case:
        what = mutator.draw.randrange(4)
        if what == 0:
            return {"state.json": json.dumps(mutator.misshapen(json.loads(good["state.json"]))).encode()}
        if what == 1:
            settings = json.loads(good["run.json"])
            return {"run.json": json.dumps(mutator.misshapen(settings)).encode()}
        if what == 2:
            name = mutator.draw.choice(("state.json", "model.safetensors", "training.safetensors"))
            return {name: mutator.spoiled([good[name]])}
        name = mutator.draw.choice(("model.safetensors", "model.safetensors", "training.safetensors"))
        return {name: other_tensors(good[name], mutator)}

    def read(case: Case) -> None:
        _write(size.folder, {**good, **case}, "sha256.json" in case)
        _loaded(size.folder, picture)

    kept: list[Case] = [{}, {"state.json": b"7"}, {"state.json": b"[" * 9999}, {"sha256.json": b"[]"}]
    kept += [{"state.json": b"{}"}, {"model.safetensors": b""}, {"run.json": b'{"model": "resnet18"}'}]
    return run_trials(size, "checkpoints", kept, made, read, COUNTS, place=str(size.folder), megabytes=512)


def _write(folder: Path, case: Case, sums: bool) -> None:
    place = folder / "run" / "checkpoints" / "last"
    hub = folder / "hub"
    for each in (place, hub):
        each.mkdir(parents=True, exist_ok=True)
    (folder / "run" / "run.json").write_bytes(case["run.json"])
    for name in ("state.json", "model.safetensors", "training.safetensors", "sha256.json"):
        if name in case and (name != "sha256.json" or sums):
            (place / name).write_bytes(case[name])
        else:
            (place / name).unlink(missing_ok=True)
    (hub / "model.safetensors").write_bytes(case["model.safetensors"])
    (folder / "weights.safetensors").write_bytes(case["model.safetensors"])
    try:
        facts = {"format": 1, "run": json.loads(case["run.json"]), "sees": json.loads(case["state.json"])["sees"]}
        (hub / "widemargin.json").write_text(json.dumps(facts))
    except (ValueError, KeyError, TypeError, RecursionError):
        (hub / "widemargin.json").write_bytes(case["state.json"])


def _loaded(folder: Path, picture: Path) -> None:
    """All ways in which such files are read; the first error is the one that is judged."""
    from ... import hub_folder
    from ...errors import InputError
    from ...head import Head
    from ...training.finished import Finished, finished

    refused: list[InputError] = []
    ways: list[tuple[Callable[[Path], Finished], str]] = [(finished, "run"), (hub_folder.load, "hub")]
    for load, name in ways:
        try:
            found = load(folder / name)
            found.chances(picture)
            found.embed_files([picture])
        except InputError as error:
            refused.append(error)
    try:
        Head(8, 40).take_over(folder / "weights.safetensors")
    except InputError as error:
        refused.append(error)
    if refused:
        raise refused[0]


def other_tensors(data: bytes, mutator: Mutator) -> bytes:
    """A safetensors file with one tensor of another shape, kind, name or content, or without it."""
    import torch
    from safetensors.torch import load, save

    tensors = dict(load(data))
    name = mutator.draw.choice(sorted(tensors))
    value = tensors.pop(name)
    what = mutator.draw.randrange(7)
    if what == 1:
        tensors[name] = value.flatten()[: mutator.draw.randrange(value.numel() + 1)].clone()
    elif what == 2:
        kinds = (torch.int64, torch.uint8, torch.float16, torch.bool, torch.float64, torch.bfloat16)
        tensors[name] = value.to(mutator.draw.choice(kinds))
    elif what == 3:
        tensors[mutator.draw.choice(("", "weight", name + ".x", "optimizer.99.exp_avg", "optimizer.a", "average."))] = (
            value
        )
    elif what == 4:
        tensors[name] = torch.full_like(value, float("nan")) if value.is_floating_point() else value
    elif what == 5:
        tensors[name] = value.unsqueeze(0)
    elif what == 6:
        tensors[name], tensors["optimizer.0.more"] = value, torch.zeros(3)
    return bytes(save({key: each.contiguous() for key, each in tensors.items()}))
