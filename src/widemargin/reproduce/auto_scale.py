"""Auto-scale: can ArcGrad choose its own s? Four candidates against the best fixed s chosen on held-out rows.

    widemargin reproduce auto_scale

15 UCI sets (two runs of ten folds) and the table of 50 classes (one fold in five). The fixed scale is chosen from
eight on a fifth of each training part; AdaCos and AdaAcos (with a floor of 2 for two classes) and ArcGrad at s = 10 are
references. A candidate would become `arcgrad(s=auto)` if it were not significantly worse than the chosen fixed scale on
any set (corrected t-test, Holm over the sets) and its mean difference had an interval above −0.5 points.
Cost: about 2 minutes on one core with --small, 10 without. Expected
(records/auto_scale.json): see docs/findings.md and docs/log.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ..data.tabular.table import Table
    from ..losses.base import Loss
    from ..tabular.config import MLPConfig
    from ..tabular.crossval import Partition

KEYS = ("set", "method")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts.cells import add_cell_arguments

    parser.add_argument("--cv-repeats", type=int, default=2, help="runs of ten folds on the UCI sets (default 2)")
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="only these sets")
    parser.add_argument("--small", action="store_true", help="without the table of 50 classes")
    add_cell_arguments(parser, "auto_scale")


def run(options: argparse.Namespace) -> None:
    """Train missing cells, print the table, write record and page."""
    from ..data.tabular.uci import TABLE1_SET_NAMES
    from ..io.errors import unknown_name_error
    from ..io.locks import lock_folder
    from .parts import auto_scale_page
    from .parts.cells import CellStore, write_record
    from .parts.scale_grids import FIFTY_CLASSES, load_table

    names = (*TABLE1_SET_NAMES, FIFTY_CLASSES)
    methods = auto_scale_page.METHODS
    for name in options.sets or ():
        if name not in names:
            raise unknown_name_error("set", name, names)
    out, chosen = Path(options.out or "auto_scale"), list(options.sets or (names[:-1] if options.small else names))
    cells = [{"set": name, "method": method} for name in chosen for method in methods]
    store = CellStore(out, KEYS)
    if options.list:
        print(f"{len(store.select(cells))} of {len(cells)} cells are finished")
        return
    with lock_folder(out):
        for name in chosen:
            missing = [method for method in methods if not store.has_all([{"set": name, "method": method}])]
            if missing:
                table = load_table(name, options.data_dir)
                split = split_table(table, name == FIFTY_CLASSES, options.cv_repeats, options.seed)
                for method in missing:
                    row = train_method(table, method, split, options.seed)
                    test = {"test_share": round(_test_share(split), 4), "test_rows": len(split[0].test)}
                    store.add([{"set": name, "method": method, **test, **row}])
        rows = store.select(cells)
        command = "widemargin reproduce auto_scale" + (" --small" if options.small else "")
        command += f" --sets {' '.join(options.sets)}" if options.sets else ""
        write_record(out / "record.json", command, [options.seed], rows)
    auto_scale_page.print_differences(rows)
    page = out / "report.html"
    page.write_text(auto_scale_page.render_page(rows, command), encoding="utf-8")
    print(f"wrote {page} and {out / 'record.json'}")


def split_table(table: Table, is_large: bool, cv_repeats: int, seed: int) -> list[Partition]:
    """Two runs of ten folds, or the first of five folds of the large table."""
    from ..tabular.crossval import partitions

    return partitions(table.y, 1, 5, seed)[:1] if is_large else partitions(table.y, cv_repeats, 10, seed)


def _test_share(split: Sequence[Partition]) -> float:
    return len(split[0].test) / (len(split[0].training) + len(split[0].test))


def train_method(table: Table, method: str, split: Sequence[Partition], seed: int) -> dict[str, Any]:
    """Accuracy of every fold; of the chosen fixed scale also which it was."""
    from ..io.text import print_stderr
    from .parts.auto_scale_page import CANDIDATES, FIXED, REFERENCES
    from .parts.auto_scales import candidates
    from .parts.scale_grids import config_for, fold_accuracies

    print_stderr(f"{table.name}: {method}")
    config = config_for(table, split)
    if method == FIXED:
        accuracies, scales = chosen_scale_accuracies(table, split, config, seed)
        return {"folds": [round(float(v), 2) for v in accuracies], "scales": scales}
    steps = config.steps_and_batch(min(len(part.training) for part in split))[0]
    loss: str | Loss = candidates(steps)[method] if method in CANDIDATES else REFERENCES[method]
    accuracies = fold_accuracies(table, loss, split, config, seed)[0]
    return {"folds": [round(float(v), 2) for v in accuracies], "scales": []}


def chosen_scale_accuracies(
    table: Table, split: Sequence[Partition], config: MLPConfig, seed: int
) -> tuple[NDArray[np.float64], list[float]]:
    """Accuracy of each fold at the scale that was best on a held-out fifth of its training part; of several equally
    good ones the middle one."""
    import numpy as np

    from ..tabular.crossval import Partition
    from ..tabular.early_stopping import train_validation_split
    from .parts.scale_grids import SCALES, fold_accuracies, grid_settings

    inner = []
    for k, part in enumerate(split):
        training, validation = train_validation_split(table.y[part.training], 0.2, (seed, k, 4))
        inner.append(Partition(part.training[training], part.training[validation]))
    settings = grid_settings(["arcgrad"])
    held_out = fold_accuracies(table, "arcgrad", inner, config, seed, settings)
    tested = fold_accuracies(table, "arcgrad", split, config, seed, settings)
    places = []
    for column in held_out.T:
        best = np.flatnonzero(column >= column.max() - 1e-9)
        places.append(int(best[len(best) // 2]))
    return tested[places, np.arange(len(split))], [SCALES[place] for place in places]
