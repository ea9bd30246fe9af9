"""Run by training/test_logging.py: a training that is killed between an epoch's log and its checkpoint, and goes on."""

import shutil
import sys
from pathlib import Path

from widemargin.training.config import TrainConfig
from widemargin.training.train import train


def main(images: str, folder: Path) -> None:
    run = TrainConfig(
        data=images,
        model="fast(width=0.125)",
        loss="arcface(s=10, m=warmup(0, 0.3, steps=8))",
        input_size=16,
        batch_size=12,
        augment="fast",
        opt="sgd",
        lr=0.05,
        epochs=4,
        val_fraction=0.2,
    )
    last, kept = folder / "checkpoints" / "last", folder / "kept"
    options = {"loggers": ["tensorboard", "wandb", "tensorboard"], "quiet": True}
    train(run, folder, stop_after=2, **options)
    shutil.copytree(last, kept)
    train(run, folder, stop_after=1, resume=True, **options)
    shutil.rmtree(last)
    kept.rename(last)
    train(run, folder, resume=True, **options)
    train(run, folder, resume=True, **options)  # finished: evaluated again, nothing to log


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
