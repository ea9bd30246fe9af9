"""One model on the rows of a matrix: column scaling, training with early stopping, and predictions on new rows.

A model is trained as a stack of one (`batched`), so it equals the model of a fold of a comparison. The trained model
holds what predictions on new rows need, on the CPU and in double precision: predictions then do not depend on how
rows are batched, and a saved model can be loaded on any machine.

Rows are read in blocks (`RowSource`), so that a table need not be in memory in double precision: scaling is learnt from
a bounded number of training rows, and every block is converted at once to the inputs of the network, which are kept in
the precision of training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.tabular.encode import EncodedTable
from ..data.tabular.table import Table
from ..io.errors import InputError, spell_option
from ..losses.base import Loss
from ..losses.class_counts import with_class_counts
from ..losses.grammar import Sum
from .batched import StackedNetwork, StackedTable, StackedTrainer
from .batched_objective import StackedCriterion, StackedHead
from .config import MLPConfig
from .early_stopping import EarlyStopping, train_with_validation
from .model_stacks import StackedModels, build_stacked_table

MAX_STATISTICS_ROWS = 1 << 18
"""Training rows up to which scaling and decorrelation are learnt from all of them."""
MAX_STATISTICS_VALUES, MIN_STATISTICS_ROWS = 1 << 24, 1 << 12
"""Of more rows a random sample with at most this many numbers, 128 MiB, but at least this many rows."""
BLOCK_VALUES = 1 << 22
"""Numbers in a block of rows."""


class RowSource(Protocol):
    """Rows in double precision, read in blocks or by their indices."""

    num_columns: int

    def __len__(self) -> int: ...

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Rows [m, F] by their indices, which ascend."""

    def blocks(self) -> Iterator[NDArray[np.float64]]:
        """All rows, in blocks."""


