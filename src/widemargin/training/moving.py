"""Training: everything of a run that moves, how it is kept and restored, and one epoch of it."""

from __future__ import annotations

import math
import time
import warnings
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import ranks
from ..data.draws import generator_of
from ..errors import InputError
from ..results import versions
from ..run import Run
from . import checkpoint, run_files
from .diagnosis import DivergedError, diagnosis, unsound
from .epoch_sums import EpochSums
from .inputs import Inputs, inputs_of
from .judging import judge
from .launch import TIMEOUT, launched
from .network import Another, Average, Step, network, state_bytes
from .optimizers import optimizer, set_rate
from .rates import Plateau, learning_rate
from .stopping import Stop
from .sync_norm import synced
from .telling import Running, Telling

if TYPE_CHECKING:
    from ..data.manifest import Manifest
    from .inputs import Samples

_WATCH = 16  # steps between looks at the loss: waiting for a number now and then is enough
_DROPOUT = 2  # what a generator is for, beside the batches' order and steps


class Training:
    """A run's model, optimizer and counters; fresh, or to be restored from a checkpoint (`resumed`)."""

    def __init__(
        self,
        run: Run,
        data_dir: str | None,
        devices: Any = "auto",
        resumed: bool = False,
        another: Another | None = None,
        timeout: float = TIMEOUT,
        manifest: Manifest | None = None,
        assign_new: bool = False,
    ) -> None:
        self.run = run
        self.fabric = launched(run, devices, timeout)
        self.rank = self.fabric.global_rank
        self.inputs: Inputs = inputs_of(
            run,
            data_dir,
            self.rank,
            self.fabric.world_size,
            manifest=manifest,
            begun=resumed,
            assign_new=assign_new,
        )
        self.assign_new = assign_new
        self.steps = len(self.inputs.batches)  # of an epoch; a batch that cannot be filled is told before all else
        for note in self.inputs.notes if self.rank == 0 else ():
            warnings.warn(f"{run.data}: {note}", stacklevel=2)
        self.model = network(run, self.inputs.sees, fresh=not resumed, another=another)
        self.built = checkpoint.not_finite(self.model.state_dict())  # what is so by design, such as a mask
        if not resumed:
            self.inputs.prepare_network(self.model)
            if run.init_from is not None:
                self._begin_with(run.init_from)
        if run.sync_bn and self.fabric.world_size > 1 and self.fabric.device.type == "cuda":
            self.model = synced(self.model)
        if run.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = optimizer(run, self.model)
        step: torch.nn.Module = Step(self.model)
        if run.compile:
            step = torch.compile(step)  # type: ignore[assignment]
        self.step_module, self.optimizer = self.fabric.setup(step, self.optimizer)
        self.average = Average(self.model, run.ema) if run.ema else None
        self.plateau = Plateau()
        self.epoch, self.step, self.seconds, self.best = 0, 0, 0.0, -math.inf
        self.within: dict[str, Any] | None = None
        self.kept = False  # whether there is a checkpoint
        self.sums: EpochSums | None = None  # of the epoch that goes on
        self.wrong = ""  # what was the matter at the first step whose loss was no number

    def _begin_with(self, other: str) -> None:
        """The backbone of another run; the class weights stay new, under whatever loss this run has."""
        kept, _ = checkpoint.load_judged(Path(other) / "checkpoints" / "last")
        wanted = {name: value for name, value in self.model.state_dict().items() if name.startswith("backbone.")}
        there = sum(size for name, size in kept.sizes.items() if name in wanted)
        checkpoint.check_size(there, 2 * sum(value.nbytes for value in wanted.values()), f"--init-from {other}")
        start = kept.read(wanted)
        if any(name not in start or start[name].shape != value.shape for name, value in wanted.items()):
            raise InputError(f"--init-from {other}: its weights are of another network")
        checkpoint.check_finite({name: start[name] for name in wanted}, kept.held, self.built)
        self.model.load_state_dict({name: start[name] for name in wanted}, strict=False)
        self._compare_with(Path(other))

    def _compare_with(self, other: Path) -> None:
        """Say where a run that this one begins with was trained on images that this one is tested on."""
        from ..data.manifest import GONE, HELD_OUT, NAME, TEST, TRAIN, Manifest

        if self.inputs.manifest is None or not (other / NAME).exists() or self.rank:
            return
        trained = {row.sha256 for row in Manifest.read(other / NAME).of(TRAIN, HELD_OUT, GONE)}
        both = [row.path for row in self.inputs.manifest.of(TEST) if row.sha256 in trained]
        if both:
            what = f"{len(both):,} test images, such as {both[0]}, were trained on by the run it begins with"
            warnings.warn(f"--init-from {other}: {what}; the --seed of that run divides the folder alike", stacklevel=4)

    # ---------------------------------------------------------------- keeping

    def save(self, place: Path) -> None:
        """A checkpoint of this moment, by the first process; weights that are no numbers take no good one's place."""
        if names := self._not_finite():
            ending = "; the last good checkpoint is kept" if self.kept else ""
            what = f"step {self.step}: the update left weights that are not finite in {names[0]}"
            raise DivergedError(f"{what}. Try a smaller --lr, --clip 1, or a warm-up{ending}")
        if self.rank == 0:
            tensors, numbers = checkpoint.optimizer_tensors(self.optimizer)
            if self.average is not None:
                tensors.update({checkpoint.AVERAGE + name: value for name, value in self.average.values.items()})
            state = {
                "epoch": self.epoch,
                "step": self.step,
                "seconds": self.seconds,
                "best": self.best if math.isfinite(self.best) else None,
                "plateau": self.plateau.state(),
                "within": self.within,
                "precision": self.fabric.strategy.precision.state_dict(),
                "optimizer": numbers,
                "sees": self.inputs.sees,
                "run": asdict(self.run),
                "versions": versions(),
            }
            if (manifest := self.inputs.manifest) is not None:
                state["manifest"] = {"images": manifest.counts(), "digest": manifest.digest()}
            checkpoint.save(place, self.model.state_dict(), tensors, state, spare=place.name == "last")
        self.fabric.barrier()
        self.kept = True

    def _not_finite(self) -> list[str]:
        """Names of what would be kept and is no number: weights, which all processes share, then what the first has."""
        if (names := unsound(self.model)) or self.rank:
            return names
        averages = {} if self.average is None else self.average.values
        wrong = checkpoint.not_finite(self.model.state_dict()) | checkpoint.not_finite(averages)
        return sorted(wrong - self.built)

    def restore(self, place: Path) -> None:
        """Go on from a checkpoint."""
        kept = checkpoint.load(place, state_bytes(self.model))
        model, tensors, state = kept[:3]
        try:
            run_files.progress(state)
            self._check_images(state, place)
            checkpoint.restore_module(self.model, model, str(place), kept.held)
            checkpoint.restore_optimizer(self.optimizer, tensors, state["optimizer"])
            if self.average is not None:
                self.average.load(tensors, checkpoint.AVERAGE)
                checkpoint.check_finite(self.average.values, kept.averages, self.built)
            self.plateau.load(state["plateau"])
            self.fabric.strategy.precision.load_state_dict(state["precision"])
            self.epoch, self.step, self.seconds = state["epoch"], state["step"], state["seconds"]
            self.best = -math.inf if state["best"] is None else state["best"]
            self.within = state.get("within")
            if self.within is not None and self.assign_new:  # an epoch may have fewer steps than were done of it
                self.within["step"] = min(self.within["step"], self.steps)
            self.kept = True
            if self.within is not None:
                self._begin_epoch()  # now and not later: what cannot be gone on from is told as a checkpoint's fault
        except InputError:
            raise
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise InputError(f"{place}: not a checkpoint of this version ({error}); take an earlier one") from None

    def _check_images(self, state: dict[str, Any], place: Path) -> None:
        """Refuse to go on with other images than those of the checkpoint, as far as that is known."""
        if self.inputs.manifest is None:
            return
        kept = state.get("manifest")
        if kept is None:
            done = state["epoch"] * self.steps + (0 if state.get("within") is None else state["within"]["step"])
            if self.inputs.by_number and done != state["step"]:
                raise InputError(
                    f"{place}: {state['step']} steps in {state['epoch']} epochs, now an epoch has {self.steps}: the "
                    "number of images has changed, and without a manifest nobody knows which were trained on"
                )
            return
        name = f"{place.parent.parent / 'manifest.csv'}"
        if self.inputs.by_number:
            raise InputError(f"{name}: not there, so nobody knows which images were trained on; take a copy of it")
        if kept["digest"] != self.inputs.manifest.digest() and not self.assign_new:
            raise InputError(
                f"{name}: assigns other images to training than when the last checkpoint was written, so the run would "
                "go on as another; take the manifest of then, or give --assign-new to go on with this one"
            )

    # ---------------------------------------------------------------- training

    def one_epoch(self, told: Telling, stop: Stop | None = None) -> dict[str, Any] | None:
        """All steps of an epoch, or those that were left; what there is to log of it, over all processes.

        Each epoch begins its own random numbers (dropout's), so that a resumed run draws the same ones. None where it
        was asked to stop: then `within` holds what a checkpoint needs to go on in the middle.
        """
        begun = time.perf_counter()
        self.model.train()
        run, batches = self.run, self.inputs.batches
        sums, first = self._begin_epoch()
        self.sums = sums
        begun -= 0.0 if self.within is None else self.within["spent"]
        self.within = None
        rate = run.lr
        for number, batch in enumerate(batches.epoch(self.epoch, first), first):
            rate = learning_rate(run, self.step, len(batches), self.plateau.dropped)
            set_rate(self.optimizer, rate)
            images, y, mix = self.fabric.to_device(batch)
            last = (number + 1) % run.accumulate == 0 or number + 1 == len(batches)
            losses, embedded = self.backward(images, y, mix, last)
            self._look(losses, embedded, y)
            if last:
                self.update()
            sums.add(self.model.objective, losses, embedded, y)
            self.step += 1
            watched = number % _WATCH == _WATCH - 1 or number + 1 == len(batches)
            told.step(1.0 / len(batches), self._watch(sums, embedded, y, begun) if watched else None)
            if last and number + 1 < len(batches) and self._asked(stop, watched):
                self._watch(sums, embedded, y, begun)  # a loss that is no number is never kept
                self.within = self._middle(sums, number + 1, time.perf_counter() - begun)
                return None
        self.epoch += 1
        spent = time.perf_counter() - begun
        self.seconds += spent
        loss, answers, seen = sums.over_all()
        line: dict[str, Any] = {
            "epoch": self.epoch,
            "step": self.step,
            "loss": loss / seen,
            "train_top1": 100.0 * answers / seen,
            "lr": rate,
            "seconds": round(self.seconds, 3),
            "images_per_second": round(seen / spent, 1),
        }
        head = self.model.objective.head
        if head is not None:
            line["numbers"] = head.now
            line["histogram"] = sums.histogram.counts()
        if found := sums.mined.means():
            line["mining"] = found
        return line

    def _begin_epoch(self) -> tuple[EpochSums, int]:
        """Sums and the step to begin with: nothing and the first, or where an epoch was left in the middle."""
        sums = EpochSums(self.fabric.device)
        if self.within is None:
            torch.manual_seed(generator_of(_DROPOUT, self.run.seed, self.epoch, self.rank).initial_seed())
            return sums, 0
        sums.load(self.within["sums"], self.rank == 0)
        if self.rank < len(self.within["random"]):
            torch.set_rng_state(torch.tensor(list(bytes.fromhex(self.within["random"][self.rank])), dtype=torch.uint8))
        return sums, int(self.within["step"])

    def _middle(self, sums: EpochSums, step: int, spent: float) -> dict[str, Any]:
        """Where an epoch is left, in JSON: its next step, its sums, everybody's random numbers."""
        states = ranks.gather_rows(torch.get_rng_state().unsqueeze(0).to(self.fabric.device)).cpu()
        random = [bytes(row.tolist()).hex() for row in states]
        return {"step": step, "sums": sums.state(), "random": random, "spent": spent}

    def _asked(self, stop: Stop | None, watched: bool) -> bool:
        """Whether all shall stop: alone at once, together where all look at the same step."""
        if stop is None or (self.fabric.world_size > 1 and not watched):
            return False
        if self.fabric.world_size == 1:
            return stop.asked
        return bool(ranks.add_up(torch.tensor(float(stop.asked), device=self.fabric.device)) > 0)

    def backward(self, images: Tensor, y: Tensor, mix: Any, last: bool = True) -> tuple[Tensor, Tensor]:
        """Losses and embeddings of a batch, its gradient added; the `last` before a step is shared by all processes."""
        with nullcontext() if last else self.fabric.no_backward_sync(self.step_module):
            losses, embedded = self._forward(images, y, mix)
            self.fabric.backward(losses.mean() / self.run.accumulate)
        return losses, embedded

    def _forward(self, images: Tensor, y: Tensor, mix: Any) -> tuple[Tensor, Tensor]:
        """Losses and embeddings; a head refuses embeddings that are no numbers, and the reason is told as elsewhere."""
        try:
            losses, embedded = self.step_module(images, y, mix)
        except InputError:
            with torch.no_grad():
                sound = torch.isfinite(self.model.embed(images)).all()
            if sound:
                raise
            told = self.wrong or diagnosis(self.model, None, y, self.step + 1, math.nan, self.kept, self.before)
            raise DivergedError(told) from None
        return losses, embedded

    def _look(self, losses: Tensor, embedded: Tensor, y: Tensor) -> None:
        """At the loss of every step where that costs no waiting: before the weights follow it and are lost too.

        Alone it stops here; together all stop at the same step, the next at which they look at the sum of all.
        """
        if losses.device.type != "cpu" or self.wrong or math.isfinite(loss := float(losses.detach().sum())):
            return
        self.wrong = diagnosis(self.model, embedded, y, self.step + 1, loss / len(y), self.kept, self.before)
        if self.fabric.world_size == 1:
            raise DivergedError(self.wrong)

    @property
    def before(self) -> str:
        """What the steps so far looked like, in words."""
        return "" if self.sums is None else self.sums.sizes()

    def update(self) -> None:
        """One step along the gradients that were added up."""
        if self.run.clip:
            self.fabric.clip_gradients(
                self.step_module, self.optimizer, max_norm=self.run.clip, error_if_nonfinite=False
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(self.model)

    def _watch(self, sums: EpochSums, x: Tensor, y: Tensor, begun: float) -> Running:
        """All processes look at the sum of all, so that all stop together; what there is to tell meanwhile."""
        loss, right, seen = sums.over_all()
        if not math.isfinite(loss):
            told = self.wrong or diagnosis(self.model, x, y, self.step, loss / seen, self.kept, sums.sizes())
            raise DivergedError(told)
        return Running(loss / seen, 100.0 * right / seen, seen / (time.perf_counter() - begun))

    def judge(self, images: Samples, flips: bool = True, *, intervals: bool = False) -> dict[str, Any]:
        """The figures on some images, with the averaged weights where there is an average."""
        if self.average is not None:
            self.average.swap(self.model)
        try:
            return judge(self.model, self.run, self.inputs, images, flips=flips, intervals=intervals)
        finally:
            if self.average is not None:
                self.average.swap(self.model)
