"""Gap: Eq. 19 measured. Which mean angular gap does ArcGrad reach at each scale, and which does the equation predict?

    widemargin reproduce gap

ArcGrad at nine scales from 1 to 60, three seeds each, on Gaussian classes (C = 2, 3, 10, 100) and on real tables
(banknote, Iris, scikit-learn's digits), with and without 20 % wrong labels, with a network and with a linear map to the
embedding. Cost: about 10 minutes on one core. Expected (records/gap.json): the gap falls with s where labels are right,
but far less than in inverse proportion; the figures are in docs/findings.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..data.tabular.table import Table
    from .parts.cells import Row

SCALES = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 40.0, 60.0)
REAL_SETS = {"banknote": 2, "iris": 3, "digits": 10}
GAUSSIANS = {"gaussian_2": 2, "gaussian_3": 3, "gaussian_10": 10, "gaussian_100": 100}
NOISES = (0.0, 0.2)
NETWORKS = {"network": (128, 128), "linear": (128,)}
NUM_SEEDS = 3
KEYS = ("set", "noise", "network", "s")
_STEPS, _BATCH = 600, 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts.cells import add_cell_arguments

    parser.add_argument("--sets", nargs="+", choices=(*GAUSSIANS, *REAL_SETS), metavar="NAME", help="only these sets")
    parser.add_argument("--steps", type=int, default=_STEPS, metavar="N", help=f"steps of training (default {_STEPS})")
    add_cell_arguments(parser, "gap")


def run(options: argparse.Namespace) -> None:
    """Train missing cells, print the table, write record and page."""
    from ..io.locks import lock_folder
    from ..io.text import print_stderr
    from .parts import gap_page
    from .parts.cells import CellStore, write_record

    out = Path(options.out or "gap")
    groups = list(product(options.sets or (*GAUSSIANS, *REAL_SETS), NOISES, NETWORKS))
    cells = [cell for group in groups for cell in group_cells(*group)]
    store = CellStore(out, KEYS)
    if options.list:
        print(f"{len(store.select(cells))} of {len(cells)} cells are finished")
        return
    with lock_folder(out):
        for group in groups:
            if not store.has_all(group_cells(*group)):
                print_stderr("{}, noise {:g}, {}".format(*group))
                store.add(train_group(*group, options.seed, options.steps, options.data_dir))
        rows = store.select(cells)
        command = "widemargin reproduce gap" + (f" --steps {options.steps}" if options.steps != _STEPS else "")
        command += f" --sets {' '.join(options.sets)}" if options.sets else ""
        write_record(out / "record.json", command, range(options.seed, options.seed + NUM_SEEDS), rows)
    gap_page.print_slopes(rows)
    page = out / "report.html"
    page.write_text(gap_page.render_page(rows, command), encoding="utf-8")
    print(f"wrote {page} and {out / 'record.json'}")


def group_cells(name: str, noise: float, network: str) -> Iterator[dict[str, Any]]:
    """The cells that train as one stack: all scales."""
    for s in SCALES:
        yield {"set": name, "noise": noise, "network": network, "s": s}


def train_group(name: str, noise: float, network: str, seed: int, steps: int, data_dir: str | None) -> list[Row]:
    """Train ArcGrad at every scale, and measure the mean gap of the training rows and of a held-out fifth."""
    import torch

    from ..data.tabular.encode import encode
    from ..tabular.batched import ModelSettings
    from ..tabular.config import MLPConfig
    from ..tabular.crossval import partitions
    from ..tabular.model_stacks import StackedModels, TrainingJob

    table = load_gap_table(name, noise, data_dir)
    classes = len(table.class_names)
    split = partitions(table.y, 1, 5, seed, stratify=True)[0]
    config = MLPConfig(hidden=NETWORKS[network], epochs=0.0, min_steps=steps, batch=_BATCH, lr=0.01, dropout=0.0)
    jobs = [TrainingJob(split.training, (seed + k, 0)) for _ in SCALES for k in range(NUM_SEEDS)]
    scales = torch.tensor(SCALES).repeat_interleave(NUM_SEEDS)
    ones = torch.ones(len(jobs))
    settings = ModelSettings(config.lr * ones, config.weight_decay * ones, {"s": scales})
    found: dict[float, list[dict[str, float]]] = {}
    for block, trainer, _ in StackedModels(encode(table), table, "arcgrad", config, seed).train(jobs, None, settings):
        inside, outside = (mean_gaps(trainer, rows) for rows in (split.training, split.test))
        for place, k in enumerate(block):
            values = {"gap": inside[place][0], "test_gap": outside[place][0]}
            values |= {"train_accuracy": inside[place][1], "test_accuracy": outside[place][1]}
            found.setdefault(float(scales[k]), []).append(values)
    return [
        {
            **cell,
            "classes": classes,
            "predicted": round(_predicted_gap(classes, cell["s"]), 4),
            **{
                key: [round(values[key], 4) for values in found[cell["s"]]]
                for key in ("gap", "test_gap", "train_accuracy", "test_accuracy")
            },
        }
        for cell in group_cells(name, noise, network)
    ]


def mean_gaps(trainer: Any, rows: Any) -> list[tuple[float, float]]:
    """For each model of a stack the mean gap in radians of these rows, and the percentage of positive gaps."""
    import numpy as np
    import torch

    from ..theory import gaps

    indices = torch.from_numpy(np.asarray(rows)).expand(len(trainer.order), -1)
    embedded, weight, y = trainer.embed(indices), trainer.objective.head.class_weights, trainer.table.y[indices[0]]
    found = [gaps(embedded[k], y, weight[k, :, 0]) for k in range(len(embedded))]
    return [(float(each.mean()), 100.0 * float((each > 0).float().mean())) for each in found]


def _predicted_gap(num_classes: int, s: float) -> float:
    import warnings

    from ..theory import theoretical_gap

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gaps above π are part of the comparison
        return theoretical_gap(num_classes, s)


def load_gap_table(name: str, noise: float, data_dir: str | None) -> Table:
    """A table with a share of its labels replaced by one of the other classes, the same rows for every scale."""
    import numpy as np

    from ..data.tabular.uci import load_uci_set
    from .parts.scale_grids import table_from_arrays

    rng = np.random.default_rng([7, GAUSSIANS.get(name, 0)])
    if name in GAUSSIANS:
        classes = GAUSSIANS[name]
        y = np.arange(max(400, 40 * classes)) % classes
        # Centres 12 standard deviations apart on average: without wrong labels every model can be right everywhere.
        x = (12.0 / np.sqrt(40.0)) * rng.standard_normal((classes, 20))[y] + rng.standard_normal((len(y), 20))
        table = table_from_arrays(name, x, y)
    elif name == "digits":
        from sklearn.datasets import load_digits

        table = table_from_arrays(name, *load_digits(return_X_y=True))
    else:
        table = load_uci_set("banknote_authentication" if name == "banknote" else "iris_uci", data_dir)
    if not noise:
        return table
    from dataclasses import replace

    classes = len(table.class_names)
    is_wrong = rng.random(len(table)) < noise
    shift = rng.integers(1, classes, len(table))
    return replace(table, y=np.where(is_wrong, (table.y + shift) % classes, table.y))
