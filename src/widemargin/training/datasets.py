"""Datasets and arrays passed to `wm.train`: their items, labels and classes.

A dataset is any map-style `torch.utils.data.Dataset` whose items are `(x, y)` or mappings with the keys "image" or "x",
and "label" or "y". Arrays `(X, y)` and a `TensorDataset` are kept as tensors, and batches are rows of these.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

from ..data.label_sets import MultiHot, as_label_set
from ..io.errors import InputError, shorten
from ..io.progress import progress_bar
from .dataset_classes import Classes, align_labels

DATASET_PREFIX = "dataset:"
"""Begins the data of a run that was given a dataset or arrays; the name of the class follows."""
CollateFn = Callable[[list[Any]], Any]
_X_KEYS, _Y_KEYS = ("image", "x"), ("label", "y")
_LABEL_ATTRIBUTES = ("targets", "labels")


def plain_label(label: Any, where: str) -> Any:
    """A label as a hashable Python value, of an item with several labels a `LabelSet`.

    Numbers with a fraction, arrays and nothing at all are refused.
    """
    several = as_label_set(label, where)
    if several is not None:
        return several
    if isinstance(label, np.generic) or (isinstance(label, Tensor | np.ndarray) and np.prod(label.shape) == 1):
        label = label.item()
    if isinstance(label, Tensor | np.ndarray | list | dict | set):
        raise InputError(f"{where}: a label must be a single value, got a {shorten(type(label).__name__)} of several")
    if isinstance(label, float):
        raise InputError(f"{where}: the label {label!r} is fractional; pass classes, for example y.long()")
    if label is None:
        raise InputError(f"{where}: a label is missing")
    return label


class ArrayDataset:
    """Items that are rows of a tensor X [N, …]; `y` are their labels, as they were given."""

    def __init__(self, x: Tensor, y: list[Any]) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Tensor, Any]:
        return self.x[row], self.y[row]


@dataclass(frozen=True, eq=False)
class DatasetSamples:
    """A dataset, or some rows of it, with the class number of each item."""

    name: str
    dataset: Any
    rows: Tensor
    """Rows of the dataset [N]."""
    y: Tensor
    """Class numbers [N], or booleans [N, C] where items have several labels."""
    classes: Classes

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.classes.names

    def names_of(self, row: int) -> list[str]:
        """Names of the classes of an item."""
        places = self.y[row].nonzero().squeeze(1).tolist() if self.y.ndim == 2 else [int(self.y[row])]
        return [self.class_names[place] for place in places]

    def take(self, rows: Tensor) -> DatasetSamples:
        """These of the items, in this order."""
        return replace(self, rows=self.rows.index_select(0, rows), y=self.y.index_select(0, rows))

    def select_classes(self, places: Tensor) -> DatasetSamples:
        """The items of these classes, given in ascending order, with labels from 0 on."""
        part = self.take(torch.isin(self.y, places).nonzero().squeeze(1))
        return replace(part, y=torch.searchsorted(places, part.y), classes=self.classes.select(places.tolist()))


def read_samples(
    given: Any, name: str, *, class_names: Sequence[str] | None = None, quiet: bool = True
) -> DatasetSamples:
    """The training items, passed as `name`, with the classes that their labels are of.

    Labels are read once: from `targets` or `labels` of the dataset if the first and last items agree with them, else
    from every item.
    """
    dataset, labels = _read_dataset(given, name, quiet)
    declared = None if class_names is not None else _declared_classes(dataset, labels)
    classes = Classes.from_labels(labels, declared if class_names is None else class_names, name)
    classes = replace(classes, declared=declared is not None)
    y = classes.encode(labels, name)
    return DatasetSamples(name, dataset, torch.arange(len(y)), y, classes)


def read_other_samples(
    given: Any, name: str, classes: Classes, held_out: Classes | None = None, quiet: bool = True
) -> DatasetSamples:
    """The items passed as val or test, of the training classes or of none of them (`align_labels`)."""
    dataset, labels = _read_dataset(given, name, quiet)
    rows, y, own = align_labels(labels, _declared_classes(dataset, labels), classes, held_out, name)
    return DatasetSamples(name, dataset, rows, y, own)


def _read_dataset(given: Any, name: str, quiet: bool) -> tuple[Any, list[Any]]:
    dataset = as_dataset(given, name)
    if not len(dataset):
        raise InputError(f"{name}: the dataset is empty")
    return dataset, _read_labels(dataset, name, quiet)


def as_dataset(given: Any, name: str) -> Any:
    """The dataset, or one of the arrays `(X, y)`."""
    if isinstance(given, IterableDataset):
        raise InputError(
            f"{name}: an IterableDataset has no length and cannot be resumed; "
            "pass a map-style dataset with __len__ and __getitem__"
        )
    if type(given) is TensorDataset:
        given = given.tensors
        if len(given) != 2:
            raise InputError(f"{name}: a TensorDataset of {len(given)} tensors; it must have two, inputs and labels")
    if isinstance(given, tuple | list) and len(given) == 2 and not isinstance(given[0], tuple | list | Mapping):
        return _array_dataset(given[0], given[1], name)
    is_table = hasattr(given, "to_numpy")
    if (
        is_table
        or not hasattr(given, "__getitem__")
        or not hasattr(given, "__len__")
        or isinstance(given, str | Mapping)
    ):
        raise InputError(
            f"{name}: a {type(given).__name__} is not a dataset; pass a torch Dataset with __len__ and __getitem__, "
            "or arrays (X, y)"
        )
    return given


def dataset_name(given: Any) -> str:
    """Name of a dataset in `run.json`: `dataset:` and its class name."""
    kind = "arrays" if isinstance(given, tuple | list) else type(given).__name__
    return f"{DATASET_PREFIX}{kind}"


def _array_dataset(x: Any, y: Any, name: str) -> ArrayDataset:
    values, labels = as_tensor(x, f"{name}: X"), _label_list(y, name)
    if values.ndim < 2:
        raise InputError(f"{name}: X has the shape {list(values.shape)}; pass rows [N, D] or images [N, C, H, W]")
    if len(values) != len(labels):
        raise InputError(f"{name}: X has {len(values):,} rows, y has {len(labels):,} labels")
    check_finite_rows(values, torch.arange(len(values)), name)
    return ArrayDataset(values, labels)


def as_tensor(x: Any, where: str) -> Tensor:
    """An input as a tensor: floats as they are, whole numbers as int64 (tokens); bytes are refused."""
    if hasattr(x, "to_numpy"):  # a table
        x = x.to_numpy()
    if isinstance(x, np.ndarray) and x.dtype.kind in "fiub":
        x = torch.from_numpy(np.ascontiguousarray(x))
    if not isinstance(x, Tensor):
        kind = f"an array of {x.dtype}" if isinstance(x, np.ndarray) else f"a {type(x).__name__}"
        raise InputError(
            f"{where} is {kind}, not a tensor or numeric array; add a transform to the dataset that returns one"
        )
    if x.is_complex() or x.dtype in (torch.uint8, torch.bool):
        kind = str(x.dtype).removeprefix("torch.")
        raise InputError(
            f"{where} is {kind}; convert it to float, for example x.float() / 255 for bytes, or to int64 for tokens"
        )
    return x.detach() if x.is_floating_point() else x.detach().long()


def check_finite_rows(x: Tensor, rows: Tensor, where: str) -> None:
    """Refuse inputs with NaN or infinity; `rows` are the items that the rows of `x` are."""
    if not x.is_floating_point() or bool(torch.isfinite(x.sum())):  # a sum is a fast check, but it can overflow
        return
    wrong = ~torch.isfinite(x.flatten(1)).all(1)
    if bool(wrong.any()):
        raise InputError(f"{where}: item {int(rows[wrong.nonzero()[0, 0]])} contains NaN or infinity")


def _label_list(y: Any, name: str) -> list[Any]:
    """Labels of an array, tensor, table's column or list as Python values."""
    if hasattr(y, "to_numpy"):
        y = y.to_numpy()
    if isinstance(y, Tensor | np.ndarray):
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.ndim > 2 or not y.ndim:
            raise InputError(
                f"{name}: labels have the shape {list(y.shape)}; pass one label per item, [N], or a row of 0 and 1, "
                "[N, C]"
            )
        y = y.tolist() if y.ndim == 1 else list(y)
    try:
        labels = list(y)
    except TypeError:
        raise InputError(f"{name}: labels are a {type(y).__name__}; pass one label per item, [N]") from None
    return [plain_label(label, f"{name}, item {k}") for k, label in enumerate(labels)]


