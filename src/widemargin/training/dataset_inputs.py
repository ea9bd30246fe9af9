"""Batches of a dataset passed to `wm.train`, in an order determined by seed and epoch; its fingerprint.

The random numbers that a dataset draws from the global generators of torch, NumPy and Python are seeded for every batch
by (seed, epoch, step, rank), in this process or in a worker: a resumed run draws the same ones. Random numbers from a
generator of the dataset's own are its own matter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..data.images.augment import Augment
from ..data.images.batches import Batch, make_sampler
from ..data.images.identities import check_some_pairs, draw_identities
from ..data.images.sets import stratified_split
from ..io.errors import InputError, format_value, spell_option
from .config import TrainConfig
from .dataset_classes import Classes, classes_to_spec
from .datasets import (
    ArrayDataset,
    CollateFn,
    DatasetSamples,
    check_finite_rows,
    collate_items,
    dataset_name,
    read_other_samples,
    read_samples,
    seeded_rngs,
)
from .image_inputs import Inputs, describe_unseen
from .input_splits import select_train_samples
from .samplers import GivenSampler, stream_seed

_ITEM_STREAM, _EVAL_STREAM = 3, 4  # streams of generators, distinct from those of `data.images.batches`
_EVAL_BATCH_SIZE = 500
_HASHED_ITEMS = 32  # items that identify a dataset, in addition to all labels
_MAX_BATCH_VALUES = 1 << 27  # values of an evaluation batch: half a gibibyte


class SeededFetch:
    """Fetches batches from a dataset: maps `(seed, rows)` to inputs and labels, or to an InputError.

    An error is returned as a value, so that an error of a worker process is reported as one line too.
    """

    def __init__(self, dataset: Any, where: str, collate_fn: CollateFn | None) -> None:
        self.dataset, self.where, self.collate_fn = dataset, where, collate_fn

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, request: tuple[int, list[int]]) -> tuple[Tensor, list[Any]] | InputError:
        seed, rows = request
        with seeded_rngs(seed):
            fetch = getattr(self.dataset, "__getitems__", None)
            items = list(fetch(rows)) if callable(fetch) else [self.dataset[row] for row in rows]
            try:
                return collate_items(items, rows, self.where, self.collate_fn)
            except InputError as error:
                return error


def iter_batches(
    samples: DatasetSamples,
    batches: Sequence[Tensor],
    seeds: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    workers: int = 0,
    collate_fn: CollateFn | None = None,
    pin_memory: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and class numbers of batches, each given by rows of the samples and a seed for its random numbers."""
    dataset = samples.dataset
    if isinstance(dataset, ArrayDataset) and collate_fn is None:
        for rows in batches:
            x = dataset.x.index_select(0, samples.rows[rows])
            yield (x.to(dtype) if x.is_floating_point() else x), samples.y[rows]
        return
    requests = [(seed, samples.rows[rows].tolist()) for seed, rows in zip(seeds, batches, strict=True)]
    loader: DataLoader[Any] = DataLoader(
        SeededFetch(dataset, samples.name, collate_fn),  # type: ignore[arg-type]
        batch_sampler=requests,  # type: ignore[arg-type]
        collate_fn=_return_unchanged,
        num_workers=workers,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # otherwise it would draw from the global generator, which dropout uses
    )
    for rows, found in zip(batches, loader, strict=True):
        if isinstance(found, InputError):
            raise found
        x, labels = found
        y = samples.classes.encode(labels, samples.name)
        if not torch.equal(y, samples.y[rows]):
            wrong = int((y != samples.y[rows]).nonzero()[0, 0])
            was = ", ".join(map(repr, samples.names_of(int(rows[wrong])))) or "none"
            raise InputError(
                f"{samples.name}: item {int(samples.rows[rows][wrong])} has the label {format_value(labels[wrong])}, "
                f"which was {was} when the labels were read; "
                "a dataset must return the same label for an item each time"
            )
        check_finite_rows(x, samples.rows[rows], samples.name)
        yield (x.to(dtype) if x.is_floating_point() else x), y


def _return_unchanged(value: Any) -> Any:
    return value


