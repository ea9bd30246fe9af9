"""Save the state of a `Trainer`, restore it, or start from the backbone of another run."""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.images.manifest import MANIFEST_NAME, REMOVED_TRAIN, TEST, TRAIN, VAL, Manifest
from ..io.errors import InputError, spell_option
from ..io.provenance import versions
from . import checkpoint, run_files
from .dataset_inputs import DatasetInputs, check_fingerprint
from .divergence import DivergedError, non_finite_parameters
from .model import state_bytes
from .sharding import gather_classes, local_classes, optimizer_shards

if TYPE_CHECKING:
    from .trainer import Trainer


def save_checkpoint(trainer: Trainer, folder: Path) -> None:
    """Write a checkpoint from rank 0; never overwrites a good checkpoint with non-finite weights."""
    if names := _non_finite_names(trainer):
        ending = "; the last good checkpoint is kept" if trainer.has_checkpoint else ""
        what = f"step {trainer.step}: the update made weights non-finite in {names[0]}"
        raise DivergedError(
            f"{what}. Try a smaller {spell_option('lr')}, {spell_option('clip', 1)}, or a warm-up{ending}"
        )
    tensors, numbers = checkpoint.optimizer_state(trainer.optimizer)
    tensors = (
        gather_classes(tensors, optimizer_shards(trainer.optimizer, trainer.model, tensors))
        if trainer.shards
        else tensors
    )
    if trainer.ema is not None:
        averages = gather_classes(trainer.ema.values, trainer.shards)
        tensors.update({checkpoint.EMA_PREFIX + name: value for name, value in averages.items()})
    weights = gather_classes(checkpoint.local_state_dict(trainer.model), trainer.shards)
    if trainer.rank == 0:
        state: dict[str, Any] = {
            "epoch": trainer.epoch,
            "step": trainer.step,
            "seconds": trainer.seconds,
            "best": trainer.best if math.isfinite(trainer.best) else None,
            "plateau": trainer.plateau.state_dict(),
            "mid_epoch": trainer.mid_epoch_state,
            "precision": trainer.fabric.strategy.precision.state_dict(),
            "optimizer": numbers,
            "input_spec": trainer.inputs.input_spec,
            "run": asdict(trainer.config),
            "versions": versions(),
        }
        if (manifest := trainer.inputs.manifest) is not None:
            state["manifest"] = {"images": manifest.counts(), "digest": manifest.digest()}
        if trainer.inputs.packed_digest is not None:
            state["packed"] = trainer.inputs.packed_digest
        if isinstance(trainer.inputs, DatasetInputs):
            state["dataset"] = trainer.inputs.fingerprint
            state["sampler"] = trainer.inputs.batches.state_dict(mid_epoch=trainer.mid_epoch_state is not None)
        if trainer.callbacks.callbacks:
            state["callbacks"] = trainer.callbacks.state_dict()
        checkpoint.save(folder, weights, tensors, state, keep_backup=folder.name == "last")
    trainer.fabric.barrier()
    trainer.has_checkpoint = True


def _non_finite_names(trainer: Trainer) -> list[str]:
    """Names of non-finite tensors that would be saved: parameters, the same on all ranks, then rank 0's others."""
    state = checkpoint.local_state_dict(trainer.model)  # by all ranks, which may put a split head together
    names = non_finite_parameters(trainer.model)
    if trainer.shards and trainer.any_rank(bool(names)):  # ranks hold other classes
        return names or ["the class weights of another process"]
    if names or trainer.rank:
        return names
    averages = {} if trainer.ema is None else trainer.ema.values
    wrong = checkpoint.non_finite_names(state) | checkpoint.non_finite_names(averages)
    return sorted(wrong - trainer.initial_non_finite)