def _declared_classes(dataset: Any, labels: Sequence[Any]) -> Sequence[str] | None:
    """`dataset.classes`, if its labels are numbers or names of these."""
    base = dataset
    while isinstance(base, Subset):
        base = base.dataset
    names = getattr(base, "classes", None)
    if not isinstance(names, tuple | list) or len(names) < 2 or not all(isinstance(name, str) for name in names):
        return None
    if any(isinstance(label, MultiHot) for label in labels):
        return names if len(names) == labels[0].size else None
    known = set(names)
    if any(isinstance(label, frozenset) for label in labels):
        return names if known.issuperset(*labels) else None
    fits = all(0 <= k < len(names) if type(k) is int else k in known for k in set(labels))
    return names if fits else None


def _read_labels(dataset: Any, name: str, quiet: bool) -> list[Any]:
    """The label of every item, without loading the items where the dataset lists them."""
    listed = _listed_labels(dataset, name)
    ends = (0, len(dataset) - 1)
    if (
        listed is not None
        and len(listed) == len(dataset)
        and all(_read_label(dataset, k, name) == listed[k] for k in ends)
    ):
        return listed
    labels = []
    with nullcontext(ignore_progress) if quiet else progress_bar(f"labels of {name}", len(dataset)) as on_progress:
        for k in range(len(dataset)):
            labels.append(_read_label(dataset, k, name))
            on_progress(1.0)
    return labels