class DatasetBatches:
    """Batches of the training items; `len` is the number of steps of an epoch."""

    def __init__(self, samples: DatasetSamples, inputs: DatasetInputs) -> None:
        config = inputs.config
        self.samples, self.inputs, self.seed = samples, inputs, config.seed
        self.given = None
        if inputs.sampler is None:
            size, ranks = inputs.batch_size // inputs.world_size, (inputs.rank, inputs.world_size)
            args = (size, config.seed, *ranks, config.repeated_augmentation)
            self.order = make_sampler(samples.y, config.per_class, *args, sampling=config.sampling)
        else:
            self.given = GivenSampler(inputs.sampler, len(samples), config, inputs.rank, inputs.world_size)

    def __len__(self) -> int:
        return len(self.order) if self.given is None else len(self.given)

    def state_dict(self, mid_epoch: bool) -> Any:
        """State of the given sampler, in the middle of an epoch that with which it began; None without one."""
        if self.given is None:
            return None
        return self.given.epoch_state if mid_epoch else self.given.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Restore the state of a checkpoint."""
        if self.given is not None:
            self.given.load_state_dict(state)

    def iter_epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from step `start` on."""
        if self.given is None:
            order = self.order.epoch_indices(epoch)
            steps = self.order.steps_from(start)
            rows = [self.order.step_indices(order, epoch, step, shuffle_batch=False)[0] for step in steps]
        else:
            rows = self.given.epoch_batches(epoch)[start:]
        inputs = self.inputs
        seeds = [stream_seed(_ITEM_STREAM, self.seed, epoch, start + k, inputs.rank) for k in range(len(rows))]
        for x, y in iter_batches(self.samples, rows, seeds, **inputs.fetch_options):
            is_channels_last = inputs.config.channels_last and x.ndim == 4
            yield (x.contiguous(memory_format=torch.channels_last) if is_channels_last else x), y, None


@dataclass(eq=False, kw_only=True)
class DatasetInputs(Inputs):
    """Inputs from datasets passed as objects; items are neither augmented nor mirrored."""

    train: DatasetSamples  # type: ignore[assignment]
    val: DatasetSamples | None = None  # type: ignore[assignment]
    test: DatasetSamples | None = None  # type: ignore[assignment]
    augment: Augment = field(default_factory=Augment)
    sampler: Any = None
    workers: int = 0
    collate_fn: CollateFn | None = None
    pin_memory: bool = False
    held_out: Classes | None = None
    """Classes that `val_classes` held out; items of them are not tested on."""

    @property
    def fetch_options(self) -> dict[str, Any]:
        """Options of `iter_batches`."""
        dtype = torch.float64 if self.config.precision == "64-true" else torch.float32
        return {"dtype": dtype} | {name: getattr(self, name) for name in ("workers", "collate_fn", "pin_memory")}

    @cached_property
    def batches(self) -> DatasetBatches:  # type: ignore[override]
        """Batches of the training items, this process's part of each."""
        return DatasetBatches(self.train, self)

    @cached_property
    def example(self) -> Tensor:
        """The inputs of the first two items."""
        samples = self.train if len(self.train) or self.test is None else self.test
        rows = torch.arange(min(2, len(samples)))
        return next(iter(self._iter_in_order(samples.take(rows), 2)))[0]

    @cached_property
    def input_spec(self) -> dict[str, Any]:
        """What must be known of the items to build the network and to show it others, as JSON takes it."""
        return {
            "class_names": list(self.class_names),
            "class_counts": self.class_counts,
            **classes_to_spec(self.train.classes, self.held_out),
            **self.label_spec,
            "shape": list(self.example.shape[1:]),
            "dtype": "float" if self.example.is_floating_point() else "int64",
        }

    def eval_batches(  # type: ignore[override]
        self, images: DatasetSamples, batch_size: int = _EVAL_BATCH_SIZE, rank: int = 0, world_size: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Items in their order, and their class numbers.

        Of several processes each has every `world_size`-th batch from batch `rank` on, perhaps none.
        """
        values = max(1, self.example[0].numel())
        return self._iter_in_order(images, max(1, min(batch_size, _MAX_BATCH_VALUES // values)), rank, world_size)

    def _iter_in_order(
        self, samples: DatasetSamples, batch_size: int, rank: int = 0, world_size: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        batches = list(torch.split(torch.arange(len(samples)), batch_size))
        seeds = [stream_seed(_EVAL_STREAM, self.config.seed, k) for k in range(len(batches))]
        part = slice(rank, None, world_size)
        return iter_batches(samples, batches[part], seeds[part], **self.fetch_options)

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Identifies the training items: their number, all labels, and the hashes of some items."""
        last = len(self.train) - 1
        rows = sorted({round(last * k / (_HASHED_ITEMS - 1)) for k in range(_HASHED_ITEMS)})
        hashes = [self._item_hash(row) for row in rows]
        return {
            "items": len(self.train),
            "classes": _sha256(json.dumps([self.class_names, self.train.y.tolist()]).encode()),
            "some": None if None in hashes else _sha256(json.dumps(hashes).encode()),
        }

    def resume_notes(self) -> list[str]:
        """What a resumed run cannot restore of a dataset and its sampler."""
        notes = [] if self.batches.given is None else [self.batches.given.note]
        if self.fingerprint["some"] is None:
            notes.append("the dataset has its own random generator, whose state is not restored")
        return notes

    def _item_hash(self, row: int) -> str | None:
        """SHA-256 of an item; None if it differs between reads, as with a random generator of the dataset."""
        one = self.train.take(torch.tensor([row]))
        found = []
        for _ in range(2):
            x, y = next(iter(self._iter_in_order(one, 1)))
            found.append(_sha256(x.numpy().tobytes() + str((list(x.shape), x.dtype, y.tolist())).encode()))
        return found[0] if found[0] == found[1] else None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, eq=False, kw_only=True)
