"""Run by training/test_api.py, in its own process and on two ranks: trainings on arrays, with and without a sampler."""

import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import RandomSampler

import widemargin as wm


class StopOnLastRank(wm.Callback):
    """Asks to stop after the first epoch, on the last rank only."""

    def on_epoch_end(self, trainer, metrics):
        if trainer.rank == trainer.fabric.world_size - 1:
            trainer.stop()


def main(place: str) -> None:
    folder = Path(place)
    y = torch.arange(120) % 3
    x = torch.randn(120, 8, generator=torch.Generator().manual_seed(0)) + 3.0 * torch.eye(8)[y]
    config = {"loss": "arcgrad(s=10)", "epochs": 2, "batch_size": 16, "lr": 0.01, "opt": "sgd", "val_fraction": 0.2}
    for name, options in (("plain", {}), ("sampler", {"sampler": RandomSampler(range(120)), "val": (x, y)})):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
        given = {"train": (x, y), "test": (x[:100], y[:100]), "model": net, "quiet": True, **options}
        settings = {**config, "val_fraction": 0.0} if "val" in given else config
        stopped = wm.train(settings, folder / name, callbacks=[StopOnLastRank()], **given)
        assert len(stopped.history) == 1
        run = wm.train({"epochs": 2}, folder / name, resume=True, **given)
        if int(os.environ.get("RANK", "0")) == 0:
            torch.save({**run.model.state_dict(), "top1": run.record["test"]["top1"]}, folder / f"{name}.pt")