def restore_checkpoint(trainer: Trainer, folder: Path) -> None:
    """Restore a checkpoint."""
    loaded = checkpoint.load(folder, state_bytes(trainer.model))
    model, tensors, state = loaded[:3]
    try:
        run_files.check_training_state(state)
        _check_images(trainer, state, folder)
        if isinstance(trainer.inputs, DatasetInputs):
            check_fingerprint(state.get("dataset"), trainer.inputs.fingerprint, str(folder))
            trainer.inputs.batches.load_state_dict(state.get("sampler"))
        trainer.callbacks.load_state_dict(state.get("callbacks", ()))
        checkpoint.restore_module(trainer.model, model, str(folder), loaded.sources)
        if trainer.shards:
            kept = [name for name in tensors if name.startswith("optimizer.")]
            tensors = local_classes(tensors, optimizer_shards(trainer.optimizer, trainer.model, kept))
            tensors = local_classes(tensors, {checkpoint.EMA_PREFIX + n: s for n, s in trainer.shards.items()})
        checkpoint.restore_optimizer(trainer.optimizer, tensors, state["optimizer"])
        if trainer.ema is not None:
            trainer.ema.load(tensors, checkpoint.EMA_PREFIX)
            checkpoint.check_finite(trainer.ema.values, loaded.ema_sources, trainer.initial_non_finite)
        trainer.plateau.load_state_dict(state["plateau"])
        trainer.fabric.strategy.precision.load_state_dict(state["precision"])
        trainer.epoch, trainer.step, trainer.seconds = state["epoch"], state["step"], state["seconds"]
        trainer.best = -math.inf if state["best"] is None else state["best"]
        trainer.mid_epoch_state = state.get("mid_epoch")
        if trainer.mid_epoch_state is not None and trainer.assign_new:  # an epoch may now have fewer steps
            trainer.mid_epoch_state["step"] = min(trainer.mid_epoch_state["step"], trainer.steps_per_epoch)
        trainer.has_checkpoint = True
        if trainer.mid_epoch_state is not None:
            trainer.begin_epoch()  # here, so that an invalid state is reported as an error of the checkpoint
    except InputError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InputError(f"{folder}: not a checkpoint of this version ({error}); use an earlier one") from None


def _check_images(trainer: Trainer, state: dict[str, Any], folder: Path) -> None:
    """Raise InputError if the images differ from those of the checkpoint, as far as that is known."""
    if state.get("packed") != trainer.inputs.packed_digest:
        raise InputError(f"{trainer.config.data}: contains other images than when the checkpoint was written")
    if trainer.inputs.manifest is None:
        return
    kept = state.get("manifest")
    if kept is None:
        done = state["epoch"] * trainer.steps_per_epoch + (state.get("mid_epoch") or {"step": 0})["step"]
        if trainer.inputs.is_legacy_split and done != state["step"]:
            raise InputError(
                f"{folder}: {state['step']} steps in {state['epoch']} epochs, but an epoch now has "
                f"{trainer.steps_per_epoch}: the number of images has changed, and without a manifest it is unknown "
                "which were trained on"
            )
        return
    name = f"{folder.parent.parent / 'manifest.csv'}"
    if trainer.inputs.is_legacy_split:
        raise InputError(f"{name}: missing, so it is unknown which images were trained on; restore a copy of it")
    if kept["digest"] != trainer.inputs.manifest.digest() and not trainer.assign_new:
        raise InputError(
            f"{name}: assigns other images to training than when the last checkpoint was written; restore that "
            f"manifest, or use {spell_option('assign_new', True)} to continue with this one"
        )


def load_init_weights(trainer: Trainer, init_folder: str) -> None:
    """Load the backbone of another run; the class weights stay as initialised."""
    eval_weights, _ = checkpoint.open_eval_weights(Path(init_folder) / "checkpoints" / "last")
    wanted = {name: value for name, value in trainer.model.state_dict().items() if name.startswith("backbone.")}
    there = sum(size for name, size in eval_weights.sizes.items() if name in wanted)
    checkpoint.check_size(
        there, 2 * sum(value.nbytes for value in wanted.values()), spell_option("init_from", str(init_folder))
    )
    start = eval_weights.read(wanted)
    if any(name not in start or start[name].shape != value.shape for name, value in wanted.items()):
        raise InputError(f"{spell_option('init_from', str(init_folder))}: its weights belong to another network")
    checkpoint.check_finite({name: start[name] for name in wanted}, eval_weights.sources, trainer.initial_non_finite)
    trainer.model.load_state_dict({name: start[name] for name in wanted}, strict=False)
    _warn_about_test_overlap(trainer, Path(init_folder))


def _warn_about_test_overlap(trainer: Trainer, init_folder: Path) -> None:
    """Warn if the run in `init_from` was trained on test images of this run."""
    if trainer.inputs.manifest is None or not (init_folder / MANIFEST_NAME).exists() or trainer.rank:
        return
    trained = {row.sha256 for row in Manifest.read(init_folder / MANIFEST_NAME).rows_in(TRAIN, VAL, REMOVED_TRAIN)}
    both = [row.path for row in trainer.inputs.manifest.rows_in(TEST) if row.sha256 in trained]
    if both:
        what = f"{len(both):,} test images, such as {both[0]}, were training images of that run"
        warnings.warn(
            f"{spell_option('init_from', str(init_folder))}: {what}; with its seed the folder is split the same way",
            stacklevel=4,
        )
