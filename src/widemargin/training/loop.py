"""The loop: one run on images, from its first step or from its last checkpoint."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import InputError
from ..progress import bar
from ..results import versions
from ..run import Run
from . import checkpoint
from .diagnosis import DivergedError, diagnosis
from .evaluate import evaluate
from .histogram import AngleHistogram
from .inputs import Inputs, inputs_of
from .log import Log
from .network import Average, Step, network
from .optimizers import clip, optimizer, set_rate
from .rates import Plateau, learning_rate

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Training:
    """Everything that moves while a run is trained."""

    def __init__(self, run: Run, folder: Path, data_dir: str | None, also: Iterable[str], devices: Any) -> None:
        self.run, self.folder = run, folder
        self.fabric = _fabric(run, devices)
        self.inputs: Inputs = inputs_of(run, data_dir, self.fabric.global_rank, self.fabric.world_size)
        self.model = network(run, self.inputs.classes, self.inputs.channels, self.inputs.size)
        self.inputs.prepare_network(self.model)
        if run.init_from is not None:
            start = checkpoint.load_model(Path(run.init_from) / "checkpoints" / "last")
            own = {name: start[name] for name in start if name.startswith("backbone.")}
            missing = self.model.load_state_dict(own, strict=False).unexpected_keys
            if missing or not own:
                raise InputError(f"--init-from {run.init_from}: its weights are of another network")
        if run.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = optimizer(run, self.model)
        step: torch.nn.Module = Step(self.model)
        if run.compile:
            step = torch.compile(step)  # type: ignore[assignment]
        self.step_module, self.optimizer = self.fabric.setup(step, self.optimizer)
        self.average = Average(self.model, run.ema) if run.ema else None
        self.plateau = Plateau()
        self.epoch, self.step, self.seconds = 0, 0, 0.0
        self.also = list(also)

    # ---------------------------------------------------------------- keeping

    def save(self, place: Path) -> None:
        """A checkpoint of this moment, by the first process."""
        if self.fabric.global_rank == 0:
            tensors, numbers = checkpoint.optimizer_tensors(self.optimizer)
            tensors["rng"] = torch.get_rng_state()
            if self.average is not None:
                tensors.update({f"average.{name}": value for name, value in self.average.values.items()})
            state = {
                "epoch": self.epoch,
                "step": self.step,
                "seconds": self.seconds,
                "plateau": self.plateau.state(),
                "optimizer": numbers,
                "run": asdict(self.run),
                "versions": versions(),
            }
            checkpoint.save(place, self.model.state_dict(), tensors, state)
        self.fabric.barrier()

    def restore(self, place: Path) -> None:
        """Go on from a checkpoint."""
        model, tensors, state = checkpoint.load(place)
        checkpoint.restore_module(self.model, model, str(place))
        checkpoint.restore_optimizer(self.optimizer, tensors, state["optimizer"])
        if self.average is not None:
            self.average.values = {name: tensors[f"average.{name}"].to(v) for name, v in self.average.values.items()}
        self.plateau.load(state["plateau"])
        self.epoch, self.step, self.seconds = state["epoch"], state["step"], state["seconds"]
        torch.set_rng_state(tensors["rng"])

    # ---------------------------------------------------------------- training

    def one_epoch(self, told: Any) -> dict[str, Any]:
        """All steps of an epoch; what there is to log of it."""
        begun = time.perf_counter()
        self.model.train()
        run, batches = self.run, self.inputs.batches
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.fabric.device)
        right = torch.zeros((), dtype=torch.int64, device=self.fabric.device)
        seen = 0
        histogram = AngleHistogram(self.fabric.device)
        head = self.model.head
        for number, batch in enumerate(batches.epoch(self.epoch)):
            rate = learning_rate(run, self.step, len(batches), self.plateau.dropped)
            set_rate(self.optimizer, rate)
            images, y, mix = self.fabric.to_device(batch)
            last = (number + 1) % run.accumulate == 0 or number + 1 == len(batches)
            waiting = nullcontext() if last else self.fabric.no_backward_sync(self.step_module)
            with waiting:
                losses, embedded = self.step_module(images, y, mix)
                self.fabric.backward(losses.mean() / run.accumulate)
            if last:
                clip(self.model, run.clip)
                self.optimizer.step()
                self.optimizer.zero_grad()
                if self.average is not None:
                    self.average.update(self.model)
            loss_sum += losses.detach().double().sum()
            with torch.no_grad():
                right += (self.model.objective.logits(embedded).argmax(1) == y).sum()
                if head is not None:
                    histogram.add(head, embedded, y)
            seen += len(y)
            self.step += 1
            if number % 16 == 15 or number + 1 == len(batches):  # waiting for a number now and then is enough
                mean = float(loss_sum) / seen
                if not math.isfinite(mean):
                    raise DivergedError(diagnosis(self.model, images, y, self.step, mean))
            told(1.0 / len(batches))
        self.epoch += 1
        spent = time.perf_counter() - begun
        self.seconds += spent
        line: dict[str, Any] = {
            "epoch": self.epoch,
            "step": self.step,
            "loss": float(loss_sum) / seen,
            "train_top1": 100.0 * int(right) / seen,
            "lr": rate,
            "seconds": round(self.seconds, 3),
            "images_per_second": round(seen * self.fabric.world_size / spent, 1),
        }
        if head is not None:
            line["numbers"] = head.now
            line["histogram"] = histogram.counts()
        return line

    def judge(self, x: Tensor, y: Tensor, flips: bool = True) -> dict[str, Any]:
        """The figures on some images, with the averaged weights where there is an average."""
        if self.average is not None:
            self.average.swap(self.model)
        try:
            return evaluate(self.model, x, y, self.inputs.for_evaluation, flips=flips)
        finally:
            if self.average is not None:
                self.average.swap(self.model)


def train(
    run: Run,
    folder: str | Path,
    *,
    resume: bool = False,
    data_dir: str | None = None,
    also: Iterable[str] = (),
    devices: Any = "auto",
    stop_after: int | None = None,
) -> dict[str, Any]:
    """Train a run in a folder to its end (or for `stop_after` epochs); the record of what came out."""
    folder = Path(folder)
    last = folder / "checkpoints" / "last"
    there = last.exists() or last.with_name("last.old").exists()
    if there and not resume:
        raise InputError(f"{folder} holds a run already: go on with --resume, or choose another --out")
    if there and Run.read(folder) != run:
        raise InputError(f"{folder} holds another run (see its run.json): choose another --out")
    training = Training(run, folder, data_dir, also, devices)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(run.to_json(), encoding="utf-8")
    if there:
        training.restore(last)
    end = run.epochs if stop_after is None else min(run.epochs, training.epoch + stop_after)
    log = Log(folder, training.epoch, training.also, run.name) if training.fabric.global_rank == 0 else None
    steps = (end - training.epoch) or 1
    with bar(f"{run.data} {run.model} {run.loss}", steps) as told:
        while training.epoch < end:
            line = training.one_epoch(told)
            held = training.inputs.held_out
            if held is not None:
                line["held_out"] = {k: v for k, v in training.judge(held.x, held.y).items() if k != "confusion"}
            training.plateau.told(line["held_out"]["loss"] if held is not None else line["loss"])
            # The line first: a resumed run drops lines beyond its checkpoint, but could not make up a lost one.
            if log is not None:
                log.add(line)
            training.save(last)
            if run.ckpt_freq and training.epoch % run.ckpt_freq == 0:
                training.save(folder / "checkpoints" / f"epoch-{training.epoch:04d}")
    if log is not None:
        log.close()
    return _record(training) if training.epoch == run.epochs else {}


def _record(training: Training) -> dict[str, Any]:
    """The last epoch's figures on the test images, written to `record.json`."""
    run = training.run
    test = training.judge(training.inputs.test.x, training.inputs.test.y)
    record = {
        "data": run.data,
        "loss": run.loss,
        "model": run.model,
        "seed": run.seed,
        "epochs": run.epochs,
        "seconds": round(training.seconds, 1),
        "cores": torch.get_num_threads(),
        "test": {name: test[name] for name in ("top1", "top5", "top1_flip", "loss")},
        "angles": test.get("angles", {}),
        "versions": versions(),
    }
    if training.fabric.global_rank == 0:
        text = json.dumps({**record, "confusion": test["confusion"]}, indent=1)
        (training.folder / "record.json").write_text(text, encoding="utf-8")
    return record


def _fabric(run: Run, devices: Any) -> Fabric:
    """Fabric as the environment wants it: one process, torchrun's or SLURM's."""
    try:
        from lightning_fabric import Fabric
    except ImportError:
        raise InputError('training on images needs lightning-fabric: pip install "widemargin[train]"') from None
    accelerator = "cpu" if not torch.cuda.is_available() and not torch.backends.mps.is_available() else "auto"
    if devices == "auto" and accelerator == "cpu":
        devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    nodes = int(os.environ.get("SLURM_NNODES", os.environ.get("GROUP_WORLD_SIZE", "1")))
    strategy = "ddp" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else "auto"
    fabric = Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy=strategy,
        precision=run.precision,  # type: ignore[arg-type]
    )
    fabric.launch()
    return fabric