class GivenObjects:
    """Objects passed to `wm.train` in addition to the config: datasets, model, sampler and loader options."""

    train: Any = None
    val: Any = None
    test: Any = None
    model: Any = None
    at: str | None = "auto"
    sampler: Any = None
    class_names: Sequence[str] | None = None
    workers: int = 0
    collate_fn: CollateFn | None = None
    quiet: bool = True

    def __post_init__(self) -> None:
        if self.train is None:
            for name in ("val", "test", "sampler", "class_names", "collate_fn"):
                if getattr(self, name) is not None:
                    raise InputError(f"{name} requires train: pass the training data too")
        if isinstance(self.workers, bool) or not isinstance(self.workers, int) or self.workers < 0:
            raise InputError(f"workers must be an integer of at least 0, got {format_value(self.workers)}")

    def update_config(self, config: TrainConfig) -> TrainConfig:
        """The config with the names of the objects in it, and without an augmentation if the data are given."""
        changes: dict[str, Any] = {}
        if self.model is not None:
            changes |= {"model": f"module:{type(self.model).__name__}", "model_options": {}}
            if config.model_options:
                raise InputError("model_options are only for a model given by name, not for a module")
        if self.train is not None:
            for name, neutral, instead in (
                ("unseen_classes", 0.0, "; pass items of other classes as test"),
                ("input_size", None, ""),
            ):
                if getattr(config, name) != neutral:
                    raise InputError(
                        f"{name} is only for named image sets and folders, not for a dataset passed as train{instead}"
                    )
            if config.augment_options:
                raise InputError("augment_options: a dataset passed as train is not augmented; use its own transforms")
            for name in ("val_fraction", "val_classes"):
                if self.val is not None and getattr(config, name):
                    raise InputError(f"val and {name} both define the held-out items; use one of them")
                if self.sampler is not None and getattr(config, name):
                    raise InputError(f"sampler needs the whole dataset: use val instead of {name}")
            changes |= {"data": dataset_name(self.train), "augment": "none"}
        return replace(config, **changes)

    def load_inputs(self, config: TrainConfig, rank: int, world_size: int, pin_memory: bool) -> DatasetInputs:
        """The datasets with their labels read and checked."""
        quiet = self.quiet or rank > 0
        train = read_samples(self.train, "train", class_names=self.class_names, quiet=quiet)
        parts = {
            name: read_other_samples(given, name, train.classes, quiet=quiet)
            for name, given in (("val", self.val), ("test", self.test))
            if given is not None
        }
        train, parts = _drop_unused_classes(train, parts)
        held_out = None
        if config.val_fraction:
            train, parts["val"] = stratified_split(train, config.val_fraction, config.seed)
        if config.val_classes:
            train, parts = _hold_out_classes(train, parts, config)
            held_out = parts["val"].classes
        train = select_train_samples(config, train, train.class_names)
        found = DatasetInputs(
            train=train,
            val=parts.get("val"),
            test=parts.get("test"),
            config=config,
            rank=rank,
            world_size=world_size,
            sampler=self.sampler,
            workers=self.workers,
            collate_fn=self.collate_fn,
            pin_memory=pin_memory,
            held_out=held_out,
        )
        found.notes = describe_unseen(found)
        for name, part in parts.items():
            x = next(iter(found.eval_batches(part.take(torch.arange(1)))))[0]
            if self.collate_fn is None and x.shape[1:] != found.example.shape[1:]:
                have, wants = list(x.shape[1:]), list(found.example.shape[1:])
                raise InputError(f"{name}: items have the shape {have}, but those of train {wants}")
        return found


