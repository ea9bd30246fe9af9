"""Damaged checkpoints, or of another shape or version: a working model, or one line that names the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from ..check import CheckContext, Outcome
from ..fuzzing import load_corpus_files, run_fuzz_cases
from ..mutate import Mutator

TITLE = "Checkpoints and model folders of another shape or version, edited, cut, with tensors lost, renamed, reshaped"
KIND = "input"
LONG = False

COUNTS = (80, 1_500)
Case = dict[str, bytes]


def run(context: CheckContext) -> Outcome:
    """Corrupt a real checkpoint of a small network, and load it as a run, as a hub folder and as class weights."""
    try:
        import safetensors  # noqa: F401
    except ImportError:
        return Outcome(0, 0, "nothing", "safetensors is not installed, so no checkpoint is read at all")
    good = load_corpus_files("run")
    mutator = Mutator(context.seed)
    picture = context.folder / "picture.png"
    picture.write_bytes(load_corpus_files("images")["rgb.png"])

    def make_case() -> Case:
        what = mutator.rng.randrange(4)
        if what == 0:
            return {"state.json": json.dumps(mutator.mutate_json(json.loads(good["state.json"]))).encode()}
        if what == 1:
            settings = json.loads(good["run.json"])
            return {"run.json": json.dumps(mutator.mutate_json(settings)).encode()}
        if what == 2:
            name = mutator.rng.choice(("state.json", "model.safetensors", "training.safetensors"))
            return {name: mutator.mutate_bytes([good[name]])}
        name = mutator.rng.choice(("model.safetensors", "model.safetensors", "training.safetensors"))
        return {name: mutate_tensors(good[name], mutator)}

    def read(case: Case) -> None:
        _write_checkpoint_files(context.folder, {**good, **case}, "sha256.json" in case)
        _load_all_ways(context.folder, picture)

    corpus: list[Case] = [{}, {"state.json": b"7"}, {"state.json": b"[" * 9999}, {"sha256.json": b"[]"}]
    corpus += [{"state.json": b"{}"}, {"model.safetensors": b""}, {"run.json": b'{"model": "resnet18"}'}]
    return run_fuzz_cases(
        context, "checkpoints", corpus, make_case, read, COUNTS, expected_text=str(context.folder), max_megabytes=512
    )


def _write_checkpoint_files(folder: Path, case: Case, with_checksums: bool) -> None:
    place = folder / "run" / "checkpoints" / "last"
    hub = folder / "hub"
    for each in (place, hub):
        each.mkdir(parents=True, exist_ok=True)
    (folder / "run" / "run.json").write_bytes(case["run.json"])
    for name in ("state.json", "model.safetensors", "training.safetensors", "sha256.json"):
        if name in case and (name != "sha256.json" or with_checksums):
            (place / name).write_bytes(case[name])
        else:
            (place / name).unlink(missing_ok=True)
    (hub / "model.safetensors").write_bytes(case["model.safetensors"])
    (folder / "weights.safetensors").write_bytes(case["model.safetensors"])
    try:
        facts = {
            "format": 1,
            "run": json.loads(case["run.json"]),
            "input_spec": json.loads(case["state.json"])["input_spec"],
        }
        (hub / "widemargin.json").write_text(json.dumps(facts))
    except (ValueError, KeyError, TypeError, RecursionError):
        (hub / "widemargin.json").write_bytes(case["state.json"])


def _load_all_ways(folder: Path, picture: Path) -> None:
    """Load the files in all possible ways; the first error is raised."""
    from widemargin.head.head import Head
    from widemargin.io.errors import InputError
    from widemargin.loading import load as load_any
    from widemargin.training.run import Run
    from widemargin.training.run_loading import load_run

    refused: list[InputError] = []
    ways: list[tuple[Callable[[Path], Run], str]] = [(load_run, "run"), (load_any, "hub")]
    for load, name in ways:
        try:
            loaded = load(folder / name)
            loaded.predict(picture)
            loaded.embed([picture])
        except InputError as error:
            refused.append(error)
    try:
        Head(8, 40).load_class_weights(folder / "weights.safetensors")
    except InputError as error:
        refused.append(error)
    if refused:
        raise refused[0]


def mutate_tensors(data: bytes, mutator: Mutator) -> bytes:
    """Change shape, dtype, name or content of one tensor of a safetensors file, or remove it."""
    import torch
    from safetensors.torch import load, save

    tensors = dict(load(data))
    name = mutator.rng.choice(sorted(tensors))
    value = tensors.pop(name)
    what = mutator.rng.randrange(7)
    if what == 1:
        tensors[name] = value.flatten()[: mutator.rng.randrange(value.numel() + 1)].clone()
    elif what == 2:
        kinds = (torch.int64, torch.uint8, torch.float16, torch.bool, torch.float64, torch.bfloat16)
        tensors[name] = value.to(mutator.rng.choice(kinds))
    elif what == 3:
        tensors[mutator.rng.choice(("", "weight", name + ".x", "optimizer.99.exp_avg", "optimizer.a", "average."))] = (
            value
        )
    elif what == 4:
        tensors[name] = torch.full_like(value, float("nan")) if value.is_floating_point() else value
    elif what == 5:
        tensors[name] = value.unsqueeze(0)
    elif what == 6:
        tensors[name], tensors["optimizer.0.more"] = value, torch.zeros(3)
    return bytes(save({key: each.contiguous() for key, each in tensors.items()}))