def _read_label(dataset: Any, row: int, name: str) -> Any:
    with seeded_rngs(row):
        return plain_label(split_item(dataset[row], f"{name}, item {row}")[1], f"{name}, item {row}")


def ignore_progress(fraction: float) -> None:
    """Progress callback that shows nothing."""


def _listed_labels(dataset: Any, name: str) -> list[Any] | None:
    """Labels from an attribute of a dataset; None if there is none, or if its items have other labels."""
    if isinstance(dataset, ArrayDataset):
        return dataset.y
    if type(dataset) is Subset:
        inner = _listed_labels(dataset.dataset, name)
        return None if inner is None else [inner[k] for k in dataset.indices]
    if type(dataset) is ConcatDataset:
        parts = [_listed_labels(part, name) for part in dataset.datasets]
        return None if any(part is None for part in parts) else [label for part in parts for label in part or ()]
    if type(dataset) is TensorDataset and len(dataset.tensors) == 2:
        return _label_list(dataset.tensors[1], name)
    if getattr(dataset, "target_transform", None) is not None:
        return None
    for attribute in _LABEL_ATTRIBUTES:
        found = getattr(dataset, attribute, None)
        if isinstance(found, Tensor | np.ndarray | list | tuple) and len(found) == len(dataset):
            with suppress(InputError):  # the labels of the items take precedence
                return _label_list(found, name)
    return None


def split_item(item: Any, where: str) -> tuple[Any, Any]:
    """Input and label of an item, or of a batch that a `collate_fn` made."""
    if isinstance(item, Mapping):
        x, y = (next((item[key] for key in keys if key in item), None) for keys in (_X_KEYS, _Y_KEYS))
        if x is None or y is None:
            names = ", ".join(map(str, item))
            raise InputError(f"{where} has the keys {names}; name the input image or x and the label label or y")
        return x, y
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    raise InputError(f"{where} is a {type(item).__name__}, not (x, y) or a mapping with image and label")


def collate_items(
    items: list[Any], rows: Sequence[int], where: str, collate_fn: CollateFn | None
) -> tuple[Tensor, Any]:
    """Inputs [N, …] and the labels of a batch of items."""
    if collate_fn is not None:
        x, y = split_item(collate_fn(items), f"{where}: the result of collate_fn")
        found = as_tensor(x, f"{where}: x of collate_fn")
        labels = _label_list(y, where)
        if len(found) != len(items) or len(labels) != len(items):
            raise InputError(
                f"{where}: collate_fn returned {len(found)} inputs and {len(labels)} labels for {len(items)} items"
            )
        return found, labels
    inputs, labels = [], []
    for row, item in zip(rows, items, strict=True):
        x, y = split_item(item, f"{where}, item {row}")
        inputs.append(as_tensor(x, f"{where}, item {row}: x"))
        labels.append(plain_label(y, f"{where}, item {row}"))
    shapes = {tuple(x.shape): row for row, x in zip(rows, inputs, strict=True)}
    if len(shapes) > 1:
        said = " and ".join(f"{list(shape)} (item {row})" for shape, row in list(shapes.items())[:2])
        raise InputError(f"{where}: items differ in shape, {said}; make them equal, or pass collate_fn")
    return torch.stack(inputs), labels


@contextmanager
def seeded_rngs(seed: int) -> Iterator[None]:
    """Seed the global random numbers of torch, NumPy and Python inside the block; afterwards they go on as before."""
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (a dataset may draw from the global generator)
    random.seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])