class MatrixRows:
    """Rows of a matrix, dense or sparse; a number too large to learn from is refused."""

    def __init__(self, x: Any) -> None:
        self.x, self.num_columns = x, int(x.shape[1])
        self._step = max(1, BLOCK_VALUES // max(1, self.num_columns))
        first = 0
        for block in self.blocks():
            check_magnitude(block, first_row=first)
            first += len(block)

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return to_dense(self.x if len(rows) == len(self) else self.x[rows])

    def blocks(self) -> Iterator[NDArray[np.float64]]:
        for start in range(0, len(self), self._step):
            yield to_dense(self.x[start : start + self._step])


def to_dense(x: Any) -> NDArray[np.float64]:
    """A matrix or a part of one as an array in double precision."""
    return np.asarray(x.toarray() if hasattr(x, "toarray") else x, np.float64)


class ColumnScaler(NamedTuple):
    """Center and scale [F] of the columns, so that single precision is enough whatever unit and offset a column has."""

    center: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def fit(cls, x: NDArray[np.float64], is_numeric: NDArray[np.bool_] | None = None) -> ColumnScaler:
        """Median, and largest distance from it; 0 and 1 for columns without values and for levels of categories."""
        center, scale = np.zeros(x.shape[1]), np.ones(x.shape[1])
        for place in range(x.shape[1]):
            known = x[:, place][~np.isnan(x[:, place])]
            if len(known) and (is_numeric is None or is_numeric[place]):
                center[place] = np.median(known)
                scale[place] = np.abs(known - center[place]).max() or 1.0
        return cls(center, scale)

    def __call__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return (np.asarray(x, np.float64) - self.center) / self.scale


def check_magnitude(x: NDArray[np.float64], max_abs: float = 1e100, first_row: int = 0) -> NDArray[np.float64]:
    """Return the matrix, or refuse one whose numbers are too large to be squared and added."""
    wrong = (np.abs(x) > max_abs).any(axis=1)
    if wrong.any():
        row = first_row + int(wrong.argmax())
        raise InputError(f"row {row} of X holds a number too large for training; scale or clip X first")
    return x


def preprocess_rows(table: StackedTable, x: NDArray[np.float64], first_row: int = 0) -> Tensor:
    """Inputs of the network [n, P] for rows [n, F], in double precision; `first_row` is the index of the first one."""
    rows = torch.arange(len(x)).unsqueeze(0)
    found = replace(table, x=torch.from_numpy(x)).preprocess(rows)[0]
    return torch.from_numpy(check_magnitude(found.numpy(), 1e15, first_row))  # training is in single precision


def learn_preprocessing(
    source: RowSource,
    codes: NDArray[np.int64],
    num_classes: int,
    training: NDArray[np.int64],
    config: MLPConfig,
    *,
    is_numeric: NDArray[np.bool_] | None,
    standardize: bool,
    seed: int,
) -> tuple[ColumnScaler, StackedTable]:
    """Learn the scaling of the columns from the training rows, and what replaces missing values."""
    rows = training
    if len(rows) > MAX_STATISTICS_ROWS:
        most = max(MIN_STATISTICS_ROWS, MAX_STATISTICS_VALUES // source.num_columns)
        count = min(MAX_STATISTICS_ROWS, most)
        rows = np.sort(np.random.default_rng([seed, 8]).choice(rows, count, replace=False))
    x = source.take(rows)
    numeric = np.ones(x.shape[1], np.bool_) if is_numeric is None else is_numeric
    scaler = ColumnScaler.fit(x, numeric)
    encoded = EncodedTable(scaler(x), numeric, ())
    table = build_stacked_table(encoded, codes[rows], num_classes, [np.arange(len(rows))], torch.float64, config)
    if not standardize:
        scale, center = (torch.from_numpy(values).view_as(table.scale) for values in (scaler.scale, scaler.center))
        table = replace(table, scale=scale, shift=center, decorrelation=None, projection=None)  # back to X as it was
    # In these units the median is 0: it also replaces values that are missing only in new rows.
    return scaler, replace(
        table, x=torch.empty(0, x.shape[1]), y=torch.empty(0), fill=torch.zeros_like(table.scale)
    )  # a model holds no rows


def network_inputs(
    source: RowSource,
    scaler: ColumnScaler,
    table: StackedTable,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: Callable[[float], None] | None = None,
) -> Tensor:
    """Inputs of the network [n, P] for all rows; `on_progress` gets the share of the rows in each block."""
    width = table.num_inputs
    found = torch.empty(len(source), width, dtype=dtype, device=device)
    first = 0
    for block in source.blocks():
        found[first : first + len(block)] = preprocess_rows(table, scaler(block), first).to(device, dtype)
        first += len(block)
        if on_progress is not None:
            on_progress(len(block) / len(source))
    return found


class InputModels(StackedModels):
    """Models on rows that are preprocessed already, for tuning and calibration on inner folds."""

    @classmethod
    def build(
        cls,
        inputs: Tensor,
        y: NDArray[np.int64],
        num_classes: int,
        spec: Sum | Loss,
        config: MLPConfig,
        seed: int,
        sample_weight: Tensor | None,
    ) -> InputModels:
        """From inputs [n, P] on the CPU and classes [n]."""
        table = Table("X", (), y, tuple(map(str, range(num_classes))))
        plain = replace(config, max_components=0, screening=0.0)  # inputs are projected already
        encoded = EncodedTable(inputs.numpy(), np.ones(inputs.shape[1], np.bool_), ())
        return cls(encoded, table, spec, plain, seed, inputs.dtype, sample_weight)

    @property
    def _is_prepared(self) -> bool:
        return True

    def _stacked_table(self, parts: Sequence[NDArray[np.int64]]) -> StackedTable:
        return _InputTable(
            torch.from_numpy(self.encoded.x), torch.from_numpy(self.table.y), len(self.table.class_names)
        )


class _InputTable(StackedTable):
    """A table whose rows are inputs of the network already."""

    def __init__(self, x: Tensor, y: Tensor, num_classes: int) -> None:
        nothing = x.new_empty(0)
        super().__init__(x, y, num_classes, nothing, nothing)

    def prepare(self) -> StackedTable:
        return self

    def preprocess(self, indices: Tensor) -> Tensor:
        return self.x.index_select(0, indices.flatten()).view(*indices.shape, -1)


@dataclass(frozen=True)
class TrainingHistory:
    """Losses and scores during training."""

    losses: list[float]
    """Mean training loss of every pass over the rows."""
    steps: int
    validation_scores: list[float] | None
    """Accuracy on the validation rows at every check; None without validation rows."""


@dataclass(frozen=True)
class TrainedMLP:
    """A trained model: preprocessing, network and class weights."""

    scaler: ColumnScaler
    preprocessing: StackedTable
    network: StackedNetwork
    head: StackedHead | StackedCriterion

    @torch.no_grad()
    def embed(self, x: NDArray[np.float64]) -> Tensor:
        """Embeddings [n, D] of a matrix [n, F]."""
        widths = (x.shape[1], *(weight.shape[2] for weight in self.network.weights))
        step = max(1, BLOCK_VALUES // max(widths))
        chunks = (to_dense(x[start : start + step]) for start in range(0, x.shape[0], step))
        return torch.cat([self.network_outputs(self._inputs(chunk, k * step)) for k, chunk in enumerate(chunks)])

    def inputs(self, x: NDArray[np.float64]) -> Tensor:
        """Inputs of the network [n, P] for a matrix [n, F]."""
        return self._inputs(to_dense(x), 0)

    def _inputs(self, x: NDArray[np.float64], first_row: int) -> Tensor:
        return preprocess_rows(self.preprocessing, self.scaler(x), first_row)

    @torch.no_grad()
    def network_outputs(self, inputs: Tensor) -> Tensor:
        """Embeddings [n, D] of inputs [n, P]."""
        embedded: Tensor = self.network(inputs.unsqueeze(0))[0]
        return embedded

    @torch.no_grad()
    def logits(self, x: NDArray[np.float64]) -> Tensor:
        """Logits [n, C] of a matrix [n, F]."""
        return self.head.logits(self.embed(x).unsqueeze(0))[0]


def train_single(
    spec: Sum | Loss,
    scaler: ColumnScaler,
    table: StackedTable,
    inputs: Tensor,
    y: Tensor,
    parts: tuple[NDArray[np.int64], NDArray[np.int64] | None],
    config: MLPConfig,
    *,
    seed: int,
    sample_weight: Tensor | None = None,
    on_progress: Callable[[str], None] | None = None,
    on_steps: Callable[[float], None] | None = None,
) -> tuple[TrainedMLP, TrainingHistory]:
    """Train one model on the training part of rows.

    Args:
        scaler, table: the preprocessing that made `inputs`; becomes part of the model.
        inputs: inputs of the network for all rows, on the device and in the precision of training.
        y: classes [n], or booleans [n, C] where rows have several labels.
        parts: training rows, and those held out for early stopping, see `early_stopping`.
        sample_weight: [n], a factor of each row's loss.
        on_progress: called with a line of text at every check.
        on_steps: called with the share of the training done since its last call.
    """
    training, validation = parts
    device_table = _InputTable(inputs, y.to(inputs.device), table.num_classes)
    with torch.enable_grad():
        if y.ndim == 1:
            counts = torch.bincount(y[torch.from_numpy(training)], minlength=table.num_classes).tolist()
            spec = with_class_counts(spec, counts)
        trainer = StackedTrainer(spec, device_table, [training], [(seed, 0)], config, sample_weight=sample_weight)
        losses: list[Tensor] = []
        hook = trainer.objective.register_forward_hook(lambda *call: losses.append(call[2].detach().mean()))

        def report(stopping: EarlyStopping | None) -> None:
            score = f", validation accuracy {stopping.accuracies[-1][0]:.4f}" if stopping is not None else ""
            assert on_progress is not None
            on_progress(f"step {trainer.step} of {trainer.steps}, loss {float(losses[-1]):.4f}{score}")

        stopping = train_with_validation(
            trainer,
            None if validation is None else [validation],
            config.patience,
            None if on_steps is None else lambda count: on_steps(count / trainer.steps),
            on_check=None if on_progress is None else report,
        )
        hook.remove()
    network, head = trainer.network, trainer.objective.head
    for module in (network, head):
        module.to("cpu", torch.float64).requires_grad_(False).eval()
        if not all(torch.isfinite(parameter).all() for parameter in module.parameters()):
            raise InputError(
                f"training diverged: its weights are not finite; use {spell_option('lr')} below {config.lr:g}"
            )
    scores = None if stopping is None else [float(accuracy[0]) for accuracy in stopping.accuracies]
    per_step = torch.stack(losses).to("cpu", torch.float64).numpy()
    passes = np.arange(len(per_step)) * trainer.batch // len(training)
    means = np.bincount(passes, per_step) / np.bincount(passes)
    return TrainedMLP(scaler, table, network, head), TrainingHistory(means.tolist(), trainer.step, scores)
