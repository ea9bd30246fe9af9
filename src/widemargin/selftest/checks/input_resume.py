"""Training that goes on from a checkpoint of another shape or version, or damaged: it goes on, or one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..check import Outcome, Size
from ..corpus import files
from ..mutate import Mutator
from ..trial import run_trials
from .input_checkpoints import other_tensors

TITLE = "Training resumed from a checkpoint of another shape or version, edited, or with tensors lost or reshaped"
KIND = "input"
LONG = False

COUNTS = (60, 1_000)
FILES = ("state.json", "model.safetensors", "training.safetensors")


def run(size: Size) -> Outcome:
    """Spoil real checkpoints of a small training, between epochs and within one; restore them and train on."""
    try:
        training = _small_training(size.folder)
    except ImportError as error:
        return Outcome(0, 0, "nothing", f"{error.name} is not installed, so nothing is trained on images at all")
    place = size.folder / "checkpoints" / "last"
    whole = [_kept(training, place), _kept(training, place, within=True)]
    mutator = Mutator(size.seed)

    def made() -> dict[str, bytes]:
        good = mutator.draw.choice(whole)
        name = mutator.draw.choice((*FILES, "state.json"))
        what = mutator.draw.random()
        if name == "state.json" and what < 0.8:
            return {**good, name: json.dumps(mutator.misshapen(json.loads(good[name]))).encode()}
        if name != "state.json" and what < 0.8:
            return {**good, name: other_tensors(good[name], mutator)}
        return {**good, name: mutator.spoiled([good[name]])}

    def read(case: dict[str, bytes]) -> None:
        from ...training.telling import Telling

        for name, data in case.items():
            (place / name).write_bytes(data)
        (place / "sha256.json").unlink(missing_ok=True)
        training.restore(place)
        training.one_epoch(Telling())

    return run_trials(size, "resume", whole, made, read, COUNTS)


def _small_training(folder: Path) -> Any:
    """Two classes of four tiny images."""
    import lightning_fabric  # noqa: F401
    import safetensors  # noqa: F401

    from ...run import Run
    from ...training.moving import Training

    picture = files("images")["rgb.png"]
    for name in ("one", "two"):
        for part, count in (("train", 4), ("test", 1)):
            (folder / "data" / part / name).mkdir(parents=True)
            for number in range(count):
                differs = f"{part} {name} {number}".encode()  # behind the picture's end: no test image is trained on
                (folder / "data" / part / name / f"{number}.png").write_bytes(picture + differs)
    loss = "arcface(s=8, m=0.1) + 0.01*center"
    settings = {"epochs": 3, "batch_size": 4, "input_size": 16, "augment": "none", "channels_last": False}
    model = "fast(widths=(4, 4, 8), bias=False)"
    return Training(Run(str(folder / "data"), model, loss, ema=0.9, **settings), None)  # type: ignore[arg-type]


def _kept(training: Any, place: Path, within: bool = False) -> dict[str, bytes]:
    """The files of a checkpoint of this moment, an epoch further or in the middle of one."""
    from ...training.stopping import Stop
    from ...training.telling import Telling

    stop = Stop()
    stop.asked = within
    training.one_epoch(Telling(), stop)
    training.save(place)
    return {name: (place / name).read_bytes() for name in FILES}
