"""`Trainer`: model, optimizer and counters of a run, saving and restoring them, and one epoch of training."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..data.images.timm_transforms import check_rand
from ..io.errors import InputError, spell_option
from ..models.grad_checkpointing import enable_grad_checkpointing
from ..numerics import distributed
from ..numerics.host_reads import raise_deferred_errors
from ..numerics.random import make_generator
from . import checkpoint
from .callbacks import CallbackList
from .config import TrainConfig, check_combinations
from .dataset_inputs import DatasetInputs, GivenObjects
from .distributed import DEFAULT_TIMEOUT_SECONDS, StopRequest, convert_sync_batchnorm, launch_fabric
from .divergence import DivergedError, describe_divergence
from .epoch_statistics import EpochSums
from .evaluate import evaluate
from .freezing import BackboneFreezing
from .image_inputs import Inputs
from .inputs import load_inputs
from .knn_probe import knn_probe
from .logging import EpochProgress, ProgressReporter
from .model import GivenModule, ModelEMA, ObjectiveFactory, TrainStep, build_margin_model
from .optim import PlateauScheduler, build_optimizer, clip_gradients, learning_rate, set_lr
from .selection import check_images_to_select_by, check_metric_to_select_by
from .sharding import class_shards, exclude_from_ddp, local_classes
from .trainer_checkpoint import load_init_weights, restore_checkpoint, save_checkpoint

if TYPE_CHECKING:
    from ..data.images.manifest import Manifest
    from .image_inputs import Samples


_CHECK_INTERVAL = 16  # steps between reads of the loss, because reading it waits for the device
_DROPOUT_STREAM = 2  # stream of a generator, distinct from those of `data.images.batches`


class Trainer:
    """A run's model, optimizer and counters; new, or to be restored from a checkpoint (`resume`)."""

    def __init__(
        self,
        config: TrainConfig,
        data_dir: str | Path | None,
        devices: Any = "auto",
        resume: bool = False,
        objective_factory: ObjectiveFactory | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        manifest: Manifest | None = None,
        assign_new: bool = False,
        given: GivenObjects | None = None,
        callbacks: Iterable[Any] = (),
        class_counts: list[int] | None = None,
        workers: int | None = None,
    ) -> None:
        check_combinations(config)
        self.config, self.data_dir = config, data_dir
        self.callbacks, self.stop_requested = CallbackList(callbacks), False
        self.fabric = launch_fabric(config, devices, timeout)
        self.rank = self.fabric.global_rank
        given = given or GivenObjects()
        ranks = self.rank, self.fabric.world_size
        self.inputs: Inputs = (
            load_inputs(
                config,
                data_dir,
                *ranks,
                manifest=manifest,
                has_started=resume,
                assign_new=assign_new,
                workers=workers,
            )
            if given.train is None
            else given.load_inputs(config, *ranks, pin_memory=self.fabric.device.type == "cuda")
        )
        self.assign_new = assign_new
        if class_counts is not None:  # counts at the start of the run, so that its loss does not change
            self.inputs.class_counts = class_counts
        self.steps_per_epoch = len(self.inputs.batches)  # first, because it fails if a batch cannot be filled
        check_images_to_select_by(config, self.inputs)
        if not isinstance(self.inputs, DatasetInputs):
            check_rand(self.inputs.augment)  # before the first image is decoded
        notes = self.inputs.notes
        if not isinstance(self.inputs, DatasetInputs) or self.inputs.sampler is None:
            notes += self.inputs.batch_size_notes()
        for note in notes if self.rank == 0 else ():
            warnings.warn(f"{config.data}: {note}", stacklevel=2)
        self.model = build_margin_model(
            config,
            self.inputs.input_spec,
            allow_pretrained=not resume,
            objective_factory=objective_factory,
            module=None if given.model is None else GivenModule(given.model, self.inputs.example, given.at),
            steps_per_epoch=self.steps_per_epoch,
        )
        check_metric_to_select_by(config, self.inputs, self.model.objective.has_logits)
        self.initial_non_finite = checkpoint.non_finite_names(checkpoint.local_state_dict(self.model))  # such as a mask
        if not resume:
            self.inputs.whiten_backbone(self.model)
            if config.init_from is not None:
                load_init_weights(self, config.init_from)
        self.freezing = BackboneFreezing(self.model, config, self.fabric.world_size)
        if config.grad_checkpointing:
            enable_grad_checkpointing(self.model.backbone)
        if config.sync_bn and self.fabric.world_size > 1 and self.fabric.device.type == "cuda":
            self.model = convert_sync_batchnorm(self.model)
        if config.channels_last and all(p.ndim < 5 for p in self.model.parameters()):
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = build_optimizer(config, self.model)
        self.shards = class_shards(self.model)
        if self.shards and config.precision == "16-mixed":
            raise InputError(
                f"a head split over processes needs {spell_option('precision', 'bf16-mixed')} or 32-true, not 16-mixed"
            )
        step: torch.nn.Module = TrainStep(self.model)
        exclude_from_ddp(step, self.model, "model.")
        if config.compile:
            step = torch.compile(step)  # type: ignore[assignment]
        self.step_module, self.optimizer = self.fabric.setup(step, self.optimizer)
        self.ema = ModelEMA(self.model, config.ema) if config.ema else None
        self.plateau = PlateauScheduler()
        self.epoch, self.step, self.seconds, self.best = 0, 0, 0.0, -math.inf
        self.mid_epoch_state: dict[str, Any] | None = None
        self.val_metrics: dict[str, Any] | None = None  # after the last epoch trained by this process
        self.has_checkpoint = False  # whether a good one was written or restored
        self.epoch_sums: EpochSums | None = None  # of the current epoch
        self.divergence_message = ""  # describes the first step with a non-finite loss

    # ---------------------------------------------------------------- checkpoints

    def save(self, folder: Path) -> None:
        """Write a checkpoint from rank 0; never overwrites a good checkpoint with non-finite weights."""
        save_checkpoint(self, folder)

    def restore(self, folder: Path) -> None:
        """Restore a checkpoint."""
        restore_checkpoint(self, folder)

    def resume_notes(self) -> list[str]:
        """State of the passed objects that a resumed run cannot restore bit for bit."""
        notes = [self.callbacks.note]
        if isinstance(self.inputs, DatasetInputs):
            notes += self.inputs.resume_notes()
        return [note for note in notes if note]

    # ---------------------------------------------------------------- training

    def train_epoch(self, reporter: ProgressReporter, stop: StopRequest | None = None) -> dict[str, Any] | None:
        """Train all or the remaining steps of an epoch and return its line of the log, over all processes.

        Each epoch begins its own random numbers (dropout's), so that a resumed run draws the same ones. None where it
        was asked to stop: then `mid_epoch_state` holds what a checkpoint needs to go on in the middle.
        """
        start_time = time.perf_counter()
        self.model.train()
        self.freezing.begin_epoch(self.epoch)
        config, batches = self.config, self.inputs.batches
        sums, first = self.begin_epoch()
        self.epoch_sums = sums
        start_time -= 0.0 if self.mid_epoch_state is None else self.mid_epoch_state["elapsed_seconds"]
        self.mid_epoch_state = None
        lr = config.lr
        for number, batch in enumerate(batches.iter_epoch(self.epoch, first), first):
            lr = learning_rate(config, self.step, len(batches), self.plateau.lr_scale)
            set_lr(self.optimizer, lr)
            images, y, mix = self.fabric.to_device(batch)
            last = (number + 1) % config.accumulate == 0 or number + 1 == len(batches)
            losses, embeddings = self.backward(images, y, mix, last)
            self._check_loss(losses, embeddings, y)
            if last:
                self.update()
            sums.add(self.model.objective, losses, embeddings, y)
            self.step += 1
            if self.callbacks.on_step_end:
                metrics = {"step": self.step, "epoch": self.epoch + 1, "loss": losses.detach().mean(), "lr": lr}
                for on_step_end in self.callbacks.on_step_end:
                    on_step_end(self, dict(metrics))
            is_check_step = number % _CHECK_INTERVAL == _CHECK_INTERVAL - 1 or number + 1 == len(batches)
            reporter.step(
                1.0 / len(batches), self._check_global_loss(sums, embeddings, y, start_time) if is_check_step else None
            )
            if last and number + 1 < len(batches) and self._should_stop(stop, is_check_step):
                self._check_global_loss(sums, embeddings, y, start_time)  # never save a non-finite loss
                self.mid_epoch_state = self._capture_mid_epoch_state(sums, number + 1, time.perf_counter() - start_time)
                return None
        self.epoch += 1
        elapsed = time.perf_counter() - start_time
        self.seconds += elapsed
        loss, right, seen = sums.global_totals()
        line: dict[str, Any] = {
            "epoch": self.epoch,
            "step": self.step,
            "loss": loss,
            self.train_metric: right,
            "lr": lr,
            "seconds": round(self.seconds, 3),
            "images_per_second": round(seen / elapsed, 1),
        }
        if config.on_bad_image == "skip":
            count = torch.tensor(float(getattr(batches, "num_bad", 0)), device=self.fabric.device)
            line["skipped_images"] = int(distributed.all_reduce_sum(count))
        head = self.model.objective.head
        if head is not None:
            line["margin_values"] = head.margin_values()
            if not self.shards:
                line["histogram"] = sums.histogram.counts()
        if found := sums.mining.means():
            line["mining"] = found
        return line

    def begin_epoch(self) -> tuple[EpochSums, int]:
        """Sums and first step of the epoch: empty and 0, or those of an interrupted epoch."""
        sums = EpochSums(self.fabric.device)
        if self.mid_epoch_state is None:
            torch.manual_seed(make_generator(_DROPOUT_STREAM, self.config.seed, self.epoch, self.rank).initial_seed())
            return sums, 0
        sums.load_state_dict(self.mid_epoch_state["sums"], self.rank == 0)
        if self.rank < len(self.mid_epoch_state["rng_states"]):
            torch.set_rng_state(
                torch.tensor(list(bytes.fromhex(self.mid_epoch_state["rng_states"][self.rank])), dtype=torch.uint8)
            )
        return sums, int(self.mid_epoch_state["step"])

    def _capture_mid_epoch_state(self, sums: EpochSums, step: int, elapsed: float) -> dict[str, Any]:
        """State of an interrupted epoch for JSON: next step, sums and the random states of all processes."""
        states = distributed.gather_rows(torch.get_rng_state().unsqueeze(0).to(self.fabric.device)).cpu()
        rng_states = [bytes(row.tolist()).hex() for row in states]
        return {"step": step, "sums": sums.state_dict(), "rng_states": rng_states, "elapsed_seconds": elapsed}

    def describe(self) -> str:
        """Device, images, classes, parameters and steps of the run, on one line."""
        inputs, config = self.inputs, self.config
        processes = f" in {self.fabric.world_size} processes" if self.fabric.world_size > 1 else ""
        items = "items" if isinstance(inputs, DatasetInputs) else "images"
        parts = [f"{len(inputs.train):,} {items} to train on"]
        others = ((inputs.val, "held out"), (inputs.test, "to test"))
        parts += [f"{len(part):,} {what}" for part, what in others if part is not None]
        count = sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)
        frozen = sum(parameter.numel() for parameter in self.model.parameters() if not parameter.requires_grad)
        size = f"{format_count(count)} parameters" + (f" and {format_count(frozen)} frozen" if frozen else "")
        per_epoch = f"{self.steps_per_epoch:,} step{'' if self.steps_per_epoch == 1 else 's'}"
        steps = f"{config.epochs:,} epoch{'' if config.epochs == 1 else 's'} of {per_epoch}"
        done = f"; {self.step:,} steps done" if self.step else ""
        head = f"{self.fabric.device}{processes}: {', '.join(parts)}; {len(inputs.class_names):,} classes"
        return f"{head}; {size}; {steps} of {inputs.batch_size:,} {items}{done}"

    @property
    def train_metric(self) -> str:
        """Name in the log of how well training samples are told apart, in percent.

        Without class weights it is the recall@1 among the samples of a batch.
        """
        if self.inputs.is_multilabel:
            return "train_exact_match"
        return "train_top1" if self.model.objective.has_logits else "train_recall1"

    def stop(self) -> None:
        """Stop training after this step or epoch and save a checkpoint. For callbacks."""
        self.stop_requested = True

    def finish_epoch(self, line: dict[str, Any]) -> None:
        """Pass the metrics of an epoch to the callbacks."""
        for on_epoch_end in self.callbacks.on_epoch_end:
            on_epoch_end(self, dict(line))
        self.stop_requested = self.any_rank(self.stop_requested)

    def _should_stop(self, stop: StopRequest | None, is_check_step: bool) -> bool:
        """Whether to stop after this step; several processes decide together, at check steps only."""
        if self.fabric.world_size > 1 and not is_check_step:
            return False
        if stop is not None and self.any_rank(stop.is_requested):
            return True
        if self.callbacks.on_step_end:
            self.stop_requested = self.any_rank(self.stop_requested)
        return self.stop_requested

    def any_rank(self, flag: bool) -> bool:
        """Whether the flag is set on any process."""
        if self.fabric.world_size == 1:
            return flag
        return bool(distributed.all_reduce_sum(torch.tensor(float(flag), device=self.fabric.device)) > 0)

    def backward(self, images: Tensor, y: Tensor, mix: Any, sync_gradients: bool = True) -> tuple[Tensor, Tensor]:
        """Losses and embeddings of a batch; accumulates its gradient, with `sync_gradients` over all processes."""
        with nullcontext() if sync_gradients else self.fabric.no_backward_sync(self.step_module):
            losses, embedded = self._forward(images, y, mix)
            self.fabric.backward(losses.mean() / self.config.accumulate)
        return losses, embedded

    def _forward(self, images: Tensor, y: Tensor, mix: Any) -> tuple[Tensor, Tensor]:
        """Losses and embeddings; raises `DivergedError` if the head rejects non-finite embeddings."""
        try:
            losses, embedded = self.step_module(images, y, mix)
        except InputError:
            with torch.no_grad():
                sound = torch.isfinite(self.model.embed(images)).all()
            if sound:
                raise
            message = self.divergence_message or describe_divergence(
                self.model, None, y, self.step + 1, math.nan, self.has_checkpoint, self.earlier_magnitudes
            )
            raise DivergedError(message) from None
        return losses, embedded

    def _check_loss(self, losses: Tensor, embeddings: Tensor, y: Tensor) -> None:
        """Check the loss of every step on a CPU, where reading it does not wait, before the weights are updated.

        A single process raises here; several remember the message and stop together at the next check step.
        """
        if (
            losses.device.type != "cpu"
            or self.divergence_message
            or math.isfinite(loss := float(losses.detach().sum()))
        ):
            return
        self.divergence_message = describe_divergence(
            self.model, embeddings, y, self.step + 1, loss / len(y), self.has_checkpoint, self.earlier_magnitudes
        )
        if self.fabric.world_size == 1:
            raise DivergedError(self.divergence_message)

    @property
    def earlier_magnitudes(self) -> str:
        """Description of the largest logit and angle of the last finite step."""
        return "" if self.epoch_sums is None else self.epoch_sums.describe_magnitudes()

    def update(self) -> None:
        """One optimizer step on the accumulated gradients."""
        self.freezing.drop_gradients(self.epoch)
        if self.config.clip and (self.shards or self.config.sample_rate < 1.0):
            self.fabric.strategy.precision.unscale_gradients(self.optimizer)
            split = [self.model.get_parameter(name) for name in self.shards]
            clip_gradients(self.model.parameters(), self.config.clip, split, distributed.all_reduce_sum)
        elif self.config.clip:
            self.fabric.clip_gradients(
                self.step_module, self.optimizer, max_norm=self.config.clip, error_if_nonfinite=False
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update_parameters(self.model)

    def _check_global_loss(self, sums: EpochSums, x: Tensor, y: Tensor, start_time: float) -> EpochProgress:
        """Progress from the sums of all processes; all processes raise if the loss is not finite."""
        loss, right, seen = sums.global_totals()
        if not math.isfinite(loss):
            message = self.divergence_message or describe_divergence(
                self.model, x, y, self.step, loss, self.has_checkpoint, sums.describe_magnitudes()
            )
            raise DivergedError(message)
        raise_deferred_errors()  # the sums above have waited for the device already
        return EpochProgress(loss, right, seen / (time.perf_counter() - start_time), self.train_metric)

    def probe(self) -> float:
        """Accuracy of the k-NN probe in percent, with the averaged weights if there are any; called on all ranks."""
        with self._evaluated_weights():
            return distributed.compute_on_rank_zero(
                lambda: knn_probe(self.model, self.inputs, self.config.knn_probe), self.fabric.device
            )

    def evaluate(self, images: Samples, flips: bool = True, *, intervals: bool = False) -> dict[str, Any]:
        """Metrics on `images`, with the averaged weights if there are any.

        All processes call this and share the images. They take the buffers of rank 0, whose running statistics the
        checkpoint holds, so that the figures are those of the checkpoint.
        """
        with self._evaluated_weights():
            return evaluate(
                self.model, self.config, self.inputs, images, flips=flips, intervals=intervals, over_ranks=True
            )

    @contextmanager
    def _evaluated_weights(self) -> Iterator[None]:
        """Put the averaged weights, if there are any, and rank 0's buffers into the model within the block."""
        if self.ema is not None:
            self.ema.swap(self.model)
        try:
            distributed.broadcast_buffers(self.model)
            yield
        finally:
            if self.ema is not None:
                self.ema.swap(self.model)

    def evaluate_average(self, average: dict[str, Tensor], images: Samples) -> dict[str, Any]:
        """Metrics on `images` with the averaged weights of several checkpoints; the model's own are put back."""
        kept = {name: _clone(value) for name, value in checkpoint.local_state_dict(self.model).items()}
        ema, self.ema = self.ema, None
        try:
            self.model.load_state_dict(local_classes(average, self.shards))
            return self.evaluate(images, intervals=False)
        finally:
            self.model.load_state_dict(kept)
            self.ema = ema


def format_count(number: int) -> str:
    """A large number in three digits.

    >>> [format_count(number) for number in (512, 10_300, 999_999, 43_590_848)]
    ['512', '10.3 k', '1.00 M', '43.6 M']
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:
            scaled = number / size
            return f"{scaled:.{2 if scaled < 9.995 else 1 if scaled < 99.95 else 0}f} {unit}"
    return str(number)


def _clone(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
