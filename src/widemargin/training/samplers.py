"""A sampler that was passed to `wm.train`: rows or batches of the dataset, divided among the processes of a run."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DistributedSampler

from ..io.errors import InputError, format_value
from ..numerics import distributed
from ..numerics.random import make_generator
from .config import TrainConfig
from .datasets import seeded_rngs

_SAMPLER_STREAM = 5  # purpose of a generator, beside those of `data.images.batches` and `dataset_inputs`


class GivenSampler:
    """A user's sampler over the whole dataset: every rank takes its part of each of its batches."""

    def __init__(self, sampler: Any, num_samples: int, config: TrainConfig, rank: int, world_size: int) -> None:
        if isinstance(sampler, DistributedSampler):
            raise InputError(
                "sampler: a DistributedSampler gives each process its own rows; give one over the whole dataset, "
                "its batches are divided among the processes here"
            )
        for name, neutral in (
            ("per_class", 0),
            ("sampling", "uniform"),
            ("repeated_augmentation", 1),
            ("train_fraction", 1.0),
        ):
            if getattr(config, name) != neutral:
                raise InputError(f"sampler and {name} both choose the items of a batch; give one of them")
        self.sampler, self.num_samples, self.config = sampler, num_samples, config
        self.rank, self.world_size = rank, world_size
        self.epoch_state = self.state_dict()
        first, count = self._inspect()
        self.yields_batches = not isinstance(first, int)
        self.length = count if self.yields_batches else count // config.batch_size
        if not self.length:
            raise InputError(
                f"sampler: {count} rows are fewer than a batch of {config.batch_size}; lower the batch size"
            )

    def _inspect(self) -> tuple[Any, int]:
        """The first item and the length of a sampler; its state is unchanged."""
        try:
            with seeded_rngs(0):
                found = self.sampler(0) if self._is_function else self.sampler
                first = next(iter(found))
                count = len(found)
        except TypeError as error:
            raise InputError(
                f"sampler: a {type(self.sampler).__name__} with __iter__ and __len__ is needed ({error})"
            ) from None
        except StopIteration:
            raise InputError("sampler: it yields no rows") from None
        self.load_state_dict(self.epoch_state)
        return (_as_int(first) if not isinstance(first, list | tuple) and _is_scalar(first) else first), count

    @property
    def _is_function(self) -> bool:
        return callable(self.sampler) and not hasattr(self.sampler, "__iter__")

    def __len__(self) -> int:
        return self.length

    def epoch_batches(self, epoch: int) -> list[Tensor]:
        """This rank's rows of every batch of an epoch. Rank 0 iterates and sends the rows to the others."""
        found: list[Any] = [None]
        self.epoch_state = self.state_dict()
        if self.rank == 0:
            found = [self._ask(epoch)]
        if distributed.has_multiple_ranks():
            dist.broadcast_object_list(found, src=0)
        if isinstance(found[0], InputError):
            raise found[0]
        batches = []
        for batch in found[0]:
            start, stop = (len(batch) * rank // self.world_size for rank in (self.rank, self.rank + 1))
            batches.append(torch.tensor(batch[start:stop], dtype=torch.int64))
        return batches

    def _ask(self, epoch: int) -> list[list[int]] | InputError:
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        with seeded_rngs(stream_seed(_SAMPLER_STREAM, self.config.seed, epoch)):
            drawn = list(self.sampler(epoch) if self._is_function else self.sampler)
        size = self.config.batch_size
        if self.yields_batches:
            batches = [[_as_int(row) for row in batch] for batch in drawn]
        else:
            rows = [_as_int(row) for row in drawn]
            batches = [rows[k * size : (k + 1) * size] for k in range(len(rows) // size)]
        if len(batches) != self.length:
            return InputError(f"sampler: {len(batches)} batches in epoch {epoch + 1}, expected {self.length}")
        for batch in batches:
            if len(batch) < self.world_size:
                return InputError(
                    f"sampler: a batch of {len(batch)} rows cannot be divided among {self.world_size} processes"
                )
            wrong = next((row for row in batch if not 0 <= row < self.num_samples), None)
            if wrong is not None:
                return InputError(f"sampler: row {wrong} is outside of the dataset of {self.num_samples:,} items")
        return batches

    def state_dict(self) -> Any:
        """The sampler's own state: by its `state_dict()`, or that of its torch generator; None where it has neither."""
        if hasattr(self.sampler, "state_dict"):
            return checked_state(self.sampler.state_dict(), "sampler")
        generator = getattr(self.sampler, "generator", None)
        return bytes(generator.get_state().tolist()).hex() if isinstance(generator, torch.Generator) else None

    def load_state_dict(self, state: Any) -> None:
        """Restore a state."""
        if hasattr(self.sampler, "load_state_dict") and state is not None:
            self.sampler.load_state_dict(state)
        elif isinstance(state, str):
            self.sampler.generator.set_state(torch.tensor(list(bytes.fromhex(state)), dtype=torch.uint8))

    @property
    def note(self) -> str:
        """What a resumed run cannot restore of the sampler; empty if it restores everything."""
        is_known = type(self.sampler).__module__.split(".")[0] in ("torch", "builtins", "numpy")
        if self._is_function or is_known or self.state_dict() is not None:
            return ""
        return f"{type(self.sampler).__name__} has no state_dict: state of its own, if it has any, begins anew"


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int) or getattr(value, "ndim", 1) == 0


def _as_int(value: Any) -> int:
    try:
        return value.__index__()  # type: ignore[no-any-return]
    except (AttributeError, TypeError):
        raise InputError(f"sampler: {format_value(value)} is not a row of the dataset") from None


def checked_state(state: Any, what: str) -> Any:
    """Round-trip a state through JSON; InputError if JSON cannot represent it."""
    try:
        return json.loads(json.dumps(state))
    except (TypeError, ValueError):
        raise InputError(
            f"{what}: its state_dict() must hold numbers, strings, lists and mappings, because it is stored as JSON"
        ) from None


def stream_seed(*numbers: int) -> int:
    """A seed for these numbers, such as purpose, seed, epoch and step."""
    return make_generator(*numbers).initial_seed() % 2**63
