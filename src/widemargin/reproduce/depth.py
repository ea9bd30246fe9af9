"""Depth: where does each loss still learn Iris, from 3 to 10 layers? The conditions of Figure 2, mapped.

    widemargin reproduce depth

Figure 2 states neither initialisation nor widths, optimizer, rate or steps. All of them are varied here (216 settings
for each loss and depth, five folds each), and a loss learns where its mean accuracy is at least 80 %. Cost: about
12 minutes on one core; `--quick` is a minute. Expected (records/depth.json): every loss loses settings with depth,
and in no setting are softmax, ArcFace and AdaCos at chance while ArcGrad learns; the shares are in docs/findings.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..data.tabular.table import Table
    from .parts.cells import Row

DEPTHS = (3, 6, 10)
WIDTHS = (8, 32)
EMBEDDINGS = ("linear", "relu")
RATES = {"adam": (1e-3, 1e-2, 1e-1), "sgd": (1e-2, 1e-1, 1.0)}
STEPS_AND_BATCH = ((100, 16), (500, 16), (100, 120))
FOLDS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts.cells import add_cell_arguments

    parser.add_argument("--quick", action="store_true", help="two losses, 3 and 10 layers, width 8, 100 steps only")
    add_cell_arguments(parser, "depth")


def run(options: argparse.Namespace) -> None:
    """Train missing cells, print the table, write record and page."""
    from ..data.tabular.uci import load_uci_set
    from ..io.locks import lock_folder
    from .parts.cells import CellStore, write_record
    from .parts.depth_map import KEYS

    out = Path(options.out or "depth")
    stacks = list(stack_settings(options.quick))
    store = CellStore(out, KEYS)
    missing = [stack for stack in stacks if not store.has_all(stack_cells(stack))]
    if options.list:
        total = sum(len(list(stack_cells(stack))) for stack in missing)
        print(f"{len(stacks) - len(missing)} of {len(stacks)} stacks are finished, {total} cells are missing")
        return
    table = load_uci_set("iris_uci", options.data_dir)
    with lock_folder(out):
        for number, stack in enumerate(missing, 1):
            _report_progress(number, len(missing), stack)
            store.add(train_stack(table, stack, options.seed))
        rows = store.select(cell for stack in stacks for cell in stack_cells(stack))
        command = "widemargin reproduce depth" + (" --quick" if options.quick else "")
        write_record(out / "record.json", command, [options.seed], rows)
    from .parts import depth_map

    depth_map.print_regions(rows)
    page = out / "report.html"
    page.write_text(depth_map.render_page(rows, command), encoding="utf-8")
    print(f"wrote {page} and {out / 'record.json'}")


def stack_settings(is_quick: bool = False) -> Iterator[dict[str, Any]]:
    """Settings whose models train as one stack: all but initialisation and rate."""
    from .paper import TABLE1_LOSSES

    losses: Sequence[str] = list(TABLE1_LOSSES.values())
    depths: Sequence[int] = DEPTHS
    widths: Sequence[int] = WIDTHS
    lengths: Sequence[tuple[int, int]] = STEPS_AND_BATCH
    if is_quick:
        losses, depths = ["softmax", "arcgrad(s=5)"], (3, 10)
        widths, lengths = WIDTHS[:1], STEPS_AND_BATCH[:1]
    # Loss by loss innermost, so that an interrupted map has compared all losses equally often.
    for width, layers, (steps, batch), opt, embedding, loss in product(
        widths, depths, lengths, RATES, EMBEDDINGS, losses
    ):
        yield {
            "loss": loss,
            "layers": layers,
            "width": width,
            "embedding": embedding,
            "opt": opt,
            "steps": steps,
            "batch": batch,
        }


def stack_cells(stack: dict[str, Any]) -> Iterator[Row]:
    """The cells of a stack."""
    from .parts.depth_models import INITS

    for init, lr in product(INITS, RATES[stack["opt"]]):
        yield {**stack, "init": init, "lr": lr}


def train_stack(table: Table, stack: dict[str, Any], seed: int) -> list[Row]:
    """Train all folds of all cells of a stack at once; a cell's accuracy is that of all its test rows together."""
    import torch

    from ..data.tabular.encode import encode
    from ..tabular.config import MLPConfig
    from ..tabular.crossval import partitions
    from ..tabular.model_stacks import build_stacked_table, predictions
    from .parts.depth_models import DepthTrainer, ModelStart

    split = partitions(table.y, 1, FOLDS, seed, stratify=True)
    cells = list(stack_cells(stack))
    models = [
        ModelStart(cell["init"], cell["lr"], part.training, (seed, k)) for cell in cells for k, part in enumerate(split)
    ]
    parts = [model.rows for model in models]
    stacked = build_stacked_table(encode(table), table.y, len(table.class_names), parts, torch.float32)
    hidden = (stack["width"],) * (stack["layers"] - 1)
    config = MLPConfig(hidden=hidden, lr=1.0, weight_decay=0.0, dropout=0.0)
    trainer = DepthTrainer(
        stack["loss"],
        stacked,
        models,
        config,
        (stack["steps"], stack["batch"]),
        stack["opt"],
        stack["embedding"] == "relu",
    )
    trainer.run()
    tests = [part.test for _ in cells for part in split]
    answers = predictions(trainer, tests)
    right = [int((answers[k, : len(test)] == table.y[test]).sum()) for k, test in enumerate(tests)]
    return [
        {**cell, "accuracy": round(100.0 * sum(right[k * FOLDS : (k + 1) * FOLDS]) / len(table), 2)}
        for k, cell in enumerate(cells)
    ]


def _report_progress(number: int, total: int, stack: dict[str, Any]) -> None:
    from ..io.text import print_stderr

    if number % 20 == 1:
        print_stderr(f"stack {number} of {total}: {stack['layers']} layers of {stack['width']}, {stack['steps']} steps")