def _drop_unused_classes(
    train: DatasetSamples, parts: dict[str, DatasetSamples]
) -> tuple[DatasetSamples, dict[str, DatasetSamples]]:
    """Drop classes without a training item, if all items of val or test are of such classes (an open set).

    A `Subset` of a dataset still declares all its classes: of 200 birds 100 are trained on and 100 tested on.
    """
    if train.y.ndim == 2:
        return train, parts
    has_items = torch.bincount(train.y, minlength=len(train.class_names)) > 0
    unseen = {
        name: part
        for name, part in parts.items()
        if part.class_names == train.class_names and not bool(has_items[part.y].any())
    }
    if not unseen:
        return train, parts
    used = has_items.nonzero().squeeze(1)
    found = {name: part.select_classes(torch.bincount(part.y).nonzero().squeeze(1)) for name, part in unseen.items()}
    for name, part in parts.items():
        if name not in found:
            found[name] = part.select_classes(used) if part.class_names == train.class_names else part
    return train.select_classes(used), found


def _hold_out_classes(
    train: DatasetSamples, parts: dict[str, DatasetSamples], config: TrainConfig
) -> tuple[DatasetSamples, dict[str, DatasetSamples]]:
    """A fraction of the training classes as `val`; items of these classes are left out of the test."""
    if train.y.ndim == 2:
        raise InputError(
            f"{spell_option('val_classes')} needs one label per item; use {spell_option('val_fraction')} instead"
        )
    seen, unseen = draw_identities(
        len(train.class_names), config.val_classes, config.seed, train.name, option="val_classes"
    )
    found = {**parts, "val": check_some_pairs(train.select_classes(unseen))}
    test = parts.get("test")
    if test is not None and test.class_names == train.class_names:
        found["test"] = test.select_classes(seen)
        if not len(found["test"]):
            raise InputError("test: every item is of a class that val_classes held out; pass items of others")
    return train.select_classes(seen), found


def as_config(config: TrainConfig | Mapping[str, Any] | None) -> TrainConfig:
    """The config, or one of the fields in a mapping."""
    if config is None or isinstance(config, TrainConfig):
        return config or TrainConfig()
    if not isinstance(config, Mapping):
        raise InputError(f"config must be a TrainConfig or a mapping of its fields, got {type(config).__name__}")
    return TrainConfig(**config)


def check_fingerprint(kept: Mapping[str, Any] | None, now: Mapping[str, Any], where: str) -> None:
    """Raise InputError if the training items are not those of the checkpoint."""
    for name, what in (
        ("items", "number of items"),
        ("classes", "labels"),
        ("some", "items"),
    ):
        before, after = (kept or {}).get(name), now[name]
        if before is not None and after is not None and before != after:
            raise InputError(f"{where}: the run was trained on another dataset (other {what}); pass the same dataset")
