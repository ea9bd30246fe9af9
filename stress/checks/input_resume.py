"""Training resumed from a damaged checkpoint, or of another shape or version: it continues, or one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..check import CheckContext, Outcome
from ..fuzzing import load_corpus_files, run_fuzz_cases
from ..mutate import Mutator
from .input_checkpoints import mutate_tensors

TITLE = "Training resumed from a checkpoint of another shape or version, edited, or with tensors lost or reshaped"
KIND = "input"
LONG = False

COUNTS = (60, 1_000)
FILES = ("state.json", "model.safetensors", "training.safetensors")


def run(context: CheckContext) -> Outcome:
    """Corrupt real checkpoints of a small training, between and within epochs; restore them and continue."""
    try:
        training = _small_trainer(context.folder)
    except ImportError as error:
        return Outcome(0, 0, "nothing", f"{error.name} is not installed, so nothing is trained on images at all")
    place = context.folder / "checkpoints" / "last"
    whole = [_save_next_checkpoint(training, place), _save_next_checkpoint(training, place, mid_epoch=True)]
    mutator = Mutator(context.seed)

    def make_case() -> dict[str, bytes]:
        good = mutator.rng.choice(whole)
        name = mutator.rng.choice((*FILES, "state.json"))
        what = mutator.rng.random()
        if name == "state.json" and what < 0.8:
            return {**good, name: json.dumps(mutator.mutate_json(json.loads(good[name]))).encode()}
        if name != "state.json" and what < 0.8:
            return {**good, name: mutate_tensors(good[name], mutator)}
        return {**good, name: mutator.mutate_bytes([good[name]])}

    def read(case: dict[str, bytes]) -> None:
        from widemargin.training.logging import ProgressReporter

        for name, data in case.items():
            (place / name).write_bytes(data)
        (place / "sha256.json").unlink(missing_ok=True)
        training.restore(place)
        training.train_epoch(ProgressReporter())

    return run_fuzz_cases(context, "resume", whole, make_case, read, COUNTS)


def _small_trainer(folder: Path) -> Any:
    """Build a trainer on two classes of four tiny images."""
    import lightning_fabric  # noqa: F401
    import safetensors  # noqa: F401

    from widemargin.training.config import TrainConfig
    from widemargin.training.trainer import Trainer

    picture = load_corpus_files("images")["rgb.png"]
    for name in ("one", "two"):
        for part, count in (("train", 4), ("test", 1)):
            (folder / "data" / part / name).mkdir(parents=True)
            for number in range(count):
                differs = f"{part} {name} {number}".encode()  # behind the picture's end: no test image is trained on
                (folder / "data" / part / name / f"{number}.png").write_bytes(picture + differs)
    loss = "arcface(s=8, m=0.1) + 0.01*center"
    settings = {"epochs": 3, "batch_size": 4, "input_size": 16, "augment": "none", "channels_last": False}
    model = "fast(widths=(4, 4, 8), bias=False)"
    return Trainer(TrainConfig(str(folder / "data"), model, loss, ema=0.9, **settings), None)  # type: ignore[arg-type]


def _save_next_checkpoint(trainer: Any, checkpoint_dir: Path, mid_epoch: bool = False) -> dict[str, bytes]:
    """Return the files of a checkpoint at this point, an epoch later or in the middle of one."""
    from widemargin.training.distributed import StopRequest
    from widemargin.training.logging import ProgressReporter

    stop = StopRequest()
    stop.is_requested = mid_epoch
    trainer.train_epoch(ProgressReporter(), stop)
    trainer.save(checkpoint_dir)
    return {name: (checkpoint_dir / name).read_bytes() for name in FILES}
