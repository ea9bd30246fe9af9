"""Scale: is one number easy to choose? Accuracy against s (ArcGrad, NormFace) and over (s, m) (CosFace, ArcFace).

    widemargin reproduce scale uci        15 UCI sets, 2 × 10 folds, 80 settings; about 5 minutes on one core
    widemargin reproduce scale fifty      20,000 rows of 50 classes, one fold in five; about 9 minutes on one core
    widemargin reproduce scale cifar10    the small network, 10 epochs, 16 settings; 5 minutes each on two cores
    widemargin reproduce scale omniglot   121 unseen characters, 16 settings; half a minute each on one core

The result is the width of the plateau: which scales are within a point of a loss's own best setting. Expected
(records/scale_uci.json, scale_fifty.json, scale_omniglot.jsonl): on the small sets every scale of ArcGrad and NormFace
is on it; with 50 classes small scales are not, on Omniglot large ones are not. CIFAR-10 is not measured yet.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..training.config import TrainConfig
    from .parts.cells import CellStore
    from .parts.scale_grids import Setting

TABLES = ("uci", "fifty")
IMAGES = ("cifar10", "omniglot")
KEYS = ("set", "loss", "s", "m")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts.cells import add_cell_arguments
    from .parts.runs import add_records_argument

    parser.add_argument("which", choices=(*TABLES, *IMAGES), help="the data")
    parser.add_argument("--cv-repeats", type=int, default=2, help="of uci: runs of ten folds (default 2)")
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="of uci: only these sets")
    add_cell_arguments(parser, "scale_WHICH")
    parser.add_argument("--runs-dir", metavar="DIR", default="runs", help="folder of the runs on images")
    add_records_argument(parser)


def run(options: argparse.Namespace) -> None:
    """Train missing cells or runs, print the plateaus, write record and page."""
    from ..io.errors import InputError
    from ..io.locks import lock_folder
    from .parts import scale_page
    from .parts.cells import CellStore, write_record

    out = Path(options.out or f"scale_{options.which}")
    if options.which in IMAGES:
        _run_images(options, out)
        return
    if options.records:
        raise InputError(
            f"--records is for cifar10 and omniglot: cells of {options.which} go on in their folder, --out"
        )
    names, settings = _sets(options), _settings(options.which)
    cells = [_key_values(name, setting) for name in names for setting in settings]
    store = CellStore(out, KEYS)
    if options.list:
        print(f"{len(store.select(cells))} of {len(cells)} cells are finished")
        return
    with lock_folder(out):
        for name in names:
            _complete_set(name, settings, store, options)
        rows = store.select(cells)
        command = f"widemargin reproduce scale {options.which}"
        write_record(out / "record.json", command, [options.seed], rows)
    scale_page.print_plateaus(rows)
    page = out / "report.html"
    page.write_text(scale_page.render_page(rows, command), encoding="utf-8")
    print(f"wrote {page} and {out / 'record.json'}")


def _sets(options: argparse.Namespace) -> list[str]:
    from ..data.tabular.uci import TABLE1_SET_NAMES
    from ..io.errors import unknown_name_error
    from .parts.scale_grids import FIFTY_CLASSES

    if options.which == "fifty":
        return [FIFTY_CLASSES]
    for name in options.sets or ():
        if name not in TABLE1_SET_NAMES:
            raise unknown_name_error("set", name, TABLE1_SET_NAMES)
    return list(options.sets or TABLE1_SET_NAMES)


def _settings(which: str) -> list[Setting]:
    from .parts.scale_grids import FEW_MARGINS, FEW_SCALES, grid_settings

    if which == "uci":
        return grid_settings()
    return grid_settings(["arcgrad", "normface"]) + grid_settings(["cosface", "arcface"], FEW_SCALES, FEW_MARGINS)


def _key_values(name: str, setting: Setting) -> dict[str, Any]:
    return {"set": name, "loss": setting.loss, "s": setting.s, "m": setting.m}


def _complete_set(name: str, settings: list[Setting], store: CellStore, options: argparse.Namespace) -> None:
    """Train what is missing of one set, a loss at a time: all its settings and folds are one stack."""
    from ..io.text import print_stderr
    from ..tabular.crossval import partitions
    from .parts.scale_grids import config_for, fold_accuracies, load_table

    table = None
    for loss in dict.fromkeys(setting.loss for setting in settings):
        missing = [s for s in settings if s.loss == loss and not store.has_all([_key_values(name, s)])]
        if not missing:
            continue
        table = table or load_table(name, options.data_dir)
        is_large = options.which == "fifty"
        split = partitions(table.y, 1 if is_large else options.cv_repeats, 5 if is_large else 10, options.seed)
        split = split[:1] if is_large else split
        config = config_for(table, split)
        # Models of a large table are trained a few at a time, so that an interruption loses little.
        step = 4 if is_large else len(missing)
        for start in range(0, len(missing), step):
            chosen = missing[start : start + step]
            print_stderr(f"{name}: {chosen[0]} to {chosen[-1]}")
            accuracies = fold_accuracies(table, loss, split, config, options.seed, chosen)
            store.add(
                [
                    {**_key_values(name, setting), "accuracy": round(float(row.mean()), 3), "folds": len(row)}
                    for setting, row in zip(chosen, accuracies, strict=True)
                ]
            )


def image_configs(which: str, seed: int) -> dict[Setting, TrainConfig]:
    """The runs on images: the usual settings of their recipes with the loss at sixteen settings."""
    from dataclasses import replace

    from .parts.openset_methods import OMNIGLOT_CONFIG
    from .parts.runs import make_image_config
    from .parts.scale_grids import image_settings

    settings = image_settings()
    if which == "cifar10":
        return {s: make_image_config("cpu", "cifar10", str(s), seed, augment="paper") for s in settings}
    return {setting: replace(OMNIGLOT_CONFIG, loss=str(setting), seed=seed) for setting in settings}


def _run_images(options: argparse.Namespace, out: Path) -> None:
    from .parts import scale_page
    from .parts.openset_methods import OpenSetMethod, train_own_loss
    from .parts.openset_table import complete_openset_runs
    from .parts.runs import add_finished_runs, complete_image_runs, read_record
    from .parts.scale_grids import image_rows

    configs = image_configs(options.which, options.seed)
    options.out, options.executor = str(out), "local"
    if options.which == "cifar10":
        complete_image_runs(configs.values(), options, "scale_cifar10")
    else:
        methods = [OpenSetMethod(str(setting), config, train_own_loss) for setting, config in configs.items()]
        add_finished_runs(options.records, configs.values(), Path(options.runs_dir))
        complete_openset_runs(methods, range(options.seed, options.seed + 1), options, "scale_omniglot")
    found = [read_record(config, Path(options.runs_dir)) for config in configs.values()]
    rows = image_rows(record for record in found if record is not None)
    if not rows:
        return
    scale_page.print_plateaus(rows)
    page = out / "report.html"
    command = f"widemargin reproduce scale {options.which}" + (f" --seed {options.seed}" if options.seed else "")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(scale_page.render_page(rows, command), encoding="utf-8")
    print(f"{len(rows)} of {len(configs)} settings; wrote {page}")
