"""Ten times ten folds of a set: our batched networks, one PyTorch network per fold, and scikit-learn's.

All three train the same shape for the same number of epochs with the same batch size, in one process with the same
number of threads; times are per fit, and the ratios within one run are what counts. The plain loop is the usual one:
`nn.Linear`, `F.cross_entropy`, `torch.optim.AdamW`. The loss is softmax for all three, because the other two have no
other.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from widemargin.data.tabular.encode import EncodedTable, encode, scaling
from widemargin.data.tabular.table import Table
from widemargin.tabular.config import MLPConfig, add_data_options
from widemargin.tabular.crossval import Partition, cross_validate, partitions

ROUNDS = 3
PEER_NAMES = ("plain PyTorch, fold by fold", "scikit-learn's MLPClassifier")


def measure_crossval(table: Table, epochs: float, fits: int, seed: int = 0) -> dict[str, Any]:
    """Seconds per fit and accuracy of ours on 100 folds, and of the others on the first `fits` of them."""
    split = partitions(table.y, 10, 10, seed)
    # The same amount of work for all: fixed epochs, no minimum of steps, plain scaling for the others.
    config = replace(MLPConfig(), epochs=epochs, min_steps=1)
    cross_validate(table, "softmax", split[:2], replace(config, epochs=1.0), seed)  # first calls are slow
    result: dict[str, Any] = {"set": table.name, "epochs": epochs, "hidden": config.hidden, "batch": config.batch}
    few = split[:: max(1, len(split) // fits)][:fits]
    encoded = encode(table)
    ways: dict[str, Callable[[], tuple[int, list[float]]]] = {
        "ours": lambda: (len(split), cross_validate(table, "softmax", split, config, seed).folds),
        PEER_NAMES[0]: lambda: (len(few), _plain_pytorch_accuracies(encoded, table, few, config)),
        PEER_NAMES[1]: lambda: (len(few), _sklearn_accuracies(encoded, table, few, config)),
    }
    for _ in range(ROUNDS):  # alternating, and the best of each: other load affects all equally
        for name, way in ways.items():
            start = time.perf_counter()
            count, folds = way()
            spent = (time.perf_counter() - start) / count
            best = min(spent, result.get(name, {}).get("seconds_per_fit", spent))
            result[name] = {"seconds_per_fit": best, "accuracy": float(np.mean(folds))}
    return result


def _scale_features(encoded: EncodedTable, part: Partition) -> NDArray[np.float64]:
    shift, scale, fill = scaling(encoded, [part.training])
    x = encoded.x if fill is None else np.where(np.isnan(encoded.x), fill[0], encoded.x)
    scaled: NDArray[np.float64] = x * scale[0] + shift[0]
    return scaled


def _plain_pytorch_accuracies(
    encoded: EncodedTable, table: Table, split: Sequence[Partition], config: MLPConfig
) -> list[float]:
    """One network per fold, in a plain loop."""
    accuracies = []
    for k, part in enumerate(split):
        torch.manual_seed(k)
        x = torch.from_numpy(_scale_features(encoded, part)).float()
        y = torch.from_numpy(table.y)
        first, second = config.hidden
        network = nn.Sequential(
            nn.Linear(x.shape[1], first),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(first, second),
            nn.Linear(second, len(table.class_names), bias=False),
        )
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
        rows = torch.from_numpy(part.training)
        steps, batch = config.steps_and_batch(len(rows))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        done = 0
        while done < steps:
            for chosen in torch.split(rows[torch.randperm(len(rows))], batch):
                if done == steps:
                    break
                loss = nn.functional.cross_entropy(network(x[chosen]), y[chosen])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                done += 1
        network.eval()
        with torch.no_grad():
            answers = network(x[part.test]).argmax(1).numpy()
        accuracies.append(float((answers == table.y[part.test]).mean() * 100))
    return accuracies


def _sklearn_accuracies(
    encoded: EncodedTable, table: Table, split: Sequence[Partition], config: MLPConfig
) -> list[float]:
    """scikit-learn's network of the same shape, for the same number of epochs."""
    from sklearn.neural_network import MLPClassifier

    accuracies = []
    for k, part in enumerate(split):
        x = _scale_features(encoded, part)
        epochs = max(1, round(config.epochs))
        model = MLPClassifier(
            config.hidden,
            batch_size=min(config.batch, len(part.training)),
            max_iter=epochs,
            n_iter_no_change=epochs,
            random_state=k,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(x[part.training], table.y[part.training])
        accuracies.append(float((model.predict(x[part.test]) == table.y[part.test]).mean() * 100))
    return accuracies


def print_crossval(sets: str | None, data_dir: str | None, epochs: float, fits: int, json_path: str | None) -> None:
    """Measure and print the table of ratios."""
    from rich.table import Table as Grid

    from widemargin.data.tabular.uci import load_uci_set
    from widemargin.viz.terminal import check_writable, console

    if json_path:
        check_writable(json_path)
    tables = [load_uci_set(name.strip(), data_dir) for name in (sets or "iris").split(",")]
    results = [measure_crossval(table, epochs, fits) for table in tables]
    grid = Grid(
        title=f"Milliseconds per fit, {epochs:g} epochs, {torch.get_num_threads()} threads", title_justify="left"
    )
    for column in ("set", "ours", *PEER_NAMES, "times faster", "accuracy of the three"):
        grid.add_column(column, justify="left" if column == "set" else "right", overflow="fold")
    for row in results:
        ours = row["ours"]["seconds_per_fit"]
        theirs = [row[name]["seconds_per_fit"] for name in PEER_NAMES]
        accuracy = [row[name]["accuracy"] for name in ("ours", *PEER_NAMES)]
        grid.add_row(
            row["set"],
            f"{ours * 1e3:.2f}",
            *(f"{seconds * 1e3:.1f}" for seconds in theirs),
            " / ".join(f"{seconds / ours:.0f}×" for seconds in theirs),
            " / ".join(f"{value:.1f}" for value in accuracy),
        )
    console().print(grid)
    if json_path:
        with open(json_path, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--sets", help="names of sets, with commas (default iris)")
    parser.add_argument("--epochs", type=float, default=60.0, help="epochs of every fit (default 60)")
    parser.add_argument("--fits", type=int, default=5, help="fits of the other two (default 5; ours are 100)")
    add_data_options(parser)
    parser.add_argument("--json", metavar="FILE", help="also write the results to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    print_crossval(options.sets, options.data_dir, options.epochs, options.fits, options.json)
